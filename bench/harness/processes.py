"""Processes that do not outlive the benchmark, and what they cost in memory."""

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path


class Failed(Exception):
    """A case or an installation that has no result; the text says why."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tail(path, lines=12):
    text = Path(path).read_text(errors="replace") if Path(path).exists() else ""
    return "\n".join(text.splitlines()[-lines:])


def members(*sessions):
    """The processes of sessions: children of children, and those whose parent has died, included."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()  # the name before it may hold anything
        except OSError:
            continue  # gone in the meantime
        if int(fields[3]) in sessions and fields[0] != "Z":
            found.append((int(stat.parent.name), int(fields[3])))
    return found


def describe(pid):
    """A process that should have ended: is it waiting, or busy?"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        where = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return f"{pid} (gone)"
    name, fields = stat[stat.index("(") + 1:stat.rindex(")")], stat.rsplit(")", 1)[1].split()
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return f"{pid} ({name}, {fields[0]} in {where}, {used:.1f} s of processor used)"


class Process:
    """Leads a session of its own: ending it ends whatever it started, and nothing else. It also keeps a Ctrl-C at
    the terminal to the runner, which ends things in order."""

    def __init__(self, command, log, env=None, cwd=None, capture=False):
        self.command, self.log = [str(word) for word in command], Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as out:
            try:
                self.popen = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if capture else out, stderr=out,
                    env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True,
                )
            except FileNotFoundError:
                raise Failed(f"{self.command[0]} is not there") from None
        self.pid = self.popen.pid

    def stop(self, patience=10):
        deadline = time.monotonic() + patience
        how = signal.SIGTERM
        while alive := members(self.pid):
            for pid, _ in alive if how else []:
                try:
                    os.kill(pid, how)
                except ProcessLookupError:
                    pass
            # SIGTERM once: to some programs a second one means not to end in order any more.
            how = signal.SIGKILL if time.monotonic() > deadline else None
            time.sleep(0.02)
            self.popen.poll()
        self.popen.wait()
        if self.popen.stdout:
            self.popen.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def run(command, log, timeout, env=None, cwd=None, memory=None):
    """Runs to the end and returns what it printed. `memory` is a Memory that is to watch it."""
    with Process(command, log, env, cwd, capture=True) as process:
        if memory:
            memory.watch("load", process.pid)
        try:
            out, _ = process.popen.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            still = ", ".join(describe(pid) for pid, _ in members(process.pid))
            raise Failed(f"no end after {timeout:.0f} s: {' '.join(process.command)}\nstill there: {still}") from None
        if process.popen.returncode != 0:
            said = tail(log) or out.decode(errors="replace")[-800:]
            raise Failed(f"exit code {process.popen.returncode}: {' '.join(process.command)}\n{said}")
        return out.decode()


class Memory:
    """Peak resident memory of sessions: the kernel's own high-water mark (VmHWM) of each of their processes, added
    up. It is read twice a second, because it goes when the process goes; more often would cost what is measured."""

    def __init__(self):
        self.marks = {}  # (label, pid) -> kB
        self.sessions = {}
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.loop, daemon=True)

    def watch(self, label, session):
        with self.lock:
            self.sessions[session] = label

    def look(self):
        with self.lock:
            sessions = dict(self.sessions)
        for pid, session in members(*sessions):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    self.marks[sessions[session], pid] = int(line.split()[1])

    def loop(self):
        while not self.over.wait(0.5):
            self.look()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.look()
        self.over.set()
        self.thread.join()

    def megabytes(self):
        sums = {}
        for (label, _), kb in self.marks.items():
            sums[label] = sums.get(label, 0) + kb * 1024 / 1e6
        return {label: round(mb, 1) for label, mb in sums.items()}
