"""Async functions, run for threads that wait for them."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, Awaitable, Callable, TypeVar

log = logging.getLogger("tenure")

R = TypeVar("R")


class Loop:
    """The event loop that async functions run in: the caller's, or one in a thread of its own, begun when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own: threading.Thread | None = None

    def adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on this one, which is the caller's."""
        with self._lock:
            self._loop = loop

    def get(self) -> asyncio.AbstractEventLoop:
        """A loop that runs."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._own = threading.Thread(target=_run_on, args=(self._loop,), name="tenure-loop", daemon=True)
                self._own.start()
            return self._loop

    def close(self) -> None:
        """Ends the one of its own, if there is one."""
        if self._own is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._own.join(1.0)
            if not self._own.is_alive():
                self._loop.close()


def _run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Until it is stopped. SystemExit in any task of a tool ends `run_forever`, and all other tasks with it."""
    while True:
        try:
            loop.run_forever()
            return
        except (SystemExit, KeyboardInterrupt) as raised:
            log.error("a task of a tool raised %r; the event loop goes on", raised)


async def in_thread(work: Callable[[], R]) -> R:
    """Does it in a thread of its own, which does not keep the process alive. Those of the loop are tools' own, and may all be taken."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def tell(how: Callable[[Any], None], what: Any) -> None:
        if not done.done():
            how(what)

    def run() -> None:
        how: tuple[Callable[[Any], None], Any]
        try:
            how = done.set_result, work()
        except BaseException as raised:  # whoever waits is told
            how = done.set_exception, raised
        try:
            loop.call_soon_threadsafe(tell, *how)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    threading.Thread(target=run, name="tenure-worker", daemon=True).start()
    return await done


class Task:
    """Async work for which a thread waits until it is really over, also when it was cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def cancel(self) -> None:
        """Cancels what runs, and whatever would be run later."""
        with self._lock:
            self._cancelled, running = True, self._running
        if running is not None:
            try:
                running[0].call_soon_threadsafe(running[1].cancel)
            except RuntimeError:  # the loop is closed: its tasks are over
                pass

    def run(self, work: Awaitable[Any], loop: asyncio.AbstractEventLoop) -> Any:
        """Its result, or what it raised."""
        over = threading.Event()
        ended: list[Callable[[], Any]] = []

        def end(how: Callable[[], Any]) -> None:
            ended.append(how)
            over.set()

        def raising(raised: BaseException) -> Callable[[], Any]:
            def again() -> Any:
                raise raised

            return again

        async def awaited() -> Callable[[], Any]:
            try:
                result = await work
                return lambda: result
            except (SystemExit, KeyboardInterrupt) as raised:
                # Handed on as a value: asyncio would raise them out of the loop, which is everybody's.
                return raising(raised)

        def begin() -> None:
            try:
                task = loop.create_task(awaited())
            except BaseException as raised:  # a thread waits for the end of what can not begin
                end(raising(raised))
                raise
            task.add_done_callback(lambda task: end(lambda: task.result()()))
            with self._lock:
                self._running = (loop, task)
                cancelled = self._cancelled
            if cancelled:
                task.cancel()

        loop.call_soon_threadsafe(begin)
        over.wait()
        return ended[0]()
