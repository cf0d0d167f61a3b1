"""HTTP/1.1 with kept connections, by the standard library. One request at a time per connection; connections are kept in a
pool, so that any number of threads may ask."""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping
from urllib.parse import quote, urlencode, urlsplit

from .errors import TenureError, Unreachable

KEPT_MAX = 16
BODY_MAX = 64 * 1024 * 1024
RETRIED = (408, 425, 429, 500, 502, 503, 504)
_LOST = (OSError, http.client.HTTPException, ssl.SSLError)


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    body: Any


def path(*parts: str) -> str:
    """A path under /v1 with its parts quoted."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


class Http:
    """One server. Safe to use from several threads."""

    def __init__(self, url: str | None, api_key: str | None = None) -> None:
        # The same variables as of the command line tools.
        url = url or os.environ.get("TENURE_SERVER") or "http://127.0.0.1:7777"
        api_key = api_key or os.environ.get("TENURE_API_KEY")
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server, such as http://127.0.0.1:7777")
        self.url = url
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Accept": "application/json", "User-Agent": "tenure-python"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        elif parts.username:
            secret = base64.b64encode(f"{parts.username}:{parts.password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {secret}"
        self._kept: list[http.client.HTTPConnection] = []
        self._kept_max = KEPT_MAX
        self._kept_by = os.getpid()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Lets go of the kept connections."""
        with self._lock:
            kept, self._kept, self._kept_max = self._kept, [], 0
        for connection in kept:
            connection.close()

    def _forget(self) -> None:
        """Lets go of the kept connections: what cost one its answer, a network that changed say, has cost them all theirs, and each of
        them would be found out by a request that waits in vain."""
        with self._lock:
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    def _connection(self, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        if self._kept_by != os.getpid():
            # After a fork they are the parent's: two processes would read each other's answers.
            self._kept_by = os.getpid()
            self._forget()
        with self._lock:
            if self._kept:
                kept = self._kept.pop()
                if kept.sock is not None:
                    kept.sock.settimeout(timeout)
                    return kept, True
        return self._fresh(timeout), False

    def _fresh(self, timeout: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout)
        connection.connect()
        # Small requests: waiting for more to send with them costs 40 ms each.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._kept) < self._kept_max:
                self._kept.append(connection)
                return
        connection.close()

    def once(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: float,
        headers: Mapping[str, str] | None = None,
        again: Callable[[], Any] | None = None,
    ) -> Answer:
        """One request. Raises TenureError for an answer of the server that is not 2xx, Unreachable without one. If a kept
        connection turns out to be closed it is sent once more; `again` gives its body then, where that has to be another."""
        data = _data(body)
        sent = {**self._headers, **(headers or {})}
        if data is not None:
            sent["Content-Type"] = "application/json"
        try:
            response, content = self._exchange(method, self._prefix + path, data, sent, timeout, again)
        except _LOST as lost:
            raise Unreachable(f"{method} {self.url}{path}: {type(lost).__name__}: {lost}") from lost
        return _read(method, path, response.status, content)

    def _exchange(
        self,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
        again: Callable[[], Any] | None,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection, was_kept = self._connection(timeout)
        try:
            try:
                connection.request(method, path, data, dict(headers))
                response = connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                connection.close()
                if not was_kept:
                    raise
                # The server closes what was quiet for a while, and says so only when it is used.
                connection = self._fresh(timeout)
                data = data if again is None else _data(again())
                connection.request(method, path, data, dict(headers))
                response = connection.getresponse()
            content = response.read(BODY_MAX + 1)
            if len(content) > BODY_MAX:
                raise http.client.HTTPException(f"the answer is larger than {BODY_MAX} bytes")
        except BaseException:
            connection.close()
            self._forget()
            raise
        if response.will_close or connection.sock is None:
            connection.close()
        else:
            self._keep(connection)
        return response, content

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: float = 30.0,
        retry_for: float = 30.0,
        headers: Mapping[str, str] | None = None,
        give_up: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """A request that may be repeated, repeated with backoff until there is an answer or the time is up."""
        waits, until = backoff(), time.monotonic() + retry_for
        while True:
            try:
                return self.once(method, path, body, timeout=timeout, headers=headers)
            except TenureError as problem:
                pause = next(waits)
                final = not isinstance(problem, Unreachable) and problem.status not in RETRIED
                if final or time.monotonic() + pause > until or give_up():
                    raise
            time.sleep(pause)

    def stream(self, path: str, *, headers: Mapping[str, str], timeout: float) -> Iterator[bytes]:
        """The lines of an answer as they come. Raises as `once` does."""
        try:
            connection = self._fresh(timeout)
        except _LOST as lost:
            raise Unreachable(f"GET {self.url}{path}: {type(lost).__name__}: {lost}") from lost
        try:
            connection.request("GET", self._prefix + path, headers={**self._headers, **headers})
            response = connection.getresponse()
            if response.status != 200:
                _read("GET", path, response.status, response.read(BODY_MAX))
            while line := response.readline(BODY_MAX):
                yield line
        except _LOST as lost:
            raise Unreachable(f"GET {self.url}{path}: {type(lost).__name__}: {lost}") from lost
        finally:
            connection.close()


def _data(body: Any) -> bytes | None:
    return None if body is None else json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def _read(method: str, path: str, status: int, content: bytes) -> Answer:
    """An answer, or the problem that it is."""
    try:
        body, is_json = json.loads(content) if content.strip() else None, True
    except ValueError:
        body, is_json = None, False
    if is_json and 200 <= status < 300:
        return Answer(status, body)
    said: Mapping[str, Any] = body if isinstance(body, dict) else {}
    if not isinstance(said.get("code"), str):
        # Whoever sent this is not the server, which names every problem: a gateway on the way, say, that has lost it for a moment. Its
        # status says nothing about what was asked for, and asking again is as safe as after no answer at all.
        garbled = content[:200].decode("utf-8", "replace")
        raise Unreachable(f"{method} {path}: status {status} with something that is not the server's: {garbled!r}")
    raise TenureError(
        said["code"],
        str(said.get("detail") or said.get("title") or f"{method} {path} was answered with status {status}"),
        status=status,
        field=said.get("field"),
        fix=said.get("fix"),
        problem=said,
    )


def backoff(first: float = 0.1, most: float = 5.0) -> Iterator[float]:
    """Pauses that grow, with jitter: many clients of a server that comes back do not all come at once."""
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(most, pause * 2)


def query(**members: Any) -> str:
    """A query string of those that are given."""
    given = {name: _word(value) for name, value in members.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
