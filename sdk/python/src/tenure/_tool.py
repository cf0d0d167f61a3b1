"""Tools: decorated functions, and what a call of one knows about itself."""

from __future__ import annotations

import inspect
import logging
import threading
import typing
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Generic, Literal, ParamSpec, TypeVar, overload

from . import _schema
from ._schema import Json
from .errors import Cancelled, Stopped

log = logging.getLogger("tenure")

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Class = Literal["idempotent", "verifiable", "compensatable", "irreversible"]
CLASSES: tuple[Class, ...] = ("idempotent", "verifiable", "compensatable", "irreversible")


class Call:
    """One call of a tool. A tool gets it if its first parameter is annotated with this class."""

    def __init__(
        self,
        *,
        key: str,
        job: str,
        step: str,
        number: int,
        tenant: str = "default",
        timeout: float = 300.0,
        not_after: int = 0,
        what: str = "call",
        id: str = "",
    ) -> None:
        self.id = id
        """The call itself, as `GET /v1/calls/{id}` knows it."""
        self.key = key
        """The idempotency key. Pass it to whatever the tool calls: it is the same for every call that must have one effect."""
        self.job = job
        """The job."""
        self.step = step
        """The step of the job."""
        self.number = number
        """Which call under this key, from 1."""
        self.tenant = tenant
        """Whose job it is."""
        self.timeout = timeout
        """How many seconds it may take."""
        self.not_after = not_after
        """Nobody reckons with an effect after this moment: microseconds since 1970, on the store's clock."""
        self.what = what
        """`call`, `probe` or `compensate`."""
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._moved = 0

    @property
    def cancelled(self) -> bool:
        """Whether it should stop: its job was cancelled, its time is up, or it is not this worker's any more."""
        return self._stop.is_set()

    def check(self, *, nothing_applied: bool = False) -> None:
        """Raises if it should stop.

        Say `nothing_applied=True` only where nothing has been applied yet: it then counts as not called. Without it the
        outcome is unknown, and the tool's class settles it.
        """
        if self.cancelled:
            raise Cancelled("stopped on request") if nothing_applied else Stopped("stopped on request")

    def wait(self, seconds: float) -> bool:
        """Sleeps, or until it should stop. Whether it should stop. (An async tool is cancelled and needs none.)"""
        return self._stop.wait(seconds)

    def progress(self, note: object = None) -> None:
        """Shows that it moves: a count goes out with every renewal. The note goes to the worker's log."""
        with self._lock:
            self._moved += 1
        if note is not None:
            log.info("%s of job %s: %s", self.step, self.job, note)

    def _ask_to_stop(self) -> None:
        self._stop.set()


@dataclass(frozen=True)
class Happened(Generic[R]):
    """What a probe says: the call happened, with this result."""

    result: R


@dataclass(frozen=True)
class NotHappened:
    """What a probe says: there is no trace of the call."""


@dataclass(frozen=True)
class Unclear:
    """What a probe says: it can not tell now."""

    why: str


Probed = Happened[Any] | NotHappened | Unclear
"""What a probe returns."""


class _Function:
    """A function with what it takes, read from its signature once."""

    def __init__(self, function: Callable[..., Any], whole: bool | None) -> None:
        self.function = function
        try:
            hints = typing.get_type_hints(function, include_extras=False)
        except NameError as problem:
            raise TypeError(f"{function.__name__}: {problem}; types of a tool are named where its module sees them") from None
        parameters = list(inspect.signature(function).parameters.values())
        self.takes_call = bool(parameters) and hints.get(parameters[0].name) is Call
        if self.takes_call:
            parameters = parameters[1:]
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(f"{function.__name__}: {parameter} can not be filled from JSON; give it a name of its own")
        self.members = {
            p.name: (hints.get(p.name, Any), p.default is inspect.Parameter.empty) for p in parameters
        }
        one = next(iter(self.members.values()))[0] if len(self.members) == 1 else None
        self.whole = _schema.is_record(one) if whole is None else whole
        if self.whole and len(self.members) != 1:
            raise TypeError(f"{function.__name__}: whole=True is for a function with one parameter besides the call")
        try:
            self.input_schema = _schema.schema(one) if self.whole else _schema.object_schema(self.members)
            result = hints.get("return", Any)
            self.output_schema = {} if result is Any else _schema.schema(result)
        except TypeError as problem:
            raise TypeError(f"{function.__name__}: {problem}") from None

    def arguments(self, call: Call, value: Json) -> tuple[list[Any], dict[str, Any]]:
        """What it is called with. Raises BadValue."""
        args = [call] if self.takes_call else []
        if self.whole:
            name, (hint, _) = next(iter(self.members.items()))
            return args, {name: _schema.decode(value, hint)}
        # A tool without parameters may be called without an input.
        given = {} if value is None and not any(must for _, must in self.members.values()) else value
        return args, _schema.decode_members(given, self.members, "input")


class Tool(Generic[P, R]):
    """A function that jobs may call. Still a function: calling it here calls it, with no server in between."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        doc: str | None = None,
        class_: Class | None = None,
        timeout: float | None = None,
        retry_max: int | None = None,
        backoff: float | None = None,
        whole: bool | None = None,
        leaves_processes: bool = False,
    ) -> None:
        if class_ is not None and class_ not in CLASSES:
            raise ValueError(f"class_={class_!r}: give one of {', '.join(CLASSES)}")
        for word, value in (("timeout", timeout), ("backoff", backoff)):
            if value is not None and not value > 0:
                raise ValueError(f"{word}={value}: give seconds above 0")
        if retry_max is not None and retry_max < 0:
            raise ValueError(f"retry_max={retry_max}: give 0 or more")
        self._calls = _Function(function, whole)
        self._probe: _Function | None = None
        self._compensate: _Function | None = None
        self._class = class_
        self._whole = whole
        self.name = name or function.__name__
        self.doc = doc if doc is not None else (inspect.getdoc(function) or "").partition("\n")[0]
        self.timeout, self.retry_max, self.backoff = timeout, retry_max, backoff
        self.leaves_processes = leaves_processes
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function."""
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}, {self.class_ or 'irreversible'}>"

    @property
    def class_(self) -> Class | None:
        """What settles an outcome that nobody knows. Without one the server takes it for irreversible."""
        if self._class is None and self._probe is not None:
            return "verifiable"
        if self._class is None and self._compensate is not None:
            return "compensatable"
        return self._class

    def probe(self, function: F) -> F:
        """Attaches the function that says whether an earlier call under the same key happened.

        It gets what the tool got, and returns `Happened(result)`, `NotHappened()` or `Unclear(why)`. What it raises is
        unclear.
        """
        self._probe = self._beside(function)
        return function

    def compensate(self, function: F) -> F:
        """Attaches the function that undoes a call, whether or not it happened. It may be called twice."""
        self._compensate = self._beside(function)
        return function

    def _beside(self, function: Callable[..., Any]) -> _Function:
        made = _Function(_without_return(function), self._whole)
        if {n: h for n, (h, _) in made.members.items()} != {n: h for n, (h, _) in self._calls.members.items()}:
            raise TypeError(f"{function.__name__} must take what {self.name} takes: {', '.join(self._calls.members)}")
        return made

    def _does(self, what: str) -> _Function | None:
        return {"call": self._calls, "probe": self._probe, "compensate": self._compensate}.get(what)

    def _declaration(self) -> dict[str, Json]:
        """What the server is told when a worker registers it."""
        if self.class_ == "verifiable" and self._probe is None:
            raise ValueError(f"{self.name} is verifiable and has no probe: attach one with @{self.__name__}.probe")
        if self.class_ == "compensatable" and self._compensate is None:
            raise ValueError(f"{self.name} is compensatable and has nothing that undoes it: @{self.__name__}.compensate")
        said: dict[str, Json] = {
            "name": self.name,
            "doc": self.doc or None,
            "class": self.class_,
            "timeout_ms": _ms(self.timeout),
            "retry_max": self.retry_max,
            "backoff_ms": _ms(self.backoff),
            "input_schema": self._calls.input_schema,
            "output_schema": self._calls.output_schema or None,
            "probe": self._probe is not None,
            "compensate": self._compensate is not None,
        }
        return {name: value for name, value in said.items() if value is not None}


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))


def _without_return(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a probe or a compensation returns is no result of the tool: its annotation is not read."""
    function.__annotations__ = {k: v for k, v in function.__annotations__.items() if k != "return"}
    return function


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    doc: str | None = None,
    class_: Class | None = None,
    timeout: float | None = None,
    retry_max: int | None = None,
    backoff: float | None = None,
    whole: bool | None = None,
    leaves_processes: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    doc: str | None = None,
    class_: Class | None = None,
    timeout: float | None = None,
    retry_max: int | None = None,
    backoff: float | None = None,
    whole: bool | None = None,
    leaves_processes: bool = False,
) -> Any:
    """Makes a tool of a function, sync or async.

    `class_` says what settles a call whose outcome nobody knows, after a crash say: `idempotent` (called again with the same
    key), `verifiable` (its probe is asked), `compensatable` (undone, then called again), `irreversible` (a person is asked; so is
    a tool without a class). `timeout` and `backoff` are seconds. The input is an object with one member for each parameter; a
    single dataclass or TypedDict is the whole input, as is any single parameter with `whole=True`. `leaves_processes=True` is for one
    that starts processes (or work on another machine) which may go on after the worker's own process is dead: that process is then
    not named to the server, which otherwise takes its death for the end of the call.
    """

    def made(of: Callable[..., Any]) -> Any:
        return Tool(
            of,
            name=name,
            doc=doc,
            class_=class_,
            timeout=timeout,
            retry_max=retry_max,
            backoff=backoff,
            whole=whole,
            leaves_processes=leaves_processes,
        )

    return made if function is None else made(function)


AnyTool = Tool[..., Any]
Awaited = Awaitable[Any]
