"""An agent that is killed, or stopped and woken up later, at every point of a step. Whoever takes its turn over knows what it knew:
the turn ends once, and its tool has run once, which is counted outside.

| struck at | what is true then |
|---|---|
| after_poll, before_call | the step was handed to an agent that never began it |
| in_renew | the function runs |
| after_call, before_complete | the function has answered, and nobody knows |
| after_complete | the server knows, and the tool runs |

All cases run side by side, each with an agent of its own.
"""

from __future__ import annotations

import unittest
from dataclasses import dataclass
from pathlib import Path

from real import BOUND, AgentProcess, RealServer, lines, until

POINTS = ("after_poll", "before_call", "in_renew", "after_call", "before_complete", "after_complete")


@dataclass
class Case:
    name: str
    victim: AgentProcess
    turn: str = ""


class AgentsStruck(unittest.TestCase):
    def setUp(self) -> None:
        self.server = RealServer()
        self.addCleanup(self.server.close)
        self.agents = self.server.client.agents
        # Beside the store no program of the tool `command` creates anything.
        (self.server.dir / "programs").mkdir()
        self.outside = self.server.dir / "programs" / "outside"

    def process(self, kind: str, targets: list[str], point: str = "") -> AgentProcess:
        process = AgentProcess(self.server.url, self.outside, kind, targets, point)
        self.addCleanup(process.close)
        return process

    def struck(self, how: str) -> list[Case]:
        """Every victim has its turn, and was struck by it."""
        cases = []
        for kind in ("sync", "async"):
            for point in POINTS:
                name = f"{kind}-{point}".replace("_", "-")
                self.agents.set(name, {"tools": [{"name": "note", "run": {"tool": "command"}}]}, target=name)
                cases.append(Case(name, self.process(kind, [name], f"{point}:{how}")))
        for case in cases:
            case.victim.ready()
            case.turn = self.agents.send(case.name, "go").id
        for case in cases:
            until(f"{case.name} to be struck", case.victim.struck)
        return cases

    def others_end_them(self, cases: list[Case]) -> None:
        self.process("async", [case.name for case in cases]).ready()
        for case in cases:
            turn = self.agents.wait(case.turn, BOUND)
            self.assertEqual((case.name, turn.status), (case.name, "success"), turn)
            self.assertEqual(self.agents.result(case.turn), {"steps": 2}, case.name)

    def each_tool_ran_once(self, turns: list[str]) -> None:
        self.assertEqual(sorted(line[0] for line in lines(self.outside)), sorted(turns))

    def test_an_agent_killed_at_every_point_loses_nothing_and_does_nothing_twice(self) -> None:
        cases = self.struck("KILL")
        self.others_end_them(cases)
        self.each_tool_ran_once([case.turn for case in cases])

    def test_an_agent_stopped_at_every_point_and_woken_later_says_nothing_that_counts(self) -> None:
        cases = self.struck("STOP")
        self.others_end_them(cases)
        for case in cases:
            case.victim.wake()
        # It finds out that its turn is over, goes on with a session that lives, and ends in order.
        again = [self.agents.send(case.name, "again", wait=BOUND) for case in cases]
        self.assertEqual([turn.status for turn in again], ["success"] * len(cases))
        for case in cases:
            self.assertEqual(case.victim.terminate(), 0, case.name)
            self.assertEqual(self.agents.result(case.turn), {"steps": 2}, case.name)
        self.each_tool_ran_once([case.turn for case in cases] + [turn.id for turn in again])


if __name__ == "__main__":
    unittest.main()
