"""One call in this process: it is run, and what became of it is put into the words of the protocol.

What is said must be true whatever happened, so the words are few. A tool that returned: its result. A tool that raised one of the
kinds of `ToolError`: that kind. Anything else, also a cancelled task and an exception nobody thought of: `unknown`, because code of
the tool ran and nobody knows how far it came. Only a call that was never begun is `not_called`.

Whether code of it still runs is said as well. A thread that came back is over. A task that was cancelled or raised is not known to be:
what it waited for in another thread (`asyncio.to_thread`), task or process goes on, and may take effect later. `wait_for` gives up on
a thread in this way, and `gather` on its siblings. Only a kind of `ToolError` is the tool's own word that nothing is left.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from . import _points, _schema
from ._lease import Hold
from ._loop import Task
from ._schema import BadValue, Json
from ._tool import AnyTool, Call, Happened, NotHappened, Unclear
from .errors import ToolError, Unknown

log = logging.getLogger("tenure")

ERROR_CHARS_MAX = 2_000


@dataclass(frozen=True)
class Outcome:
    """What is told the server: the verb and the body of its request."""

    verb: str
    body: Mapping[str, Json]


def failed(kind: str, error: str) -> Outcome:
    """A call that did not return, and of which no code runs any more."""
    return Outcome("fail", {"kind": kind, "error": _text(error)})


def left(error: str) -> Outcome:
    """A call that nobody waits for any more, and of which code may still run: a thread or a process behind a task that ended."""
    return Outcome("fail", {"kind": "unknown", "error": _text(error), "over": False})


def not_called(why: str) -> Outcome:
    """The tool was not begun, and never will be."""
    return failed("not_called", why)


def _text(says: str) -> str:
    """What can be sent: short, and without half characters (os.fsdecode makes some), which are not JSON for the server."""
    return says[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()


def _words(raised: BaseException) -> str:
    try:
        says = str(raised)
    except Exception as odd:
        says = f"it can not be shown: {type(odd).__name__}"
    if isinstance(raised, ToolError):
        return says or type(raised).__name__
    return f"{type(raised).__name__}: {says}"


class Running:
    """A call that this process was given."""

    def __init__(self, said: Mapping[str, Any], session: str) -> None:
        self.session = session
        self.hold = Hold(str(said["call"]), int(said["epoch"]))
        self.tool_name = str(said["tool"])
        self.what = str(said.get("what") or "call")
        self.input: Json = said.get("input")
        self.call = Call(
            id=self.hold.call,
            key=str(said.get("key", "")),
            job=str(said.get("job", "")),
            step=str(said.get("step", "")),
            number=int(said.get("call_number") or 1),
            tenant=str(said.get("tenant") or "default"),
            timeout=float(said.get("timeout_ms") or 300_000) / 1000,
            not_after=int(said.get("not_after") or 0),
            what=self.what,
        )
        self.deadline: float | None = None
        self.why_stopped = ""
        self._lock = threading.Lock()
        self._task = Task()

    @property
    def begun(self) -> bool:
        """Code of the tool runs, or has run."""
        return self.deadline is not None

    def stop(self, why: str) -> None:
        """Asks it to stop; once is enough. A thread sees it in `call.cancelled`, a task is cancelled."""
        with self._lock:
            if self.call.cancelled:
                return
            self.why_stopped = why
            self.call._ask_to_stop()
        log.warning("%s of job %s stops: %s", self.tool_name, self.call.job, why)
        self._task.cancel()

    def run(self, tool: AnyTool | None, loop: Callable[[], asyncio.AbstractEventLoop]) -> Outcome:
        """Calls the function and returns when it is over, or its task is; see `left`."""
        function = tool._does(self.what) if tool is not None else None
        if function is None:
            missing = f"this worker has no {self.what} of {self.tool_name}"
            return self._unclear(missing) if self.what == "probe" else failed("permanent", missing)
        try:
            args, kwargs = function.arguments(self.call, self.input)
        except BadValue as problem:
            says = f"the input does not fit the tool: {problem}"
            return self._unclear(says) if self.what == "probe" else failed("permanent", says)
        in_loop = False
        try:
            returned = function.function(*args, **kwargs)
            # Asked of what it returns, not of the function: a decorator may hide that it is async.
            if inspect.isawaitable(returned):
                in_loop = True
                returned = self._task.run(returned, loop())
        except BaseException as raised:  # SystemExit of a tool is no reason to end a worker
            if self.what == "call":
                _points.at("after_call")
            return self._raised(raised, in_loop)
        if self.what == "call":
            _points.at("after_call")
        return self._returned(returned)

    def _returned(self, returned: Any) -> Outcome:
        try:
            if self.what == "probe":
                return Outcome("complete", {"result": _probed(returned)})
            if self.what == "compensate":
                return Outcome("complete", {"result": None})
            return Outcome("complete", {"result": _schema.encode(returned)})
        except Exception as problem:  # BadValue, or what a result does when somebody looks at it
            # It happened: a result that can not be written down must not make it look otherwise.
            log.error("%s returned something that is not JSON: %s", self.tool_name, problem)
            return failed("unknown", f"the tool returned something that can not be written as JSON: {problem}")

    def _raised(self, raised: BaseException, in_loop: bool) -> Outcome:
        says = _words(raised)
        if self.what == "probe":
            return self._unclear(says)
        if isinstance(raised, Unknown) and not raised.over:
            return left(says)
        if isinstance(raised, ToolError):
            return failed(raised.kind, says)
        if in_loop and (self.call.cancelled or isinstance(raised, asyncio.CancelledError)):
            return left(f"stopped while it ran: {self.why_stopped or 'cancelled'} ({says})")
        log.error("%s raised %s (job %s, step %s)", self.tool_name, says, self.call.job, self.call.step, exc_info=raised)
        return left(f"the tool raised {says}") if in_loop else failed("unknown", f"the tool raised {says}")

    def _unclear(self, why: str) -> Outcome:
        return Outcome("complete", {"result": {"happened": None, "why": _text(why)}})


def _probed(said: Any) -> dict[str, Json]:
    if isinstance(said, Happened):
        return {"happened": True, "result": _schema.encode(said.result)}
    if isinstance(said, NotHappened):
        return {"happened": False}
    if isinstance(said, Unclear):
        return {"happened": None, "why": _text(said.why)}
    return {"happened": None, "why": _text(f"the probe returned {said!r} and not Happened, NotHappened or Unclear")}
