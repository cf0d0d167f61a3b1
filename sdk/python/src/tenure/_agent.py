"""Agents whose steps are a Python function: it is asked for the next message of a turn, and everything else is the server's.

    def answer(turn: Turn) -> Says:
        if turn.step == 1:
            return call("find_order", id="7")
        return Finish({"order": turn.results[0]["result"]})

    Agent(answer, targets=["shop"]).run()

A function needs no memory: a turn brings the whole conversation, so whoever takes it over knows what the one before knew. It is asked
again for a step that was begun and not finished, and never for one that is; what must not happen twice belongs into a tool.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import threading
import types
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

from ._clock import Clock, boottime
from ._crew import Crew
from ._executor import this_process
from ._http import Http, backoff, path
from ._lease import Hold, Leases
from ._schema import encode
from .errors import TenureError, Unreachable

log = logging.getLogger("tenure")

POLL_SECONDS_MAX = 5.0
POLL_TURNS_MAX = 64
RENEWALS_PER_LEASE = 3
DELIVER_SECONDS = 600.0
"""For so long an answer is told to a server that does not answer."""
_FATAL = (400, 401, 403, 404, 405, 413, 415, 422)


@dataclass(frozen=True)
class Finish:
    """Ends the turn with its deliverable. `status` is success or partial."""

    result: Any
    status: str = "success"


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
    """Raised by an agent's function: the turn fails with this code."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        self.code, self.message = code, message


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
Step = Callable[[Turn], Says]


class Agent:
    """Runs turns of the agents with these targets.

    `Agent(function, targets=[…]).run()` until SIGTERM; or `with Agent(…):`. The function returns a text (a message, which ends the turn
    unless its profile says otherwise), a whole message of a model, `call(…)`, or `Finish(…)`.
    """

    def __init__(
        self,
        step: Step,
        url: str | None = None,
        api_key: str | None = None,
        *,
        targets: Sequence[str],
        concurrency: int = 8,
        name: str | None = None,
        lease: float | None = None,
        drain_seconds: float = 10.0,
        clock: Clock = boottime,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: give at least 1")
        if isinstance(targets, str) or not targets:
            raise ValueError(f"targets={targets!r}: give a list of at least one")
        self._step, self._targets = step, list(targets)
        self._http = Http(url, api_key)
        self._name = name or f"{socket.gethostname()}/{os.getpid()} (python agent)"
        self._wanted_lease, self._drain_seconds, self._clock = lease, drain_seconds, clock
        self._leases = Leases(clock)
        self._concurrency = concurrency
        self._crew = Crew(concurrency, "tenure-turn")
        self._room = threading.Condition()
        self._running: dict[Hold, Turn] = {}
        self._draining, self._closing = threading.Event(), threading.Event()
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []

    # --- life -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop()` of another thread; then ends what runs, and returns."""
        with self._signals():
            self.start()
            while not self._draining.wait(1.0):
                pass
            self.stop()

    def start(self) -> None:
        """Opens a session and begins to work, in threads."""
        if self._threads:
            raise RuntimeError("this agent was started before; make a new one")
        self._open()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"tenure-{role}", daemon=True)
            for role, work in (("turns", self._poll), ("turn-keeper", self._keep))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Takes nothing more, lets what runs end within `drain_seconds`, and says goodbye: the rest is given to others."""
        self._draining.set()
        with self._room:
            self._room.notify_all()
            self._room.wait_for(lambda: not self._running, timeout=self._drain_seconds)
            for turn in self._running.values():
                turn._lost.set()
        self._closing.set()
        for thread in self._threads:
            thread.join(POLL_SECONDS_MAX + 1.0)
        if self._leases.session is not None:
            with contextlib.suppress(TenureError):
                self._http.ask("DELETE", path("turns", "sessions", self._leases.session), timeout=5, retry_for=2)
        self._crew.close()
        self._http.close()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> "Agent":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def drain(_number: int, _frame: types.FrameType | None) -> None:
            self._draining.set()

        before = {number: signal.signal(number, drain) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:  # an agent without one of its threads must not look alive
            log.critical("the agent ends: %s", problem, exc_info=problem)
            self._failure = problem
            self._draining.set()

    # --- the session ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        body: dict[str, Any] = {"name": self._name, "targets": self._targets, "executor": this_process()}
        if self._wanted_lease is not None:
            body["lease_ms"] = round(self._wanted_lease * 1000)
        waits = backoff()
        while not self._draining.is_set():
            sent = self._clock()
            try:
                said = self._http.once("POST", path("turns", "sessions"), body, timeout=10).body
                self._leases.opened(str(said["session"]), float(said["lease_ms"]) / 1000, sent)
                return
            except TenureError as problem:
                if problem.status in _FATAL:
                    raise
                log.warning("no session yet: %s", problem)
            self._draining.wait(next(waits))

    def _ended(self, session: str) -> None:
        for hold in self._leases.ended(session):
            self._lose(hold)

    def _lose(self, hold: Hold) -> None:
        with self._room:
            turn = self._running.get(hold)
        if turn is not None:
            turn._lost.set()

    def _keep(self) -> None:
        pause = self._leases.lease / RENEWALS_PER_LEASE
        while not self._closing.wait(pause):
            renewed = self._renew()
            for hold in self._leases.lapsed():
                self._leases.noticed(hold)
                self._lose(hold)
            pause = self._leases.lease / RENEWALS_PER_LEASE / (1 if renewed else 5)

    def _renew(self) -> bool:
        session, holds = self._leases.session, self._leases.holds()
        if session is None:
            return True
        named = []
        for hold in holds:
            with self._room:
                turn = self._running.get(hold)
            note, said = (turn._note if turn is not None else None), {"turn": hold.call, "epoch": hold.epoch}
            if turn is not None:
                turn._note = None
            named.append({**said, "note": note} if note is not None else said)
        sent = self._clock()
        try:
            where = path("turns", "sessions", session, "renew")
            patience = max(0.5, self._leases.lease / RENEWALS_PER_LEASE)
            said = self._http.once("POST", where, {"turns": named}, timeout=patience).body
            lost = {str(one) for one in said["lost"]}
            for hold in self._leases.renewed(session, float(said["lease_ms"]) / 1000, sent, holds, lost):
                self._lose(hold)
            return True
        except TenureError as problem:
            if problem.status in (404, 410):
                self._ended(session)
                return True
            log.warning("a renewal did not get through: %s", problem)
        except (KeyError, TypeError, ValueError) as problem:
            log.warning("the answer to a renewal can not be read: %r", problem)
        return False

    # --- turns ----------------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        waits = backoff()
        while not self._draining.is_set():
            with self._room:
                self._room.wait_for(lambda: self._draining.is_set() or len(self._running) < self._concurrency)
                room = self._concurrency - len(self._running)
            session = self._leases.session
            if self._draining.is_set():
                return
            if session is None:
                self._open()
                continue
            # What a poll brings counts from before it was sent: it waits no longer than a third of the lease.
            wait = min(POLL_SECONDS_MAX, self._leases.lease / RENEWALS_PER_LEASE)
            body, sent = {"max": min(room, POLL_TURNS_MAX), "wait_ms": round(wait * 1000)}, self._clock()
            try:
                where = path("turns", "sessions", session, "poll")
                turns = [Turn.of(raw) for raw in self._http.once("POST", where, body, timeout=wait + 10).body["turns"]]
            except TenureError as problem:
                if problem.status in (404, 410):
                    self._ended(session)
                elif problem.status in _FATAL:
                    raise
                else:
                    log.warning("no turns: %s", problem)
                    self._draining.wait(next(waits))
                continue
            waits = backoff()
            for turn in turns:
                self._take(turn, session, sent)

    def _take(self, turn: Turn, session: str, sent: float) -> None:
        hold = Hold(turn.id, turn.epoch)
        if not self._leases.claimed(hold, session, sent):
            return
        with self._room:
            self._running[hold] = turn
        self._crew.submit(lambda: self._run(turn, hold, session))

    def _run(self, turn: Turn, hold: Hold, session: str) -> None:
        try:
            step: Turn | None = turn
            while step is not None:
                with self._room:
                    self._running[hold] = step
                step = self._one(step, hold, session)
        except Exception as problem:
            log.exception("turn %s: %s", turn.id, problem)
        finally:
            self._leases.dropped(hold)
            with self._room:
                self._running.pop(hold, None)
                self._room.notify_all()

    def _one(self, turn: Turn, hold: Hold, session: str) -> Turn | None:
        """One step; the next one, if the server has begun it already."""
        verb, said = self._says(turn)
        if turn.lost or not self._leases.may_act(hold):
            log.warning("turn %s was lost before step %d was told", turn.id, turn.step)
            return None
        body = {"session": session, "epoch": turn.epoch, **said}
        try:
            where = path("turns", turn.id, verb)
            answer = self._http.ask("POST", where, body, timeout=30, retry_for=DELIVER_SECONDS, give_up=lambda: turn.lost).body
        except Unreachable as problem:
            log.error("step %d of turn %s could not be told: %s", turn.step, turn.id, problem)
            return None
        except TenureError as problem:
            if problem.status == 409:
                log.warning("turn %s was somebody else's by then", turn.id)
            else:
                log.error("step %d of turn %s was refused: %s", turn.step, turn.id, problem)
            return None
        following = answer.get("next")
        if following is None:
            return None
        step = Turn.of(following)
        step._lost = turn._lost
        return step

    def _says(self, turn: Turn) -> tuple[str, dict[str, Any]]:
        """What the function says, in the words of the protocol."""
        try:
            said = self._step(turn)
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
        except Exception as problem:
            log.exception("the agent failed in step %d of turn %s", turn.step, turn.id)
            return "fail", {"code": "agent_error", "message": f"{type(problem).__name__}: {problem}"[:500]}


def _written(turn: Turn, said: Calls) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{turn.step}_{n}",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps(encode(dict(arguments), tool))},
        }
        for n, (tool, arguments) in enumerate(said.calls, 1)
    ]
