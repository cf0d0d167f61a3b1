"""The same client for asyncio. Its requests are made in threads of their own: the standard library has no HTTP for asyncio, and a
dependency for this would be one for everybody."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Callable, Iterator, TypeVar

from ._client import _UNSAID, Client, Verdict
from ._crew import Crew
from ._results import Event, Job, Step

T = TypeVar("T")
_END: Any = object()

REQUESTS_MAX = 64
"""Requests under way at once; more wait for their turn."""


class AsyncClient:
    """A server, for whoever has jobs and an event loop. See `Client` for what each does."""

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0, retry_for: float = 30.0) -> None:
        self._client = Client(url, api_key, timeout=timeout, retry_for=retry_for)
        self._crew = Crew(REQUESTS_MAX, "tenure-client")

    async def close(self) -> None:
        """Lets go of its connections."""
        self._crew.close()
        self._client.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _do(self, work: Callable[[], T]) -> T:
        done: T = await asyncio.wrap_future(self._crew.submit(work))
        return done

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
        **terms: Any,
    ) -> Job:
        """See `Client.submit`."""
        return await self._do(
            lambda: self._client.submit(
                flow,
                input,
                plan=plan,
                key=key,
                wait=wait,
                version=version,
                priority=priority,
                must_end_in=must_end_in,
                tenant=tenant,
                by=by,
                **terms,
            )
        )

    async def retry(self, job: str, *, version: int | None = None, key: str | None = None, wait: float | None = None) -> Job:
        """See `Client.retry`."""
        return await self._do(lambda: self._client.retry(job, version=version, key=key, wait=wait))

    async def fork(
        self, job: str, step: str, *, version: int | None = None, key: str | None = None, wait: float | None = None
    ) -> Job:
        """See `Client.fork`."""
        return await self._do(lambda: self._client.fork(job, step, version=version, key=key, wait=wait))

    async def get(self, job: str) -> Job:
        """See `Client.get`."""
        return await self._do(lambda: self._client.get(job))

    async def wait(self, job: str, timeout: float | None = None) -> Job:
        """See `Client.wait`."""
        return await self._do(lambda: self._client.wait(job, timeout))

    async def why(self, job: str) -> str:
        """See `Client.why`."""
        return await self._do(lambda: self._client.why(job))

    async def steps(self, job: str) -> list[Step]:
        """See `Client.steps`."""
        return await self._do(lambda: self._client.steps(job))

    def events(self, job: str) -> AsyncIterator[Event]:
        """See `Client.events`."""
        return self._each(self._client.events(job))

    def watch(self, job: str, *, from_version: int = 1) -> AsyncIterator[Event]:
        """See `Client.watch`."""
        return self._each(self._client.watch(job, from_version=from_version))

    def list(
        self,
        *,
        status: str | None = None,
        flow: str | None = None,
        attention: bool | None = None,
        id: str | None = None,
        page: int = 50,
    ) -> AsyncIterator[Job]:
        """See `Client.list`."""
        return self._each(self._client.list(status=status, flow=flow, attention=attention, id=id, page=page))

    def dead_letters(self, *, page: int = 50) -> AsyncIterator[Job]:
        """See `Client.dead_letters`."""
        return self._each(self._client.dead_letters(page=page))

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
