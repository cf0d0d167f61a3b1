"""Agents from the outside: set, sent work, awaited, read."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Mapping, Protocol, Sequence

from ._http import Answer, path, query
from ._schema import encode

WAIT_SECONDS_MAX = 30.0


@dataclass(frozen=True)
class SentTurn:
    """Where a turn stands."""

    id: str
    agent: str
    status: str
    is_final: bool
    step: int
    raw: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "SentTurn":
        """From an answer of the server."""
        return cls(str(raw["id"]), str(raw["agent"]), str(raw["status"]), bool(raw["is_final"]), int(raw.get("step", 0)), raw)

    @property
    def error(self) -> Mapping[str, Any] | None:
        """What went wrong, of a turn that is over."""
        return (self.raw.get("end") or {}).get("error")


class _Asks(Protocol):
    def _ask(self, method: str, where: str, body: Any = None, *, waits: float = 0.0) -> Answer: ...


class Agents:
    """`client.agents`."""

    def __init__(self, client: _Asks) -> None:
        self._client = client

    def set(
        self,
        name: str,
        profile: Mapping[str, Any] | None = None,
        *,
        target: str | None = None,
        channel: str | None = None,
        output_box: str | None = "results",
        tenant: str | None = None,
        by: str | None = None,
    ) -> Mapping[str, Any]:
        """Says what an agent is, for the first time or anew. Its target is whose workers run it."""
        said = {
            "profile": encode(profile, "profile"),
            "target": target,
            "channel": channel,
            "output_box": output_box,
            "tenant": tenant,
            "by": by,
        }
        body = {name: value for name, value in said.items() if value is not None}
        answer: Mapping[str, Any] = self._client._ask("PUT", path("agents", name), body).body
        return answer

    def send(
        self,
        agent: str,
        message: str | Sequence[Mapping[str, Any]],
        *,
        correlation_id: str | None = None,
        must_end_in: float | None = None,
        wait: float | None = None,
        **more: Any,
    ) -> SentTurn:
        """Sends it work. The same `correlation_id` is the same turn; without one it gets one, so that a lost answer does not
        become a second turn. With `wait`, returns when the turn is over or after so many seconds."""
        body: dict[str, Any] = {name: encode(value, name) for name, value in more.items() if value is not None}
        if isinstance(message, str):
            body["message"] = message
        else:
            body["messages"] = encode(list(message), "messages")
        body["correlation_id"] = correlation_id or str(uuid.uuid4())
        if must_end_in is not None:
            body["must_end_in_seconds"] = max(1, round(must_end_in))
        turn = SentTurn.of(self._client._ask("POST", path("agents", agent, "turns"), body).body)
        return turn if wait is None else self.wait(turn.id, wait)

    def get(self, turn: str) -> SentTurn:
        """Where it stands."""
        return SentTurn.of(self._client._ask("GET", path("turns", turn)).body)

    def wait(self, turn: str, timeout: float | None = None) -> SentTurn:
        """Returns when it is over, or after so many seconds: look at `is_final`."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_SECONDS_MAX if until is None else min(WAIT_SECONDS_MAX, max(0.0, until - time.monotonic()))
            found = SentTurn.of(self._client._ask("GET", path("turns", turn) + query(wait=round(left, 3)), waits=left).body)
            if found.is_final or (until is not None and time.monotonic() >= until):
                return found

    def result(self, turn: str) -> Any:
        """What it delivered; of a turn that failed, what stands in its place."""
        return self._client._ask("GET", path("turns", turn, "deliverable")).body["content"]

    def stop(self, turn: str, why: str | None = None, *, by: str | None = None) -> None:
        """Ends it, whatever it does."""
        body = {name: value for name, value in (("why", why), ("by", by)) if value is not None}
        self._client._ask("POST", path("turns", turn, "stop"), body)
