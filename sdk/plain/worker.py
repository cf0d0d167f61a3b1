#!/usr/bin/env python3
"""A whole worker by the rules of docs/workers-in-any-language.md: nothing but HTTP, JSON and threads, as a start for another language.

    worker.py http://127.0.0.1:7777 OUTSIDE

It has one tool, `charge`, whose effect is a line in the file OUTSIDE. The key in TENURE_API_KEY is sent if there is one. (In Python itself there is a package: sdk/python.)
"""

import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

SERVER, OUTSIDE = sys.argv[1], sys.argv[2]
ROOM = 4  # calls at once
HEADERS = {"content-type": "application/json"}
if os.environ.get("TENURE_API_KEY"):
    HEADERS["authorization"] = "Bearer " + os.environ["TENURE_API_KEY"]


class NoAnswer(Exception):
    """Nobody knows whether it was done."""


class Refused(Exception):
    """The server's own word: `status` and `code`."""

    def __init__(self, status, code, detail):
        super().__init__(f"{status} {code}: {detail}")
        self.status, self.code = status, code
        self.session_over = code in ("session_ended", "not_found")  # of a request under a session


def boottime():
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # counts suspend time; see rule 1 for other systems


def ask(method, path, body=None, timeout=10.0):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(SERVER + path, data, HEADERS, method=method)
    try:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as answer:
            status, content = answer.code, answer.read()
        said = json.loads(content) if content else None
    except (OSError, http.client.HTTPException, ValueError) as lost:
        raise NoAnswer(f"{method} {path}: {lost!r}") from None
    if status < 300:
        return said
    code = said.get("code") if isinstance(said, dict) else None
    if code is None or status in (408, 425, 429) or status >= 500:
        raise NoAnswer(f"{method} {path}: {status}")  # not the server's word, or not now
    raise Refused(status, code, said.get("detail"))


def pauses():
    pause = 0.1
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(5.0, 2 * pause)


# --- the tool: what it raises says what became of the call ---------------------------------------------------------------


class Permanent(Exception):
    """Nothing was applied, and another try would not help."""


def charge(call, stop):
    order = (call["input"] or {}).get("order")
    if not isinstance(order, str):
        raise Permanent("an order is a text")
    with open(OUTSIDE, "a", encoding="utf-8") as file:
        file.write(f"charge {order} {call['key']}\n")
    return {"receipt": order}


def find(call):
    with open(OUTSIDE, "a+", encoding="utf-8") as file:
        file.seek(0)
        found = any(line.split()[2] == call["key"] for line in file)
    return {"happened": True, "result": {"receipt": call["input"]["order"]}} if found else {"happened": False}


TOOLS = [{"name": "charge", "doc": "Charges an order.", "class": "verifiable", "probe": True, "timeout_ms": 30_000}]


# --- the worker ----------------------------------------------------------------------------------------------------------


class Held:
    def __init__(self, call, session, valid_until):
        self.call, self.session, self.valid_until = call, session, valid_until
        self.name = {"call": call["call"], "epoch": call["epoch"]}
        self.stop, self.deadline = threading.Event(), None  # a deadline once it has begun


class Worker:
    def __init__(self):
        self.changed = threading.Condition()
        self.session, self.lease, self.live_until, self.repeat_until = None, 15.0, 0.0, 0.0
        self.held, self.untold = {}, {}  # (session, call, epoch) → Held; untold: what became of it could not be told
        self.ending, self.closed = threading.Event(), threading.Event()

    def open(self):
        for pause in pauses():
            sent = boottime()
            try:
                said = ask("POST", "/v1/calls/sessions", {"name": "plain", "tools": TOOLS})
                break
            except NoAnswer as lost:
                print(lost, file=sys.stderr, flush=True)
                if self.ending.wait(pause):
                    return
        with self.changed:
            self.session, self.lease = said["session"], said["lease_ms"] / 1000
            self.live_until, self.repeat_until, self.untold = sent + 0.9 * self.lease, 0.0, {}

    def over(self, session):
        """The session is over: nothing of it is held any more."""
        with self.changed:
            if session == self.session:
                self.session = None
            for key in [key for key in self.held if key[0] == session]:
                self.held[key].stop.set()

    def may_act(self, held):
        with self.changed:
            return held.session == self.session and boottime() < min(held.valid_until, self.live_until)

    def renew(self):
        with self.changed:
            session = self.session
            named = [held for held in self.held.values() if held.session == session]
        if session is None:
            return True
        sent = boottime()
        try:
            said = ask("POST", f"/v1/calls/sessions/{session}/renew", {"calls": [h.name for h in named]}, self.lease / 3)
        except NoAnswer:
            return False
        except Refused as refused:
            if refused.session_over:
                self.over(session)
            return True
        with self.changed:
            if session == self.session:
                self.live_until = max(self.live_until, sent + 0.9 * self.lease)
            for held in named:
                if held.name["call"] in said["lost"]:
                    held.valid_until = 0.0
                    held.stop.set()
                elif held.valid_until:
                    held.valid_until = max(held.valid_until, sent + 0.9 * self.lease)
                if held.name["call"] in said["stop"]:
                    held.stop.set()
        return True

    def keeper(self):
        pause = self.lease / 3
        while not self.closed.wait(pause):
            pause = self.lease / 3 if self.renew() else self.lease / 15

    def watch(self):
        while not self.closed.wait(min(0.5, self.lease / 20)):
            with self.changed:
                for held in self.held.values():
                    if held.deadline is not None and (boottime() >= held.deadline or not self.may_act(held)):
                        held.stop.set()

    def poll(self):
        with self.changed:
            self.changed.wait_for(lambda: len(self.held) < ROOM, timeout=0.5)
            session, room = self.session, ROOM - len(self.held)
            have = [held.name for held in (*self.held.values(), *self.untold.values()) if held.session == session]
        if room <= 0:
            return
        sent, wait = boottime(), min(5.0, self.lease / 3)
        body = {"max": room, "wait_ms": round(wait * 1000)}
        if sent < self.repeat_until:
            body["have"] = have
        try:
            said = ask("POST", f"/v1/calls/sessions/{session}/poll", body, wait + self.lease / 3)
            for call in said["calls"]:
                self.take(Held(call, session, sent + 0.9 * self.lease))
        except NoAnswer:
            self.repeat_until = boottime() + self.lease
            self.ending.wait(0.2)
        except Refused as refused:
            if not refused.session_over:
                raise
            self.over(session)

    def take(self, held):
        key = (held.session, held.name["call"], held.name["epoch"])
        with self.changed:
            if key in self.held or key in self.untold:
                return  # told twice
            self.held[key] = held
        threading.Thread(target=self.run, args=(key, held), daemon=True).start()

    def run(self, key, held):
        if self.ending.is_set():
            told = self.say(held, "release", {"why": "shutting down"})
        else:
            told = self.say(held, *self.do(held))
        with self.changed:
            del self.held[key]
            if not told:
                self.untold[key] = held
            self.changed.notify_all()

    def do(self, held):
        """What became of it, in the words of the protocol."""
        if not self.may_act(held):
            self.renew()
        if not self.may_act(held) or held.stop.is_set():
            return "fail", {"kind": "not_called", "error": "lost or stopped before it was begun"}
        held.deadline = boottime() + held.call["timeout_ms"] / 1000
        try:
            result = find(held.call) if held.call["what"] == "probe" else charge(held.call, held.stop)
            json.dumps(result)
            return "complete", {"result": result}
        except Permanent as failed:
            return "fail", {"kind": "permanent", "error": str(failed)}
        except Exception as failed:  # it says nothing about what had happened before it
            return "fail", {"kind": "unknown", "error": ascii(failed)}

    def say(self, held, verb, said):
        """Whether the server has answered."""
        for pause in pauses():
            body = {"session": held.session, "epoch": held.name["epoch"], **said}
            try:
                ask("POST", f"/v1/calls/{held.name['call']}/{verb}", body, 30.0)
                return True
            except NoAnswer:
                if self.closed.wait(pause):
                    return False
            except Refused as refused:
                print(refused, file=sys.stderr, flush=True)
                if refused.status in (404, 409) or verb != "complete":
                    return refused.status in (404, 409)
                verb, said = "fail", {"kind": "unknown", "error": f"its result was refused: {refused}"}

    def work(self):
        self.open()
        for role in (self.keeper, self.watch):
            threading.Thread(target=role, daemon=True).start()
        while not self.ending.is_set():
            self.poll() if self.session else self.open()
        with self.changed:
            if not self.changed.wait_for(lambda: not self.held, timeout=10):
                for held in self.held.values():
                    held.stop.set()
                self.changed.wait_for(lambda: not self.held, timeout=2)
        self.closed.set()
        if self.session and not self.held:
            ask("DELETE", f"/v1/calls/sessions/{self.session}", timeout=5)


worker = Worker()
signal.signal(signal.SIGTERM, lambda *_: worker.ending.set())
worker.work()
