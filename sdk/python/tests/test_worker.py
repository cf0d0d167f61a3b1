"""The worker against a server that does what the test says, also wrong things."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import subprocess
import sys
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fake import BOUND, Drop, FakeClock, FakeServer, Raw
from real import environment, until
from tenure import (
    Call,
    Cancelled,
    Compensatable,
    Happened,
    NotHappened,
    Permanent,
    Retryable,
    TenureError,
    Unknown,
    Worker,
    tool,
)

logging.getLogger("tenure").setLevel(logging.CRITICAL + 1)

GARBAGE = Raw(200, b"<html>hello</html>")
NOT_HERE = Raw(404, b"<html>default backend - 404</html>")
"""What a gateway says while the server behind it is being replaced."""


class WorkerRules(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = FakeServer()
        self.addCleanup(self.fake.close)
        self.clock = FakeClock()

    def work(self, *tools: Any, **options: Any) -> Worker:
        """A worker that runs until the end of the test."""
        options = {"clock": self.clock, "drain_seconds": 0.2, **options}
        worker = Worker(self.fake.url, tools=tools, **options)
        worker.start()
        self.addCleanup(worker.stop)
        return worker

    def only(self, what: str) -> Any:
        said = self.fake.wait_seen(what)
        self.assertEqual(len(said), 1)
        return said[0]

    # --- what is told ---------------------------------------------------------------------------------------------------

    def test_a_sync_and_an_async_tool_return_their_results(self) -> None:
        @tool
        def add(a: int, b: int) -> int:
            return a + b

        @tool
        async def double(call: Call, n: int) -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"n": 2 * n, "key": call.key, "job": call.job, "number": call.number, "not_after": call.not_after}

        self.work(add, double)
        self.fake.give("c1", "add", {"a": 1, "b": 2}, epoch=4)
        self.assertEqual(self.only("complete"), {"session": "s1", "epoch": 4, "result": 3})
        self.fake.give("c2", "double", {"n": 4})
        said = self.fake.wait_seen("complete", 2)[1]
        self.assertEqual(said["result"], {"n": 8, "key": "key-c2", "job": "j1", "number": 1, "not_after": 5})

    def test_a_result_that_no_server_takes_is_said_at_once_and_not_sent(self) -> None:
        @tool
        def dump() -> str:
            return "x" * (40 * 1024 * 1024)

        self.work(dump)
        self.fake.give("c1", "dump", {})
        said = self.only("fail")
        self.assertEqual(said["kind"], "unknown")
        self.assertIn("at most 16777216 can be kept", said["error"])
        self.assertEqual(self.fake.seen("complete"), [])

    def test_tools_are_declared_with_the_process_behind_them(self) -> None:
        @tool(name="shop.add", class_="idempotent")
        def add(a: int) -> int:
            return a

        self.work(add, name="me", lease=3.0)
        opened = self.only("open")
        self.assertEqual((opened["name"], opened["lease_ms"]), ("me", 3000))
        self.assertEqual([(t["name"], t["class"]) for t in opened["tools"]], [("shop.add", "idempotent")])
        self.assertTrue(opened["executor"])

    def test_the_process_is_not_named_where_a_tool_may_outlive_it(self) -> None:
        @tool
        def stays() -> None: ...

        @tool(leaves_processes=True)
        def starts_a_program() -> None: ...

        self.work(stays, starts_a_program)
        self.assertIsNone(self.only("open")["executor"])

    def test_each_exception_is_told_as_its_kind_and_any_other_is_unknown(self) -> None:
        raised: dict[str, BaseException] = {
            "retryable": Retryable("later"),
            "permanent": Permanent("never"),
            "unknown": Unknown("who knows"),
            "compensatable": Compensatable("half"),
            "cancelled": Cancelled("stopped"),
            "other": ZeroDivisionError("1/0"),
            "exit": SystemExit(3),
        }

        @tool
        def fail(how: str) -> None:
            raise raised[how]

        @tool
        async def fail_async(how: str) -> None:
            raise raised[how]

        self.work(fail, fail_async)
        kinds = {}
        for name in ("fail", "fail_async"):
            for how in raised:
                self.fake.give(f"{name}-{how}", name, {"how": how})
        self.fake.wait_for(lambda: len(self.fake.seen("fail")) == 14, "14 failures")
        for kind, where, body in self.fake.requests:
            if kind == "fail":
                kinds[where.split("/")[3]] = body["kind"]
        for name, kind in kinds.items():
            how = name.split("-")[1]
            self.assertEqual(kind, how if how in ("retryable", "permanent", "unknown", "compensatable", "cancelled") else "unknown")

    def test_an_input_that_does_not_fit_is_permanent_and_nothing_is_called(self) -> None:
        called = []

        @tool
        def count(n: int) -> None:
            called.append(n)

        self.work(count)
        self.fake.give("c", "count", {"n": "x"})
        said = self.only("fail")
        self.assertEqual(said["kind"], "permanent")
        self.assertIn("input.n: needs an integer", said["error"])
        self.assertEqual(called, [])

    def test_a_result_that_is_not_json_is_unknown_because_it_happened(self) -> None:
        @tool
        def odd() -> Any:
            return {1, 2}

        self.work(odd)
        self.fake.give("c", "odd")
        self.assertEqual(self.only("fail")["kind"], "unknown")

    def test_a_result_that_is_refused_is_unknown_because_it_happened(self) -> None:
        @tool
        def large() -> str:
            return "x"

        self.fake.next_answers("complete", (413, {"code": "payload_too_large", "detail": "too large"}))
        self.work(large)
        self.fake.give("c", "large")
        said = self.only("fail")
        self.assertEqual(said["kind"], "unknown")
        self.assertIn("too large", said["error"])

    def test_whatever_a_tool_says_there_is_something_that_can_be_sent(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]

        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        results = {"half": "a\ud800b", "key": {"\ud800": 1}, "digits": 10**5000, "rounded": 2**64, "deep": deep}
        errors = {"half": OSError("a\ud800b"), "named": Permanent("\udcff"), "mute": Mute()}

        @tool
        def returns(what: str) -> Any:
            return results[what]

        @tool
        def raises(what: str) -> Any:
            raise errors[what]

        self.work(returns, raises)
        for what in results:
            self.fake.give(f"returns-{what}", "returns", {"what": what})
        for what in errors:
            self.fake.give(f"raises-{what}", "raises", {"what": what})
        self.fake.wait_seen("fail", len(results) + len(errors))
        said = {where.split("/")[3]: body for kind, where, body in self.fake.requests if kind == "fail"}
        kinds = {name: body["kind"] for name, body in said.items()}
        expected = {name: "unknown" for name in kinds} | {"raises-named": "permanent"}
        self.assertEqual(kinds, expected)
        self.assertIn("OSError: a?b", said["raises-half"]["error"])
        self.assertEqual(self.fake.seen("complete"), [])

    def test_a_body_that_can_not_be_written_is_told_as_unknown(self) -> None:
        @tool
        def quick() -> int:
            return 1

        worker = self.work(quick)
        ask = worker._http.ask

        def refuses(method: str, where: str, body: Any = None, **more: Any) -> Any:
            if where.endswith("/complete"):
                raise RecursionError("maximum recursion depth exceeded")
            return ask(method, where, body, **more)

        worker._http.ask = refuses  # type: ignore[method-assign]
        self.fake.give("c", "quick")
        said = self.only("fail")
        self.assertEqual((said["kind"], said.get("over", True)), ("unknown", True))
        self.assertIn("RecursionError", said["error"])

    def test_a_tool_that_exits_in_a_task_costs_the_other_async_tools_nothing(self) -> None:
        @tool
        async def leaves(deep: bool) -> None:
            async def inside() -> None:
                raise SystemExit(3)

            await (asyncio.create_task(inside()) if deep else inside())

        @tool
        async def double(n: int) -> int:
            await asyncio.sleep(0)
            return 2 * n

        self.work(leaves, double)
        for deep in (False, True):
            self.fake.give(f"exit-{deep}", "leaves", {"deep": deep})
            self.fake.wait_seen("fail", 1 + deep)
            self.fake.give(f"next-{deep}", "double", {"n": 4})
            self.fake.wait_seen("complete", 1 + deep)
        self.assertTrue(all("SystemExit" in body["error"] for body in self.fake.seen("fail")))

    def test_an_async_tool_under_a_plain_decorator_is_awaited(self) -> None:
        def logged(function: Any) -> Any:
            @functools.wraps(function)
            def inner(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            return inner

        @tool
        @logged
        async def double(n: int) -> int:
            await asyncio.sleep(0)
            return 2 * n

        self.work(double)
        self.fake.give("c", "double", {"n": 4})
        self.assertEqual(self.only("complete")["result"], 8)

    def test_probes_and_compensations_have_their_own_words(self) -> None:
        @tool
        def pay(order: str) -> str:
            return order

        @pay.probe
        def _(call: Call, order: str) -> Any:
            return {"paid": Happened("receipt"), "open": NotHappened()}.get(order) or 1 / 0

        @pay.compensate
        async def _(order: str) -> str:
            return "ignored"

        self.work(pay)
        for order in ("paid", "open", "odd"):
            self.fake.give(order, "pay", {"order": order}, what="probe")
        self.fake.give("undo", "pay", {"order": "paid"}, what="compensate")
        self.fake.wait_seen("complete", 4)
        said = {where.split("/")[3]: body["result"] for kind, where, body in self.fake.requests if kind == "complete"}
        self.assertEqual(said["paid"], {"happened": True, "result": "receipt"})
        self.assertEqual(said["open"], {"happened": False})
        self.assertIsNone(said["odd"]["happened"])
        self.assertIn("ZeroDivisionError", said["odd"]["why"])
        self.assertIsNone(said["undo"])

    # --- being lost -----------------------------------------------------------------------------------------------------

    def waiting_tool(self) -> tuple[Any, threading.Event]:
        began = threading.Event()

        @tool
        def hold(call: Call) -> str:
            began.set()
            return "stopped" if call.wait(BOUND) else "never"

        return hold, began

    def test_a_lost_call_is_stopped_and_its_result_sent_as_evidence(self) -> None:
        hold, began = self.waiting_tool()
        self.work(hold)
        self.fake.next_answers("complete", (409, {"code": "stale_attempt", "detail": "stale", "kept": "evidence"}))
        self.fake.give("c", "hold", epoch=2)
        self.assertTrue(began.wait(BOUND))
        self.fake.tell(lost={"c"})
        self.assertEqual(self.only("complete"), {"session": "s1", "epoch": 2, "result": "stopped"})
        # It is over for this worker: not asked again, not named again, and there is room for the next.
        self.fake.tell(lost=set())
        before = len(self.fake.seen("renew"))
        self.fake.wait_seen("renew", before + 2)
        self.assertEqual(self.fake.seen("renew")[-1], {"calls": []})
        self.assertEqual(len(self.fake.seen("complete")), 1)

    def test_what_came_too_late_is_said_to_be_kept_only_where_it_is(self) -> None:
        @tool
        def quick() -> int:
            return 1

        self.work(quick)
        for kept, says in (("evidence", "is kept as evidence"), ("nothing", "counts for nothing")):
            self.fake.next_answers("complete", (409, {"code": "stale_attempt", "detail": "stale", "kept": kept}))
            with self.assertLogs("tenure", "WARNING") as logged:
                self.fake.give(f"c-{kept}", "quick")
                until("the warning", lambda: logged.output)
            self.assertIn(says, logged.output[0])

    def test_a_lost_task_is_cancelled_and_nothing_is_said_before_it_is_over(self) -> None:
        began, order = threading.Event(), []

        @tool
        async def hold() -> None:
            try:
                began.set()
                await asyncio.sleep(BOUND)
            finally:
                await asyncio.sleep(0.01)
                order.append("over")

        def told(_path: str, _body: Any) -> None:
            order.append("told")

        self.fake.next_answers("fail", told)
        self.work(hold)
        self.fake.give("c", "hold")
        self.assertTrue(began.wait(BOUND))
        self.fake.tell(lost={"c"})
        said = self.only("fail")
        self.assertEqual(said["kind"], "unknown")
        self.assertIn("another worker has it", said["error"])
        self.assertIs(said["over"], False)
        self.fake.wait_for(lambda: len(order) == 2)
        self.assertEqual(order, ["over", "told"])

    def test_a_cancelled_call_is_told_to_stop_and_says_cancelled_only_if_nothing_was_applied(self) -> None:
        began = threading.Semaphore(0)

        @tool
        def careful(call: Call) -> None:
            began.release()
            call.wait(BOUND)
            call.check(nothing_applied=True)

        @tool
        async def careful_task(call: Call) -> None:
            try:
                began.release()
                await asyncio.sleep(BOUND)
            except asyncio.CancelledError:
                call.check(nothing_applied=True)

        @tool
        def busy(call: Call) -> None:
            began.release()
            call.wait(BOUND)
            call.check()

        self.work(careful, careful_task, busy)
        for name in ("careful", "careful_task", "busy"):
            self.fake.give(name, name)
        for _ in range(3):
            self.assertTrue(began.acquire(timeout=BOUND))
        self.fake.tell(stop={"careful", "careful_task", "busy"})
        self.fake.wait_seen("fail", 3)
        kinds = {where.split("/")[3]: body["kind"] for kind, where, body in self.fake.requests if kind == "fail"}
        self.assertEqual(kinds, {"careful": "cancelled", "careful_task": "cancelled", "busy": "unknown"})
        # A thread that came back is over, and so is a task that says itself what became of it.
        self.assertFalse([body for kind, _, body in self.fake.requests if kind == "fail" and "over" in body])

    def test_a_stopped_task_whose_thread_goes_on_is_not_said_to_be_over(self) -> None:
        began, let_go, ended = threading.Event(), threading.Event(), threading.Event()

        def slowly() -> None:
            began.set()
            let_go.wait(BOUND)
            ended.set()

        @tool
        async def in_a_thread() -> None:
            try:
                await asyncio.to_thread(slowly)
            except asyncio.CancelledError as stopped:
                raise RuntimeError("interrupted") from stopped

        self.work(in_a_thread)
        self.fake.give("c", "in_a_thread")
        self.assertTrue(began.wait(BOUND))
        self.fake.tell(stop={"c"})
        said = self.only("fail")
        self.assertFalse(ended.is_set())
        self.assertEqual((said["kind"], said["over"]), ("unknown", False))
        let_go.set()

    def test_a_task_that_raised_is_not_said_to_be_over_while_what_it_began_may_run(self) -> None:
        began, let_go, done = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)
        self.addCleanup(let_go.set)

        def slowly() -> None:
            began.release()
            let_go.wait(BOUND)
            done.release()

        async def fails() -> None:
            while not began.acquire(blocking=False):
                await asyncio.sleep(0.001)
            raise ConnectionResetError("in the middle")

        @tool
        async def impatient() -> None:
            await asyncio.wait_for(asyncio.to_thread(slowly), 0.01)

        @tool
        async def siblings() -> None:
            await asyncio.gather(fails(), asyncio.to_thread(slowly))

        @tool
        async def ends_all() -> None:
            raise Unknown("the bank hung up, and nothing of this runs any more")

        @tool
        def pool() -> None:
            raise Unknown("a thread of the pool goes on", over=False)

        self.work(impatient, siblings, ends_all, pool)
        for name in ("impatient", "siblings", "ends_all", "pool"):
            self.fake.give(name, name)
        self.fake.wait_seen("fail", 4)
        said = {where.split("/")[3]: body for kind, where, body in self.fake.requests if kind == "fail"}
        self.assertEqual({body["kind"] for body in said.values()}, {"unknown"})
        over = {name: body.get("over", True) for name, body in said.items()}
        self.assertEqual(over, {"impatient": False, "siblings": False, "ends_all": True, "pool": False})
        self.assertFalse(done.acquire(blocking=False), "both threads still run")

    def test_a_lease_that_lapses_stops_what_runs_also_while_a_renewal_hangs(self) -> None:
        hold, began = self.waiting_tool()
        answer = threading.Event()
        self.addCleanup(answer.set)

        def hang(_path: str, _body: Any) -> Any:
            answer.wait(BOUND)
            return Drop()

        self.work(hold)
        self.fake.give("c", "hold")
        self.assertTrue(began.wait(BOUND))
        self.fake.next_answers("renew", *[hang] * 50)
        self.clock.advance(0.6 * 0.9 + 0.01)
        self.assertEqual(self.only("complete")["result"], "stopped")

    def test_one_lost_renewal_costs_nothing(self) -> None:
        hold, began = self.waiting_tool()
        self.work(hold)
        self.fake.give("c", "hold")
        self.assertTrue(began.wait(BOUND))
        count = len(self.fake.seen("renew"))
        self.fake.next_answers("renew", Drop(), (503, {"code": "unavailable"}), GARBAGE, (200, {"lease_ms": "soon"}), (200, [1]))
        # Half of the lease passes in each of two rounds: without a renewal in between it would lapse.
        for _ in range(2):
            self.fake.wait_for(lambda: len(self.fake.seen("renew")) >= count + 7 and not self.fake.script["renew"])
            count = len(self.fake.seen("renew"))
            self.clock.advance(0.3)
        self.fake.wait_seen("renew", count + 2)
        self.assertEqual(self.fake.seen("complete"), [])
        self.fake.tell(stop={"c"})
        self.only("complete")

    def test_the_end_of_the_session_stops_everything_and_a_new_one_is_opened(self) -> None:
        hold, began = self.waiting_tool()

        @tool
        def quick() -> int:
            return 1

        self.work(hold, quick)
        self.fake.give("c", "hold")
        self.assertTrue(began.wait(BOUND))
        self.fake.tell(ended={"s1"})
        self.assertEqual(self.only("complete"), {"session": "s1", "epoch": 1, "result": "stopped"})
        self.fake.wait_seen("open", 2)
        self.fake.give("d", "quick")
        self.assertEqual(self.fake.wait_seen("complete", 2)[1]["session"], "s2")

    # --- right before the call ------------------------------------------------------------------------------------------

    def late_poll(self, seconds: float) -> Any:
        """A poll whose answer comes so late, on the worker's clock, that the lease of what it brings is spent."""

        def answer(_path: str, _body: Any) -> Any:
            self.clock.advance(seconds)
            call = {"call": "c", "epoch": 1, "tool": "count", "input": None, "key": "k", "job": "j", "step": "0"}
            return 200, {"calls": [call]}

        return answer

    def test_what_came_too_late_is_not_begun_before_a_renewal_has_named_it(self) -> None:
        named_before = []

        @tool
        def count() -> None:
            named_before.append([c["call"] for body in self.fake.seen("renew") for c in body["calls"]])

        self.fake.next_answers("poll", self.late_poll(1.0))
        self.work(count)
        self.only("complete")
        self.assertIn("c", named_before[0])

    def test_what_came_too_late_and_is_lost_is_never_called(self) -> None:
        called = []

        @tool
        def count() -> None:
            called.append(1)

        self.fake.tell(lost={"c"})
        self.fake.next_answers("poll", self.late_poll(1.0))
        self.work(count)
        said = self.only("fail")
        self.assertEqual((said["kind"], said["epoch"]), ("not_called", 1))
        self.assertEqual(called, [])

    def test_a_call_that_is_told_twice_is_made_once(self) -> None:
        gate, called = threading.Event(), []

        @tool
        def count() -> None:
            called.append(1)
            gate.wait(BOUND)

        self.work(count)
        self.fake.give("c", "count")
        self.fake.give("c", "count")
        self.fake.give("d", "count")
        self.fake.wait_for(lambda: len(self.fake.seen("renew")) > 1 and len(called) >= 2)
        gate.set()
        self.fake.wait_seen("complete", 2)
        self.assertEqual(len(called), 2)

    # --- a server in trouble --------------------------------------------------------------------------------------------

    def test_an_outcome_is_told_again_until_it_is_heard_and_always_the_same(self) -> None:
        called = []

        @tool
        def count() -> int:
            called.append(1)
            return len(called)

        full = (507, {"code": "disk_full", "detail": "the disk is full"})
        self.fake.next_answers("complete", Drop(), (500, {}), GARBAGE, (503, {"code": "indeterminate"}), full)
        self.work(count)
        self.fake.give("c", "count")
        said = self.fake.wait_seen("complete", 6)
        self.assertTrue(all(body == {"session": "s1", "epoch": 1, "result": 1} for body in said))
        self.assertEqual(called, [1])

    def test_a_page_of_a_gateway_is_no_answer_whatever_its_status(self) -> None:
        hold, began = self.waiting_tool()
        self.fake.next_answers("open", NOT_HERE, Raw(401, b"who are you?"), (403, {"message": "Forbidden"}))
        self.work(hold)
        self.fake.give("c", "hold")
        self.assertTrue(began.wait(BOUND))
        self.fake.next_answers("renew", NOT_HERE, Raw(410, b""), (404, {"message": "no Route matched"}))
        self.fake.next_answers("poll", NOT_HERE, (404, {"message": "no Route matched"}))
        self.fake.wait_for(lambda: not self.fake.script["renew"] and not self.fake.script["poll"], "both")
        self.fake.wait_seen("renew", len(self.fake.seen("renew")) + 1)
        self.assertEqual(self.fake.seen("renew")[-1]["calls"], [{"call": "c", "epoch": 1}], "it is still held")
        self.assertEqual(self.fake.seen("complete"), [])
        self.fake.next_answers("complete", NOT_HERE, Raw(405, b"nginx"))
        self.fake.tell(stop={"c"})
        self.assertEqual(len(self.fake.wait_seen("complete", 3)), 3)
        self.assertEqual((self.fake.seen("fail"), len(self.fake.seen("open"))), ([], 4))

    def test_a_session_that_the_server_does_not_know_is_over(self) -> None:
        hold, began = self.waiting_tool()
        self.work(hold)
        self.fake.give("c", "hold")
        self.assertTrue(began.wait(BOUND))
        self.fake.next_answers("renew", (404, {"code": "not_found", "detail": "there is no session s1"}))
        self.assertEqual(self.only("complete")["result"], "stopped")
        self.fake.wait_seen("open", 2)

    def test_connections_that_a_network_left_dead_cost_one_renewal_and_no_call(self) -> None:
        together = threading.Barrier(4)

        @tool
        def quick() -> int:
            return 1

        def at_once(_path: str, _body: Any) -> None:
            together.wait(BOUND)

        hold, began = self.waiting_tool()
        self.work(hold, quick)
        # Four connections are kept.
        self.fake.next_answers("complete", *[at_once] * 4)
        for n in range(4):
            self.fake.give(f"q{n}", "quick")
        self.fake.wait_seen("complete", 4)
        self.fake.give("c", "hold")
        self.assertTrue(began.wait(BOUND))
        self.fake.cut()
        self.fake.wait_for(lambda: "renew" in self.fake.swallowed, "a renewal that gets lost")
        count = len(self.fake.seen("renew"))
        self.fake.wait_seen("renew", count + 2)
        self.assertEqual(self.fake.swallowed.count("renew"), 1)
        self.assertEqual(len(self.fake.seen("complete")), 4, "nothing was stopped")
        self.fake.tell(stop={"c"})
        self.fake.wait_seen("complete", 5)

    def test_polls_that_fail_or_make_no_sense_are_asked_again(self) -> None:
        @tool
        def quick() -> int:
            return 1

        self.fake.next_answers("poll", Drop(), (500, {}), GARBAGE, (200, {"calls": 3}), (200, None))
        self.work(quick)
        self.fake.give("c", "quick")
        self.only("complete")

    def test_a_call_whose_poll_got_no_answer_comes_again_and_is_begun_once(self) -> None:
        called = []
        hold, began = self.waiting_tool()

        @tool(class_="irreversible")
        def pay(n: int) -> int:
            called.append(n)
            return n

        self.work(hold, pay)
        self.fake.give("c0", "hold")
        self.assertTrue(began.wait(BOUND))
        self.fake.next_answers("poll", self.fake.lose, self.fake.lose)
        # A poll that was under way before is answered as usual: it must not be the one that brings the call.
        self.fake.wait_for(lambda: len(self.fake.script["poll"]) < 2, "a poll whose answer will be lost")
        self.fake.give("c1", "pay", {"n": 1})
        self.assertEqual(self.only("complete")["result"], 1)
        self.assertEqual(called, [1])
        told = [body["have"] for body in self.fake.seen("poll") if "have" in body]
        self.assertTrue(told and all({"call": "c0", "epoch": 1} in have for have in told), told)
        self.fake.tell(stop={"c0"})

    def test_after_a_poll_without_an_answer_polls_say_what_they_have_for_a_whole_lease(self) -> None:
        @tool(class_="irreversible")
        def pay(n: int) -> int:
            return n

        # The first poll is given up by the worker and still on its way to the server, which carries it out only after it has answered
        # the next one. What it claims is known to nobody but the server.
        arrives, late = threading.Event(), threading.Event()
        self.addCleanup(arrives.set)

        def delayed(path: str, body: Any) -> Any:
            arrives.wait(BOUND)
            self.fake.give("c1", "pay", {"n": 1})
            self.fake.lose(path, body)
            late.set()
            return Drop()

        self.fake.next_answers("poll", delayed)
        self.work(pay)
        # Two more are answered with nothing, and say what is held.
        first = self.fake.wait_seen("poll", 3)
        self.assertEqual([body.get("have") for body in first[:3]], [None, [], []])
        arrives.set()
        self.assertTrue(late.wait(BOUND))
        self.assertEqual(self.only("complete")["result"], 1)
        # A lease later what was given up is over, and is not asked about any more.
        self.clock.advance(0.61)
        count = len(self.fake.seen("poll"))
        self.assertNotIn("have", self.fake.wait_seen("poll", count + 2)[count + 1])

    def test_a_poll_is_given_up_within_the_lease_and_what_it_brought_comes_again(self) -> None:
        self.fake.lease_ms = 1500
        called, patience = [], []

        @tool(class_="irreversible")
        def pay(n: int) -> int:
            called.append(n)
            return n

        hangs = threading.Event()
        self.addCleanup(hangs.set)

        def swallowed(path: str, body: Any) -> Any:
            self.fake.lose(path, body)
            hangs.wait(BOUND)
            return Drop()

        worker = Worker(self.fake.url, tools=[pay], clock=self.clock, drain_seconds=0.2)
        once = worker._http.once

        def timed(method: str, path: str, *rest: Any, **more: Any) -> Any:
            if path.endswith("/poll"):
                patience.append(more["timeout"])
            return once(method, path, *rest, **more)

        worker._http.once = timed  # type: ignore[method-assign]
        self.fake.next_answers("poll", swallowed)
        self.fake.give("c1", "pay", {"n": 1})
        worker.start()
        self.addCleanup(worker.stop)
        self.assertEqual(self.only("complete")["result"], 1)
        self.assertEqual(called, [1])
        self.assertLessEqual(max(patience), 1.5 * 2 / 3)

    def test_a_call_that_was_run_and_could_not_be_told_is_not_begun_again(self) -> None:
        called = []

        @tool(class_="irreversible")
        def pay(n: int) -> int:
            called.append(n)
            return n

        self.fake.next_answers("complete", (400, {"code": "odd"}))
        self.fake.next_answers("fail", (400, {"code": "odd"}))
        self.work(pay)
        self.fake.give("c1", "pay", {"n": 1})
        self.fake.wait_seen("fail")
        self.fake.next_answers("poll", Drop())
        self.fake.wait_for(lambda: any("have" in body for body in self.fake.seen("poll")), "a poll that says what it has")
        self.fake.give("c2", "pay", {"n": 2})
        self.fake.wait_seen("complete", 2)
        self.assertEqual(called, [1, 2])
        for have in [body["have"] for body in self.fake.seen("poll") if "have" in body]:
            self.assertIn({"call": "c1", "epoch": 1}, have)

    def test_one_call_that_makes_no_sense_does_not_cost_the_others(self) -> None:
        @tool
        def quick() -> int:
            return 1

        fine = {"call": "c", "epoch": 1, "tool": "quick", "new_member": [1]}
        self.fake.next_answers("poll", (200, {"calls": [{"tool": "quick"}, "odd", fine]}))
        self.work(quick)
        self.assertEqual(self.only("complete")["result"], 1)

    def test_a_server_that_is_not_there_yet_is_waited_for(self) -> None:
        @tool
        def quick() -> int:
            return 1

        self.fake.next_answers("open", Drop(), (503, {}), GARBAGE, (201, {"session": "odd"}))
        self.work(quick)
        self.fake.give("c", "quick")
        self.only("complete")

    def test_a_refused_key_is_an_error_at_the_start(self) -> None:
        @tool
        def quick() -> int:
            return 1

        self.fake.next_answers("open", (401, {"code": "unauthenticated", "detail": "no key", "fix": "make one"}))
        with self.assertRaises(TenureError) as caught:
            Worker(self.fake.url, tools=[quick]).start()
        self.assertEqual((caught.exception.code, caught.exception.fix), ("unauthenticated", "make one"))

    # --- time -----------------------------------------------------------------------------------------------------------

    def test_renewals_go_on_while_a_tool_computes_and_while_one_blocks_the_event_loop(self) -> None:
        seen = threading.Event()

        @tool
        def computes() -> str:
            while not seen.is_set():
                sum(range(1000))
            return "done"

        @tool
        async def blocks() -> str:
            seen.wait(BOUND)
            return "done"

        self.work(computes, blocks)
        self.fake.give("c", "computes")
        self.fake.give("d", "blocks")
        both = [{"call": "c", "epoch": 1}, {"call": "d", "epoch": 1}]
        self.fake.wait_for(lambda: sum(b["calls"] == both for b in self.fake.seen("renew")) >= 3, "three renewals of both")
        seen.set()
        self.fake.wait_seen("complete", 2)

    def test_a_call_whose_time_is_up_is_stopped(self) -> None:
        hold, began = self.waiting_tool()
        self.work(hold)
        self.fake.give("c", "hold", timeout_ms=200)
        self.assertTrue(began.wait(BOUND))
        self.clock.advance(0.3)
        self.assertEqual(self.only("complete")["result"], "stopped")

    def test_progress_goes_out_with_renewals_as_a_count_that_does_not_fall(self) -> None:
        go, hold = threading.Event(), threading.Event()

        @tool
        def steps(call: Call) -> None:
            call.progress("one")
            call.progress("two")
            go.wait(BOUND)
            call.progress()
            hold.wait(BOUND)

        self.work(steps)
        self.fake.give("c", "steps")

        def shown() -> list[Any]:
            return [c.get("progress") for body in self.fake.seen("renew") for c in body["calls"]]

        self.fake.wait_for(lambda: shown().count(2) >= 2)
        go.set()
        self.fake.wait_for(lambda: 3 in shown())
        hold.set()
        self.assertEqual(shown(), sorted(shown()))

    # --- room and the end -----------------------------------------------------------------------------------------------

    def test_a_worker_asks_for_no_more_than_it_has_room_for(self) -> None:
        gate, now, most, lock = threading.Event(), [0], [0], threading.Lock()

        @tool
        def one() -> None:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            gate.wait(BOUND)
            with lock:
                now[0] -= 1

        self.work(one, concurrency=3)
        for i in range(9):
            self.fake.give(f"c{i}", "one")
        self.fake.wait_for(lambda: now[0] == 3 and self.fake.seen("renew"))
        gate.set()
        self.fake.wait_seen("complete", 9)
        self.assertEqual(most[0], 3)
        self.assertTrue(all(1 <= body["max"] <= 3 for body in self.fake.seen("poll")))

    def test_a_worker_that_stops_gives_back_what_it_did_not_begin_ends_what_it_did_and_says_goodbye(self) -> None:
        hold, began = self.waiting_tool()
        asked, answer = threading.Event(), threading.Event()

        def slow(_path: str, _body: Any) -> Any:
            asked.set()
            answer.wait(BOUND)
            call = {"call": "late", "epoch": 1, "tool": "hold", "input": None, "key": "k", "job": "j", "step": "0"}
            return 200, {"calls": [call]}

        worker = Worker(self.fake.url, tools=[hold], drain_seconds=0.1, clock=self.clock)
        worker.start()
        self.fake.give("c", "hold")
        self.assertTrue(began.wait(BOUND))
        began.clear()
        self.fake.next_answers("poll", slow)
        self.assertTrue(asked.wait(BOUND))
        ending = threading.Thread(target=worker.stop)
        ending.start()
        self.fake.wait_for(worker._draining.is_set)
        answer.set()
        ending.join(BOUND)
        self.assertEqual(self.only("release")["epoch"], 1)
        self.assertEqual(self.only("complete")["result"], "stopped")
        self.assertFalse(began.is_set(), "what was given back was not begun")
        self.assertEqual(self.fake.requests[-1][0], "goodbye")

    def test_a_worker_with_code_that_does_not_stop_does_not_say_goodbye(self) -> None:
        gate, began = threading.Event(), threading.Event()
        self.addCleanup(gate.set)

        @tool
        def deaf() -> None:
            began.set()
            gate.wait(BOUND)

        worker = Worker(self.fake.url, tools=[deaf], drain_seconds=0.05)
        worker.start()
        self.fake.give("c", "deaf")
        self.assertTrue(began.wait(BOUND))
        before = time.monotonic()
        worker.stop()
        self.assertLess(time.monotonic() - before, BOUND / 2)
        self.assertEqual(self.fake.seen("goodbye"), [])

    def test_async_with_runs_the_tools_in_the_callers_loop(self) -> None:
        async def main() -> None:
            ran = []

            @tool
            async def here() -> None:
                ran.append(asyncio.get_running_loop())

            async with Worker(self.fake.url, tools=[here]):
                self.fake.give("c", "here")
                await asyncio.to_thread(self.fake.wait_seen, "complete")
            self.assertEqual(ran, [asyncio.get_running_loop()])

        asyncio.run(main())
        self.assertEqual(self.fake.requests[-1][0], "goodbye")


    def test_async_with_begins_and_ends_while_all_threads_of_the_loop_are_taken(self) -> None:
        gate = threading.Event()
        self.addCleanup(gate.set)

        async def main() -> None:
            @tool
            async def here() -> None: ...

            loop = asyncio.get_running_loop()
            loop.set_default_executor(ThreadPoolExecutor(1))
            taken = loop.run_in_executor(None, gate.wait, BOUND)
            async with Worker(self.fake.url, tools=[here]):
                self.fake.give("c", "here")
                while not self.fake.seen("complete"):
                    await asyncio.sleep(0.001)
            self.assertEqual(self.fake.requests[-1][0], "goodbye")
            gate.set()
            await taken

        asyncio.run(main())

    def test_ctrl_c_ends_an_async_worker_whose_server_does_not_answer(self) -> None:
        self.fake.next_answers("open", *[Drop()] * 3, lambda _path, _body: gate.wait(BOUND) and Drop())
        gate = threading.Event()
        self.addCleanup(gate.set)
        program = [sys.executable, "-c", ENTERS, self.fake.url]
        worker = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(lambda: (worker.kill(), worker.wait()))
        self.fake.wait_seen("open", 4)
        worker.send_signal(signal.SIGINT)
        said, problems = worker.communicate(timeout=BOUND)
        self.assertFalse(gate.is_set(), "nobody waited for the server")
        self.assertEqual(said, "over\n", problems)


ENTERS = """
import asyncio, sys
from tenure import Worker, tool

@tool
def quick() -> int:
    return 1

async def main() -> None:
    async with Worker(sys.argv[1], tools=[quick]):
        print("entered", flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("over", flush=True)
"""


if __name__ == "__main__":
    unittest.main()
