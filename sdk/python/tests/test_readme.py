"""The README's example, literally; and the requests of docs/workers-in-any-language.md, as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unittest
import urllib.request
from pathlib import Path
from typing import Any

from real import BOUND, RealServer, environment, submit_call, until
from tenure import TenureError

HERE = Path(__file__).resolve().parent


def page(name: str, inside: str) -> str:
    """A page of the checkout, or its copy beside the tests."""
    for path in (HERE.parent / Path(name).name, HERE.parent / inside):
        if path.exists():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(f"{name}: run sdk/python/check, or the tests inside of a checkout")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


class Readme(unittest.TestCase):
    def setUp(self) -> None:
        self.server = RealServer()
        self.addCleanup(self.server.close)

    def test_the_example_works_as_it_is_printed(self) -> None:
        text = page("README.md", "README.md")
        worker_code, *clients = blocks(text, "python")
        printed = blocks(text, "text")
        self.assertEqual(len(clients), len(printed))
        (self.server.dir / "worker.py").write_text(worker_code)
        env = environment(TENURE_SERVER=self.server.url)
        worker = subprocess.Popen([sys.executable, "worker.py"], cwd=self.server.dir, env=env)
        self.addCleanup(lambda: (worker.kill(), worker.wait()))
        until("the tool", lambda: any(tool["name"] == "charge" for tool in self.tools()))
        for code, expected in zip(clients, printed):
            (self.server.dir / "client.py").write_text(code)
            said = subprocess.run(
                [sys.executable, "client.py"], cwd=self.server.dir, env=env, capture_output=True, text=True, timeout=BOUND
            )
            self.assertEqual((said.stdout, said.returncode), (expected, 0), said.stderr)
        worker.terminate()
        self.assertEqual(worker.wait(BOUND), 0, "SIGTERM ends it in order")

    def tools(self) -> list[Any]:
        said = self.server.client._ask("GET", "/v1/tools").body
        return list(said["tools"] if isinstance(said, dict) else said)


class Protocol(unittest.TestCase):
    """Every request of the page is sent as it is printed, and answered with what is printed: the same members, and where the page
    has a whole value, that value."""

    def setUp(self) -> None:
        self.server = RealServer()
        self.addCleanup(self.server.close)
        self.names = {"SERVER": self.server.url}

    def test_the_requests_of_the_page_are_answered_as_it_says(self) -> None:
        text = page("workers-in-any-language.md", "../../docs/workers-in-any-language.md")
        examples = {self.kind(block): block for block in blocks(text, "console")}
        self.assertEqual(set(examples), {"sessions", "poll", "renew", "complete", "fail", "release", "DELETE", "calls"})
        self.names["SESSION"] = self.run_example(examples["sessions"])["session"]
        for last in ("fail", "release", "complete"):
            # What was given back comes again, and is completed; what failed has a second call that nobody here wants.
            if last != "complete":
                self.names["JOB"] = submit_call(self.server.client, "charge", {"order": "o-1"})
            taken = until("the call", lambda: self.taken(examples["poll"]))
            self.names.update(CALL=taken["call"], EPOCH=str(taken["epoch"]))
            self.run_example(examples["renew"])
            self.run_example(examples[last])
        done = self.server.client.wait(self.names["JOB"], BOUND)
        self.assertEqual((done.status, done.output), ("completed", {"receipt": "r-1"}), done.why)
        self.run_example(examples["calls"])
        self.assertIsNone(self.run_example(examples["DELETE"]))

    def test_the_limits_of_the_page_are_the_servers(self) -> None:
        def opened(lease_ms: int) -> Any:
            body = {"name": "n", "lease_ms": lease_ms, "tools": [{"name": "t"}]}
            return self.server.client._ask("POST", "/v1/calls/sessions", body).body["session"]

        def polled(session: str, most: int) -> Any:
            return self.server.client._ask("POST", f"/v1/calls/sessions/{session}/poll", {"max": most}).body

        self.assertTrue(opened(200))
        for most in (1, 64):
            self.assertEqual(polled(opened(15_000), most), {"calls": []})
        for refused, field in [(lambda: opened(199), "lease_ms"), (lambda: polled(opened(15_000), 0), "max"),
                               (lambda: polled(opened(15_000), 65), "max")]:
            with self.assertRaises(TenureError) as caught:
                refused()
            self.assertEqual(caught.exception.field, field)

    def taken(self, poll: str) -> Any:
        calls = self.run_example(poll, whole=False)["calls"]
        return next((call for call in calls if call["job"] == self.names["JOB"]), None)

    @staticmethod
    def kind(block: str) -> str:
        if "-X DELETE" in block:
            return "DELETE"
        url = re.search(r"\$SERVER(\S*?)[\"\s]", block.splitlines()[0] + " ")
        assert url is not None
        return url.group(1).split("?")[0].rsplit("/", 1)[1]

    def run_example(self, block: str, whole: bool = True) -> Any:
        command, _, printed = block.partition("\n{")
        answer = self.send(command.removeprefix("$ "))
        if printed and (whole or answer["calls"]):
            self.compare(json.loads("{" + printed), answer, "answer")
        return answer

    def send(self, command: str) -> Any:
        """A curl line, without curl: quotes and variables are the shell's own."""
        words = subprocess.run(
            ["sh", "-c", 'curl() { for word in "$@"; do printf "%s\\0" "$word"; done; }\n' + command],
            env={**os.environ, **self.names}, capture_output=True, check=True,
        ).stdout.decode().split("\0")[:-1]
        method, headers, data, url = "GET", {}, None, ""
        rest = iter(words)
        for word in rest:
            if word == "-X":
                method = next(rest)
            elif word == "-H":
                name, _, value = next(rest).partition(": ")
                headers[name] = value
            elif word == "-d":
                data = next(rest).encode()
            elif word != "-s":
                url = word
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=BOUND) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def compare(self, printed: Any, answer: Any, at: str) -> None:
        self.assertIs(type(answer), type(printed), at)
        if isinstance(printed, dict):
            for name, value in printed.items():
                self.assertIn(name, answer, at)
                self.compare(value, answer[name], f"{at}.{name}")
            if "id" not in printed:  # the listing for people is printed in part
                self.assertEqual(set(answer), set(printed), at)
        elif isinstance(printed, list):
            for one in printed:
                self.assertTrue(answer, at)
                self.compare(one, answer[0], f"{at}[0]")


if __name__ == "__main__":
    unittest.main()
