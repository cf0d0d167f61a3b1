"""A worker process for tests: worker_main.py URL OUTSIDE CONCURRENCY CLASS:NAME…

Each tool appends a line to the file OUTSIDE, which is the world whose effects are counted. `both:NAME` waits until two processes
have begun; `slow:NAME` until a file NAME lies beside OUTSIDE or it should stop; `leaving:NAME` is verifiable and may leave processes.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from tenure import Call, Cancelled, Happened, NotHappened, Tool, Worker, _points, tool

URL, OUTSIDE, CONCURRENCY = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])


def act(word: str, name: str, key: str) -> None:
    """One effect. A single small write to a file opened for appending is whole or not there."""
    file = os.open(OUTSIDE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{word} {name} {key} {os.getpid()}\n".encode())
    os.close(file)


def acted(name: str, key: str | None = None) -> list[list[str]]:
    found = [line.split() for line in OUTSIDE.read_text().splitlines()] if OUTSIDE.exists() else []
    return [line for line in found if line[:2] == ["act", name] and key in (None, line[2])]


def plain(name: str, class_: Any, **terms: Any) -> Tool[..., Any]:
    def function(call: Call) -> str:
        act("act", name, call.key)
        _points.at("in_call")
        if (_points._armed or ("",))[0] == "in_renew":
            while _points._armed is not None and not call.wait(0.02):
                pass
        return f"done {name}"

    # Calls are counted one by one; a test does not want to wait for ordinary pauses.
    made = tool(name=name, class_=class_, timeout=60, backoff=0.05, **terms)(function)
    if class_ == "verifiable":

        @made.probe
        def _(call: Call) -> Any:
            act("probe", name, call.key)
            return Happened(f"done {name}") if acted(name, call.key) else NotHappened()

    if class_ == "compensatable":

        @made.compensate
        def _(call: Call) -> None:
            act("undo", name, call.key)

    return made


def both(name: str) -> Tool[..., Any]:
    @tool(name=name, class_="irreversible", timeout=60)
    def function(call: Call) -> int:
        act("act", name, call.key)
        while len({line[3] for line in acted(name)}) < 2 and not call.wait(0.02):
            pass
        return os.getpid()

    return function


def slow(name: str) -> Tool[..., Any]:
    @tool(name=name, class_="irreversible", timeout=60)
    def function(call: Call) -> str:
        act("begin", name, call.key)
        call.progress("half way")
        while not (OUTSIDE.parent / name).exists():
            if call.wait(0.02):
                raise Cancelled("nothing was applied")
        act("act", name, call.key)
        return "done"

    return function


def build(said: str) -> Tool[..., Any]:
    kind, _, name = said.partition(":")
    if kind == "leaving":
        return plain(name, "verifiable", leaves_processes=True)
    return {"both": both, "slow": slow}[kind](name) if kind in ("both", "slow") else plain(name, kind)


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s {os.getpid()} %(threadName)s %(message)s")
    worker = Worker(URL, tools=[build(said) for said in sys.argv[4:]], concurrency=CONCURRENCY, drain_seconds=30)
    with worker._signals():
        worker.start()
        print("ready", flush=True)
        worker._draining.wait()
        worker.stop()


main()
