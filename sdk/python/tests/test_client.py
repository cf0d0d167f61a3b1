"""The client with a real server."""

from __future__ import annotations

import asyncio
import inspect
import threading
import unittest
from datetime import datetime, timezone
from unittest import mock

from fake import Drop, FakeClock, FakeServer, Raw
from real import BOUND, RealServer, until
from tenure import AsyncClient, Client, Job, TenureError, Unreachable, tool


def giving(value: object) -> dict[str, object]:
    """The input of the flow `plan` for a job that gives this value."""
    return {"plan": {"version": 1, "steps": {"a": {"value": value}}, "output": "${{ steps.a.output }}"}}


class ClientRules(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = RealServer()
        cls.addClassCleanup(cls.server.close)
        cls.client = cls.server.client

    def test_a_job_is_submitted_waited_for_and_read(self) -> None:
        job = self.client.submit("plan", giving(3), wait=60)
        self.assertEqual((job.status, job.output, job.ok, job.existed), ("completed", 3, True, False))
        self.assertEqual(self.client.get(job.id).output, 3)
        self.assertEqual(self.client.wait(job.id, 5).status, "completed")
        self.assertTrue(self.client.why(job.id))
        self.assertTrue(self.client.steps(job.id))

    def test_the_same_key_is_the_same_job_and_with_other_input_an_error(self) -> None:
        first = self.client.submit("plan", giving(1), key="k1")
        again = self.client.submit("plan", giving(1), key="k1")
        self.assertEqual((again.id, again.existed), (first.id, True))
        with self.assertRaises(TenureError) as caught:
            self.client.submit("plan", giving(2), key="k1")
        self.assertEqual((caught.exception.code, caught.exception.status), ("other_input", 409))
        self.assertEqual(caught.exception.problem["job"], first.id)

    def test_problems_have_code_detail_field_and_fix(self) -> None:
        with self.assertRaises(TenureError) as caught:
            self.client.submit("no.such.flow")
        self.assertEqual(caught.exception.code, "unknown_flow")
        with self.assertRaises(TenureError) as caught:
            self.client.submit("plan", giving(1), must_end_in=1e12)
        self.assertEqual(caught.exception.field, "must_end_in_seconds")
        self.assertTrue(caught.exception.detail and caught.exception.fix)
        with self.assertRaises(TenureError) as caught:
            self.client.submit("plan", giving(1), terms={"no_such_term": 1})
        self.assertIn("no_such_term", str(caught.exception))
        with self.assertRaises(TypeError):
            self.client.submit("plan", giving(1), no_such_term=1)  # type: ignore[call-arg]

    def test_a_job_is_found_by_its_key_its_labels_and_its_name(self) -> None:
        job = self.client.submit("plan", giving(1), key="found by key", labels={"customer": "42", "region": "eu"})
        self.client.submit("plan", giving(2), labels={"customer": "421"})
        for which in ({"key": "found by key"}, {"labels": {"customer": "42"}}, {"labels": {"region": "eu", "customer": "42"}}):
            self.assertEqual([found.id for found in self.client.list(**which)], [job.id], which)  # type: ignore[arg-type]
        self.assertEqual(list(self.client.list(labels={"customer": "4"})), [])
        self.assertIn(job.id, [found.id for found in self.client.list(name="PLA")])
        self.assertEqual(self.client.get(job.id).raw["labels"], {"customer": "42", "region": "eu"})

    def test_a_question_is_answered_and_watched(self) -> None:
        job = self.client.submit("ask", {"question": "shall we?"})
        names = []
        for event in self.client.watch(job.id):
            names.append(event.name)
            if event.name in ("job_waiting", "job_parked"):
                self.assertEqual(self.client.approve(job.id, "answer", "yes", by="ada"), "completed")
                self.assertEqual(self.client.approve(job.id, "answer", "yes", by="ada"), "duplicate")
        self.assertTrue(self.client.get(job.id).output["approved"])
        self.assertEqual(names, [event.name for event in self.client.events(job.id)])

    def test_a_no_is_an_answer_and_a_signal_before_its_wait_is_kept(self) -> None:
        job = self.client.submit("ask", {"question": "shall we?"})
        until("the question", lambda: self.client.get(job.id).status in ("waiting", "parked"))
        self.assertEqual(self.client.signal(job.id, "other", 1, early=True), "kept")
        self.assertEqual(self.client.reject(job.id, "answer", "no"), "completed")
        self.assertFalse(self.client.wait(job.id, 60).output["approved"])

    def test_pause_resume_cancel_retry_and_discard(self) -> None:
        job = self.client.submit("ask", {"question": "shall we?"})
        until("the question", lambda: self.client.get(job.id).status in ("waiting", "parked"))
        self.assertIn(self.client.pause(job.id, "lunch"), ("accepted", "already"))
        until("the pause", lambda: self.client.get(job.id).raw["paused"])
        self.client.resume(job.id)
        until("the end of the pause", lambda: not self.client.get(job.id).raw["paused"])
        self.client.cancel(job.id, "enough")
        self.assertEqual(self.client.wait(job.id, 60).status, "cancelled")
        failed = self.client.submit("http", {"url": "no address", "method": "GET"}, wait=60)
        self.assertEqual(failed.status, "failed")
        self.assertIn(failed.id, [letter.id for letter in self.client.dead_letters()])
        self.assertIn(failed.id, [letter.id for letter in self.client.dead_letters(tenant="default")])
        self.assertEqual([], list(self.client.dead_letters(tenant="nobody")))
        self.assertEqual([], list(self.client.list(tenant="nobody")))
        again = self.client.retry(failed.id, wait=60)
        self.assertNotEqual(again.id, failed.id)
        self.assertIn(self.client.discard(failed.id), ("accepted", "already"))

    def test_a_listing_goes_over_its_pages(self) -> None:
        ids = {self.client.submit("plan", giving(1), wait=60).id for _ in range(7)}
        listed = [job.id for job in self.client.list(flow="plan", status="completed", page=3)]
        self.assertLessEqual(ids, set(listed))
        self.assertEqual(len(listed), len(set(listed)))

    def test_the_same_with_asyncio(self) -> None:
        async def main() -> None:
            async with AsyncClient(self.server.url) as client:
                jobs = await asyncio.gather(*(client.submit("plan", giving(2), wait=60) for _ in range(10)))
                self.assertEqual([job.output for job in jobs], [2] * 10)
                seen = [event.name async for event in client.watch(jobs[0].id)]
                self.assertEqual(seen, [event.name async for event in client.events(jobs[0].id)])
                self.assertIn(jobs[0].id, [job.id async for job in client.list(page=4)])
                with self.assertRaises(TenureError):
                    await client.get("00000000-0000-7000-8000-000000000000")

        asyncio.run(main())

    def test_waits_that_only_an_approval_ends_do_not_hold_up_the_approval(self) -> None:
        async def main() -> None:
            async with AsyncClient(self.server.url) as client:
                jobs = await asyncio.gather(*(client.submit("ask", {"question": "shall we?"}) for _ in range(70)))
                waits = [asyncio.ensure_future(client.wait(job.id)) for job in jobs]
                # All of them are on their way before anybody says yes.
                await asyncio.sleep(0)
                for job in jobs:
                    while (await client.get(job.id)).status not in ("waiting", "parked"):
                        await asyncio.sleep(0.01)
                    await client.approve(job.id, "answer")
                done = await asyncio.wait_for(asyncio.gather(*waits), BOUND)
                self.assertEqual({job.status for job in done}, {"completed"})

        asyncio.run(main())

    def test_waits_that_were_given_up_leave_the_client_as_it_was(self) -> None:
        async def main() -> None:
            async with AsyncClient(self.server.url) as client:
                job = await client.submit("ask", {"question": "shall we?"})

                async def give_up() -> None:
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(client.wait(job.id), 0.1)

                await asyncio.gather(*(give_up() for _ in range(70)))
                self.assertFalse((await asyncio.wait_for(client.get(job.id), BOUND)).is_final)
                await client.cancel(job.id)
                done = await asyncio.wait_for(client.wait(job.id), BOUND)
                self.assertEqual((done.status, client._waits), ("cancelled", 0))

        asyncio.run(main())

    def test_watches_hold_up_nobody_and_end_with_whoever_looks(self) -> None:
        async def main() -> None:
            async with AsyncClient(self.server.url) as client:
                job = await client.submit("ask", {"question": "shall we?"})
                watches = [client.watch(job.id) for _ in range(70)]
                first = await asyncio.wait_for(asyncio.gather(*(anext(watch) for watch in watches)), BOUND)
                self.assertEqual({event.version for event in first}, {1})
                await asyncio.wait_for(client.get(job.id), BOUND)
                for watch in watches:
                    await watch.aclose()
                await client.cancel(job.id)
                # The end of the job is a line, and with it the threads see that nobody looks any more.
                def left() -> int:
                    return sum(t.name == "tenure-client-watch" for t in threading.enumerate())

                await asyncio.get_running_loop().run_in_executor(None, until, "the end of the threads", lambda: left() == 0)

        asyncio.run(main())

    def made_of(self, batch: str) -> Job:
        job = until("the job's id", lambda: self.client.batch(batch).made)[0]["job"]

        def there() -> Job | None:
            try:
                return self.client.get(job)
            except TenureError:
                return None  # it is created a moment after it is promised

        until("the job", there)
        return self.client.wait(job, 60)

    def test_what_is_collected_becomes_one_job(self) -> None:
        batch = {"key": "c1", "max": 2, "within_seconds": 60}
        with self.assertRaises(TypeError):
            self.client.submit("plan", {}, batch=batch)
        with self.assertRaises(TypeError):
            self.client.collect("plan", {})
        debounce = {"key": "d1", "quiet_seconds": 1, "within_seconds": 60}
        plan = {"plan": {"version": 1, "steps": {"a": {"value": 1}}}}
        first = self.client.collect("plan", plan, debounce=debounce, key="one")
        again = self.client.collect("plan", plan, debounce=debounce, key="one")
        self.assertEqual((first.existed, again.existed, again.batch, first.job), (False, True, first.batch, None))
        assert first.batch is not None
        seen = self.client.batch(first.batch)
        self.assertEqual((seen.id, seen.flow, seen.key), (first.batch, "plan", "d1"))
        self.assertEqual(self.made_of(first.batch).output, {"a": 1})
        both = [self.client.collect("http", {"n": n}, batch=batch) for n in (1, 2)]
        self.assertEqual(both[0].batch, both[1].batch)
        self.assertEqual([item["n"] for item in self.made_of(both[0].batch or "").input["items"]], [1, 2])
        # Too large to be collected: a job of its own.
        large = {**plan, "input": "x" * 5000}
        alone = self.client.collect("plan", large, debounce={**debounce, "key": "d2"})
        self.assertEqual((alone.batch, alone.job is not None), (None, True))


class ClientInTrouble(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = FakeServer()
        self.addCleanup(self.fake.close)

    JOB = {"id": "j", "flow": "f", "version": 1, "status": "completed", "is_final": True, "existed": False}

    def test_a_submission_is_repeated_under_one_key(self) -> None:
        self.fake.next_answers("?", Drop(), (503, {"code": "indeterminate"}), Raw(200, b"<html>"), (202, self.JOB))
        with Client(self.fake.url) as client:
            self.assertEqual(client.submit("f", 1).id, "j")
        keys = {body["key"] for body in self.fake.seen("?")}
        self.assertEqual((len(self.fake.seen("?")), len(keys)), (4, 1))

    def test_what_is_refused_is_not_repeated(self) -> None:
        self.fake.next_answers("?", (422, {"code": "unknown_flow", "detail": "no", "field": "flow", "fix": "look"}))
        with Client(self.fake.url) as client, self.assertRaises(TenureError) as caught:
            client.submit("f", 1)
        self.assertEqual(str(caught.exception), "unknown_flow: no (field flow); look")

    def test_a_page_of_a_gateway_is_asked_past(self) -> None:
        self.fake.next_answers("?", Raw(404, b"<html>"), (403, {"message": "Forbidden"}), (202, self.JOB))
        with Client(self.fake.url) as client:
            self.assertEqual(client.submit("f", 1).id, "j")
        with Client(self.fake.url, retry_for=0) as client, self.assertRaisesRegex(Unreachable, "status 404"):
            self.fake.next_answers("?", Raw(404, b"<html>"))
            client.submit("f", 1)

    def test_a_long_wait_keeps_that_the_job_existed(self) -> None:
        self.fake.next_answers("?", (200, {**self.JOB, "status": "running", "is_final": False, "existed": True}))
        self.fake.next_answers("j", (200, self.JOB))
        with Client(self.fake.url) as client:
            job = client.submit("f", 1, key="k", wait=60)
        self.assertEqual((job.status, job.existed), ("completed", True))

    def test_a_client_that_was_closed_says_so(self) -> None:
        async def main() -> None:
            client = AsyncClient(self.fake.url)
            await client.close()
            for asked in (client.get("j"), client.wait("j"), anext(client.watch("j")), anext(client.list())):
                with self.assertRaisesRegex(RuntimeError, "closed"):
                    await asyncio.wait_for(asked, BOUND)

        asyncio.run(main())

    def test_a_process_that_was_forked_does_not_use_its_parents_connections(self) -> None:
        self.fake.next_answers("j", *[(200, self.JOB)] * 4)
        with Client(self.fake.url) as client:
            client.get("j")
            client.get("j")
            self.assertEqual(self.fake.connections, 1)
            with mock.patch("tenure._http.os.getpid", return_value=-1):
                client.get("j")
                client.get("j")
            self.assertEqual(self.fake.connections, 2)

    def test_a_server_that_does_not_answer_is_unreachable(self) -> None:
        with Client("http://127.0.0.1:1", retry_for=0.2) as client, self.assertRaises(Unreachable):
            client.get("j")

    def test_a_server_that_never_answered_is_given_up_soon_and_one_that_did_is_not(self) -> None:
        clock = FakeClock()
        with mock.patch("tenure._http.time") as time:
            time.monotonic, time.sleep = clock, clock.advance
            with Client(self.fake.url) as client:
                for heard, least, most in ((False, 0.0, 3.0), (True, 10.0, 30.0)):
                    if heard:
                        self.fake.next_answers("k", (200, self.JOB))
                        client.get("k")
                    self.fake.next_answers("j", *[Drop()] * 200)
                    began = clock()
                    with self.assertLogs("tenure", "WARNING") as logged, self.assertRaises(Unreachable):
                        client.get("j")
                    self.assertTrue(least <= clock() - began <= most, clock() - began)
                    self.assertEqual(len([line for line in logged.output if "asked again" in line]), 1, logged.output)

    def test_of_several_servers_the_one_that_answers_is_kept(self) -> None:
        self.fake.next_answers("j", *[(200, self.JOB)] * 3)
        for servers in (["http://127.0.0.1:1", self.fake.url], f"http://127.0.0.1:1, {self.fake.url}"):
            with self.assertLogs("tenure", "WARNING") as logged, Client(servers, retry_for=0) as client:
                client.get("j")
                if servers == ["http://127.0.0.1:1", self.fake.url]:
                    client.get("j")
            self.assertEqual(len(logged.output), 1, "the dead one was asked once")
        self.assertEqual(self.fake.connections, 2, "one for each client")
        with self.assertRaisesRegex(ValueError, "names no server"):
            Client(" , ")

    def test_a_server_that_fails_is_left_for_the_next(self) -> None:
        other = FakeServer()
        self.addCleanup(other.close)
        self.fake.next_answers("j", (503, {"code": "unavailable"}), Drop())
        other.next_answers("j", (200, self.JOB), Drop())
        self.fake.next_answers("k", (200, {**self.JOB, "id": "k"}))
        with Client([self.fake.url, other.url]) as client:
            self.assertEqual(client.get("j").id, "j")
            self.assertEqual((len(self.fake.seen("j")), len(other.seen("j"))), (1, 1))
            # The other one drops a request, so the first is asked, which drops it too, and then the other again.
            other.next_answers("j", (200, self.JOB))
            self.assertEqual(client.get("j").id, "j")
        with Client([self.fake.url, other.url]) as client:
            self.assertEqual(client.get("k").id, "k")
            self.assertEqual(other.seen("k"), [], "one that refuses or answers is not left")

    def test_what_can_be_given_is_typed(self) -> None:
        for function in (tool, Client.submit, Client.collect, AsyncClient.submit, AsyncClient.collect):
            given = inspect.signature(function).parameters.values()
            self.assertFalse([p for p in given if p.kind is p.VAR_KEYWORD], function)
        for name in ("submit", "collect"):
            one, two = (inspect.signature(getattr(of, name)).parameters for of in (Client, AsyncClient))
            self.assertEqual(list(one), list(two))

    def test_the_terms_of_a_submission_are_sent_as_the_server_knows_them(self) -> None:
        self.fake.next_answers("?", (202, self.JOB), (202, self.JOB))
        when = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
        with Client(self.fake.url) as client:
            client.submit("f", start_at=when, gate={"name": "g", "limit": 2}, queue="q", needs=("gpu",), terms={"later": 1})
            client.submit("f", start_in_seconds=1.6)
            with self.assertRaisesRegex(ValueError, "no zone"):
                client.submit("f", start_at=datetime(2026, 3, 1))
            with self.assertRaisesRegex(TypeError, "a list"):
                client.submit("f", needs="gpu")
        first, second = self.fake.seen("?")
        expected = {"start_at": "2026-03-01T12:00:00+00:00", "gate": {"name": "g", "limit": 2}, "queue": "q", "needs": ["gpu"], "later": 1}
        self.assertEqual({name: first.get(name) for name in expected}, expected)
        self.assertEqual((second["start_in_seconds"], "start_at" in second), (2, False))


if __name__ == "__main__":
    unittest.main()
