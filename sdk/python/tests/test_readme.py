"""The README's example, literally; the requests of docs/workers-in-any-language.md, as they stand there; and the worker in one file that
the page names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path
from typing import Any

from fake import Drop, FakeServer, Raw
from real import BOUND, RealServer, environment, submit_call, until
from tenure import TenureError

HERE = Path(__file__).resolve().parent


def page(name: str, inside: str) -> str:
    """A page of the checkout, or its copy beside the tests."""
    for path in (HERE.parent / name, HERE.parent / inside):
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
        errors = open(self.server.dir / "worker.log", "wb")
        self.addCleanup(errors.close)
        worker = subprocess.Popen([sys.executable, "worker.py"], cwd=self.server.dir, env=env, stderr=errors)
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
        first = (self.server.dir / "worker.log").read_text().splitlines()[0]
        self.assertEqual(first, f"tenure: a worker for {self.server.url} with the tool charge (Ctrl-C ends it)")

    def test_the_example_of_the_projects_readme_works_as_it_is_printed(self) -> None:
        (code,) = blocks(page("project/README.md", "../../README.md"), "python")
        env = environment(TENURE_SERVER=self.server.url)
        worker = subprocess.Popen([sys.executable, "-c", code], cwd=self.server.dir, env=env, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (worker.kill(), worker.wait()))
        until("the tool", lambda: any(tool["name"] == "charge" for tool in self.tools()))
        done = self.server.client.submit("call", {"tool": "charge", "input": {"order": "o-1", "cents": 1250}}, wait=BOUND)
        self.assertEqual((done.status, done.output["order"]), ("completed", "o-1"), done.why)
        worker.terminate()
        self.assertEqual(worker.wait(BOUND), 0, "SIGTERM ends it in order")

    def tools(self) -> list[Any]:
        said = self.server.client._ask("GET", "/v1/tools").body
        return list(said["tools"] if isinstance(said, dict) else said)


class Protocol(unittest.TestCase):
    """Every request of the page is sent as it is printed, and answered with what is printed: the same members, and where the page
    has a whole value, that value."""

    def setUp(self) -> None:
        self.server = RealServer(programs=False)
        self.addCleanup(self.server.close)
        self.names = {"SERVER": self.server.url}

    def test_the_requests_of_the_page_are_answered_as_it_says(self) -> None:
        text = page("workers-in-any-language.md", "../../docs/workers-in-any-language.md")
        examples = {self.kind(block): block for block in blocks(text, "console")}
        kinds = {"sessions", "jobs", "poll", "renew", "complete", "fail", "release", "DELETE", "calls"}
        self.assertEqual(set(examples), kinds)
        self.names["SESSION"] = self.run_example(examples["sessions"])["session"]
        for last in ("fail", "release", "complete"):
            # What was given back comes again, and is completed; what failed has a second call that nobody here wants.
            if last != "complete":
                self.names["JOB"] = self.run_example(examples["jobs"])["id"]
            taken = until("the call", lambda: self.taken(examples["poll"]))
            self.names.update(CALL=taken["call"], EPOCH=str(taken["epoch"]))
            self.run_example(examples["renew"])
            self.run_example(examples[last])
        done = self.server.client.wait(self.names["JOB"], BOUND)
        self.assertEqual((done.status, done.output), ("completed", {"receipt": "r-1"}), done.why)
        self.run_example(examples["calls"])
        self.assertIsNone(self.run_example(examples["DELETE"]))

    def test_the_limits_of_the_page_are_the_servers(self) -> None:
        def opened(lease_ms: int = 15_000, name: str = "n", tools: int = 1, **tool: Any) -> Any:
            said = [{"name": f"t{n}", **tool} for n in range(tools)]
            body = {"name": name, "lease_ms": lease_ms, "tools": said}
            return self.server.client._ask("POST", "/v1/calls/sessions", body).body["session"]

        def polled(session: str, most: int) -> Any:
            return self.server.client._ask("POST", f"/v1/calls/sessions/{session}/poll", {"max": most}).body

        for fits in ({"lease_ms": 200}, {"lease_ms": 3_600_000}, {"name": "n" * 128}, {"tools": 256}, {"name": "é" * 64}):
            self.assertTrue(opened(**fits))
        self.assertTrue(opened(name="of one", **{"class": "verifiable", "probe": True}))
        for most in (1, 64):
            self.assertEqual(polled(opened(), most), {"calls": []})

        def named(name: str) -> Any:
            body = {"name": "n", "tools": [{"name": name}]}
            return self.server.client._ask("POST", "/v1/calls/sessions", body).body["session"]

        self.assertTrue(named("t" * 100))
        for refused, field in [
            (lambda: opened(lease_ms=199), "lease_ms"),
            (lambda: opened(lease_ms=3_600_001), "lease_ms"),
            (lambda: opened(name="n" * 129), "name"),
            (lambda: opened(name="é" * 65), "name"),
            (lambda: opened(tools=0), "tools"),
            (lambda: opened(tools=257), "tools"),
            (lambda: opened(**{"class": "verifiable"}), "tools[0].probe"),
            (lambda: opened(**{"class": "compensatable"}), "tools[0].compensate"),
            (lambda: named("t" * 101), "tools[0].name"),
            (lambda: named("two words"), "tools[0].name"),
            (lambda: polled(opened(), 0), "max"),
            (lambda: polled(opened(), 65), "max"),
        ]:
            with self.assertRaises(TenureError) as caught:
                refused()
            self.assertEqual((caught.exception.field, caught.exception.status), (field, 422), str(caught.exception))

    def test_what_the_page_says_about_answers_is_so(self) -> None:
        def asked(method: str, path: str, body: Any = None) -> tuple[int, str, str | None]:
            with self.assertRaises(TenureError) as caught:
                self.server.client._ask(method, path, body)
            return caught.exception.status, caught.exception.code, caught.exception.field

        nobody = "00000000-0000-7000-8000-000000000000"
        said = {"name": "n", "tools": [{"name": "charge", "class": "idempotent"}]}
        session = self.server.client._ask("POST", "/v1/calls/sessions", said).body["session"]
        self.assertEqual(asked("POST", f"/v1/calls/sessions/{nobody}/renew", {"calls": []}), (404, "not_found", "session"))
        self.assertEqual(asked("POST", f"/v1/calls/sessions/{nobody}/poll", {"max": 1}), (404, "not_found", "session"))
        ended = {"session": session, "epoch": 1}
        self.assertEqual(asked("POST", f"/v1/calls/{nobody}/complete", ended), (404, "not_found", "call"))
        self.assertEqual(asked("POST", "/v1/calls/sessions/x/y/z", {})[:2], (404, "no_route"))
        self.server.client._ask("DELETE", f"/v1/calls/sessions/{session}")
        self.assertEqual(asked("POST", f"/v1/calls/sessions/{session}/renew", {"calls": []}), (410, "session_ended", "session"))
        self.assertEqual(asked("POST", f"/v1/calls/sessions/{session}/poll", {"max": 1}), (410, "session_ended", "session"))

    def test_progress_may_be_anything_and_an_error_is_cut(self) -> None:
        said = {"name": "n", "tools": [{"name": "charge", "class": "irreversible"}]}
        ask = self.server.client._ask
        session = ask("POST", "/v1/calls/sessions", said).body["session"]
        job = submit_call(self.server.client, "charge", {"order": "o-1"})
        calls = until("the call", lambda: ask("POST", f"/v1/calls/sessions/{session}/poll", {"max": 1, "wait_ms": 500}).body["calls"])
        named = {"call": calls[0]["call"], "epoch": calls[0]["epoch"]}
        for progress in (3, "half", {"page": 7}, None):
            renewed = ask("POST", f"/v1/calls/sessions/{session}/renew", {"calls": [{**named, "progress": progress}]}).body
            self.assertEqual((renewed["lost"], renewed["stop"]), ([], []))
        failed = {"session": session, "epoch": named["epoch"], "kind": "permanent", "error": "e" * 5000}
        self.assertEqual(ask("POST", f"/v1/calls/{named['call']}/fail", failed).body, {"accepted": True})
        failure = self.server.client.wait(job, BOUND).failure or {}
        self.assertEqual(failure["error"].count("e" * 4096), 1, failure)
        self.assertNotIn("e" * 4097, failure["error"])

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


class Plain(unittest.TestCase):
    """The worker in one file does what the page says, with a server and with one in trouble."""

    def start(self, url: str, dir: Path) -> subprocess.Popen[bytes]:
        for path in (HERE.parent / "plain", HERE.parent.parent / "plain"):
            if path.exists():
                words = [sys.executable, str(path / "worker.py"), url, str(dir / "outside")]
                worker = subprocess.Popen(words, env=environment(), stderr=subprocess.DEVNULL)
                self.addCleanup(lambda: (worker.kill(), worker.wait()))
                return worker
        raise FileNotFoundError("sdk/plain: run sdk/python/check, or the tests inside of a checkout")

    def test_its_calls_happen_once_also_after_it_was_killed(self) -> None:
        server = RealServer(programs=False)
        self.addCleanup(server.close)
        first = self.start(server.url, server.dir)
        until("the tool", lambda: any(tool["name"] == "charge" for tool in server.client._ask("GET", "/v1/tools").body))
        jobs = [submit_call(server.client, "charge", {"order": f"o-{n}"}) for n in range(20)]
        until("an effect", lambda: (server.dir / "outside").exists())
        first.kill()
        second = self.start(server.url, server.dir)
        for job in jobs:
            # It does not say which process it is, so a person is asked about what its first process had in hand.
            found = until("the end", lambda: (j := server.client.get(job)).is_final and j or j.attention and j)
            if not found.is_final:
                step, order = found.attention["step"], found.input["input"]["order"]
                self.assertNotIn(f" {order} ", (server.dir / "outside").read_text())
                server.client.resolve(job, step, "did_not_happen", by="ada")
            done = server.client.wait(job, BOUND)
            self.assertEqual(done.status, "completed", done.why)
        effects = [line.split()[1] for line in (server.dir / "outside").read_text().splitlines()]
        self.assertEqual(sorted(effects), sorted(f"o-{n}" for n in range(20)))
        wrong = server.client.wait(submit_call(server.client, "charge", {"order": 7}), BOUND)
        self.assertEqual(wrong.status, "failed")
        second.terminate()
        self.assertEqual(second.wait(BOUND), 0, "SIGTERM ends it in order")

    def test_what_gets_lost_on_the_way_costs_nothing(self) -> None:
        fake = FakeServer()
        self.addCleanup(fake.close)
        dir = Path(tempfile.mkdtemp(prefix="tenure-plain-"))
        self.addCleanup(shutil.rmtree, dir, ignore_errors=True)
        gateway = Raw(404, b"<html>default backend - 404</html>")
        fake.next_answers("open", Drop(), gateway)
        fake.next_answers("poll", fake.lose, gateway)
        fake.next_answers("renew", gateway, Drop())
        fake.next_answers("complete", gateway, Drop(), (503, {"code": "unavailable"}))
        fake.give("c1", "charge", {"order": "o-1"})
        worker = self.start(fake.url, dir)
        said = fake.wait_seen("complete", 4)
        self.assertEqual([body["result"] for body in said], [{"receipt": "o-1"}] * 4)
        self.assertEqual(len((dir / "outside").read_text().splitlines()), 1)
        fake.wait_seen("renew", 3)
        self.assertEqual((fake.session, fake.seen("fail")), (1, []), "the session was never over")
        fake.tell(ended={"s1"})
        fake.wait_for(lambda: fake.session == 2, "a new session")
        fake.give("c2", "charge", {"order": "o-2"})
        self.assertEqual(fake.wait_seen("complete", 5)[4]["session"], "s2")
        worker.terminate()
        self.assertEqual(worker.wait(BOUND), 0)
        kinds = [kind for kind, _, _ in fake.requests]
        self.assertEqual(kinds.count("goodbye"), 1)
        # A renewal that was under way on another connection may arrive after it; nothing else may.
        self.assertLessEqual(set(kinds[kinds.index("goodbye") + 1:]), {"renew"})


if __name__ == "__main__":
    unittest.main()
