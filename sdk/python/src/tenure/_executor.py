"""Who this process is, said so that a server on the same machine can tell a dead process from a silent one.

The same fields, from the same places, as workers in Rust say (`crates/edge`). Where the system does not say it, or says it of
somebody else (a /proc of another pid namespace), nothing is said and the lease alone decides.
"""

from __future__ import annotations

import os
import string
from typing import TypedDict


class Executor(TypedDict):
    """A process."""

    machine: str
    boot: str
    pid_namespace: str
    pid: int
    started: int


def this_process() -> Executor | None:
    """This one, if it can be said."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return None
        machine = _line("/etc/machine-id")
        # An image that was not started yet says "uninitialized".
        if len(machine) != 32 or not all(c in string.hexdigits for c in machine):
            return None
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            started = start_ticks(file.read())
        return {
            "machine": machine,
            "boot": _line("/proc/sys/kernel/random/boot_id"),
            "pid_namespace": os.readlink("/proc/self/ns/pid"),
            "pid": os.getpid(),
            "started": started,
        }
    except (OSError, ValueError, IndexError):
        return None


def start_ticks(stat: str) -> int:
    """Field 22 of /proc/PID/stat. Field 2 is a name in parentheses, which may itself hold spaces and parentheses."""
    return int(stat.rpartition(")")[2].split()[19])


def _line(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        text = file.read().strip()
    if not text:
        raise ValueError(f"{path} is empty")
    return text
