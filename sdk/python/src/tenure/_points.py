"""Named points at which a test ends or stops this process: TENURE_PY_POINT=NAME:KILL or NAME:STOP, at the first passage.

The crash windows of a call are proven with real processes. Without the variable, which no deployment sets, a point is one
comparison.
"""

from __future__ import annotations

import os
import signal
import threading

NAMES = ("after_poll", "before_call", "in_call", "after_call", "before_complete", "after_complete", "in_renew")


def _read(text: str) -> tuple[str, signal.Signals] | None:
    if not text:
        return None
    name, _, how = text.partition(":")
    signals = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}
    if name not in NAMES or how not in signals:
        raise ValueError(f"TENURE_PY_POINT={text}: give NAME:KILL or NAME:STOP with a name of {', '.join(NAMES)}")
    return name, signals[how]


_armed = _read(os.environ.get("TENURE_PY_POINT", ""))
_lock = threading.Lock()


def at(name: str) -> None:
    """Passes a point."""
    global _armed
    if _armed is None or _armed[0] != name:
        return
    with _lock:
        if _armed is None:
            return
        how = _armed[1]
        _armed = None
    # To this very thread: a signal to the process may be taken by another one first, and this would go a little further.
    signal.pthread_kill(threading.get_ident(), how)
