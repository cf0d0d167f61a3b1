"""Tools in Python, called by jobs of a real server."""

from __future__ import annotations

import asyncio
import os
import threading
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real import BOUND, RealServer, WorkerProcess, acts, lines, submit_call, until
from tenure import (
    AsyncClient,
    Call,
    Cancelled,
    Compensatable,
    Happened,
    NotHappened,
    Permanent,
    Retryable,
    TenureError,
    Unreachable,
    Worker,
    tool,
)


@dataclass
class Order:
    id: str
    cents: int


class CallRules(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = RealServer()
        cls.addClassCleanup(cls.server.close)
        cls.client = cls.server.client

    def work(self, *tools: Any, **options: Any) -> None:
        worker = Worker(self.server.url, tools=tools, drain_seconds=1, **options)
        worker.start()
        self.addCleanup(worker.stop)

    def call(self, tool: str, input: Any = None) -> Any:
        return self.client.wait(submit_call(self.client, tool, input), BOUND)

    def test_a_sync_and_an_async_tool_give_the_job_its_result(self) -> None:
        @tool(class_="idempotent")
        def charge(call: Call, order: Order) -> dict[str, Any]:
            return {"receipt": f"{order.id}/{order.cents}", "key": call.key, "number": call.number}

        @tool(class_="idempotent")
        async def later(call: Call, words: list[str]) -> str:
            await asyncio.sleep(0.01)
            return " ".join(words)

        self.work(charge, later)
        job = self.call("charge", {"id": "o1", "cents": 5})
        self.assertEqual((job.status, job.output["receipt"], job.output["number"]), ("completed", "o1/5", 1), job.why)
        job = self.call("later", {"words": ["as", "it", "is"]})
        self.assertEqual((job.status, job.output), ("completed", "as it is"), job.why)

    def test_a_poll_whose_answer_is_lost_costs_an_irreversible_call_nothing(self) -> None:
        called = []

        @tool(class_="irreversible")
        def pay(n: int) -> int:
            called.append(n)
            return n

        worker = Worker(self.server.url, tools=[pay], drain_seconds=1)
        once, lost = worker._http.once, threading.Event()

        def lossy(method: str, path: str, *rest: Any, **more: Any) -> Any:
            said = once(method, path, *rest, **more)
            if path.endswith("/poll") and said.body["calls"] and not lost.is_set():
                lost.set()
                raise Unreachable("the answer was lost on the way")
            return said

        worker._http.once = lossy  # type: ignore[method-assign]
        worker.start()
        self.addCleanup(worker.stop)
        job = self.call("pay", {"n": 3})
        self.assertTrue(lost.is_set())
        self.assertEqual((job.status, job.output, called), ("completed", 3, [3]), job.why)

    def test_what_may_be_retried_is_and_with_the_same_key(self) -> None:
        keys = []

        @tool(class_="irreversible", backoff=0.01)
        def flaky(call: Call) -> int:
            keys.append(call.key)
            if len(keys) < 3:
                raise Retryable("not yet")
            return len(keys)

        self.work(flaky)
        job = self.call("flaky")
        self.assertEqual((job.status, job.output), ("completed", 3), job.why)

    def test_a_permanent_failure_fails_the_job_with_its_words(self) -> None:
        calls = []

        @tool(class_="idempotent")
        def refuse() -> None:
            calls.append(1)
            raise Permanent("the card is blocked")

        self.work(refuse)
        job = self.call("refuse")
        self.assertEqual(job.status, "failed")
        self.assertIn("the card is blocked", str(job.failure))
        self.assertEqual(len(calls), 1)

    def test_an_input_that_does_not_fit_fails_the_job_and_says_where(self) -> None:
        @tool
        def strict(order: Order) -> None: ...

        self.work(strict)
        job = self.call("strict", {"id": "o1", "cents": "many"})
        self.assertEqual(job.status, "failed")
        self.assertIn("cents", str(job.failure))

    def test_an_exception_of_an_idempotent_tool_is_called_again(self) -> None:
        calls = []

        @tool(class_="idempotent", backoff=0.01)
        def shaky(call: Call) -> str:
            calls.append(call.key)
            if len(calls) == 1:
                raise ZeroDivisionError("a bug")
            return "fine"

        self.work(shaky)
        job = self.call("shaky")
        self.assertEqual((job.status, job.output), ("completed", "fine"), job.why)
        self.assertEqual((len(calls), len(set(calls))), (2, 1))

    def test_an_exception_of_an_irreversible_tool_is_for_a_person(self) -> None:
        calls = []

        @tool
        def fire() -> str:
            calls.append(1)
            raise ConnectionResetError("in the middle")

        self.work(fire)
        job = submit_call(self.client, "fire")
        found = until("attention", lambda: (j := self.client.get(job)).status == "attention" and j)
        assert found and found.attention
        self.client.resolve(job, found.attention["step"], "happened", "it did", note="looked", by="ada")
        done = self.client.wait(job, BOUND)
        self.assertEqual((done.status, done.output, len(calls)), ("completed", "it did", 1))

    def test_a_task_that_gave_up_on_its_thread_is_not_called_again_because_there_is_no_trace_yet(self) -> None:
        let_go, effects = threading.Event(), []
        self.addCleanup(let_go.set)

        def post_payment(key: str) -> str:
            let_go.wait(BOUND)
            effects.append(key)
            return "paid"

        @tool(name="pay.slowly", class_="verifiable", backoff=0.01)
        async def pay(call: Call) -> str:
            return await asyncio.wait_for(asyncio.to_thread(post_payment, call.key), 0.01)

        @pay.probe
        def _(call: Call) -> Any:
            return Happened("paid") if effects else NotHappened()

        self.work(pay)
        job = submit_call(self.client, "pay.slowly")
        found = until("attention", lambda: (j := self.client.get(job)).status == "attention" and j)
        assert found and found.attention
        let_go.set()
        until("the payment", lambda: effects)
        self.client.resolve(job, found.attention["step"], "happened", "paid", by="ada")
        done = self.client.wait(job, BOUND)
        self.assertEqual((done.status, done.output, len(effects)), ("completed", "paid", 1), done.why)

    def test_what_json_has_two_ways_to_say_comes_back_as_it_was(self) -> None:
        @tool(class_="idempotent", whole=True)
        def mirror_all(value: Any) -> Any:
            return value

        self.work(mirror_all)
        value = {"least": -(2**63), "most": 2**64 - 1, "exact": 2**53 + 1, "words": "żółć 🐢 \u2028", "ключ": 1}
        job = self.call("mirror_all", value)
        self.assertEqual((job.status, job.output), ("completed", value), job.why)

    def test_a_half_done_call_is_compensated_and_made_again(self) -> None:
        trace = []

        @tool(backoff=0.01)
        def book(seat: str) -> str:
            trace.append("book")
            if trace.count("book") == 1:
                raise Compensatable("half a seat")
            return seat

        @book.compensate
        def _(seat: str) -> None:
            trace.append("undo")

        self.work(book)
        job = self.call("book", {"seat": "4a"})
        self.assertEqual((job.status, job.output), ("completed", "4a"), job.why)
        self.assertEqual(trace, ["book", "undo", "book"])

    def test_a_cancelled_job_stops_its_tool(self) -> None:
        began = threading.Event()

        @tool
        def endless(call: Call) -> None:
            began.set()
            call.wait(BOUND)
            raise Cancelled("nothing was applied")

        stopped = threading.Event()

        @tool
        async def endless_task(call: Call) -> None:
            began.set()
            try:
                await asyncio.sleep(BOUND)
            except asyncio.CancelledError:
                stopped.set()
                raise Cancelled("nothing was applied") from None

        self.work(endless, endless_task)
        for name in ("endless", "endless_task"):
            began.clear()
            job = submit_call(self.client, name)
            self.assertTrue(began.wait(BOUND))
            self.client.cancel(job, "enough")
            done = self.client.wait(job, BOUND)
            self.assertEqual(done.status, "cancelled", done.why)
            self.assertFalse((done.failure or {}).get("unknown"))
        self.assertTrue(stopped.wait(BOUND))

    def test_a_large_input_and_result_go_through(self) -> None:
        @tool(class_="idempotent", whole=True)
        def mirror(value: Any) -> Any:
            return value

        self.work(mirror)
        value = {"text": "x" * 300_000, "list": list(range(1000))}
        job = self.call("mirror", value)
        self.assertEqual(job.status, "completed", job.why)
        self.assertEqual(self.client.get(job.id).output, value)

    def test_a_tool_that_nobody_has_ever_registered_fails_early(self) -> None:
        with self.assertRaises(TenureError) as caught:
            self.call("no.such.tool")
        self.assertEqual(caught.exception.code, "unknown_tool")
        self.assertIn("no.such.tool", str(caught.exception))

    def test_an_offer_that_can_not_be_used_is_refused_at_the_start(self) -> None:
        @tool(name="two words")
        def odd() -> None: ...

        with self.assertRaises(TenureError) as caught:
            Worker(self.server.url, tools=[odd]).start()
        self.assertEqual(caught.exception.field, "tools[0].name")

    def test_a_call_longer_than_several_leases_is_kept_by_renewals(self) -> None:
        numbers = []

        @tool(class_="idempotent")
        def long(call: Call) -> int:
            numbers.append(call.number)
            for _ in range(10):
                call.progress()
                if call.wait(self.server_lease / 4):
                    raise Cancelled("lost")
            return len(numbers)

        self.server_lease = 0.6
        self.work(long, lease=self.server_lease)
        job = self.call("long")
        self.assertEqual((job.status, job.output), ("completed", 1), job.why)

    def test_async_everything(self) -> None:
        async def main() -> None:
            @tool(class_="idempotent")
            async def square(n: int) -> int:
                return n * n

            async with Worker(self.server.url, tools=[square]), AsyncClient(self.server.url) as client:
                jobs = [client.submit("call", {"tool": "square", "input": {"n": n}}, wait=BOUND) for n in range(10)]
                self.assertEqual([job.output for job in await asyncio.gather(*jobs)], [n * n for n in range(10)])

        asyncio.run(main())


class Processes(unittest.TestCase):
    def setUp(self) -> None:
        self.server = RealServer()
        self.addCleanup(self.server.close)
        self.outside = Path(self.server.dir) / "outside"

    def start(self, *tools: str, **options: Any) -> WorkerProcess:
        process = WorkerProcess(self.server.url, self.outside, list(tools), **options)
        self.addCleanup(process.close)
        return process

    def test_two_hundred_calls_through_two_processes_happen_once_each(self) -> None:
        both = [self.start("both:act"), self.start("both:act")]
        for process in both:
            process.ready()
        client = self.server.client
        jobs = [submit_call(client, "act", key=f"job-{n}") for n in range(200)]
        done = [client.wait(job, BOUND) for job in jobs]
        self.assertEqual({job.status for job in done}, {"completed"}, [job.why for job in done if not job.ok][:3])
        happened = acts(self.outside, "act")
        self.assertEqual((len(happened), len({line[2] for line in happened})), (200, 200))
        self.assertEqual({int(line[3]) for line in happened}, {process.pid for process in both})

    def test_the_death_of_a_process_says_nothing_about_a_tool_that_leaves_others_behind(self) -> None:
        victim = self.start("leaving:act", point="before_call:KILL").ready()
        client = self.server.client
        job = submit_call(client, "act")
        until("its end", victim.struck)
        self.start("leaving:act").ready()
        # The probe finds no trace, and that does not count: what was left behind may still act.
        found = until("attention", lambda: (j := client.get(job)).status == "attention" and j)
        assert found and found.attention
        self.assertEqual(acts(self.outside, "act"), [])
        client.resolve(job, found.attention["step"], "did_not_happen", by="ada")
        done = client.wait(job, BOUND)
        self.assertEqual((done.status, len(acts(self.outside, "act"))), ("completed", 1), done.why)

    def test_sigterm_ends_what_runs_and_loses_nothing(self) -> None:
        first = self.start("slow:one").ready()
        client = self.server.client
        job = submit_call(client, "one")
        until("the call", lambda: any(line[0] == "begin" for line in lines(self.outside)))
        first.process.terminate()
        (self.outside.parent / "one").touch()
        self.assertEqual(first.process.wait(BOUND), 0)
        done = client.wait(job, BOUND)
        self.assertEqual((done.status, len(acts(self.outside, "one"))), ("completed", 1), done.why)
        # What comes now is for the next one, and waits for it.
        second_job = submit_call(client, "one")
        self.start("slow:one").ready()
        self.assertEqual(client.wait(second_job, BOUND).status, "completed")
        self.assertEqual(len(acts(self.outside, "one")), 2)


if __name__ == "__main__":
    unittest.main()
