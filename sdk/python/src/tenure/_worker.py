"""A worker: it asks for calls, runs them, keeps its lease, and says what became of each.

Four kinds of threads, so that none can hold up another. The *poller* asks for as many calls as there is room for. The *keeper* renews
every third of the lease: a busy event loop does not stop it, and neither does Python code that computes (C code that keeps the
interpreter's lock for a whole lease does; then the lease lapses and the worker notices). The *watch* stops what has lapsed or runs out
of time, also while a renewal hangs. The *crew* runs the calls: sync tools in its threads, async tools in the event loop, each with a
thread that waits for it and delivers its outcome.

A poll asks to wait no longer than a third of the lease, because a claim counts from before the poll was sent (docs/worker-protocol.md).
One poll at a time; after one without an answer the next says which calls this worker has, and what was lost on the way comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import threading
import types
from typing import Any, Iterable, Iterator, Mapping

from . import _points
from ._clock import Clock, boottime
from ._crew import Crew
from ._executor import this_process
from ._http import Http, backoff, path
from ._lease import Hold, Leases
from ._running import Outcome, Running, failed, not_called
from ._tool import AnyTool
from .errors import TenureError, Unreachable

log = logging.getLogger("tenure")

POLL_SECONDS_MAX = 5.0
POLL_CALLS_MAX = 64
RENEWALS_PER_LEASE = 3
DELIVER_SECONDS = 600.0
"""For so long the outcome of a call is told to a server that does not answer."""
STOP_GRACE_SECONDS = 2.0
_FATAL = (400, 401, 403, 404, 405, 413, 415, 422)


class Worker:
    """Runs tools for the jobs of a server.

    `Worker(url, tools=[…]).run()` until SIGTERM; or `with Worker(…):`, or `async with Worker(…):`, where async tools run in the
    caller's event loop. `lease` in seconds asks for another lease than the server's own. Without `url` and `api_key` they are
    taken from TENURE_SERVER and TENURE_API_KEY, else http://127.0.0.1:7777 and none.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        tools: Iterable[AnyTool],
        concurrency: int = 8,
        name: str | None = None,
        lease: float | None = None,
        drain_seconds: float = 10.0,
        clock: Clock = boottime,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: give at least 1")
        self._tools = {tool.name: tool for tool in _checked(tools)}
        self._declared = [tool._declaration() for tool in self._tools.values()]
        self._http = Http(url, api_key)
        self._name = name or f"{socket.gethostname()}/{os.getpid()} (python)"
        self._wanted_lease = lease
        self._drain_seconds = drain_seconds
        self._clock = clock
        self._leases = Leases(clock)
        self._concurrency = concurrency
        self._crew = Crew(concurrency, "tenure-call")
        self._room = threading.Condition()
        self._running: dict[tuple[str, Hold], Running] = {}
        # What became of these could not be told. They are not held any more, and must not be begun a second time.
        self._untold: set[tuple[str, Hold]] = set()
        self._opening = threading.Lock()
        self._renewing = threading.Lock()
        self._draining = threading.Event()
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own_loop: threading.Thread | None = None
        self._loop_lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}

    # --- life -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop()` of another thread; then ends what runs, and returns."""
        with self._signals():
            self.start()
            while not self._draining.wait(1.0):
                pass
            self.stop()

    def start(self) -> None:
        """Opens a session and begins to work, in threads. Waits for a server that does not answer yet."""
        if self._threads:
            raise RuntimeError("this worker was started before; make a new one")
        self._threads = {
            role: threading.Thread(target=self._guarded, args=(work,), name=f"tenure-{role}", daemon=True)
            for role, work in (("poller", self._poll), ("keeper", self._keep), ("watch", self._watch))
        }
        self._open(None)
        if self._leases.session is not None:
            for thread in self._threads.values():
                thread.start()

    def stop(self) -> None:
        """Takes nothing more, lets what runs end within `drain_seconds`, then asks it to stop, and says goodbye."""
        self._draining.set()
        with self._room:
            self._room.notify_all()
        poller = self._threads.get("poller")
        if poller is not None and poller.is_alive():
            # A poll is not broken off: what it brings would be lost on the way, and nobody would know whether it ran.
            poller.join(POLL_SECONDS_MAX + self._patience())
        if not self._idle(self._drain_seconds):
            for running in self._now_running():
                running.stop("the worker stops")
            self._idle(STOP_GRACE_SECONDS)
        left = self._now_running()
        self._closing.set()
        for thread in self._threads.values():
            if thread.is_alive():
                thread.join(1.0)
        session = self._leases.session
        if left:
            # Their code still runs, and goes with this process. Saying goodbye now would say that it does not.
            log.warning("%d calls still run; their lease will lapse", len(left))
        elif session is not None:
            with contextlib.suppress(TenureError):
                self._http.ask("DELETE", path("calls", "sessions", session), timeout=5, retry_for=2)
        self._crew.close()
        self._end_own_loop()
        self._http.close()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> "Worker":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def __aenter__(self) -> "Worker":
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *exc: object) -> None:
        # In a thread: the tools that have to end first run in this loop.
        await asyncio.to_thread(self.stop)

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

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as problem:  # a worker without one of its threads must not look alive
            log.critical("the worker ends: %s", problem, exc_info=problem)
            self._failure = problem
            for running in self._now_running():
                running.stop("the worker failed")
            self._draining.set()

    def _patience(self) -> float:
        """How long an answer that should come at once is waited for."""
        return max(0.5, self._leases.lease / RENEWALS_PER_LEASE) if self._leases.lease else 10.0

    # --- the session ----------------------------------------------------------------------------------------------------

    def _open(self, ended: str | None) -> None:
        """Opens a session in place of one that has ended. Whoever comes second finds it done."""
        with self._opening:
            if self._leases.session is not None and self._leases.session != ended:
                return
            body: dict[str, Any] = {"name": self._name, "tools": self._declared, "executor": this_process()}
            if self._wanted_lease is not None:
                body["lease_ms"] = round(self._wanted_lease * 1000)
            waits = backoff()
            while not self._draining.is_set():
                sent = self._clock()
                try:
                    said = self._http.once("POST", path("calls", "sessions"), body, timeout=10).body
                    self._leases.opened(str(said["session"]), float(said["lease_ms"]) / 1000, sent)
                    log.info("session %s with %s", said["session"], ", ".join(self._tools))
                    return
                except TenureError as problem:
                    if problem.status in _FATAL:
                        raise
                    log.warning("no session yet: %s", problem)
                except (KeyError, TypeError, ValueError) as problem:
                    log.warning("no session yet: the answer can not be read: %r", problem)
                self._draining.wait(next(waits))

    def _ended(self, session: str) -> None:
        """The server says that this session is over: nothing of it is held any more."""
        gone = self._leases.ended(session)
        if gone:
            log.warning("session %s has ended with %d calls in hand", session, len(gone))
        for hold in gone:
            self._stop(session, hold, "the session has ended")

    def _stop(self, session: str, hold: Hold, why: str) -> None:
        with self._room:
            running = self._running.get((session, hold))
        if running is not None:
            log.warning("%s of job %s stops: %s", running.tool_name, running.call.job, why)
            running.stop(why)

    # --- the keeper and the watch ---------------------------------------------------------------------------------------

    def _keep(self) -> None:
        pause = self._leases.lease / RENEWALS_PER_LEASE
        while not self._closing.wait(pause):
            renewed = self._renew()
            # One that did not get through is tried again soon: part of the lease is spent.
            pause = self._leases.lease / RENEWALS_PER_LEASE / (1 if renewed else 5)

    def _renew(self) -> bool:
        """One renewal. Whether it was answered."""
        with self._renewing:
            session, holds = self._leases.session, self._leases.holds()
            if session is None:
                return True
            named = [self._named(session, hold) for hold in holds]
            sent = self._clock()
            if holds:
                _points.at("in_renew")
            try:
                said = self._http.once(
                    "POST", path("calls", "sessions", session, "renew"), {"calls": named}, timeout=self._patience()
                ).body
                lease, lost = float(said["lease_ms"]) / 1000, _ids(said.get("lost"))
                stop = _ids(said.get("stop"))
            except TenureError as problem:
                if _is_over(problem):
                    self._ended(session)
                    return True
                log.warning("a renewal did not get through: %s", problem)
                return False
            except (KeyError, TypeError, ValueError, AttributeError) as problem:
                log.warning("the answer to a renewal can not be read: %r", problem)
                return False
            for hold in self._leases.renewed(session, lease, sent, holds, lost):
                self._stop(session, hold, "another worker has it")
            for hold in holds:
                if hold.call in stop:
                    self._stop(session, hold, "it was cancelled")
            return True

    def _named(self, session: str, hold: Hold) -> dict[str, str | int]:
        with self._room:
            running = self._running.get((session, hold))
        said: dict[str, str | int] = {"call": hold.call, "epoch": hold.epoch}
        # The count may not fall between two renewals, so it is said whenever there is one.
        moved = running.call._moved if running is not None else 0
        return {**said, "progress": moved} if moved else said

    def _watch(self) -> None:
        # Short sleeps: the clock of a sleep may stand still while the clock of the lease goes on (suspend).
        while not self._closing.wait(max(0.02, min(0.5, self._leases.lease / 20))):
            session = self._leases.session
            if session is not None:
                for hold in self._leases.lapsed():
                    # What was not begun has its own check, and may be saved by a renewal.
                    if self._begun(session, hold):
                        self._leases.noticed(hold)
                        self._stop(session, hold, "the lease has lapsed")
            now = self._clock()
            for running in self._now_running():
                if running.deadline is not None and now >= running.deadline:
                    running.stop(f"its time is up, {running.call.timeout:g} s")

    def _begun(self, session: str, hold: Hold) -> bool:
        with self._room:
            running = self._running.get((session, hold))
        return running is not None and running.deadline is not None

    # --- the poller -----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        waits, answered = backoff(), True
        while not self._draining.is_set():
            room = self._wait_for_room()
            if room == 0:
                continue
            session = self._leases.session
            if session is None:
                self._open(None)
                continue
            wait = min(POLL_SECONDS_MAX, self._leases.lease / RENEWALS_PER_LEASE)
            body: dict[str, Any] = {"max": min(room, POLL_CALLS_MAX), "wait_ms": round(wait * 1000)}
            repeated = functools.partial(self._repeated, session, body)
            body = body if answered else repeated()
            sent, answered = self._clock(), False
            where = path("calls", "sessions", session, "poll")
            try:
                said = self._http.once("POST", where, body, timeout=wait + 10, again=repeated).body
                calls = list(said["calls"])
            except TenureError as problem:
                if _is_over(problem):
                    self._ended(session)
                elif problem.status in _FATAL:
                    raise
                else:
                    log.warning("no calls: %s", problem)
                    self._draining.wait(next(waits))
                continue
            except (KeyError, TypeError, ValueError, AttributeError) as problem:
                log.warning("the answer to a poll can not be read: %r", problem)
                self._draining.wait(next(waits))
                continue
            waits, answered = backoff(), True
            for call in calls:
                try:
                    running = Running(call, session)
                except (KeyError, TypeError, ValueError, AttributeError) as problem:
                    # Nothing can be said about what has no name; the others are not to blame.
                    log.error("a call can not be read: %r in %.200r", problem, call)
                    continue
                self._take(running, sent)

    def _repeated(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        """A poll after one that got no answer. It names every call that a poll of this session has brought and about which the
        server has not answered yet: what else the session holds was lost on the way, and comes again."""
        with self._room:
            known = [hold for of, hold in (*self._running, *self._untold) if of == session]
        return {**body, "have": [{"call": hold.call, "epoch": hold.epoch} for hold in known]}

    def _wait_for_room(self) -> int:
        with self._room:
            self._room.wait_for(lambda: self._draining.is_set() or len(self._running) < self._concurrency)
            return 0 if self._draining.is_set() else self._concurrency - len(self._running)

    def _take(self, running: Running, sent: float) -> None:
        _points.at("after_poll")
        with self._room:
            if (running.session, running.hold) in self._running or (running.session, running.hold) in self._untold:
                return  # told twice
            self._running[(running.session, running.hold)] = running
        held = self._leases.claimed(running.hold, running.session, sent)
        if held and self._draining.is_set():
            self._crew.submit(lambda: self._finish(running, Outcome("release", {"why": "the worker stops"})))
        elif held:
            self._crew.submit(lambda: self._run(running))
        else:
            self._crew.submit(lambda: self._finish(running, not_called("the session had ended before it was begun")))

    # --- one call -------------------------------------------------------------------------------------------------------

    def _run(self, running: Running) -> None:
        outcome = failed("unknown", "the worker failed")
        try:
            outcome = self._outcome(running)
        finally:
            self._finish(running, outcome)

    def _outcome(self, running: Running) -> Outcome:
        if running.what == "call":
            _points.at("before_call")
        # Right before anything outside is touched. A renewal that still names it as held means that the tenure never ended.
        if not self._leases.may_act(running.hold):
            self._renew()
        if not self._leases.may_act(running.hold):
            return not_called("the lease had lapsed before it was begun")
        if running.call.cancelled:
            return not_called(f"stopped before it was begun: {running.why_stopped}")
        running.deadline = self._clock() + running.call.timeout
        return running.run(self._tools.get(running.tool_name), self._event_loop)

    def _finish(self, running: Running, outcome: Outcome) -> None:
        """Tells the server, however long it takes; until then the call is held and its place taken."""
        told = False
        try:
            if running.what == "call":
                _points.at("before_complete")
            told = self._deliver(running, outcome)
            if running.what == "call":
                _points.at("after_complete")
        finally:
            self._leases.dropped(running.hold)
            with self._room:
                self._running.pop((running.session, running.hold), None)
                # Those of earlier sessions can not come again.
                self._untold = {one for one in self._untold if one[0] == self._leases.session}
                if not told:
                    self._untold.add((running.session, running.hold))
                self._room.notify_all()

    def _deliver(self, running: Running, outcome: Outcome) -> bool:
        """Whether the server has taken it, in one way or the other."""
        body = {"session": running.session, "epoch": running.hold.epoch, **outcome.body}
        where = path("calls", running.hold.call, outcome.verb)
        what = f"{running.tool_name} of job {running.call.job}"
        try:
            self._http.ask("POST", where, body, timeout=30, retry_for=DELIVER_SECONDS, give_up=self._closing.is_set)
            return True
        except Unreachable as problem:
            log.error("what became of %s could not be told: %s", what, problem)
        except TenureError as problem:
            if problem.code == "stale_attempt":
                log.warning("%s was another worker's by then; what became of it is kept as evidence", what)
                return True
            elif outcome.verb == "complete":
                # It happened, and its result can not be kept: too large, say. The next best truth is that nobody knows it.
                log.error("the result of %s was refused: %s", what, problem)
                return self._deliver(running, failed("unknown", f"its result was refused: {problem}"))
            else:
                log.error("what became of %s was refused: %s", what, problem)
        return False

    def _now_running(self) -> list[Running]:
        with self._room:
            return list(self._running.values())

    def _idle(self, seconds: float) -> bool:
        with self._room:
            return self._room.wait_for(lambda: not self._running, timeout=seconds)

    # --- the event loop -------------------------------------------------------------------------------------------------

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """The caller's, or one in a thread of its own."""
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._own_loop = threading.Thread(target=self._loop.run_forever, name="tenure-loop", daemon=True)
                self._own_loop.start()
            return self._loop

    def _end_own_loop(self) -> None:
        if self._own_loop is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._own_loop.join(1.0)
            if not self._own_loop.is_alive():
                self._loop.close()


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


def _is_over(problem: TenureError) -> bool:
    # 404: a server that knows nothing of the session, after its store was put back from a backup say.
    return problem.status in (404, 410) or problem.code == "session_ended"


def _ids(listed: Any) -> set[str]:
    """Ids, given as they are or as members of objects."""
    return {str(item["call"]) if isinstance(item, Mapping) else str(item) for item in listed or ()}
