"""A real server (the binary named by TENURE_BIN) on a store of its own, and worker processes beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, TypeVar

from tenure import Client, Tls

T = TypeVar("T")
P = TypeVar("P", bound="Process")
HERE = Path(__file__).resolve().parent
BOUND = 120.0
"""Nothing is waited for longer, also on a machine that is busy with other things."""
FAST = ("worker.lease_seconds=2", "worker.renewal_seconds=0.6", "server.tick_seconds=0.2", "server.pulse_gap_seconds=0.6",
        "executor.backoff=0.05")


KEY = "TENURE_API_KEY"
"""Where the package, and the programs beside this file, look for the key of the server."""


def binary() -> str:
    path = os.environ.get("TENURE_BIN")
    if not path:
        raise RuntimeError("TENURE_BIN is not set: cargo build -p tenure, then TENURE_BIN=target/debug/tenure; or run ./check")
    return str(Path(path).resolve())


def until(what: str, condition: Callable[[], T], bound: float = BOUND) -> T:
    """Waits for a condition."""
    end = time.monotonic() + bound
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {bound} s for {what}")
        time.sleep(0.01)
    return found


def environment(**more: str) -> dict[str, str]:
    """Without the settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_") or name == KEY}
    return {**kept, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **more}


class RealServer:
    """`tenure up` on a temporary store. With `programs` its jobs may run programs (some tools of agents do); then it takes no caller
    without a key."""

    def __init__(self, *sets: str, programs: bool = True, tls: Tls | None = None) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="tenure-py-"))
        self.log = open(self.dir / "server.log", "wb")
        words = [binary(), "up", "--store", f"sqlite:{self.dir / 'store'}", "--set", "server.listen=127.0.0.1:0"]
        for one in (*FAST, *(["tools.command_tenants=default"] if programs else []), *sets):
            words += ["--set", one]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=self.log, stdin=subprocess.DEVNULL, env=environment(), cwd=self.dir
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline().decode()
        found = re.search(r"https?://[0-9.:]+", first)
        if found is None:
            raise RuntimeError(f"the server did not say where it listens: {first!r}\n{self.logged()}")
        self.url = found.group(0)
        os.environ[KEY] = json.loads(until("the key", self._key_file))["key"]
        self.client = Client(self.url, tls=tls)

    def _key_file(self) -> str:
        file = self.dir / "store" / "admin.key"
        return file.read_text() if file.exists() else ""

    def logged(self) -> str:
        self.log.flush()
        return (self.dir / "server.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        self.client.close()
        os.environ.pop(KEY, None)
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class Process:
    """One of the programs beside this file, in a process of its own that a point may strike (tenure/_points.py)."""

    def __init__(self, program: str, words: list[str], log: Path, point: str) -> None:
        more = {"TENURE_PY_POINT": point} if point else {}
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / program), *words],
                stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=file, env=environment(**more),
            )

    def ready(self: P) -> P:
        """Waits until it works."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if said != b"ready\n":
            raise AssertionError(f"a worker did not start: {said!r}")
        return self

    @property
    def pid(self) -> int:
        return self.process.pid

    def struck(self) -> str | None:
        """`killed` or `stopped` once its point was passed."""
        with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
        return {"T": "stopped", "Z": "killed"}.get(state)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.terminate()
        return self.process.wait(BOUND)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class WorkerProcess(Process):
    """worker_main.py."""

    def __init__(self, url: str, outside: Path, tools: list[str], point: str = "", concurrency: int = 8) -> None:
        super().__init__("worker_main.py", [url, str(outside), str(concurrency), *tools], outside.parent / "workers.log", point)


class AgentProcess(Process):
    """agent_main.py; `how` is sync or async."""

    def __init__(self, url: str, outside: Path, how: str, targets: list[str], point: str = "") -> None:
        super().__init__("agent_main.py", [url, str(outside), how, *targets], outside.parent / "agents.log", point)


def lines(outside: Path) -> list[list[str]]:
    """What happened outside: `WORD TOOL KEY PID`, one line each."""
    if not outside.exists():
        return []
    return [line.split() for line in outside.read_text().splitlines()]


def acts(outside: Path, tool: str) -> list[list[str]]:
    return [line for line in lines(outside) if line[0] == "act" and line[1] == tool]


def submit_call(client: Client, tool: str, input: Any = None, **more: Any) -> str:
    """A job that calls this tool once."""
    return client.submit("call", {"tool": tool, "input": input}, **more).id
