"""A worker that is killed, or stopped and woken up later, at every point of a call, for tools of all four classes. The file OUTSIDE is
the world: how often each effect happened is counted there, not believed.

| struck at | what is true then |
|---|---|
| after_poll, before_call | the call was given to a worker that never made it |
| in_call, in_renew | it happened, and the tool has not returned |
| after_call, before_complete | the tool has returned, and nobody knows |
| after_complete | the server knows |

All cases run side by side, each with a tool and a worker of its own, so that the whole costs little more than one.
"""

from __future__ import annotations

import unittest
from dataclasses import dataclass
from pathlib import Path

from real import RealServer, WorkerProcess, acts, lines, submit_call, until
from tenure import Job
from tenure._executor import this_process

BEFORE = ("after_poll", "before_call")
BETWEEN = ("in_call", "in_renew", "after_call", "before_complete")
POINTS = (*BEFORE, *BETWEEN, "after_complete")
CLASSES = ("idempotent", "verifiable", "compensatable", "irreversible")


@dataclass
class Case:
    point: str
    how: str
    class_: str
    victim: WorkerProcess
    job: str = ""
    asked: int = 0

    @property
    def tool(self) -> str:
        return f"{self.class_}.{self.point}.{self.how}".lower()

    def __str__(self) -> str:
        return self.tool


class Struck(unittest.TestCase):
    """Subclasses say how."""

    how = ""

    def setUp(self) -> None:
        self.server = RealServer()
        self.addCleanup(self.server.close)
        self.client = self.server.client
        self.outside = Path(self.server.dir) / "outside"
        self.cases = [self.case(point, class_) for point in POINTS for class_ in CLASSES]

    def case(self, point: str, class_: str) -> Case:
        name = f"{class_}:{class_}.{point}.{self.how}".lower()
        victim = WorkerProcess(self.server.url, self.outside, [name], point=f"{point}:{self.how}")
        self.addCleanup(victim.close)
        return Case(point, self.how, class_, victim)

    def strike(self) -> None:
        """Every victim gets its call, and is struck by it."""
        for case in self.cases:
            case.victim.ready()
            case.job = submit_call(self.client, case.tool, key=case.tool)
        for case in self.cases:
            until(f"{case} to be struck", case.victim.struck)

    def survivor(self) -> None:
        tools = [f"{case.class_}:{case.tool}" for case in self.cases]
        survivor = WorkerProcess(self.server.url, self.outside, tools, concurrency=len(tools))
        self.addCleanup(survivor.close)
        survivor.ready()

    def settle(self, case: Case) -> bool:
        """Whether the job is over. Where it asks for a person, the person looks outside and says what is there."""
        job = self.client.get(case.job)
        if job.status == "attention" and job.attention:
            happened = bool(acts(self.outside, case.tool))
            case.asked += 1
            if happened:
                self.client.resolve(case.job, job.attention["step"], "happened", f"done {case.tool}", by="a person")
            else:
                self.client.resolve(case.job, job.attention["step"], "did_not_happen", by="a person")
            until(f"{case} to go on", lambda: self.client.get(case.job).status != "attention")
        return job.is_final

    def judge(self, case: Case, most: int) -> Job:
        """It ended well, nothing was lost, and nothing happened more often than its class allows."""
        job = self.client.get(case.job)
        happened = acts(self.outside, case.tool)
        self.assertEqual((job.status, job.output), ("completed", f"done {case.tool}"), f"{case}: {job.why} {job.failure}")
        self.assertIn(len(happened), range(1, most + 1), f"{case}: {lines(self.outside)}")
        if case.class_ == "compensatable":
            # What was undone is made anew, under a key of its own; in the end it stands once.
            words = [line[0] for line in lines(self.outside) if line[1] == case.tool]
            self.assertEqual(words[-1], "act", f"{case}: {words}")
            self.assertGreaterEqual(words.count("undo"), len(happened) - 1, f"{case}: {words}")
        else:
            self.assertEqual(len({line[2] for line in happened}), 1, f"{case}: one key for one effect, {happened}")
        return job


class Killed(Struck):
    how = "KILL"

    def test_a_worker_killed_at_every_point_loses_nothing_and_does_nothing_twice(self) -> None:
        self.strike()
        self.survivor()
        for case in self.cases:
            until(f"the end of {case}", lambda: self.settle(case))
        for case in self.cases:
            with self.subTest(case=str(case)):
                again = case.class_ in ("idempotent", "compensatable") and case.point in BETWEEN
                self.judge(case, most=2 if again else 1)
                # A person is needed only where nobody else can know. (Without an identity of the process the server can not
                # know that it is dead, and asks about verifiable calls too.)
                if this_process() is not None:
                    needed = case.class_ == "irreversible" and case.point != "after_complete"
                    self.assertEqual(case.asked, int(needed), str(case))


class Stopped(Struck):
    how = "STOP"

    def test_a_worker_stopped_at_every_point_and_woken_later_does_nothing_twice_and_nobody_is_asked(self) -> None:
        self.strike()
        self.survivor()
        # Nobody wakes before each has been taken for lost.
        for case in self.cases:
            if case.point != "after_complete":
                until(f"{case} to be lost", lambda: self.is_lost(case))
        for case in self.cases:
            case.victim.wake()
        for case in self.cases:
            until(f"the end of {case}", lambda: self.client.get(case.job).is_final)
        for case in self.cases:
            with self.subTest(case=str(case)):
                again = case.class_ in ("idempotent", "compensatable") and case.point in BETWEEN
                self.judge(case, most=2 if again else 1)
        # And whoever woke up goes on: it has a session again, and takes a call.
        for case in self.cases:
            self.assertIsNone(case.victim.process.poll(), f"{case}: the worker is alive")

    def is_lost(self, case: Case) -> bool:
        """The call that the victim had is not in its hands any more."""
        found = self.client._ask("GET", f"/v1/calls?job={case.job}").body["calls"]
        return any(call["over"] for call in found)


del Struck  # has no tests of its own

if __name__ == "__main__":
    unittest.main()
