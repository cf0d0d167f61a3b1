"""What the server says about jobs, typed. Members that are not known here are in `raw`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """Where a job stands. Moments are microseconds since 1970, of the store's clock."""

    id: str
    flow: str
    version: int
    status: str
    """queued, running, waiting, parked, retrying, attention, cancelling, completed, failed or cancelled."""
    is_final: bool
    tenant: str
    priority: int
    created_at: int
    changed_at: int
    must_end_by: int | None
    input: Any
    output: Any
    failure: Raw | None
    """Why it failed: `reason`, `error`, `step`, `unknown`."""
    attention: Raw | None
    """Why a person has to look: `reason`, `step`, `why`."""
    why: str | None
    """Why it is where it is, and what moves it."""
    existed: bool
    """Of a submission: it was there already, under the same key."""
    raw: Raw = field(repr=False)

    @property
    def ok(self) -> bool:
        """It is completed."""
        return self.status == "completed"

    @staticmethod
    def of(said: Raw) -> "Job":
        """From an answer."""
        return Job(
            id=said["id"],
            flow=said["flow"],
            version=said["version"],
            status=said["status"],
            is_final=said["is_final"],
            tenant=said.get("tenant", ""),
            priority=said.get("priority", 0),
            created_at=said.get("created_at", 0),
            changed_at=said.get("changed_at", 0),
            must_end_by=said.get("must_end_by"),
            input=said.get("input"),
            output=said.get("output"),
            failure=said.get("failure"),
            attention=said.get("attention"),
            why=said.get("why"),
            existed=bool(said.get("existed", False)),
            raw=said,
        )


@dataclass(frozen=True)
class Collected:
    """A submission that waits for others: `batch` becomes a job, this one within it. `job` instead, where it was too large to be
    collected and became a job of its own at once."""

    batch: str | None
    """Look at it with `Client.batch`."""
    item: str | None
    existed: bool
    """It was there already, under the same key."""
    job: Job | None
    raw: Raw = field(repr=False)

    @staticmethod
    def of(said: Raw) -> "Collected":
        """From an answer."""
        job = None if "batch" in said else Job.of(said)
        return Collected(said.get("batch"), said.get("item"), bool(said.get("existed", False)), job, said)


@dataclass(frozen=True)
class Batch:
    """What became of a batch."""

    id: str
    tenant: str
    flow: str
    key: str
    open: int
    """Submissions that are collected and no job yet; `unread` is what lies in the box and is not counted yet."""
    unread: int
    closes_at: int | None
    made: tuple[Raw, ...]
    """The last jobs, the newest first: `job`, `items`, …"""
    raw: Raw = field(repr=False)

    @staticmethod
    def of(said: Raw) -> "Batch":
        """From an answer."""
        return Batch(
            id=said["id"],
            tenant=said.get("tenant", ""),
            flow=said.get("flow", ""),
            key=said.get("key", ""),
            open=said.get("open", 0),
            unread=said.get("unread", 0),
            closes_at=said.get("closes_at"),
            made=tuple(said.get("made", ())),
            raw=said,
        )


@dataclass(frozen=True)
class Event:
    """One event of a job."""

    version: int
    """Its place in the stream, from 1."""
    at: int
    epoch: int
    name: str
    body: Any
    raw: Raw = field(repr=False)

    @staticmethod
    def of(said: Raw) -> "Event":
        """From an answer."""
        return Event(said["version"], said["at"], said["epoch"], said["name"], said.get("body"), said)


@dataclass(frozen=True)
class Step:
    """A step of a job, with its calls."""

    step: str
    kind: str
    of: str
    """The tool, the flow of a child, the key of a wait, or the name of a value."""
    outcome: str
    """open, ok, failed or unknown."""
    attempts: int
    error: str | None
    calls: tuple[Raw, ...]
    raw: Raw = field(repr=False)

    @staticmethod
    def from_answer(said: Raw) -> "Step":
        """From an answer."""
        return Step(
            step=said["step"],
            kind=said["kind"],
            of=said["of"],
            outcome=said["outcome"],
            attempts=said.get("attempts", 0),
            error=said.get("error"),
            calls=tuple(said.get("calls", ())),
            raw=said,
        )
