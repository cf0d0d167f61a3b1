"""Agents in Python against a real server: steps, tools as jobs, results, failures, stops. Every case with a function that runs in a
thread and with one that runs in an event loop; then what is the loop's alone."""

from __future__ import annotations

import asyncio
import threading
import unittest
from typing import Callable

from real import BOUND, RealServer, until
from tenure import Agent, Calls, Finish, GiveBack, Turn, TurnFailed, call

Answer = Callable[[Turn], "str | Finish | Calls"]


class Agents(unittest.TestCase):
    """With a sync function."""

    def setUp(self) -> None:
        self.server = RealServer()
        self.addCleanup(self.server.close)
        self.agents = self.server.client.agents

    def agent(self, answer: Answer, lease: float | None = None, drain_seconds: float = 10.0) -> Agent:
        return Agent(answer, self.server.url, targets=["py"], lease=lease, drain_seconds=drain_seconds)

    def test_a_tool_runs_as_a_job_and_its_result_comes_back(self) -> None:
        seen: list[tuple[int, int]] = []

        def step(turn: Turn) -> Calls | Finish:
            seen.append((turn.step, turn.turn_epoch))
            if turn.step == 1:
                return call("say", program="echo", args=[turn.text])
            return Finish({"said": turn.results[0]["result"]["stdout"].strip()})

        profile = {"tools": [{"name": "say", "run": {"tool": "command"}}]}
        self.agents.set("ada", profile, target="py")
        with self.agent(step):
            turn = self.agents.send("ada", "hello", wait=BOUND)
            self.assertEqual(turn.status, "success", turn)
            self.assertEqual(self.agents.result(turn.id), {"said": "hello"})
        self.assertEqual(seen, [(1, 1), (2, 2)])

    def test_a_text_ends_a_turn_and_what_can_not_be_called_is_told(self) -> None:
        told: list[str] = []

        def step(turn: Turn) -> str | Calls:
            if turn.step == 1:
                return call("nothing")
            told.append(str(turn.results[0]["error"]["code"]))
            return f"step {turn.step} of {turn.agent}"

        self.agents.set("bob", target="py")
        with self.agent(step):
            turn = self.agents.send("bob", "go", wait=BOUND)
            self.assertEqual(self.agents.result(turn.id), "step 2 of bob")
        self.assertEqual(told, ["unknown_tool"])

    def test_what_the_server_refuses_fails_the_turn_at_once_and_says_why(self) -> None:
        asked: list[str] = []

        def step(turn: Turn) -> str | Finish:
            asked.append(turn.text)
            if turn.text == "code":
                raise TurnFailed("no such order", "I looked")
            if turn.text == "status":
                return Finish(1, status="failed")
            return "x" * 3_000_000

        self.agents.set("max", target="py")
        with self.agent(step):
            errors = []
            for text in ["code", "status", "size"]:
                turn = self.agents.send("max", text, wait=BOUND)
                self.assertEqual(turn.status, "failed", turn)
                errors.append(turn.error or {})
        self.assertEqual([e.get("code") for e in errors], ["no_such_order", "agent_error", "agent_error"])
        for error, word in zip(errors, ["no such order: I looked", "success or partial", "refused"]):
            self.assertIn(word, str(error.get("message")))
        self.assertEqual(asked, ["code", "status", "size"], "each was asked once")

    def test_failures_and_stops(self) -> None:
        begun, lost = threading.Event(), threading.Event()

        def step(turn: Turn) -> str:
            if turn.text == "fail":
                raise TurnFailed("no_idea", "I do not know")
            if turn.text == "break":
                raise RuntimeError("a bug")
            begun.set()
            until("the stop", lambda: turn.lost)
            lost.set()
            return "late"

        self.agents.set("eve", target="py")
        with self.agent(step):
            turn = self.agents.send("eve", "fail", wait=BOUND)
            self.assertEqual((turn.status, (turn.error or {}).get("code")), ("failed", "no_idea"))
            turn = self.agents.send("eve", "break", wait=BOUND)
            self.assertEqual((turn.status, (turn.error or {}).get("code")), ("failed", "agent_error"))
            turn = self.agents.send("eve", "hang")
            begun.wait(BOUND)
            self.agents.stop(turn.id, "enough")
            turn = self.agents.wait(turn.id, BOUND)
            self.assertEqual((turn.status, (turn.error or {}).get("code")), ("failed", "stopped"))
            self.assertTrue(lost.wait(BOUND), "the function hears of it")

    def test_what_is_given_back_comes_again(self) -> None:
        asked: list[int] = []

        def step(turn: Turn) -> str:
            asked.append(turn.attempt)
            if len(asked) == 1:
                raise GiveBack("not today")
            return "done"

        self.agents.set("lee", target="py")
        with self.agent(step):
            turn = self.agents.send("lee", "go", wait=BOUND)
            self.assertEqual((turn.status, self.agents.result(turn.id)), ("success", "done"))
        self.assertEqual(len(asked), 2)

    def test_a_worker_that_is_gone_is_replaced(self) -> None:
        begun = threading.Event()

        def hangs(turn: Turn) -> str:
            begun.set()
            until("the end", lambda: turn.lost)
            return "late"

        self.agents.set("kim", target="py")
        first = self.agent(hangs, lease=0.6, drain_seconds=0.1)
        first.start()
        turn = self.agents.send("kim", "go")
        begun.wait(BOUND)
        first.stop()
        with self.agent(lambda turn: f"attempt {turn.attempt}"):
            self.assertEqual(self.agents.wait(turn.id, BOUND).status, "success")
            self.assertEqual(self.agents.result(turn.id), "attempt 2")


class AsyncAgents(Agents):
    """The same with an async function, in a loop of the agent's own."""

    def agent(self, answer: Answer, lease: float | None = None, drain_seconds: float = 10.0) -> Agent:
        async def awaited(turn: Turn) -> str | Finish | Calls:
            # In a thread: the cases wait in their functions, and the loop is for all turns.
            return await asyncio.to_thread(answer, turn)

        return Agent(awaited, self.server.url, targets=["py"], lease=lease, drain_seconds=drain_seconds)

    def test_turns_share_the_callers_loop(self) -> None:
        loops: list[asyncio.AbstractEventLoop] = []

        async def work() -> list[object]:
            both = asyncio.Event()

            async def step(turn: Turn) -> Finish:
                loops.append(asyncio.get_running_loop())
                turn.progress("waiting for the other one")
                if len(loops) == 2:
                    both.set()
                # Neither goes on before both have begun.
                await asyncio.wait_for(both.wait(), BOUND)
                return Finish(turn.agent)

            async with Agent(step, self.server.url, targets=["py"]):
                sent = [asyncio.to_thread(self.agents.send, name, "go", wait=BOUND) for name in ("ann", "ben")]
                turns = await asyncio.gather(*sent)
                self.assertEqual(loops, [asyncio.get_running_loop()] * 2)
                return [await asyncio.to_thread(self.agents.result, turn.id) for turn in turns]

        for name in ("ann", "ben"):
            self.agents.set(name, target="py")
        self.assertEqual(asyncio.run(work()), ["ann", "ben"])

    def test_a_lost_turn_is_cancelled_and_what_is_cancelled_otherwise_fails(self) -> None:
        begun, ended = threading.Event(), threading.Event()

        async def step(turn: Turn) -> str:
            if turn.text == "cancel":
                raise asyncio.CancelledError("of its own")
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return "never"

        self.agents.set("joe", target="py")
        with Agent(step, self.server.url, targets=["py"]):
            turn = self.agents.send("joe", "cancel", wait=BOUND)
            self.assertEqual((turn.status, (turn.error or {}).get("code")), ("failed", "agent_error"))
            turn = self.agents.send("joe", "hang")
            begun.wait(BOUND)
            self.agents.stop(turn.id, "enough")
            self.assertTrue(ended.wait(BOUND), "its task is cancelled")
            turn = self.agents.wait(turn.id, BOUND)
            self.assertEqual((turn.status, (turn.error or {}).get("code")), ("failed", "stopped"))

    def test_an_agent_that_stops_cancels_what_does_not_end(self) -> None:
        begun = threading.Event()

        async def hangs(_: Turn) -> str:
            begun.set()
            await asyncio.Event().wait()
            return "never"

        async def answers(turn: Turn) -> str:
            return f"attempt {turn.attempt}"

        self.agents.set("sue", target="py")
        first = Agent(hangs, self.server.url, targets=["py"], drain_seconds=0.1)
        first.start()
        turn = self.agents.send("sue", "go")
        begun.wait(BOUND)
        first.stop()
        with Agent(answers, self.server.url, targets=["py"]):
            self.assertEqual(self.agents.wait(turn.id, BOUND).status, "success")
            self.assertEqual(self.agents.result(turn.id), "attempt 2")


if __name__ == "__main__":
    unittest.main()
