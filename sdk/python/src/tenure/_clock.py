"""The clock that leases are measured on. It counts the time in which the machine was suspended: a lease goes on then."""

from __future__ import annotations

import time
from typing import Callable

Clock = Callable[[], float]
"""Seconds from some fixed moment. A parameter wherever a lease is counted, so that tests need not wait."""

# Linux: CLOCK_MONOTONIC stands still in suspend, CLOCK_BOOTTIME does not. Elsewhere (macOS, Windows) time.monotonic is the one that
# goes on.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def boottime() -> float:
    """Now, on that clock."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
