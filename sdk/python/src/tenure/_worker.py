"""A worker: it asks for calls, runs them, keeps its lease, and says what became of each.

Its session, its threads and its end are those of every worker (`_session`). Of its own it has what is said about a call, and this:
after a poll without an answer the next one says which calls this worker has, and what was lost on the way comes again.
"""

from __future__ import annotations

import logging
from typing import Any, Iterable, Mapping

from . import _points
from ._clock import Clock, boottime
from ._executor import Executor
from ._http import Servers, path, written
from ._running import Outcome, Running, failed, left, not_called
from ._session import DELIVER_SECONDS, SessionWorker
from ._tls import Tls
from ._tool import AnyTool
from .errors import TenureError, Unreachable

RESULT_BYTES_MAX = 16 * 1024 * 1024
"""What a server takes as the answer of a call: the largest value of a store."""

log = logging.getLogger("tenure")


class Worker(SessionWorker[Running]):
    """Runs tools for the jobs of a server.

    `Worker(url, tools=[…]).run()` until SIGTERM; or `with Worker(…):`, or `async with Worker(…):`, where async tools run in the
    caller's event loop. `lease` in seconds asks for another lease than the server's own. `url` may name several servers of one
    deployment, as a sequence or with commas: the next is asked when one does not answer. Without `url` and `api_key` they are
    taken from TENURE_SERVER and TENURE_API_KEY, else http://127.0.0.1:7777 and none.
    """

    _many, _one, _kind = "calls", "call", "python"
    # A tool's effects are outside, where no epoch stops them.
    _fenced = False

    def __init__(
        self,
        url: Servers = None,
        api_key: str | None = None,
        *,
        tools: Iterable[AnyTool],
        concurrency: int = 8,
        name: str | None = None,
        lease: float | None = None,
        drain_seconds: float = 10.0,
        clock: Clock = boottime,
        tls: Tls | None = None,
    ) -> None:
        self._tools = {tool.name: tool for tool in _checked(tools)}
        self._declared = [tool._declaration() for tool in self._tools.values()]
        super().__init__(
            url, api_key, concurrency=concurrency, name=name, lease=lease, drain_seconds=drain_seconds, clock=clock, tls=tls
        )

    def _serves(self) -> str:
        names = sorted(self._tools)
        return f"the tool{'' if len(names) == 1 else 's'} {', '.join(names)}"

    def _declares(self) -> dict[str, Any]:
        return {"tools": self._declared}

    def _executor(self) -> Executor | None:
        # That this process is dead must not say that a call is, if code of it runs elsewhere.
        return None if any(tool.leaves_processes for tool in self._tools.values()) else super()._executor()

    def _read(self, said: Mapping[str, Any], session: str) -> Running:
        return Running(said, session)

    def _words(self, it: Running) -> dict[str, Any]:
        # The count may not fall between two renewals, so it is said whenever there is one.
        return {"progress": it.call._moved} if it.call._moved else {}

    def _repeated(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        """It names every call that a poll of this session has brought and about which the server has not answered yet: what else
        the session holds was lost on the way, and comes again."""
        with self._room:
            known = [hold for of, hold in (*self._running, *self._untold) if of == session]
        return {**body, "have": [{"call": hold.call, "epoch": hold.epoch} for hold in known]}

    def _look(self) -> None:
        now = self._clock()
        for running in self._in_hand():
            if running.deadline is not None and now >= running.deadline:
                running.stop(f"its time is up, {running.call.timeout:g} s")

    # --- one call -------------------------------------------------------------------------------------------------------

    def _give_back(self, it: Running) -> None:
        self._finish(it, Outcome("release", {"why": "the worker stops"}))

    def _too_late(self, it: Running) -> None:
        self._finish(it, not_called("the session had ended before it was begun"))

    def _run(self, it: Running) -> None:
        outcome = left("the worker failed")
        try:
            outcome = self._outcome(it)
        finally:
            self._finish(it, outcome)

    def _outcome(self, running: Running) -> Outcome:
        if running.what == "call":
            _points.at("before_call")
        if not self._may_begin(running.hold):
            return not_called("the lease had lapsed before it was begun")
        if running.call.cancelled:
            return not_called(f"stopped before it was begun: {running.why_stopped}")
        running.deadline = self._clock() + running.call.timeout
        return running.run(self._tools.get(running.tool_name), self._loop.get)

    def _finish(self, running: Running, outcome: Outcome) -> None:
        """Tells the server, however long it takes; until then the call is held and its place taken."""
        told = False
        try:
            if running.what == "call":
                _points.at("before_complete")
            try:
                told = self._deliver(running, outcome)
            except Exception as problem:  # it can not even be written: nested too deeply, say
                log.exception("what became of %s can not be sent", running.tool_name)
                says = f"what became of it can not be sent: {type(problem).__name__}"
                told = self._deliver(running, left(says) if outcome.body.get("over") is False else failed("unknown", says))
            if running.what == "call":
                _points.at("after_complete")
        finally:
            self._let_go(running, told)

    def _deliver(self, running: Running, outcome: Outcome) -> bool:
        """Whether the server has taken it, in one way or the other."""
        body = {"session": running.session, "epoch": running.hold.epoch, **outcome.body}
        where = path("calls", running.hold.call, outcome.verb)
        what = f"{running.tool_name} of job {running.call.job}"
        data = written(body)
        if outcome.verb == "complete" and len(data) > RESULT_BYTES_MAX:
            # The server would refuse it after all of it was sent. It happened, and what it returned is not kept.
            says = f"it returned {len(data)} bytes of JSON, and at most {RESULT_BYTES_MAX} can be kept: return a reference to them"
            log.error("the result of %s is too large: %s", what, says)
            return self._deliver(running, failed("unknown", says))
        try:
            self._http.ask("POST", where, data, timeout=30, retry_for=DELIVER_SECONDS, give_up=self._closing.is_set)
            return True
        except Unreachable as problem:
            log.error("what became of %s could not be told: %s", what, problem)
        except TenureError as problem:
            if problem.code == "stale_attempt":
                kept = "is kept as evidence" if problem.problem.get("kept") == "evidence" else "counts for nothing"
                log.warning("%s was another worker's by then; what became of it %s", what, kept)
                return True
            elif outcome.verb == "complete":
                # It happened, and its result can not be kept: too large, say. The next best truth is that nobody knows it.
                log.error("the result of %s was refused: %s", what, problem)
                return self._deliver(running, failed("unknown", f"its result was refused: {problem}"))
            else:
                log.error("what became of %s was refused: %s", what, problem)
        return False


def _checked(tools: Iterable[AnyTool]) -> list[AnyTool]:
    listed = list(tools)
    names: set[str] = set()
    for tool in listed:
        if not hasattr(tool, "_declaration"):
            raise TypeError(f"{tool!r} is not a tool: decorate it with @tool")
        if tool.name in names:
            raise ValueError(f"two tools have the name {tool.name!r}")
        names.add(tool.name)
    if not listed:
        raise ValueError("a worker needs at least one tool")
    return listed
