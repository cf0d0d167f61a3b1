"""Async functions, run for threads that wait for them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Awaitable


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
                self._own = threading.Thread(target=self._loop.run_forever, name="tenure-loop", daemon=True)
                self._own.start()
            return self._loop

    def close(self) -> None:
        """Ends the one of its own, if there is one."""
        if self._own is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._own.join(1.0)
            if not self._own.is_alive():
                self._loop.close()


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
        tasks: list[asyncio.Task[Any]] = []

        async def awaited() -> Any:
            return await work

        def begin() -> None:
            task = loop.create_task(awaited())
            tasks.append(task)
            task.add_done_callback(lambda _: over.set())
            with self._lock:
                self._running = (loop, task)
                cancelled = self._cancelled
            if cancelled:
                task.cancel()

        loop.call_soon_threadsafe(begin)
        over.wait()
        return tasks[0].result()
