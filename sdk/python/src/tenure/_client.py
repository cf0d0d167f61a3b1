"""Jobs from the outside: submitted, read, watched, signalled, moved.

Every request can be repeated, and is: a submission without a key gets one here, so that an answer that was lost on the way does not
become a second job.
"""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from datetime import datetime
from typing import Any, Callable, Iterator, Literal, Mapping, Sequence, TypedDict

from ._agents import Agents
from ._http import BODY_MAX, Answer, Http, Servers, backoff, is_final, path, query
from ._results import Batch, Collected, Event, Job, Raw, Step
from ._tls import Tls
from ._schema import encode
from .errors import TenureError

WAIT_SECONDS_MAX = 30.0
"""One request waits no longer; a longer wait is several."""
EVENT_MAX = BODY_MAX
"""Bytes of one event of a watch."""
_UNSAID: Any = object()

class Gate(TypedDict):
    """A gate with its limit, for a gate whose limit nobody has set yet."""

    name: str
    limit: int


Verdict = Literal["happened", "did_not_happen", "abandoned"]


class Client:
    """A server, for whoever has jobs. Safe to use from several threads.

    `url` may name several servers of one deployment, as a sequence or with commas: the next is asked when one does not answer. Without
    `url` and `api_key` they are taken from TENURE_SERVER and TENURE_API_KEY, else http://127.0.0.1:7777 and none. `tls` names certificates
    for an https:// address. A server that does not answer is asked again for `retry_for` seconds; one that has never answered, for at most
    three.
    """

    def __init__(
        self,
        url: Servers = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retry_for: float = 30.0,
        tls: Tls | None = None,
    ) -> None:
        self._http = Http(url, api_key, tls)
        self._timeout, self._retry_for = timeout, retry_for
        self.agents = Agents(self)

    def close(self) -> None:
        """Lets go of its connections."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(
        self, method: str, where: str, body: Any = None, *, waits: float = 0.0, headers: Mapping[str, str] | None = None
    ) -> Answer:
        return self._http.ask(
            method, where, body, timeout=self._timeout + waits, retry_for=self._retry_for, headers=headers
        )

    # --- jobs come into being -------------------------------------------------------------------------------------------

    def submit(
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
        """Creates a job of a flow, or of a plan (`docs/plans.md`). The same `key` with the same flow and input is the same job
        (`existed`).

        With `wait`, returns when the job is final or after that number of seconds. It starts after `start_in_seconds` or at `start_at`
        (RFC 3339, or a datetime with a zone), once it has passed its `gate`, in its `queue`, with a worker that has what it `needs`.
        `labels` are names with values by which `list` finds it later.
        `terms` are members of the request that a newer server knows and this package does not. What is collected with others is
        for `collect`.
        """
        for name in ("batch", "debounce"):
            if name in (terms or {}):
                raise TypeError(f"{name}: what is collected is no job yet; use collect(…, {name}=…)")
        more = _terms(start_in_seconds, start_at, gate, queue, needs, terms)
        more = more if labels is None else {**more, "labels": dict(labels)}
        body = _wish(flow, input, plan, key, version, priority, must_end_in, tenant, by, more)
        return self._made(path("jobs"), body, wait)

    def collect(
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
        """Hands in what becomes one job together with others: `batch={"key", "max", "within_seconds"}`, or
        `debounce={"key", "quiet_seconds", "within_seconds"}`, of which the last one counts. The same `key` is taken in once."""
        if (batch is None) == (debounce is None):
            raise TypeError("give either batch or debounce")
        more = _terms(start_in_seconds, start_at, gate, queue, needs, terms)
        more = {**more, "batch": batch, "debounce": debounce}
        body = _wish(flow, input, None, key, version, priority, must_end_in, tenant, by, more)
        return Collected.of(self._ask("POST", path("jobs"), body).body)

    def batch(self, batch: str) -> Batch:
        """What became of what was collected: what is open, and the last jobs."""
        return Batch.of(self._ask("GET", path("batches", batch)).body)

    def retry(self, job: str, *, version: int | None = None, key: str | None = None, wait: float | None = None) -> Job:
        """Tries a job again that is over: a new job that goes on with what failed. Asked again, the same new job."""
        return self._made(path("jobs", job, "retry"), _given(version=version, key=key), wait)

    def fork(self, job: str, step: str, *, version: int | None = None, key: str | None = None, wait: float | None = None) -> Job:
        """A new job that goes on from another one's history, from before that step."""
        body = _given(step=step, version=version, key=key or str(uuid.uuid4()))
        return self._made(path("jobs", job, "fork"), body, wait)

    def _made(self, where: str, body: Raw, wait: float | None) -> Job:
        first = None if wait is None else min(wait, WAIT_SECONDS_MAX)
        began = time.monotonic()
        job = Job.of(self._ask("POST", where + query(wait=first), body, waits=first or 0.0).body)
        if wait is None or job.is_final or first == wait:
            return job
        done = self.wait(job.id, max(0.0, wait - (time.monotonic() - began)))
        return dataclasses.replace(done, existed=job.existed)

    # --- reading --------------------------------------------------------------------------------------------------------

    def get(self, job: str) -> Job:
        """Where it stands."""
        return Job.of(self._ask("GET", path("jobs", job)).body)

    def wait(self, job: str, timeout: float | None = None) -> Job:
        """Returns when it is final, or after so many seconds, whichever is first: look at `is_final`."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_SECONDS_MAX if until is None else min(WAIT_SECONDS_MAX, max(0.0, until - time.monotonic()))
            found = Job.of(self._ask("GET", path("jobs", job) + query(wait=round(left, 3)), waits=left).body)
            if found.is_final or (until is not None and time.monotonic() >= until):
                return found

    def why(self, job: str) -> str:
        """One sentence: what it waits for and what moves it."""
        return str(self._ask("GET", path("jobs", job, "why")).body["why"])

    def steps(self, job: str) -> list[Step]:
        """Its steps with their calls."""
        said = self._ask("GET", path("jobs", job, "steps")).body
        return [Step.from_answer(step) for step in (said["steps"] if isinstance(said, dict) else said)]

    def events(self, job: str) -> Iterator[Event]:
        """What has happened so far."""
        start: int | None = 1
        while start is not None:
            page = self._ask("GET", path("jobs", job, "events") + query(**{"from": start})).body
            yield from map(Event.of, page["events"])
            start = page.get("next")

    def watch(self, job: str, *, from_version: int = 1, quiet_seconds: float = 60.0) -> Iterator[Event]:
        """What happens, as it happens, until the job is final. Goes on by itself after a lost connection, and misses and
        repeats nothing."""
        return self._watch(job, from_version, quiet_seconds, lambda: False)

    def _watch(self, job: str, from_version: int, quiet: float, stopped: Callable[[], bool]) -> Iterator[Event]:
        """Until somebody has stopped it, too: that is seen with the next line, and the server sends one every few seconds."""
        seen, waits = from_version - 1, backoff()
        while not stopped():
            try:
                for name, data in self._live(job, seen, quiet, stopped):
                    if name == "end":
                        return
                    if name == "closing":
                        break
                    event = Event.of(json.loads(data))
                    seen, waits = event.version, backoff()
                    yield event
            except TenureError as problem:
                if is_final(problem):
                    raise
            time.sleep(next(waits))

    def _live(self, job: str, seen: int, quiet: float, stopped: Callable[[], bool]) -> Iterator[tuple[str, str]]:
        """Server-sent events: lines until an empty one are an event. Lines with a colon in front keep the line open."""
        headers = {"Accept": "text/event-stream"}
        if seen > 0:
            headers["Last-Event-ID"] = str(seen)
        name, data, size = "", [], 0
        for line in self._http.stream(path("jobs", job, "events"), headers=headers, timeout=quiet):
            if stopped():
                return
            size += len(line)
            if size > EVENT_MAX:
                # Not Unreachable: the same event would come again after every new connection.
                raise TenureError(
                    "answer_too_large",
                    f"an event of job {job} after version {seen} has more than {EVENT_MAX} bytes",
                    fix="no server sends one: is this its address?",
                )
            word, _, value = line.decode("utf-8").rstrip("\r\n").partition(":")
            value = value[1:] if value.startswith(" ") else value
            if word == "event":
                name = value
            elif word == "data":
                data.append(value)
            elif not line.strip() and (name or data):
                yield name, "\n".join(data)
                name, data = "", []
            if not line.strip():
                size = 0

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
    ) -> Iterator[Job]:
        """Jobs, the newest first, over as many pages as there are. `status` may be several with commas, `id` the beginning
        of an id, `id_end` its end, `key` the key of a submission, `labels` what it has to have, `name` a text in the name of the flow or the plan; `tenant` is for keys without one."""
        return self._pages(
            "jobs",
            page,
            status=status,
            flow=flow,
            attention=attention,
            id=id,
            id_end=id_end,
            key=key,
            label=None if labels is None else ",".join(f"{name}={value}" for name, value in labels.items()),
            name=name,
            created_after=_moment("created_after", created_after),
            created_before=_moment("created_before", created_before),
            tenant=tenant,
        )

    def dead_letters(self, *, tenant: str | None = None, page: int = 50) -> Iterator[Job]:
        """Failed jobs that nobody has put aside; `tenant` is for keys without one."""
        return self._pages("dead-letters", page, tenant=tenant)

    def _pages(self, what: str, page: int, **which: Any) -> Iterator[Job]:
        before: str | None = None
        while True:
            said = self._ask("GET", path(what) + query(limit=page, before=before, **which)).body
            yield from map(Job.of, said["jobs"])
            before = said.get("next")
            if before is None:
                return

    # --- asking ---------------------------------------------------------------------------------------------------------

    def signal(self, job: str, key: str, payload: Any = None, *, early: bool = False, by: str | None = None) -> str:
        """Completes the oldest open wait of a name, or is kept for one that is not open yet. Returns completed, kept, duplicate or
        unread. Each call is one signal, also where the request has to be sent again."""
        body = {**_given(key=key, by=by), "payload": encode(payload, "payload"), "early": early}
        return self._outcome(job, "signal", body, {"Idempotency-Key": uuid.uuid4().hex})

    def approve(self, job: str, key: str, comment: str | None = None, *, by: str | None = None) -> str:
        """A person says yes."""
        return self._outcome(job, "approve", _given(key=key, comment=comment, by=by))

    def reject(self, job: str, key: str, comment: str | None = None, *, by: str | None = None) -> str:
        """A person says no."""
        return self._outcome(job, "reject", _given(key=key, comment=comment, by=by))

    def cancel(self, job: str, why: str | None = None, *, by: str | None = None) -> str:
        """Ends it, whatever it does. Returns accepted or already."""
        return self._outcome(job, "cancel", _given(why=why, by=by))

    def pause(self, job: str, why: str | None = None, *, by: str | None = None) -> str:
        """It begins nothing more until it is resumed."""
        return self._outcome(job, "pause", _given(why=why, by=by))

    def resume(self, job: str, why: str | None = None, *, by: str | None = None) -> str:
        """The end of a pause."""
        return self._outcome(job, "resume", _given(why=why, by=by))

    def resolve(
        self, job: str, step: str, verdict: Verdict, result: Any = _UNSAID, *, note: str | None = None, by: str | None = None
    ) -> str:
        """A person says what became of an effect that nobody knows about. `happened` needs the result."""
        body = _given(step=step, verdict=verdict, note=note, by=by)
        if result is not _UNSAID:
            body["result"] = encode(result)
        return self._outcome(job, "resolve", body)

    def discard(self, job: str) -> str:
        """Puts a failed job aside: it is no dead letter any more."""
        return self._outcome(job, "discard", {})

    def _outcome(self, job: str, what: str, body: Raw, headers: Mapping[str, str] | None = None) -> str:
        said = self._ask("POST", path("jobs", job, what), body, headers=headers).body
        return str(said["outcome"])


def _moment(name: str, moment: str | datetime | None) -> str | None:
    """In RFC 3339."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"{name}={moment!r} has no zone: nobody knows which moment is meant")
        return moment.isoformat()
    return moment


def _terms(
    start_in_seconds: float | None,
    start_at: str | datetime | None,
    gate: str | Gate | None,
    queue: str | None,
    needs: Sequence[str] | None,
    more: Mapping[str, Any] | None,
) -> dict[str, Any]:
    if isinstance(needs, str):
        raise TypeError(f"needs={needs!r}: give a list of labels")
    return {
        "start_in_seconds": None if start_in_seconds is None else max(0, round(start_in_seconds)),
        "start_at": _moment("start_at", start_at),
        "gate": gate,
        "queue": queue,
        "needs": None if needs is None else list(needs),
        **(more or {}),
    }


def _wish(
    flow: str | None,
    input: Any,
    plan: Any,
    key: str | None,
    version: int | None,
    priority: int | None,
    must_end_in: float | None,
    tenant: str | None,
    by: str | None,
    terms: Mapping[str, Any],
) -> dict[str, Any]:
    return _given(
        flow=flow,
        plan=encode(plan, "plan"),
        input=encode(input, "input"),
        key=key or str(uuid.uuid4()),
        version=version,
        priority=priority,
        must_end_in_seconds=None if must_end_in is None else max(1, round(must_end_in)),
        tenant=tenant,
        by=by,
        **{name: encode(value, name) for name, value in terms.items()},
    )


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
