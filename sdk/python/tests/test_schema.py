"""Type hints as schemas, and values as what the hints say."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import types
import unittest
from typing import Any, Literal, Mapping, Optional, Sequence, TypedDict, Union

from tenure._schema import BadValue, decode, encode, schema


@dataclasses.dataclass
class Order:
    id: str
    cents: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Checked:
    id: str

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("an id is not empty")


class Address(TypedDict, total=False):
    street: str


class Person(Address):
    name: str


@dataclasses.dataclass
class Tree:
    name: str
    below: list[Tree]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Schemas(unittest.TestCase):
    def test_each_hint_has_its_schema(self) -> None:
        for hint, expected in [
            (int, {"type": "integer"}),
            (float, {"type": "number"}),
            (bool, {"type": "boolean"}),
            (str, {"type": "string"}),
            (None, {"type": "null"}),
            (Any, {}),
            (list[int], {"type": "array", "items": {"type": "integer"}}),
            (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
            (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
            (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
            (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
            (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),
            (str | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
            (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
            (Literal["a", 2], {"enum": ["a", 2]}),
            (Colour, {"enum": ["red", "blue"]}),
            (datetime.datetime, {"type": "string", "format": "date-time"}),
        ]:
            with self.subTest(hint=str(hint)):
                self.assertEqual(schema(hint), expected)

    def test_members_with_a_default_are_not_required(self) -> None:
        made = schema(Order)
        self.assertEqual(made["required"], ["id"])
        self.assertEqual(set(made["properties"]), {"id", "cents", "tags"})
        self.assertFalse(made["additionalProperties"])

    def test_a_typed_dict_says_which_keys_must_be_there(self) -> None:
        self.assertEqual(schema(Person)["required"], ["name"])

    def test_a_type_that_contains_itself_is_named(self) -> None:
        made = schema(Tree)
        self.assertEqual(made["$ref"], "#/$defs/Tree")
        self.assertEqual(made["$defs"]["Tree"]["properties"]["below"]["items"], {"$ref": "#/$defs/Tree"})

    def test_what_has_no_json_form_is_refused_by_name(self) -> None:
        for hint in (set[int], bytes, dict[int, str], complex):
            with self.subTest(hint=str(hint)), self.assertRaisesRegex(TypeError, "no JSON form"):
                schema(hint)


class Decoding(unittest.TestCase):
    def test_values_become_what_the_hints_say(self) -> None:
        for value, hint, expected in [
            (3, int, 3),
            (3.0, int, 3),
            (float(2**53), int, 2**53),
            (2**64 - 1, int, 2**64 - 1),
            (3, float, 3.0),
            ("x", str | None, "x"),
            (None, str | None, None),
            ([1, 2], tuple[int, ...], (1, 2)),
            ([1, "a"], tuple[int, str], (1, "a")),
            ("red", Colour, Colour.RED),
            ({"id": "o1", "cents": 5}, Order, Order("o1", 5)),
            ({"name": "n"}, Person, {"name": "n"}),
            ({"name": "a", "below": [{"name": "b", "below": []}]}, Tree, Tree("a", [Tree("b", [])])),
            ("2026-01-31T12:00:00Z", datetime.datetime, datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc)),
            ({"any": [1]}, Any, {"any": [1]}),
        ]:
            with self.subTest(value=value, hint=str(hint)):
                found = decode(value, hint)
                self.assertEqual(found, expected)
                self.assertIs(type(found), type(expected))

    def test_what_does_not_fit_says_where(self) -> None:
        for value, hint, at in [
            (True, int, "input"),
            (1, bool, "input"),
            (1.5, int, "input"),
            ("1", int, "input"),
            ({"id": "o", "cents": "x"}, Order, "input.cents"),
            ({"id": "o", "tags": ["a", 1]}, Order, "input.tags[1]"),
            ({}, Order, "input.id"),
            ({"id": "o", "cent": 1}, Order, "input.cent"),
            ({"street": "s"}, Person, "input.name"),
            ("green", Colour, "input"),
            (True, Literal[1], "input"),
            ([1], tuple[int, int], "input"),
            ("yesterday", datetime.datetime, "input"),
            ({"a": "x"}, dict[str, int], "input.a"),
            (float(2**53 + 2), int, "input"),
            (-1e300, int, "input"),
            ({"id": ""}, Checked, "input"),
        ]:
            with self.subTest(value=value, hint=str(hint)), self.assertRaises(BadValue) as caught:
                decode(value, hint)
            self.assertEqual(caught.exception.at, at)

    def test_of_an_optional_the_type_itself_is_told(self) -> None:
        with self.assertRaisesRegex(BadValue, "needs an integer"):
            decode("x", Optional[int])


class Encoding(unittest.TestCase):
    def test_what_is_encoded_decodes_to_the_same(self) -> None:
        for value in (Order("o", 1, ["t"]), Tree("a", [Tree("b", [])]), Colour.BLUE, 3, "x", None):
            with self.subTest(value=value):
                self.assertEqual(decode(encode(value), type(value)), value)

    def test_what_json_can_not_say_is_refused_with_its_place(self) -> None:
        for value, at in [
            (float("nan"), "result"),
            ([1, {2}], "result[1]"),
            ({"a": b"x"}, "result.a"),
            ({"a": bytearray(b"x")}, "result.a"),
            ({1: 2}, "result"),
            ({"a": "\ud800"}, "result.a"),
            ({"\ud800": 1}, "result"),
        ]:
            with self.subTest(value=repr(value)), self.assertRaises(BadValue) as caught:
                encode(value)
            self.assertEqual(caught.exception.at, at)

    def test_an_integer_that_would_be_rounded_is_refused(self) -> None:
        for value in (-(2**63), 2**64 - 1):
            self.assertEqual(encode({"n": value}), {"n": value})
        for value in (-(2**63) - 1, 2**64, 10**5000):
            with self.assertRaisesRegex(BadValue, "result.n: .* beyond 64 bits"):
                encode({"n": value})

    def test_any_mapping_is_an_object_and_any_sequence_a_list(self) -> None:
        for value, expected in [
            (types.MappingProxyType({"a": (1, 2)}), {"a": [1, 2]}),
            (collections.ChainMap({"a": 1}), {"a": 1}),
            (range(3), [0, 1, 2]),
            (collections.deque("ab"), ["a", "b"]),
            (collections.UserList([1]), [1]),
        ]:
            with self.subTest(value=repr(value)):
                self.assertEqual(encode(value), expected)


if __name__ == "__main__":
    unittest.main()
