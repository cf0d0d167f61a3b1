"""What workers of tools and workers of turns have in common: a session whose lease is kept, polls, and an end in order.

Four kinds of threads, so that none can hold up another. The *poller* asks for as much as there is room for. The *keeper* renews
every third of the lease: a busy event loop does not stop it, and neither does Python code that computes (C code that keeps the
interpreter's lock for a whole lease does; then the lease lapses and the worker notices). The *watch* stops what has lapsed or runs out
of time, also while a renewal hangs. The *crew* runs what a poll has brought: sync functions in its threads, async ones in the event
loop, each with a thread that waits for it and delivers its outcome.

A poll asks to wait no longer than a third of the lease, because a claim counts from before the poll was sent (docs/worker-protocol.md).
One poll at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import threading
import types
from typing import Any, Callable, ClassVar, Generic, Iterator, Mapping, Protocol, TypeVar

from . import _points
from ._clock import Clock
from ._crew import Crew
from ._executor import Executor, this_process
from ._http import Http, Servers, backoff, path
from ._lease import Hold, Leases
from ._loop import Loop, in_thread
from ._tls import Tls
from .errors import TenureError

log = logging.getLogger("tenure")

POLL_SECONDS_MAX = 5.0
POLL_MAX = 64
RENEWALS_PER_LEASE = 3
DELIVER_SECONDS = 600.0
"""For so long an outcome is told to a server that does not answer."""
STOP_GRACE_SECONDS = 2.0
FATAL = (400, 401, 403, 404, 405, 413, 415, 422)
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)
"""What reading an answer that is not what it should be raises."""


class InHand(Protocol):
    """What a poll has brought."""

    session: str
    hold: Hold

    @property
    def begun(self) -> bool:
        """Code of the user runs for it."""

    def stop(self, why: str) -> None:
        """Asks that code to stop; once is enough."""


T = TypeVar("T", bound=InHand)
S = TypeVar("S", bound="SessionWorker[Any]")


class SessionWorker(Generic[T]):
    """A session and everything that is held under it."""

    _many: ClassVar[str]
    """What it polls, in the words of the protocol: `calls` or `turns`."""
    _one: ClassVar[str]
    """One of them."""
    _kind: ClassVar[str]
    """What is added to the name that it has without being given one."""
    _fenced: ClassVar[bool]
    """Code that outlives the session can do nothing that counts, so the session may be ended while some still runs."""

    def __init__(
        self,
        url: Servers,
        api_key: str | None,
        *,
        concurrency: int,
        name: str | None,
        lease: float | None,
        drain_seconds: float,
        clock: Clock,
        tls: Tls | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: give at least 1")
        self._http = Http(url, api_key, tls)
        self._name = name or f"{socket.gethostname()}/{os.getpid()} ({self._kind})"
        self._wanted_lease = lease
        self._drain_seconds = drain_seconds
        self._clock = clock
        self._leases = Leases(clock)
        self._concurrency = concurrency
        self._crew = Crew(concurrency, f"tenure-{self._one}")
        self._loop = Loop()
        self._room = threading.Condition()
        self._running: dict[tuple[str, Hold], T] = {}
        # What became of these could not be told. They are not held any more, and must not be begun a second time.
        self._untold: set[tuple[str, Hold]] = set()
        # Until then a poll says what this worker has.
        self._repeats_until = 0.0
        self._opening = threading.Lock()
        self._renewing = threading.Lock()
        self._draining = threading.Event()
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._threads: dict[str, threading.Thread] = {}

    # --- what the two differ in -----------------------------------------------------------------------------------------

    def _declares(self) -> dict[str, Any]:
        """What a session is opened with, besides its name."""
        raise NotImplementedError

    def _serves(self) -> str:
        """What it works for, for people."""
        raise NotImplementedError

    def _executor(self) -> Executor | None:
        """The process with which everything ends that is run here; none if something may outlive it."""
        return this_process()

    def _read(self, said: Mapping[str, Any], session: str) -> T:
        """What a poll has brought. Raises one of UNREADABLE."""
        raise NotImplementedError

    def _run(self, it: T) -> None:
        """Does it, in a thread of the crew, and lets go of it."""
        raise NotImplementedError

    def _give_back(self, it: T) -> None:
        """Lets go of it without having begun it: this worker stops."""
        raise NotImplementedError

    def _too_late(self, it: T) -> None:
        """Lets go of it without having begun it: its session had ended."""
        raise NotImplementedError

    def _words(self, it: T) -> dict[str, Any]:
        """What a renewal says about it, besides naming it."""
        return {}

    def _repeated(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        """A poll after one that got no answer."""
        return body

    def _look(self) -> None:
        """The watch goes around."""

    # --- life -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop()` of another thread; then ends what runs, and returns. Says on standard error where
        it works and for what."""
        with self._signals():
            self.start()
            if self._leases.session is not None:
                serves = f"a worker for {_without_secrets(self._http.url)} with {self._serves()}"
                print(f"tenure: {serves} (Ctrl-C ends it)", file=sys.stderr, flush=True)
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
            for it in self._in_hand():
                it.stop("the worker stops")
            self._idle(STOP_GRACE_SECONDS)
        left = self._in_hand()
        self._closing.set()
        for thread in self._threads.values():
            if thread.is_alive():
                thread.join(1.0)
        session = self._leases.session
        if left and not self._fenced:
            # Their code still runs, and may return before this process is gone. A goodbye would take them from it at once.
            log.warning("%d %s still run; their lease will lapse", len(left), self._many)
        elif session is not None:
            with contextlib.suppress(TenureError):
                self._http.ask("DELETE", path(self._many, "sessions", session), timeout=5, retry_for=2)
        self._crew.close()
        self._loop.close()
        self._http.close()
        if self._failure is not None:
            raise self._failure

    def __enter__(self: S) -> S:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def __aenter__(self: S) -> S:
        self._loop.adopt(asyncio.get_running_loop())
        started = threading.Event()

        def start() -> None:
            try:
                self.start()
            finally:
                started.set()

        def leave() -> None:
            started.wait()
            self.stop()

        try:
            await in_thread(start)
        except asyncio.CancelledError:
            self._draining.set()
            leaving = asyncio.ensure_future(in_thread(leave))
            # A server that does not answer is not waited for: no session is open, and nothing was taken.
            if started.is_set():
                await leaving
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        # In a thread: the functions that have to end first run in this loop.
        await in_thread(self.stop)

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
        except BaseException as problem:  # a worker without one of its threads must not look alive
            log.critical("the worker ends: %s", problem, exc_info=problem)
            self._failure = problem
            for it in self._in_hand():
                it.stop("the worker failed")
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
            body: dict[str, Any] = {"name": self._name, **self._declares(), "executor": self._executor()}
            if self._wanted_lease is not None:
                body["lease_ms"] = round(self._wanted_lease * 1000)
            waits = backoff()
            while not self._draining.is_set():
                sent = self._clock()
                try:
                    said = self._http.once("POST", path(self._many, "sessions"), body, timeout=10).body
                    self._leases.opened(str(said["session"]), float(said["lease_ms"]) / 1000, sent)
                    log.info("session %s of %s", said["session"], self._name)
                    return
                except TenureError as problem:
                    if problem.status in FATAL:
                        raise
                    log.warning("no session yet: %s", problem)
                except UNREADABLE as problem:
                    log.warning("no session yet: the answer can not be read: %r", problem)
                self._draining.wait(next(waits))

    def _ended(self, session: str) -> None:
        """The server says that this session is over: nothing of it is held any more."""
        gone = self._leases.ended(session)
        if gone:
            log.warning("session %s has ended with %d %s in hand", session, len(gone), self._many)
        for hold in gone:
            self._stop(session, hold, "the session has ended")

    def _stop(self, session: str, hold: Hold, why: str) -> None:
        it = self._found(session, hold)
        if it is not None:
            it.stop(why)

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
                where = path(self._many, "sessions", session, "renew")
                said = self._http.once("POST", where, {self._many: named}, timeout=self._patience()).body
                lease, lost = float(said["lease_ms"]) / 1000, self._ids(said.get("lost"))
                stop = self._ids(said.get("stop"))
            except TenureError as problem:
                if _is_over(problem):
                    self._ended(session)
                    return True
                log.warning("a renewal did not get through: %s", problem)
                return False
            except UNREADABLE as problem:
                log.warning("the answer to a renewal can not be read: %r", problem)
                return False
            for hold in self._leases.renewed(session, lease, sent, holds, lost):
                self._stop(session, hold, "another worker has it, or it was stopped")
            for hold in holds:
                if hold.call in stop:
                    self._stop(session, hold, "it was cancelled")
            return True

    def _named(self, session: str, hold: Hold) -> dict[str, Any]:
        it = self._found(session, hold)
        return {self._one: hold.call, "epoch": hold.epoch, **(self._words(it) if it is not None else {})}

    def _ids(self, listed: Any) -> set[str]:
        """Ids, given as they are or as members of objects."""
        return {str(item[self._one]) if isinstance(item, Mapping) else str(item) for item in listed or ()}

    def _watch(self) -> None:
        # Short sleeps: the clock of a sleep may stand still while the clock of the lease goes on (suspend).
        while not self._closing.wait(max(0.02, min(0.5, self._leases.lease / 20))):
            session = self._leases.session
            if session is not None:
                for hold in self._leases.lapsed():
                    it = self._found(session, hold)
                    # What was not begun has its own check, and may be saved by a renewal.
                    if it is not None and it.begun:
                        self._leases.noticed(hold)
                        it.stop("the lease has lapsed")
            self._look()

    def _may_begin(self, hold: Hold) -> bool:
        """Right before anything outside is touched. A renewal that still names it as held means that the tenure never ended."""
        if not self._leases.may_act(hold):
            self._renew()
        return self._leases.may_act(hold)

    # --- the poller -----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        waits = backoff()
        while not self._draining.is_set():
            room = self._wait_for_room()
            if room == 0:
                continue
            session = self._leases.session
            if session is None:
                self._open(None)
                continue
            wait = min(POLL_SECONDS_MAX, self._leases.lease / RENEWALS_PER_LEASE)
            body: dict[str, Any] = {"max": min(room, POLL_MAX), "wait_ms": round(wait * 1000)}
            repeated = functools.partial(self._given_up, session, body)
            sent = self._clock()
            body = body if sent >= self._repeats_until else self._repeated(session, body)
            where = path(self._many, "sessions", session, "poll")
            try:
                # Given up well within the lease: what it may have brought is asked about while it is still this session's.
                said = self._http.once("POST", where, body, timeout=wait + self._patience(), again=repeated).body
                brought = list(said[self._many])
            except TenureError as problem:
                self._given_up(session, body)
                if _is_over(problem):
                    self._ended(session)
                elif problem.status in FATAL:
                    raise
                else:
                    log.warning("no %s: %s", self._many, problem)
                    self._draining.wait(next(waits))
                continue
            except UNREADABLE as problem:
                self._given_up(session, body)
                log.warning("the answer to a poll can not be read: %r", problem)
                self._draining.wait(next(waits))
                continue
            waits = backoff()
            for one in brought:
                try:
                    it = self._read(one, session)
                except UNREADABLE as problem:
                    # Nothing can be said about what has no name; the others are not to blame.
                    log.error("a %s can not be read: %r in %.200r", self._one, problem, one)
                    continue
                self._take(it, sent)

    def _given_up(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        """A poll got no answer: the next ones are repeated ones. For a whole lease, and not only until one is answered: the poll that
        was given up may be somewhere on its way still, and be carried out after the next one."""
        self._repeats_until = self._clock() + self._leases.lease
        return self._repeated(session, body)

    def _wait_for_room(self) -> int:
        with self._room:
            self._room.wait_for(lambda: self._draining.is_set() or len(self._running) < self._concurrency)
            return 0 if self._draining.is_set() else self._concurrency - len(self._running)

    def _take(self, it: T, sent: float) -> None:
        _points.at("after_poll")
        key = (it.session, it.hold)
        with self._room:
            if key in self._running or key in self._untold:
                return  # told twice
            self._running[key] = it
        held = self._leases.claimed(it.hold, it.session, sent)
        if held and self._draining.is_set():
            self._crew.submit(lambda: self._give_back(it))
        elif held:
            self._crew.submit(lambda: self._run(it))
        else:
            self._crew.submit(lambda: self._too_late(it))

    # --- what is in hand ------------------------------------------------------------------------------------------------

    def _let_go(self, it: T, told: bool) -> None:
        """It is not in hand any more: its place is free."""
        self._leases.dropped(it.hold)
        with self._room:
            self._running.pop((it.session, it.hold), None)
            # Those of earlier sessions can not come again.
            self._untold = {one for one in self._untold if one[0] == self._leases.session}
            if not told:
                self._untold.add((it.session, it.hold))
            self._room.notify_all()

    def _found(self, session: str, hold: Hold) -> T | None:
        with self._room:
            return self._running.get((session, hold))

    def _in_hand(self) -> list[T]:
        with self._room:
            return list(self._running.values())

    def _idle(self, seconds: float) -> bool:
        with self._room:
            return self._room.wait_for(lambda: not self._running, timeout=seconds)


def _without_secrets(url: str) -> str:
    """An address without the name and the password that it may have."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _is_over(problem: TenureError) -> bool:
    # not_found: a server that knows nothing of the session, because it was over long ago, or the store was put back from a backup. In
    # words and not by the status alone: a gateway that does not find the server says 404 as well.
    return problem.status == 410 or problem.code in ("session_ended", "not_found")
