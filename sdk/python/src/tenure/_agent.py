"""Agents whose steps are a Python function: it is asked for the next message of a turn, and everything else is the server's.

    def answer(turn: Turn) -> Says:
        if turn.step == 1:
            return call("find_order", id="7")
        return Finish({"order": turn.results[0]["result"]})

    Agent(answer, targets=["shop"]).run()

The function may be async, for agents that wait for models: then it runs in an event loop, the caller's with `async with Agent(…):`, and is
cancelled when its turn is lost.

A function needs no memory: a turn brings the whole conversation, so whoever takes it over knows what the one before knew. It is asked
again for a step that was begun and not finished, and never for one that is; what must not happen twice belongs into a tool.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import threading
from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable, Mapping, Sequence, Union

from . import _points
from ._clock import Clock, boottime
from ._http import Servers, path
from ._lease import Hold
from ._loop import Task
from ._schema import encode
from ._session import DELIVER_SECONDS, SessionWorker
from ._tls import Tls
from .errors import TenureError, Unreachable

log = logging.getLogger("tenure")

CODE_MAX = 64
"""Length of the code of a failure."""


@dataclass(frozen=True)
class Finish:
    """Ends the turn with its deliverable. `status` is success or partial."""

    result: Any
    status: str = "success"

    def __post_init__(self) -> None:
        if self.status not in ("success", "partial"):
            raise ValueError(f"Finish(status={self.status!r}): give success or partial; a turn that fails raises TurnFailed")


@dataclass(frozen=True)
class Calls:
    """Tools that are called, and what is said with it. Make one with `call`, several with `+`."""

    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    content: str | None = None

    def __add__(self, other: "Calls") -> "Calls":
        return Calls(self.calls + other.calls, self.content or other.content)


def call(tool: str, /, **arguments: Any) -> Calls:
    """Calls one tool."""
    return Calls(((tool, arguments),))


class TurnFailed(Exception):
    """Raised by an agent's function: the turn fails with this code, one word of letters, digits, `_` and `-`.

    Of anything else a word is made, and what was given stands in front of the message: the turn must not fail to fail.
    """

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        word = re.sub(r"[^A-Za-z0-9_-]+", "_", code).strip("_")[:CODE_MAX] or "agent_error"
        self.code = word
        self.message = message if word == code else f"{code}: {message}" if message else code


class GiveBack(Exception):
    """Raised by an agent's function: somebody else shall have the turn."""


@dataclass(eq=False)
class Turn:
    """One step of a turn, as the server hands it out."""

    id: str
    epoch: int
    turn_epoch: int
    agent: str
    step: int
    attempt: int
    last_step: bool
    timeout: float
    profile: Mapping[str, Any]
    task: Sequence[Mapping[str, Any]]
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    results: Sequence[Mapping[str, Any]]
    correlation_id: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _lost: threading.Event = field(default_factory=threading.Event, repr=False)
    _note: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "Turn":
        """From an answer of the server."""
        return cls(
            id=str(raw["turn"]),
            epoch=int(raw["epoch"]),
            turn_epoch=int(raw["turn_epoch"]),
            agent=str(raw["agent"]),
            step=int(raw["step"]),
            attempt=int(raw["attempt"]),
            last_step=bool(raw["last_step"]),
            timeout=float(raw["timeout_ms"]) / 1000,
            profile=raw.get("profile") or {},
            task=raw.get("task") or [],
            messages=raw.get("messages") or [],
            tools=raw.get("tools") or [],
            results=raw.get("results") or [],
            correlation_id=raw.get("correlation_id"),
            raw=raw,
        )

    @property
    def text(self) -> str:
        """The task: the last thing that was said to the agent."""
        content = self.task[-1].get("content") if self.task else ""
        return content if isinstance(content, str) else str(content)

    @property
    def lost(self) -> bool:
        """Somebody else has it, it was stopped, or the lease has lapsed: stop working on it."""
        return self._lost.is_set()

    def progress(self, note: str) -> None:
        """Shows that it moves. Said with the next renewal, once."""
        self._note = note


Says = Union[str, Mapping[str, Any], Finish, Calls]
Step = Union[Callable[[Turn], Says], Callable[[Turn], Awaitable[Says]]]


class _Tended:
    """A turn in the hands of this process, with the step that it is at."""

    def __init__(self, said: Mapping[str, Any], session: str) -> None:
        self.turn = Turn.of(said)
        self.session = session
        self.hold = Hold(self.turn.id, self.turn.epoch)
        self.begun = False
        self.task = Task()

    def stop(self, why: str) -> None:
        """A thread sees it in `turn.lost`, a task is cancelled."""
        if not self.turn.lost:
            log.warning("turn %s of %s stops: %s", self.turn.id, self.turn.agent, why)
            self.turn._lost.set()
            self.task.cancel()

    def go_on(self, said: Mapping[str, Any]) -> None:
        """The server has begun its next step already."""
        following = Turn.of(said)
        following._lost = self.turn._lost
        self.turn = following


class Agent(SessionWorker[_Tended]):
    """Runs turns of the agents with these targets.

    `Agent(function, targets=[…]).run()` until SIGTERM; or `with Agent(…):`, or `async with Agent(…):`, where an async function runs in
    the caller's event loop. The function, sync or async, returns a text (a message, which ends the turn unless its profile says
    otherwise), a whole message of a model, `call(…)`, or `Finish(…)`.
    """

    _many, _one, _kind = "turns", "turn", "python agent"
    # What a function says about a turn that is not its own any more is refused.
    _fenced = True

    def __init__(
        self,
        step: Step,
        url: Servers = None,
        api_key: str | None = None,
        *,
        targets: Sequence[str],
        concurrency: int = 8,
        name: str | None = None,
        lease: float | None = None,
        drain_seconds: float = 10.0,
        clock: Clock = boottime,
        tls: Tls | None = None,
    ) -> None:
        if isinstance(targets, str) or not targets:
            raise ValueError(f"targets={targets!r}: give a list of at least one")
        self._step, self._targets = step, list(targets)
        super().__init__(
            url, api_key, concurrency=concurrency, name=name, lease=lease, drain_seconds=drain_seconds, clock=clock, tls=tls
        )

    def _serves(self) -> str:
        return f"turns for {', '.join(self._targets)}"

    def _declares(self) -> dict[str, Any]:
        return {"targets": self._targets}

    def _read(self, said: Mapping[str, Any], session: str) -> _Tended:
        return _Tended(said, session)

    def _words(self, it: _Tended) -> dict[str, Any]:
        # Once: a note that is always there says nothing.
        note, it.turn._note = it.turn._note, None
        return {} if note is None else {"note": note}

    # --- one turn -------------------------------------------------------------------------------------------------------

    def _give_back(self, it: _Tended) -> None:
        self._ends(it, lambda: self._told(it, "release", {"why": "the worker stops"}))

    def _too_late(self, it: _Tended) -> None:
        self._let_go(it, told=True)

    def _run(self, it: _Tended) -> None:
        self._ends(it, lambda: self._steps(it))

    def _ends(self, it: _Tended, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as problem:
            log.exception("turn %s: %s", it.turn.id, problem)
        finally:
            self._let_go(it, told=True)

    def _steps(self, it: _Tended) -> None:
        """One step after the other, for as long as the server hands them out at once."""
        going_on = True
        while going_on:
            _points.at("before_call")
            if it.turn.lost or not self._may_begin(it.hold):
                log.warning("turn %s was lost before step %d was begun", it.turn.id, it.turn.step)
                return
            it.begun = True
            verb, said = self._says(it)
            _points.at("before_complete")
            answer = self._told(it, verb, said)
            _points.at("after_complete")
            following = answer.get("next") if answer is not None else None
            going_on = following is not None
            if following is not None:
                it.go_on(following)

    def _told(self, it: _Tended, verb: str, said: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the server answers, if it has taken it."""
        turn = it.turn
        if turn.lost or not self._leases.may_act(it.hold):
            log.warning("turn %s was lost before step %d was told", turn.id, turn.step)
            return None
        body = {"session": it.session, "epoch": turn.epoch, **said}
        where = path("turns", turn.id, verb)
        try:
            answer: Mapping[str, Any] | None = self._http.ask(
                "POST", where, body, timeout=30, retry_for=DELIVER_SECONDS, give_up=lambda: turn.lost
            ).body
            return answer
        except Unreachable as problem:
            log.error("step %d of turn %s could not be told: %s", turn.step, turn.id, problem)
        except TenureError as problem:
            if problem.status == 409:
                log.warning("turn %s was somebody else's by then", turn.id)
                return None
            log.error("step %d of turn %s was refused: %s", turn.step, turn.id, problem)
            # Asked again, the function would say the same, and at last the turn would end for want of a worker that can.
            if verb != "fail" and problem.status in (400, 413, 422):
                why = f"what the agent said was refused: {problem}"[:500]
                return self._told(it, "fail", {"code": "agent_error", "message": why})
        return None

    def _says(self, it: _Tended) -> tuple[str, dict[str, Any]]:
        """What the function says, in the words of the protocol."""
        turn = it.turn
        try:
            said = self._asked(it)
            if isinstance(said, Finish):
                return "finish", {"result": encode(said.result, "result"), "status": said.status}
            if isinstance(said, str):
                said = {"role": "assistant", "content": said}
            elif isinstance(said, Calls):
                said = {"role": "assistant", "content": said.content, "tool_calls": _written(turn, said)}
            elif not isinstance(said, Mapping):
                raise TypeError(f"an agent says a text, a message, call(…) or Finish(…), not {said!r}")
            return "step", {"step": turn.step, "message": encode(said, "message")}
        except TurnFailed as problem:
            return "fail", {"code": problem.code, "message": problem.message}
        except GiveBack as problem:
            return "release", {"why": str(problem) or "the agent gave it back"}
        # Of a lost turn nothing is told, whatever its function raises. A cancelled task of one that is not lost is a failure like others.
        except (Exception, asyncio.CancelledError) as problem:
            if not turn.lost:
                log.exception("the agent failed in step %d of turn %s", turn.step, turn.id)
            return "fail", {"code": "agent_error", "message": f"{type(problem).__name__}: {problem}"[:500]}

    def _asked(self, it: _Tended) -> Any:
        said = self._step(it.turn)
        if inspect.isawaitable(said):
            said = it.task.run(said, self._loop.get())
        _points.at("after_call")
        return said


def _written(turn: Turn, said: Calls) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{turn.step}_{n}",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps(encode(dict(arguments), tool))},
        }
        for n, (tool, arguments) in enumerate(said.calls, 1)
    ]
