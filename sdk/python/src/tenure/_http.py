"""HTTP/1.1 with kept connections, by the standard library. One request at a time per connection; connections are kept in a
pool, so that any number of threads may ask. Of several servers of one deployment the one that answers is kept; the next is tried when it
does not."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import random
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Sequence, Union
from urllib.parse import quote, urlencode, urlsplit

from ._tls import Tls, advice
from .errors import TenureError, Unreachable

log = logging.getLogger("tenure")

KEPT_MAX = 16
BODY_MAX = 64 * 1024 * 1024
CONNECT_SECONDS = 5.0
"""A connection takes no longer to be made; then the next server is tried."""
FIRST_SECONDS = 3.0
"""Seconds for which a server that has never answered is asked: its address may be wrong. One that has answered may be restarting."""
_LOST = (OSError, http.client.HTTPException, ssl.SSLError)


def is_final(problem: TenureError) -> bool:
    """Whether the server has refused it. Everything else says that there is no answer now: a broken connection, a request that came too
    early or too often, and every failure of the server, such as a full disk (507)."""
    return not isinstance(problem, Unreachable) and problem.status not in (408, 425, 429) and problem.status < 500


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    body: Any


def path(*parts: str) -> str:
    """A path under /v1 with its parts quoted."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


Servers = Union[str, Sequence[str], None]
"""One address, several with commas between them, or a sequence of them."""


class _Server:
    """One address."""

    def __init__(self, url: str, api_key: str | None, tls: Tls | None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server, such as http://127.0.0.1:7777")
        self.url = url
        self.tls = (tls or Tls()).context() if parts.scheme == "https" else None
        self.host, self.port = parts.hostname, parts.port
        self.prefix = parts.path.rstrip("/")
        self.headers = {"Accept": "application/json", "User-Agent": "tenure-python"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"
        elif parts.username:
            secret = base64.b64encode(f"{parts.username}:{parts.password or ''}".encode()).decode()
            self.headers["Authorization"] = f"Basic {secret}"


def addresses(servers: Servers) -> list[str]:
    """The addresses, in their order. Without any, those of TENURE_SERVER, the variable of the command line."""
    given = servers or os.environ.get("TENURE_SERVER") or "http://127.0.0.1:7777"
    listed = given.split(",") if isinstance(given, str) else list(given)
    found = [address.strip() for address in listed if address.strip()]
    if not found:
        raise ValueError(f"{given!r} names no server; write one as http://127.0.0.1:7777")
    return found


class Http:
    """A server, or several of one deployment. Safe to use from several threads."""

    def __init__(self, url: Servers, api_key: str | None = None, tls: Tls | None = None) -> None:
        api_key = api_key or os.environ.get("TENURE_API_KEY")
        self._servers = [_Server(address, api_key, tls) for address in addresses(url)]
        self._current = 0
        self._heard = False
        self._kept: list[http.client.HTTPConnection] = []
        self._kept_max = KEPT_MAX
        self._kept_by = os.getpid()
        self._lock = threading.Lock()

    @property
    def _at(self) -> _Server:
        return self._servers[self._current % len(self._servers)]

    @property
    def url(self) -> str:
        """The address that is asked now."""
        return self._at.url

    def _turn_from(self, server: _Server) -> None:
        """The next server is asked from now on, unless somebody else has turned already. What is kept belongs to this one."""
        with self._lock:
            if len(self._servers) == 1 or self._at is not server:
                return
            self._current += 1
            kept, self._kept = self._kept, []
        log.warning("%s does not answer; asking %s", server.url, self.url)
        for connection in kept:
            connection.close()

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

    def _connection(self, timeout: float) -> tuple[http.client.HTTPConnection, _Server, bool]:
        if self._kept_by != os.getpid():
            # After a fork they are the parent's: two processes would read each other's answers.
            self._kept_by = os.getpid()
            self._forget()
        with self._lock:
            if self._kept:
                kept = self._kept.pop()
                if kept.sock is not None:
                    kept.sock.settimeout(timeout)
                    return kept, self._at, True
        return (*self._fresh(timeout), False)

    def _fresh(self, timeout: float) -> tuple[http.client.HTTPConnection, _Server]:
        """A new connection: to the server that is asked now, else to the first of the others that lets itself be reached."""
        for left in reversed(range(len(self._servers))):
            server = self._at
            try:
                return self._connected(server, timeout), server
            except _LOST:
                if left == 0:
                    raise
                self._turn_from(server)
        raise AssertionError("there is at least one server")

    def _connected(self, server: _Server, timeout: float) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        soon = min(timeout, CONNECT_SECONDS)
        if server.tls is not None:
            connection = http.client.HTTPSConnection(server.host, server.port, timeout=soon, context=server.tls)
        else:
            connection = http.client.HTTPConnection(server.host, server.port, timeout=soon)
        connection.connect()
        connection.sock.settimeout(timeout)
        # Small requests: waiting for more to send with them costs 40 ms each.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _keep(self, connection: http.client.HTTPConnection, server: _Server) -> None:
        with self._lock:
            if len(self._kept) < self._kept_max and server is self._at:
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
        sent = dict(headers or {})
        if data is not None:
            sent["Content-Type"] = "application/json"
        try:
            response, content, server = self._exchange(method, path, data, sent, timeout, again)
        except _LOST as lost:
            raise Unreachable(f"{method} {self.url}{path}: {type(lost).__name__}: {lost}{advice(lost)}") from lost
        try:
            answer = _read(method, path, response.status, content)
            self._heard = True
            return answer
        except TenureError as problem:
            self._heard |= not isinstance(problem, Unreachable)
            if not is_final(problem) and problem.status not in (408, 425, 429):
                # It fails, or stops: another one may not.
                self._turn_from(server)
            raise

    def _exchange(
        self,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
        again: Callable[[], Any] | None,
    ) -> tuple[http.client.HTTPResponse, bytes, _Server]:
        connection, server, was_kept = self._connection(timeout)
        try:
            try:
                response = _sent(connection, method, server.prefix + path, data, {**server.headers, **headers})
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                connection.close()
                if not was_kept:
                    raise
                # The server closes what was quiet for a while, and says so only when it is used.
                connection, server = self._fresh(timeout)
                data = data if again is None else _data(again())
                response = _sent(connection, method, server.prefix + path, data, {**server.headers, **headers})
            content = response.read(BODY_MAX + 1)
            if len(content) > BODY_MAX:
                raise http.client.HTTPException(f"the answer is larger than {BODY_MAX} bytes")
        except BaseException:
            connection.close()
            self._forget()
            self._turn_from(server)
            raise
        if response.will_close or connection.sock is None:
            connection.close()
        else:
            self._keep(connection, server)
        return response, content, server

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
        """A request that may be repeated, repeated with backoff until there is an answer or the time is up. A server that has never
        answered is not asked for as long as one that has."""
        waits, began, told = backoff(), time.monotonic(), False
        while True:
            try:
                return self.once(method, path, body, timeout=timeout, headers=headers)
            except TenureError as problem:
                pause, seconds = next(waits), retry_for if self._heard else min(retry_for, FIRST_SECONDS)
                if is_final(problem) or time.monotonic() + pause > began + seconds or give_up():
                    raise
                if not told:
                    told = True
                    log.warning("%s; it is asked again for up to %g s", problem, seconds)
            time.sleep(pause)

    def stream(self, path: str, *, headers: Mapping[str, str], timeout: float) -> Iterator[bytes]:
        """The lines of an answer as they come. Raises as `once` does."""
        try:
            connection, server = self._fresh(timeout)
        except _LOST as lost:
            raise Unreachable(f"GET {self.url}{path}: {type(lost).__name__}: {lost}{advice(lost)}") from lost
        try:
            connection.request("GET", server.prefix + path, headers={**server.headers, **headers})
            response = connection.getresponse()
            if response.status != 200:
                _read("GET", path, response.status, response.read(BODY_MAX))
            self._heard = True
            while line := response.readline(BODY_MAX):
                yield line
        except _LOST as lost:
            self._turn_from(server)
            raise Unreachable(f"GET {self.url}{path}: {type(lost).__name__}: {lost}{advice(lost)}") from lost
        finally:
            connection.close()


def _sent(
    connection: http.client.HTTPConnection, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
) -> http.client.HTTPResponse:
    """Sends a request and reads the head of its answer. A server that refuses a body by its length answers before it has read it, and
    closes: what is then left to send fails, and the answer is there all the same."""
    try:
        connection.request(method, path, data, dict(headers))
    except (BrokenPipeError, ConnectionResetError) as broken:
        try:
            return connection.getresponse()
        except _LOST:
            raise broken from None
    return connection.getresponse()


def written(body: Any) -> bytes:
    """A body as it is sent."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def _data(body: Any) -> bytes | None:
    """The same of a request that may have none. One that is bytes was written before."""
    return body if body is None or isinstance(body, bytes) else written(body)


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
