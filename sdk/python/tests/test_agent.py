"""Agents in Python against a real server: steps, tools as jobs, results, failures, stops, and a worker that dies."""

from __future__ import annotations

import threading
import unittest

from real import BOUND, RealServer, until
from tenure import Agent, Finish, Turn, TurnFailed, call


class Agents(unittest.TestCase):
    def setUp(self) -> None:
        self.server = RealServer()
        self.addCleanup(self.server.close)
        self.agents = self.server.client.agents

    def test_a_tool_runs_as_a_job_and_its_result_comes_back(self) -> None:
        seen: list[tuple[int, int]] = []

        def step(turn: Turn) -> object:
            seen.append((turn.step, turn.turn_epoch))
            if turn.step == 1:
                return call("say", program="echo", args=[turn.text])
            return Finish({"said": turn.results[0]["result"]["stdout"].strip()})

        profile = {"tools": [{"name": "say", "run": {"tool": "command"}}]}
        self.agents.set("ada", profile, target="py")
        with Agent(step, self.server.url, targets=["py"]):  # type: ignore[arg-type]
            turn = self.agents.send("ada", "hello", wait=BOUND)
            self.assertEqual(turn.status, "success", turn)
            self.assertEqual(self.agents.result(turn.id), {"said": "hello"})
        self.assertEqual(seen, [(1, 1), (2, 2)])

    def test_a_text_ends_a_turn_and_what_can_not_be_called_is_told(self) -> None:
        told: list[str] = []

        def step(turn: Turn) -> object:
            if turn.step == 1:
                return call("nothing")
            told.append(str(turn.results[0]["error"]["code"]))
            return f"step {turn.step} of {turn.agent}"

        self.agents.set("bob", target="py")
        with Agent(step, self.server.url, targets=["py"]):  # type: ignore[arg-type]
            turn = self.agents.send("bob", "go", wait=BOUND)
            self.assertEqual(self.agents.result(turn.id), "step 2 of bob")
        self.assertEqual(told, ["unknown_tool"])

    def test_failures_and_stops(self) -> None:
        begun, hold = threading.Event(), threading.Event()
        lost: list[bool] = []

        def step(turn: Turn) -> object:
            if turn.text == "fail":
                raise TurnFailed("no_idea", "I do not know")
            if turn.text == "break":
                raise RuntimeError("a bug")
            begun.set()
            until("the stop", lambda: turn.lost or hold.is_set())
            lost.append(turn.lost)
            return "late"

        self.agents.set("eve", target="py")
        with Agent(step, self.server.url, targets=["py"]):  # type: ignore[arg-type]
            turn = self.agents.send("eve", "fail", wait=BOUND)
            self.assertEqual((turn.status, (turn.error or {}).get("code")), ("failed", "no_idea"))
            turn = self.agents.send("eve", "break", wait=BOUND)
            self.assertEqual((turn.status, (turn.error or {}).get("code")), ("failed", "agent_error"))
            turn = self.agents.send("eve", "hang")
            begun.wait(BOUND)
            self.agents.stop(turn.id, "enough")
            turn = self.agents.wait(turn.id, BOUND)
            self.assertEqual((turn.status, (turn.error or {}).get("code")), ("failed", "stopped"))
            until("the function hears of it", lambda: lost)
        self.assertEqual(lost, [True])

    def test_a_worker_that_is_gone_is_replaced(self) -> None:
        begun = threading.Event()

        def hangs(turn: Turn) -> object:
            begun.set()
            until("the end", lambda: turn.lost)
            return "late"

        self.agents.set("kim", target="py")
        first = Agent(hangs, self.server.url, targets=["py"], lease=0.6, drain_seconds=0.1)  # type: ignore[arg-type]
        first.start()
        turn = self.agents.send("kim", "go")
        begun.wait(BOUND)
        first.stop()
        with Agent(lambda turn: f"attempt {turn.attempt}", self.server.url, targets=["py"]):
            self.assertEqual(self.agents.wait(turn.id, BOUND).status, "success")
            self.assertEqual(self.agents.result(turn.id), "attempt 2")


if __name__ == "__main__":
    unittest.main()
