"""The clock that leases are measured on. It counts the time in which the machine was suspended: a lease goes on then."""

from __future__ import annotations

import sys
import time
from typing import Callable

Clock = Callable[[], float]
"""Seconds from some fixed moment. A parameter wherever a lease is counted, so that tests need not wait."""

# Linux: CLOCK_MONOTONIC stands still in suspend, CLOCK_BOOTTIME does not. macOS: what time.monotonic reads (mach_absolute_time) stands
# still in sleep, CLOCK_MONOTONIC_RAW (mach_continuous_time) does not. Windows: time.monotonic goes on.
_NAME = "CLOCK_MONOTONIC_RAW" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
_CLOCK: int | None = getattr(time, _NAME, None)


def boottime() -> float:
    """Now, on that clock."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
