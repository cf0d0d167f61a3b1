"""Tenure in Python: tools that jobs call, and jobs themselves.

A tool is a decorated function; a `Worker` runs it for a server. A `Client` (or `AsyncClient`) submits jobs, watches and signals
them. Standard library only.
"""

from ._async_client import AsyncClient
from ._client import Client
from ._results import Event, Job, Step
from ._tool import Call, Happened, NotHappened, Tool, Unclear, tool
from ._worker import Worker
from .errors import (
    Cancelled,
    Compensatable,
    Permanent,
    Retryable,
    Stopped,
    TenureError,
    ToolError,
    Unknown,
    Unreachable,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Call",
    "Cancelled",
    "Client",
    "Compensatable",
    "Event",
    "Happened",
    "Job",
    "NotHappened",
    "Permanent",
    "Retryable",
    "Step",
    "Stopped",
    "TenureError",
    "Tool",
    "ToolError",
    "Unclear",
    "Unknown",
    "Unreachable",
    "Worker",
    "tool",
]
