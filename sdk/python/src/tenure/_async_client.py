"""The same client for asyncio. Its requests are made in threads of their own: the standard library has no HTTP for asyncio, and a
dependency for this would be one for everybody.

A thread can not be interrupted, so nothing that may last holds one: a wait is a loop in the coroutine of requests that last seconds,
and they have threads of their own. Were they those of all others, an approval could stand in line behind the very jobs that wait for
it; and a wait that was given up would keep its thread for ever.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from datetime import datetime
from typing import Any, AsyncIterator, Callable, Iterator, Mapping, Sequence, TypeVar

from ._client import _UNSAID, Client, Gate, Verdict
from ._crew import Crew
from ._http import Servers
from ._results import Batch, Collected, Event, Job, Step
from ._tls import Tls

T = TypeVar("T")
_END: Any = object()

WATCHED_MAX = 256
"""Events of a watch that wait for their reader."""
REQUESTS_MAX = 64
"""Requests under way at once; more wait for their turn."""
WAITS_MAX = 64
"""Requests that wait for the end of a job, at once. More waits than that take turns."""
WAIT_SECONDS_MAX = 5.0
"""One request waits no longer: for so long a wait that was given up still has its thread."""


class AsyncClient:
    """A server, for whoever has jobs and an event loop. See `Client` for what each does."""

    def __init__(
        self,
        url: Servers = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retry_for: float = 30.0,
        tls: Tls | None = None,
    ) -> None:
        self._client = Client(url, api_key, timeout=timeout, retry_for=retry_for, tls=tls)
        self._crew = Crew(REQUESTS_MAX, "tenure-client")
        self._waiters = Crew(WAITS_MAX, "tenure-client-wait")
        self._waits = 0
        self._closed = threading.Event()

    async def close(self) -> None:
        """Lets go of its connections."""
        self._closed.set()
        self._crew.close()
        self._waiters.close()
        self._client.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _need_open(self) -> None:
        """Its threads end with it: who asks them afterwards would wait for ever."""
        if self._closed.is_set():
            raise RuntimeError("this client is closed; make a new one")

    async def _do(self, work: Callable[[], T], crew: Crew | None = None) -> T:
        self._need_open()
        done: T = await asyncio.wrap_future((crew or self._crew).submit(work))
        return done

    async def _made(self, work: Callable[[], Job], wait: float | None) -> Job:
        began = time.monotonic()
        job = await self._do(work)
        if wait is None or job.is_final:
            return job
        done = await self.wait(job.id, max(0.0, wait - (time.monotonic() - began)))
        return dataclasses.replace(done, existed=job.existed)

    async def _each(self, iterator: Iterator[T]) -> AsyncIterator[T]:
        while (item := await self._do(lambda: next(iterator, _END))) is not _END:
            yield item

    async def submit(
        self,
        flow: str | None = None,
        input: Any = None,
        *,
        plan: Any = None,
        key: str | None = None,
        wait: float | None = None,
        version: int | None = None,
        priority: int | None = None,
        must_end_in: float | None = None,
        tenant: str | None = None,
        by: str | None = None,
        start_in_seconds: float | None = None,
        start_at: str | datetime | None = None,
        gate: str | Gate | None = None,
        queue: str | None = None,
        needs: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        terms: Mapping[str, Any] | None = None,
    ) -> Job:
        """See `Client.submit`."""
        return await self._made(
            lambda: self._client.submit(
                flow,
                input,
                plan=plan,
                key=key,
                version=version,
                priority=priority,
                must_end_in=must_end_in,
                tenant=tenant,
                by=by,
                start_in_seconds=start_in_seconds,
                start_at=start_at,
                gate=gate,
                queue=queue,
                needs=needs,
                labels=labels,
                terms=terms,
            ),
            wait,
        )

    async def collect(
        self,
        flow: str,
        input: Any = None,
        *,
        batch: Mapping[str, Any] | None = None,
        debounce: Mapping[str, Any] | None = None,
        key: str | None = None,
        version: int | None = None,
        priority: int | None = None,
        must_end_in: float | None = None,
        tenant: str | None = None,
        by: str | None = None,
        start_in_seconds: float | None = None,
        start_at: str | datetime | None = None,
        gate: str | Gate | None = None,
        queue: str | None = None,
        needs: Sequence[str] | None = None,
        terms: Mapping[str, Any] | None = None,
    ) -> Collected:
        """See `Client.collect`."""
        return await self._do(
            lambda: self._client.collect(
                flow,
                input,
                batch=batch,
                debounce=debounce,
                key=key,
                version=version,
                priority=priority,
                must_end_in=must_end_in,
                tenant=tenant,
                by=by,
                start_in_seconds=start_in_seconds,
                start_at=start_at,
                gate=gate,
                queue=queue,
                needs=needs,
                terms=terms,
            )
        )

    async def batch(self, batch: str) -> Batch:
        """See `Client.batch`."""
        return await self._do(lambda: self._client.batch(batch))

    async def retry(self, job: str, *, version: int | None = None, key: str | None = None, wait: float | None = None) -> Job:
        """See `Client.retry`."""
        return await self._made(lambda: self._client.retry(job, version=version, key=key), wait)

    async def fork(
        self, job: str, step: str, *, version: int | None = None, key: str | None = None, wait: float | None = None
    ) -> Job:
        """See `Client.fork`."""
        return await self._made(lambda: self._client.fork(job, step, version=version, key=key), wait)

    async def get(self, job: str) -> Job:
        """See `Client.get`."""
        return await self._do(lambda: self._client.get(job))

    async def wait(self, job: str, timeout: float | None = None) -> Job:
        """See `Client.wait`."""
        until = None if timeout is None else time.monotonic() + timeout
        self._waits += 1
        try:
            while True:
                # All of them within those seconds, also where there are more than threads.
                left = WAIT_SECONDS_MAX * min(1.0, WAITS_MAX / self._waits)
                if until is not None:
                    left = min(left, max(0.0, until - time.monotonic()))
                found = await self._do(lambda: self._client.wait(job, left), self._waiters)
                if found.is_final or (until is not None and time.monotonic() >= until):
                    return found
        finally:
            self._waits -= 1

    async def why(self, job: str) -> str:
        """See `Client.why`."""
        return await self._do(lambda: self._client.why(job))

    async def steps(self, job: str) -> list[Step]:
        """See `Client.steps`."""
        return await self._do(lambda: self._client.steps(job))

    def events(self, job: str) -> AsyncIterator[Event]:
        """See `Client.events`."""
        return self._each(self._client.events(job))

    async def watch(self, job: str, *, from_version: int = 1, quiet_seconds: float = 60.0) -> AsyncIterator[Event]:
        """See `Client.watch`. Each has a thread of its own, which ends soon after nobody looks any more."""
        self._need_open()
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Any] = asyncio.Queue()
        # The thread waits while the reader has this many events before it.
        room = threading.Semaphore(WATCHED_MAX)
        given_up = threading.Event()

        def stopped() -> bool:
            return given_up.is_set() or self._closed.is_set()

        def tell(what: Any) -> None:
            try:
                loop.call_soon_threadsafe(events.put_nowait, what)
            except RuntimeError:  # the loop is closed: nobody looks any more
                given_up.set()

        def follow() -> None:
            try:
                for event in self._client._watch(job, from_version, quiet_seconds, stopped):
                    while not room.acquire(timeout=0.5):
                        if stopped():
                            return
                    tell(event)
                tell(_END)
            except BaseException as problem:  # whoever looks is told
                tell(problem)

        threading.Thread(target=follow, name="tenure-client-watch", daemon=True).start()
        try:
            while (item := await events.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                room.release()
                yield item
        finally:
            given_up.set()

    def list(
        self,
        *,
        status: str | None = None,
        flow: str | None = None,
        attention: bool | None = None,
        id: str | None = None,
        id_end: str | None = None,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        created_after: str | datetime | None = None,
        created_before: str | datetime | None = None,
        tenant: str | None = None,
        page: int = 50,
    ) -> AsyncIterator[Job]:
        """See `Client.list`."""
        return self._each(
            self._client.list(
                status=status,
                flow=flow,
                attention=attention,
                id=id,
                id_end=id_end,
                key=key,
                labels=labels,
                name=name,
                created_after=created_after,
                created_before=created_before,
                tenant=tenant,
                page=page,
            )
        )

    def dead_letters(self, *, tenant: str | None = None, page: int = 50) -> AsyncIterator[Job]:
        """See `Client.dead_letters`."""
        return self._each(self._client.dead_letters(tenant=tenant, page=page))

    async def signal(self, job: str, key: str, payload: Any = None, *, early: bool = False, by: str | None = None) -> str:
        """See `Client.signal`."""
        return await self._do(lambda: self._client.signal(job, key, payload, early=early, by=by))

    async def approve(self, job: str, key: str, comment: str | None = None, *, by: str | None = None) -> str:
        """See `Client.approve`."""
        return await self._do(lambda: self._client.approve(job, key, comment, by=by))

    async def reject(self, job: str, key: str, comment: str | None = None, *, by: str | None = None) -> str:
        """See `Client.reject`."""
        return await self._do(lambda: self._client.reject(job, key, comment, by=by))

    async def cancel(self, job: str, why: str | None = None, *, by: str | None = None) -> str:
        """See `Client.cancel`."""
        return await self._do(lambda: self._client.cancel(job, why, by=by))

    async def pause(self, job: str, why: str | None = None, *, by: str | None = None) -> str:
        """See `Client.pause`."""
        return await self._do(lambda: self._client.pause(job, why, by=by))

    async def resume(self, job: str, why: str | None = None, *, by: str | None = None) -> str:
        """See `Client.resume`."""
        return await self._do(lambda: self._client.resume(job, why, by=by))

    async def resolve(
        self, job: str, step: str, verdict: Verdict, result: Any = _UNSAID, *, note: str | None = None, by: str | None = None
    ) -> str:
        """See `Client.resolve`."""
        return await self._do(lambda: self._client.resolve(job, step, verdict, result, note=note, by=by))

    async def discard(self, job: str) -> str:
        """See `Client.discard`."""
        return await self._do(lambda: self._client.discard(job))
