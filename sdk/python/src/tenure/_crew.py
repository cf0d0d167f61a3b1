"""Threads that do not keep the process alive. The executor of the standard library joins its threads when the process ends, so one
tool that hangs would make a worker that can not be stopped."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import Any, Callable


class Crew:
    """Up to `size` daemon threads, started when they are needed."""

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Does it in one of the threads."""
        future: Future[Any] = Future()
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._started < self._size:
                self._started += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
        self._work.put((future, work))
        return future

    def close(self) -> None:
        """The threads end when they have done what they were given."""
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as problem:  # a thread must not end silently: whoever asked is told
                    future.set_exception(problem)
            with self._lock:
                self._idle += 1
