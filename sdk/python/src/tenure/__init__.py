"""Tenure in Python: tools that jobs call, jobs themselves, and agents.

A tool is a decorated function; a `Worker` runs it for a server. A `Client` (or `AsyncClient`) submits jobs, watches and signals
them. An `Agent` runs turns of agents, with a function per step. Standard library only.
"""

from ._agent import Agent, Calls, Finish, GiveBack, Turn, TurnFailed, call
from ._agents import SentTurn
from ._async_client import AsyncClient
from ._client import Client, Gate
from ._results import Batch, Collected, Event, Job, Step
from ._tls import Tls
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
    "Agent",
    "AsyncClient",
    "Batch",
    "Call",
    "Calls",
    "Cancelled",
    "Client",
    "Collected",
    "Compensatable",
    "Event",
    "Finish",
    "Gate",
    "GiveBack",
    "Happened",
    "Job",
    "NotHappened",
    "Permanent",
    "Retryable",
    "SentTurn",
    "Step",
    "Stopped",
    "TenureError",
    "Tls",
    "Tool",
    "ToolError",
    "Turn",
    "TurnFailed",
    "Unclear",
    "Unknown",
    "Unreachable",
    "Worker",
    "call",
    "tool",
]
