"""The arithmetic of leases, on a clock that is moved by hand."""

from __future__ import annotations

import importlib
import sys
import time
import unittest
from unittest import mock

from fake import FakeClock
from tenure import _clock
from tenure._lease import Hold, Leases

LEASE = 10.0
A, B = Hold("a", 1), Hold("b", 7)


class LeaseRules(unittest.TestCase):
    def setUp(self) -> None:
        self.clock = FakeClock()
        self.leases = Leases(self.clock)
        self.leases.opened("s", LEASE, self.clock())

    def claim(self, hold: Hold) -> None:
        self.assertTrue(self.leases.claimed(hold, "s", self.clock()))

    def renew(self, *named: Hold, lost: tuple[str, ...] = (), sent: float | None = None) -> list[Hold]:
        return self.leases.renewed("s", LEASE, self.clock() if sent is None else sent, named, lost)

    def test_a_claim_counts_from_before_it_was_sent_and_ends_a_tenth_early(self) -> None:
        sent = self.clock()
        self.clock.advance(4)
        self.leases.claimed(A, "s", sent)
        self.clock.advance(4.9)
        self.assertTrue(self.leases.may_act(A))
        self.clock.advance(0.2)
        self.assertFalse(self.leases.may_act(A))

    def test_a_renewal_counts_from_before_it_was_sent(self) -> None:
        self.claim(A)
        self.clock.advance(3)
        sent = self.clock()
        self.clock.advance(5)
        self.renew(A, sent=sent)
        self.clock.advance(3.9)
        self.assertTrue(self.leases.may_act(A))
        self.clock.advance(0.2)
        self.assertFalse(self.leases.may_act(A))

    def test_a_renewal_does_not_cover_what_it_did_not_name(self) -> None:
        self.claim(A)
        self.clock.advance(1)
        self.claim(B)
        self.clock.advance(5)
        self.renew(A)
        self.clock.advance(4)
        self.assertTrue(self.leases.may_act(A))
        self.assertFalse(self.leases.may_act(B))

    def test_a_claim_is_worth_nothing_beyond_the_session(self) -> None:
        self.clock.advance(8)
        self.claim(A)
        self.clock.advance(1.5)
        self.assertFalse(self.leases.may_act(A))

    def test_an_answer_that_is_overtaken_takes_nothing_away(self) -> None:
        self.claim(A)
        early = self.clock()
        self.clock.advance(3)
        self.renew(A)
        self.renew(A, sent=early)
        self.clock.advance(8)
        self.assertTrue(self.leases.may_act(A))

    def test_what_lapsed_is_noticed_once_and_still_named(self) -> None:
        self.claim(A)
        self.clock.advance(8.9)
        self.assertEqual(self.leases.lapsed(), [])
        self.clock.advance(0.2)
        self.assertEqual(self.leases.lapsed(), [A])
        self.leases.noticed(A)
        self.assertEqual(self.leases.lapsed(), [])
        self.assertEqual(self.leases.holds(), [A])

    def test_a_renewal_after_the_lapse_that_still_names_it_means_it_never_ended(self) -> None:
        self.claim(A)
        self.clock.advance(20)
        self.assertEqual(self.leases.lapsed(), [A])
        self.leases.noticed(A)
        self.assertEqual(self.renew(A), [])
        self.assertTrue(self.leases.may_act(A))
        self.clock.advance(9.1)
        self.assertEqual(self.leases.lapsed(), [A], "and may lapse again")

    def test_what_is_lost_may_not_be_acted_for(self) -> None:
        self.claim(A)
        self.claim(B)
        self.assertEqual(self.renew(A, B, lost=("a",)), [A])
        self.assertFalse(self.leases.may_act(A))
        self.assertTrue(self.leases.may_act(B))

    def test_a_new_tenure_of_the_same_call_is_not_the_lost_one(self) -> None:
        self.claim(A)
        named = self.leases.holds()
        self.leases.dropped(A)
        again = Hold("a", 3)
        self.claim(again)
        self.assertEqual(self.renew(*named, lost=("a",)), [])
        self.assertTrue(self.leases.may_act(again))

    def test_the_end_of_a_session_loses_everything_once(self) -> None:
        self.claim(A)
        self.assertEqual(self.leases.ended("s"), [A])
        self.assertEqual(self.leases.ended("s"), [])
        self.assertFalse(self.leases.may_act(A))

    def test_answers_of_an_earlier_session_change_nothing(self) -> None:
        self.leases.ended("s")
        self.leases.opened("t", LEASE, self.clock())
        self.assertFalse(self.leases.claimed(A, "s", self.clock()))
        self.clock.advance(5)
        self.renew(A)
        self.assertEqual(self.leases.ended("s"), [])
        self.clock.advance(4.5)
        self.assertTrue(self.leases.claimed(A, "t", self.clock()))
        self.assertFalse(self.leases.may_act(A), "the renewal was of the other session")


class TheClock(unittest.TestCase):
    """Which clock counts the time in which the machine was suspended is each system's own."""

    def test_each_system_is_asked_for_the_clock_that_goes_on_in_suspend(self) -> None:
        self.addCleanup(importlib.reload, _clock)
        for platform, clock in (("linux", "CLOCK_BOOTTIME"), ("darwin", "CLOCK_MONOTONIC_RAW"), ("win32", None)):
            known = {"CLOCK_BOOTTIME": 7, "CLOCK_MONOTONIC": 1, "CLOCK_MONOTONIC_RAW": 4}
            if platform != "linux":
                known.pop("CLOCK_BOOTTIME")
            with self.subTest(platform=platform), mock.patch.object(sys, "platform", platform), mock.patch.object(
                _clock, "time", mock.Mock(spec=["monotonic", "clock_gettime", *known], **known)
            ) as of_system, mock.patch.dict(sys.modules, time=of_system):
                of_system.clock_gettime.side_effect = lambda number: ("gettime", number)
                of_system.monotonic.return_value = "monotonic"
                found = importlib.reload(_clock).boottime()
                self.assertEqual(found, "monotonic" if clock is None else ("gettime", known[clock]))

    def test_here_it_moves(self) -> None:
        before = _clock.boottime()
        self.assertGreaterEqual(_clock.boottime(), before)
        self.assertLess(abs(_clock.boottime() - before), time.monotonic())


if __name__ == "__main__":
    unittest.main()
