"""What a server sends has a bound here, whatever it sends. No server is needed: the lines of a stream are given."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import unittest
from typing import Any, Iterator
from unittest import mock

from fake import BOUND
from tenure import AsyncClient, Client, TenureError, _async_client, _client


def event(version: int, *lines: bytes) -> list[bytes]:
    said = {"version": version, "at": 0, "epoch": 0, "name": "e", "body": None}
    return [b"event: e\n", *lines, b"data: " + json.dumps(said).encode() + b"\n", b"\n"]


END = [b"event: end\n", b"data: {}\n", b"\n"]


class Watches(unittest.TestCase):
    def watched(self, lines: list[bytes]) -> list[int]:
        client = Client("http://127.0.0.1:1")
        with mock.patch.object(client._http, "stream", lambda *_, **__: iter(lines)):
            return [e.version for e in client.watch("j")]

    def test_an_event_may_have_so_many_bytes_and_not_one_more(self) -> None:
        first = event(1)
        with mock.patch.object(_client, "EVENT_MAX", sum(map(len, first))):
            self.assertEqual(self.watched([*first, *event(2), *END]), [1, 2])
            with self.assertRaises(TenureError) as caught:
                self.watched([*first, *event(2, b":"), *END])
        self.assertEqual(caught.exception.code, "answer_too_large")
        self.assertIn("after version 0", caught.exception.detail)

    def test_an_event_that_never_ends_is_given_up(self) -> None:
        def endless() -> Iterator[bytes]:
            while True:
                yield b"data: x\n"

        client = Client("http://127.0.0.1:1")
        with mock.patch.object(_client, "EVENT_MAX", 1_000), mock.patch.object(client._http, "stream", lambda *_, **__: endless()):
            with self.assertRaises(TenureError) as caught:
                next(client.watch("j"))
        self.assertEqual(caught.exception.code, "answer_too_large")

    def test_events_wait_for_whoever_looks_up_to_a_bound(self) -> None:
        taken, full = [], threading.Event()

        def lines(*_: Any, **__: Any) -> Iterator[bytes]:
            for version in range(1, 11):
                taken.append(version)
                if version == 4:
                    full.set()
                yield from event(version)
            yield from END

        async def main() -> None:
            async with AsyncClient("http://127.0.0.1:1") as client:
                with mock.patch.object(client._client._http, "stream", lines), mock.patch.object(_async_client, "WATCHED_MAX", 2):
                    watch = client.watch("j")
                    seen = [(await asyncio.wait_for(anext(watch), BOUND)).version]
                    # One is with the reader, two wait, and the thread holds one.
                    self.assertTrue(await asyncio.to_thread(full.wait, BOUND))
                    self.assertEqual(taken, [1, 2, 3, 4])
                    seen += [e.version async for e in watch]
                    self.assertEqual(seen, list(range(1, 11)))

        asyncio.run(main())



class Refusals(unittest.TestCase):
    def test_a_body_that_is_refused_by_its_length_is_sent_once(self) -> None:
        """The server answers before it has read the body, and closes: what is left to send fails."""
        problem = json.dumps({"code": "payload_too_large", "detail": "too large", "field": "Content-Length", "status": 413}).encode()
        head = b"HTTP/1.1 413 Payload Too Large\r\nContent-Type: application/problem+json\r\nConnection: close\r\n"
        answer = head + f"Content-Length: {len(problem)}\r\n\r\n".encode() + problem
        asked = []
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve() -> None:
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    with connection:
                        asked.append(connection.recv(100))
                        connection.sendall(answer)

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
            with self.assertRaises(TenureError) as caught:
                client.submit("plan", {"x": "x" * (40 * 1024 * 1024)})
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)
        self.assertEqual((caught.exception.code, caught.exception.status), ("payload_too_large", 413))
        self.assertEqual(len(asked), 1)


if __name__ == "__main__":
    unittest.main()
