"""A server that speaks the protocol of calls from memory and does what a test tells it, also wrong things; and a clock that
stands still until it is moved."""

from __future__ import annotations

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable

BOUND = 20.0
"""No test waits longer for anything; on a quiet machine it comes within milliseconds."""


class FakeClock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Drop:
    """Instead of an answer: the connection is closed."""


class Raw:
    """Instead of JSON: these bytes."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.body = status, body


Reply = tuple[int, Any] | Drop | Raw
Hook = Callable[[str, Any], Reply | None]


class FakeServer:
    """Sessions s1, s2, …; calls are handed out in the order they were given in."""

    def __init__(self, lease_ms: int = 600) -> None:
        self.lease_ms = lease_ms
        self.changed = threading.Condition()
        self.requests: list[tuple[str, str, Any]] = []
        self.queue: deque[dict[str, Any]] = deque()
        self.ended: set[str] = set()
        self.lost: set[str] = set()
        self.stop: set[str] = set()
        self.script: dict[str, deque[Reply | Hook]] = {}
        self.held: dict[str, list[dict[str, Any]]] = {}
        self.session = 0
        self.closing = False
        self.connections = 0
        self.dead = 0
        self.swallowed: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def setup(self) -> None:
                super().setup()
                with fake.changed:
                    fake.connections += 1
                    self.number = fake.connections

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                if fake._swallows(self.number, self.command, self.path):
                    self.close_connection = True
                    return
                reply = fake._answer(self.command, self.path, body)
                if isinstance(reply, Drop):
                    self.close_connection = True
                    return
                if isinstance(reply, Raw):
                    status, data = reply.status, reply.body
                else:
                    status, data = reply[0], b"" if reply[1] is None and reply[0] == 204 else json.dumps(reply[1]).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # the test's client is gone

            do_GET = do_POST = do_DELETE = _serve

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                pass  # clients come and go, and tests cut them off

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    # --- what tests say -------------------------------------------------------------------------------------------------

    def give(self, call: str, tool: str, input: Any = None, **more: Any) -> None:
        said = {"call": call, "epoch": 1, "tool": tool, "what": "call", "input": input, "key": f"key-{call}", "call_number": 1,
                "job": "j1", "step": "0", "tenant": "default", "timeout_ms": 60_000, "not_after": 5, **more}
        with self.changed:
            self.queue.append(said)
            self.changed.notify_all()

    def lose(self, path: str, body: Any) -> Reply:
        """For `next_answers`: it is done as it should be, and the answer never arrives."""
        parts = path.split("?")[0].strip("/").split("/")[2:]
        self._usual(_kind("POST", parts), parts, body)
        return Drop()

    def next_answers(self, what: str, *replies: Reply | Hook) -> None:
        """The next requests of this kind (open, poll, renew, complete, …) are answered so, one after the other."""
        with self.changed:
            self.script.setdefault(what, deque()).extend(replies)

    def cut(self) -> None:
        """The network changes: on the connections of until now nothing is ever answered, and nobody is told. `swallowed` gets what is
        asked there."""
        with self.changed:
            self.dead = self.connections

    def _swallows(self, connection: int, method: str, path: str) -> bool:
        with self.changed:
            if connection > self.dead:
                return False
            self.swallowed.append(_kind(method, path.split("?")[0].strip("/").split("/")[2:]))
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.closing, BOUND)
            return True

    def tell(self, **sets: set[str]) -> None:
        with self.changed:
            for name, value in sets.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], Any], what: str = "a condition") -> Any:
        with self.changed:
            found = self.changed.wait_for(condition, timeout=BOUND)
        if not found:
            raise AssertionError(f"waited {BOUND} s for {what}; seen were {[r[:2] for r in self.requests][-20:]}")
        return found

    def seen(self, what: str) -> list[Any]:
        return [body for kind, _, body in self.requests if kind == what]

    def wait_seen(self, what: str, count: int = 1) -> list[Any]:
        self.wait_for(lambda: len(self.seen(what)) >= count, f"{count} of {what}")
        return self.seen(what)

    # --- the protocol ---------------------------------------------------------------------------------------------------

    def _answer(self, method: str, path: str, body: Any) -> Reply:
        parts = path.split("?")[0].strip("/").split("/")[2:]
        what = _kind(method, parts)
        with self.changed:
            self.requests.append((what, path, body))
            self.changed.notify_all()
            scripted = self.script.get(what)
            reply = scripted.popleft() if scripted else None
        if callable(reply):
            reply = reply(path, body)
        return reply if reply is not None else self._usual(what, parts, body)

    def _usual(self, what: str, parts: list[str], body: Any) -> Reply:
        with self.changed:
            if what == "open":
                self.session += 1
                return 201, {"session": f"s{self.session}", "lease_ms": self.lease_ms, "renew_ms": self.lease_ms // 3}
            if what in ("poll", "renew") and parts[1] in self.ended:
                return 410, {"code": "session_ended", "detail": "it is over"}
            if what == "poll":
                held = self.held.setdefault(parts[1], [])
                if "have" in body:
                    has = {(c["call"], c["epoch"]) for c in body["have"]}
                    again = [c for c in held if (c["call"], c["epoch"]) not in has]
                    if again:
                        return 200, {"calls": again[: body["max"]]}
                self.changed.wait_for(lambda: self.queue or self.closing or parts[1] in self.ended, body["wait_ms"] / 1000)
                if parts[1] in self.ended:
                    return 410, {"code": "session_ended", "detail": "it is over"}
                taken = [self.queue.popleft() for _ in range(min(body["max"], len(self.queue)))]
                held.extend(taken)
                return 200, {"calls": taken}
            if what == "renew":
                named = {c["call"] for c in body["calls"]}
                return 200, {"lease_ms": self.lease_ms, "lost": sorted(named & self.lost), "stop": sorted(named & self.stop)}
            if what == "goodbye":
                self.ended.add(parts[1])
                return 204, None
            if what in ("complete", "fail", "release"):
                for held in self.held.values():
                    held[:] = [c for c in held if c["call"] != parts[0]]
                return 200, {"accepted": True}
        return 404, {"code": "no_route", "detail": "/".join(parts)}


def _kind(method: str, parts: list[str]) -> str:
    if method == "DELETE":
        return "goodbye"
    if parts == ["sessions"]:
        return "open"
    return parts[-1] if parts else "?"
