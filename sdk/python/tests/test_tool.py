"""What a decorator makes of a function."""

from __future__ import annotations

import dataclasses
import unittest
from typing import Any

import tenure
from tenure import Call, Cancelled, Stopped, tool
from tenure._executor import start_ticks, this_process


@dataclasses.dataclass
class Charge:
    order: str
    cents: int


class Declarations(unittest.TestCase):
    def test_parameters_are_members_and_the_call_is_none_of_them(self) -> None:
        @tool(class_="idempotent", timeout=30, retry_max=2, backoff=0.5)
        def charge(call: Call, order: str, cents: int = 0) -> dict[str, int]:
            """Charges.

            More."""
            return {}

        said = charge._declaration()
        self.assertEqual((said["name"], said["doc"], said["class"]), ("charge", "Charges.", "idempotent"))
        self.assertEqual((said["timeout_ms"], said["retry_max"], said["backoff_ms"]), (30_000, 2, 500))
        self.assertEqual(list(said["input_schema"]["properties"]), ["order", "cents"])
        self.assertEqual(said["input_schema"]["required"], ["order"])

    def test_one_record_is_the_whole_input(self) -> None:
        @tool
        def charge(call: Call, what: Charge) -> None: ...

        self.assertEqual(set(charge._declaration()["input_schema"]["properties"]), {"order", "cents"})

    def test_whole_makes_any_one_parameter_the_input(self) -> None:
        @tool(whole=True)
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        self.assertEqual(total._declaration()["input_schema"], {"type": "array", "items": {"type": "integer"}})
        self.assertEqual(total([1, 2]), 3)

    def test_a_probe_makes_it_verifiable_and_a_compensation_compensatable(self) -> None:
        @tool
        def a(x: int) -> int:
            return x

        self.assertNotIn("class", a._declaration())

        @a.probe
        def _(call: Call, x: int) -> Any: ...

        self.assertEqual((a._declaration()["class"], a._declaration()["probe"]), ("verifiable", True))

        @tool
        def b(x: int) -> int:
            return x

        @b.compensate
        def _(x: int) -> None: ...

        self.assertEqual((b._declaration()["class"], b._declaration()["compensate"]), ("compensatable", True))

    def test_a_class_that_is_said_stays(self) -> None:
        @tool(class_="idempotent")
        def a(x: int) -> int:
            return x

        @a.compensate
        def _(x: int) -> None: ...

        self.assertEqual(a._declaration()["class"], "idempotent")

    def test_slips_are_refused_where_they_are_written(self) -> None:
        def variadic(*args: int) -> None: ...
        def bad_type(x: bytes) -> None: ...
        def two(a: int, b: int) -> None: ...

        @dataclasses.dataclass
        class Hidden:
            x: int

        def hidden(x: Hidden) -> None: ...

        for make, problem in [
            (lambda: tool(class_="idempotant")(two), "class_='idempotant'"),  # type: ignore[call-overload]
            (lambda: tool(timeout=0)(two), "timeout=0"),
            (lambda: tool(retry_max=-1)(two), "retry_max=-1"),
            (lambda: tool(variadic), "can not be filled from JSON"),
            (lambda: tool(bad_type), "bad_type: bytes has no JSON form"),
            (lambda: tool(whole=True)(two), "whole=True"),
            (lambda: tool(hidden), "Hidden"),
            (lambda: tool(two).probe(lambda call: None), "must take what two takes"),
            (lambda: tool(class_="verifiable")(two)._declaration(), "has no probe"),
            (lambda: tool(class_="compensatable")(two)._declaration(), "nothing that undoes it"),
            (lambda: tenure.Worker("http://127.0.0.1:1", tools=[]), "at least one tool"),
            (lambda: tenure.Worker("http://127.0.0.1:1", tools=[tool(two), tool(two)]), "two tools"),
            (lambda: tenure.Worker("http://127.0.0.1:1", tools=[two]), "is not a tool"),  # type: ignore[list-item]
            (lambda: tenure.Worker("ftp://x", tools=[tool(two)]), "no address"),
            (lambda: tenure.Worker("http://127.0.0.1:1", tools=[tool(two)], concurrency=0), "concurrency=0"),
        ]:
            with self.subTest(problem=problem), self.assertRaisesRegex((ValueError, TypeError), problem):
                make()


class Calls(unittest.TestCase):
    def call(self) -> Call:
        return Call(key="k", job="j", step="0", number=1)

    def test_check_says_nothing_was_applied_only_when_told_so(self) -> None:
        call = self.call()
        call.check()
        call._ask_to_stop()
        with self.assertRaises(Stopped) as caught:
            call.check()
        self.assertEqual(caught.exception.kind, "unknown")
        with self.assertRaises(Cancelled):
            call.check(nothing_applied=True)


class Identity(unittest.TestCase):
    def test_the_start_is_read_behind_a_name_with_parentheses(self) -> None:
        self.assertEqual(start_ticks("7 (a) Z (b) S " + " ".join(str(n) for n in range(1, 19)) + " 4711 0"), 4711)

    def test_this_process_says_who_it_is_the_same_each_time(self) -> None:
        first, second = this_process(), this_process()
        self.assertEqual(first, second)
        if first is not None:  # a container without a machine id says nothing
            self.assertEqual(set(first), {"machine", "boot", "pid_namespace", "pid", "started"})


if __name__ == "__main__":
    unittest.main()
