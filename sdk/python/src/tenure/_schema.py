"""Type hints as JSON schemas, and JSON values as what the hints say.

The schema is what the server shows and checks; `decode` is what the tool gets. Both follow the same few rules, so a value that
fits the schema can be decoded. A type that neither knows is an error at decoration, not at the first call.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import types
import typing
from typing import Any, Literal, Mapping, Sequence, Union

Json = Any
"""What json.loads returns."""

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
"""What the server keeps as an integer. Beyond it a number is a float to it, and no longer the same."""
EXACT_MAX = 2**53
"""Up to here a float that is whole is the integer that was meant."""


class BadValue(ValueError):
    """A value does not fit its type. Says where."""

    def __init__(self, at: str, says: str) -> None:
        super().__init__(f"{at}: {says}")
        self.at = at
        self.says = says


_PRIMITIVES: dict[Any, dict[str, Json]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    Any: {},
    object: {},
    dict: {"type": "object"},
    list: {"type": "array"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
}
_LISTS = (list, Sequence, typing.get_origin(Sequence[int]))
_DICTS = (dict, Mapping, typing.get_origin(Mapping[str, int]))


def is_typed_dict(hint: Any) -> bool:
    """A TypedDict class."""
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__required_keys__")


def is_record(hint: Any) -> bool:
    """A dataclass or a TypedDict: something with named members."""
    return is_typed_dict(hint) or (isinstance(hint, type) and dataclasses.is_dataclass(hint))


def _members(hint: Any) -> dict[str, tuple[Any, bool]]:
    """Of a record: each member's type, and whether it must be there."""
    hints = typing.get_type_hints(hint)
    if is_typed_dict(hint):
        return {name: (kind, name in hint.__required_keys__) for name, kind in hints.items()}
    missing = dataclasses.MISSING
    return {
        f.name: (hints[f.name], f.default is missing and f.default_factory is missing)
        for f in dataclasses.fields(hint)
        if f.init
    }


def schema(hint: Any) -> dict[str, Json]:
    """The JSON schema of a type. Raises TypeError with the type's name where there is none."""
    defs: dict[str, dict[str, Json]] = {}
    found = _schema(hint, defs, [])
    return {**found, "$defs": defs} if defs else found


def _schema(hint: Any, defs: dict[str, dict[str, Json]], inside: list[Any]) -> dict[str, Json]:
    if _is_key(hint) and hint in _PRIMITIVES:
        return dict(_PRIMITIVES[hint])
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [_plain(member.value, hint) for member in hint]}
    if is_record(hint):
        if hint in inside:
            # A type that contains itself has a name in the schema; the outermost one fills it in.
            defs.setdefault(hint.__name__, {})
            return {"$ref": f"#/$defs/{hint.__name__}"}
        members = _members(hint)
        made = object_schema(members, defs, [*inside, hint])
        if hint.__name__ in defs:
            defs[hint.__name__] = made
            return {"$ref": f"#/$defs/{hint.__name__}"}
        return made
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _schema(args[0], defs, inside)
    if origin is Literal:
        return {"enum": [_plain(value, hint) for value in args]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(arg, defs, inside) for arg in args]}
    if origin in _LISTS:
        return {"type": "array", "items": _schema(args[0], defs, inside)}
    if origin is tuple and args and args[-1] is Ellipsis:
        return {"type": "array", "items": _schema(args[0], defs, inside)}
    if origin is tuple and args:
        items = [_schema(arg, defs, inside) for arg in args]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in _DICTS and args[0] is str:
        return {"type": "object", "additionalProperties": _schema(args[1], defs, inside)}
    raise TypeError(f"{_name(hint)} has no JSON form")


def object_schema(
    members: Mapping[str, tuple[Any, bool]], defs: dict[str, dict[str, Json]] | None = None, inside: list[Any] | None = None
) -> dict[str, Json]:
    """The schema of an object with these members: type, and whether it must be there."""
    own = defs is None
    defs = {} if defs is None else defs
    made: dict[str, Json] = {
        "type": "object",
        "properties": {name: _schema(kind, defs, inside or []) for name, (kind, _) in members.items()},
        "additionalProperties": False,
    }
    required = [name for name, (_, must) in members.items() if must]
    if required:
        made["required"] = required
    if own and defs:
        made["$defs"] = defs
    return made


def _is_key(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True


def _plain(value: Any, of: Any) -> Json:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{_name(of)} has the value {value!r}, which has no JSON form")


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def decode(value: Json, hint: Any, at: str = "input") -> Any:
    """A JSON value as the type says. Raises BadValue with the place."""
    if hint is Any or hint is object:
        return value
    if hint is None or hint is type(None):
        _need(value is None, value, at, "null")
        return None
    if hint is bool:
        _need(isinstance(value, bool), value, at, "true or false")
        return value
    if hint is int:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        _need(whole and not isinstance(value, bool), value, at, "an integer")
        exact = isinstance(value, int) or abs(value) <= EXACT_MAX
        _need(exact, value, at, "an integer that was not rounded on its way; send one this large as a string")
        return int(value)
    if hint is float:
        _need(isinstance(value, (int, float)) and not isinstance(value, bool), value, at, "a number")
        return float(value)
    if hint is str:
        _need(isinstance(value, str), value, at, "a string")
        return value
    if hint is dict:
        _need(isinstance(value, dict), value, at, "an object")
        return value
    if hint is list:
        _need(isinstance(value, list), value, at, "a list")
        return value
    if hint in (datetime.datetime, datetime.date):
        return _moment(value, hint, at)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        for member in hint:
            if same(member.value, value):
                return member
        raise BadValue(at, f"needs one of {[m.value for m in hint]}, not {_shown(value)}")
    if is_record(hint):
        members = decode_members(value, _members(hint), at)
        if is_typed_dict(hint):
            return members
        try:
            return hint(**members)
        except Exception as problem:  # a check in __post_init__
            raise BadValue(at, f"{type(problem).__name__}: {problem}") from problem
    return _decode_generic(value, hint, at)


def _decode_generic(value: Json, hint: Any, at: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return decode(value, args[0], at)
    if origin is Literal:
        for known in args:
            if same(known, value):
                return known
        raise BadValue(at, f"needs one of {list(args)}, not {_shown(value)}")
    if origin in (Union, types.UnionType):
        problems = []
        for arg in args:
            try:
                return decode(value, arg, at)
            except BadValue as problem:
                problems.append(problem)
        # Of `T | None`, what T says is what helps.
        told = [p for p, arg in zip(problems, args) if arg is not type(None)] or problems
        if len(told) == 1:
            raise told[0]
        raise BadValue(at, " or ".join(p.says for p in told if p.at == at) or f"fits none of {len(told)} types")
    if origin in _LISTS or (origin is tuple and args[-1] is Ellipsis):
        _need(isinstance(value, list), value, at, "a list")
        items = [decode(item, args[0], f"{at}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin is tuple:
        _need(isinstance(value, list) and len(value) == len(args), value, at, f"a list of {len(args)}")
        return tuple(decode(item, arg, f"{at}[{i}]") for i, (item, arg) in enumerate(zip(value, args)))
    if origin in _DICTS:
        _need(isinstance(value, dict), value, at, "an object")
        return {key: decode(item, args[1], f"{at}.{key}") for key, item in value.items()}
    raise TypeError(f"{_name(hint)} has no JSON form")


def decode_members(value: Json, members: Mapping[str, tuple[Any, bool]], at: str) -> dict[str, Any]:
    """An object with these members."""
    _need(isinstance(value, dict), value, at, "an object")
    for name in value:
        if name not in members:
            raise BadValue(f"{at}.{name}", f"is not known; known are {', '.join(members) or 'none'}")
    for name, (_, must) in members.items():
        if must and name not in value:
            raise BadValue(f"{at}.{name}", "is missing")
    return {name: decode(item, members[name][0], f"{at}.{name}") for name, item in value.items()}


def same(known: Any, value: Json) -> bool:
    """Equal as JSON values: true is not 1."""
    return isinstance(known, bool) == isinstance(value, bool) and bool(known == value)


def _moment(value: Json, hint: Any, at: str) -> Any:
    _need(isinstance(value, str), value, at, "a string with a moment")
    # Before 3.11 the standard library does not read the Z.
    text = value[:-1] + "+00:00" if value.endswith(("Z", "z")) else value
    try:
        return hint.fromisoformat(text)
    except ValueError:
        raise BadValue(at, f"{_shown(value)} is no moment, such as 2026-01-31T12:00:00Z") from None


def _need(fits: bool, value: Json, at: str, what: str) -> None:
    if not fits:
        raise BadValue(at, f"needs {what}, not {_shown(value)}")


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def encode(value: Any, at: str = "result") -> Json:
    """A value as JSON. Raises BadValue where it has no JSON form."""
    if isinstance(value, enum.Enum):
        return encode(value.value, at)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _unicode(value, at)
    if isinstance(value, int):
        # Its digits are not shown: there may be more than Python is willing to write.
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise BadValue(at, "an integer beyond 64 bits would be rounded; send it as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadValue(at, f"{value} is not a number in JSON")
        return value
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name), f"{at}.{f.name}") for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise BadValue(at, f"the key {key!r} is not a string")
        return {_unicode(key, at): encode(item, f"{at}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [encode(item, f"{at}[{i}]") for i, item in enumerate(value)]
    raise BadValue(at, f"a {type(value).__name__} has no JSON form")


def _unicode(text: str, at: str) -> str:
    """Text as it is, unless it holds half a character: JSON has no form for one, and a server refuses what Python would write."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise BadValue(at, f"a string has half a character (a lone surrogate) at {problem.start}") from None
    return text
