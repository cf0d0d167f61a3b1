"""What goes wrong, by name.

Two families. `ToolError` and its kinds are what a *tool* says about its call, so that the server knows what to do next.
`TenureError` is what the *server* says about a request.
"""

from __future__ import annotations

from typing import Any, Mapping


class ToolError(Exception):
    """What a tool raises to say what became of its call. Use one of the kinds.

    Any other exception is `unknown`: an exception in the middle of a tool says nothing about what had happened before it.
    """

    kind: str = "unknown"


class Retryable(ToolError):
    """Nothing was applied, and another try may help."""

    kind = "retryable"


class Permanent(ToolError):
    """Nothing was applied, and another try would not help."""

    kind = "permanent"


class Unknown(ToolError):
    """It may have been applied: the connection broke after the request had left, say. The tool's class settles it.

    `over=False` says that code of the call may still run: a thread of a pool, a process, a task.
    """

    kind = "unknown"

    def __init__(self, *said: object, over: bool = True) -> None:
        super().__init__(*said)
        self.over = over


class Compensatable(ToolError):
    """Half of it was applied: it is compensated, then tried again if it may be.

    Of a tool that is not compensatable it is the same as `Unknown`.
    """

    kind = "compensatable"


class Cancelled(ToolError):
    """The tool noticed the request to stop *before it applied anything*."""

    kind = "cancelled"


class Stopped(ToolError):
    """Raised by `Call.check()` when the call should stop. Not caught, it counts as `unknown`: the tool may have applied
    something before it looked."""

    kind = "unknown"


class TenureError(Exception):
    """The server refused a request.

    `code` is stable and has a page (`/errors/CODE` of the server), `detail` says what happened, `field` which input it
    was, `fix` what to do. `problem` is the whole answer.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int = 0,
        field: str | None = None,
        fix: str | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.field = field
        self.fix = fix
        self.problem: Mapping[str, Any] = problem or {}

    def __str__(self) -> str:
        text = f"{self.code}: {self.detail}"
        if self.field:
            text += f" (field {self.field})"
        if self.fix:
            text += f"; {self.fix}"
        return text


class Unreachable(TenureError):
    """No answer, or none of the server's: something that can not be read, or the error page of a gateway. Nobody knows whether the
    request was carried out; all requests of this package can be repeated."""

    def __init__(self, detail: str) -> None:
        super().__init__("unreachable", detail, fix="is the server running, and is this its address?")
