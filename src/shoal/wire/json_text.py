"""JSON as inference clients write it: plain JSON, plus the bare tokens NaN and Infinity.

    bytes --loads--> objects          objects --dumps--> bytes

orjson does the work. It refuses the tokens, so a text it cannot read is given to the standard
library when it holds one of them; both ways end in the same objects or the same errors.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson

from shoal.core.tensor import Buffer
from shoal.errors import Internal, InvalidArgument
from shoal.wire import json_scan

MOST_NESTED = 100
_SHORT_ROW = 32  # numbers
TOO_DEEP = f"JSON nesting depth exceeds maximum allowed limit ({MOST_NESTED})"

UNREADABLE = "failed to parse the request JSON buffer: "
DEEPEST = 1024  # what orjson takes; how deep the standard library goes depends on its version
_PLACE = secrets.token_hex(16)  # of a LongText; nothing that is written can have it in it
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
# Triton's words for what orjson found.
_PROBLEMS = {
    "unexpected character, expected a JSON value": "Invalid value.",
    "unexpected character, expected a string key": "Missing a name for object member.",
    "unexpected character, expected ',' or ']'": "Missing a comma or ] after an array element.",
    "unexpected character, expected ',' or '}'": "Missing a comma or } after an object member.",
    "unexpected content after document": "The document root must not be followed by other values.",
}


class TooDeep(InvalidArgument):
    """The JSON is nested deeper than any request needs."""

    def __init__(self) -> None:
        super().__init__(TOO_DEEP)


def loads(text: Buffer, *, most_bytes_with_tokens: int | None = None) -> Any:
    """Read one JSON document. Raises InvalidArgument with the problem and its position.

    The standard library takes longer, so the tokens may be read in shorter texts only.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        problem, position = error.msg, error.pos
    if most_bytes_with_tokens is None or len(text) <= most_bytes_with_tokens:
        raw = bytes(text)
        if b"NaN" in raw or b"Infinity" in raw:
            return _loads_with_tokens(raw)
    if "limit" in problem or "ecursion" in problem:
        raise TooDeep
    raise _unreadable(_PROBLEMS.get(problem, problem), position)


def dumps(value: Any) -> bytes:
    """Write `value`, numpy arrays included, as compact JSON.

    Numbers must be finite (see `non_finite`). Internal when something has no form in JSON.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise Internal(f"the response cannot be written as JSON: {error}") from None


def dumps_each(rows: np.ndarray) -> list[bytes]:
    """`dumps` of each row of finite numbers, without the brackets. Of short rows, the whole array
    is written and divided: half the time. Of long ones that takes up to twice as long."""
    if rows.shape[1] <= _SHORT_ROW:
        return orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)[2:-2].split(b"],[")
    return [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] for row in rows]


def written(value: Any) -> orjson.Fragment:
    """`value` as JSON already, a piece that `dumps` takes as it is: for work on another thread."""
    return orjson.Fragment(dumps(value))


class LongText:
    """A long value that is written already, in parts, for `dumps_parts`."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Buffer]) -> None:
        self.parts = parts

    @classmethod
    def of_lists(cls, lists: Iterable[Any]) -> LongText:
        """The elements of several lists, none of them empty, as one."""
        parts: list[Buffer] = []
        for each in lists:
            parts += (b",", memoryview(dumps(each))[1:-1])
        parts[0] = b"["
        parts.append(b"]")
        return cls(parts)


def dumps_parts(value: Any) -> list[Buffer]:
    """As `dumps`, in parts; `value` may have LongTexts in it, which are not copied."""
    long: list[LongText] = []

    def place(item: Any) -> str:
        if not isinstance(item, LongText):
            raise TypeError(f"Type is not JSON serializable: {type(item).__name__}")
        long.append(item)
        return _PLACE

    try:
        text = orjson.dumps(value, default=place, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise Internal(f"the response cannot be written as JSON: {error}") from None
    if not long:
        return [text]
    first, *others = text.split(b'"%b"' % _PLACE.encode())
    parts: list[Buffer] = [first]
    for item, after in zip(long, others, strict=True):
        parts += (*item.parts, after)
    return parts


def non_finite(value: float | list[float]) -> orjson.Fragment:
    """Numbers of which some may be NaN or infinite, as a piece that `dumps` takes as it is."""
    return orjson.Fragment(json.dumps(value, separators=(",", ":")))


def scalar(value: Any) -> Any:
    """One value as `dumps` takes it: NaN and the infinities need their bare tokens."""
    if isinstance(value, float) and not math.isfinite(value):
        return non_finite(float(value))
    return value


def _loads_with_tokens(raw: bytes) -> Any:
    try:
        text = raw.decode()
        if json_scan.is_deeper(memoryview(raw), DEEPEST):
            raise TooDeep
        document = json.loads(text, parse_int=_integer)
        if _SURROGATE_ESCAPE.search(text):  # half a pair cannot be written as UTF-8 again
            json.dumps(document, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise _unreadable(error.msg, error.pos) from None
    except UnicodeError as error:
        raise _unreadable(f"not valid UTF-8: {error.reason}", error.start) from None  # type: ignore[attr-defined]
    except RecursionError:
        raise TooDeep from None
    return document


def _integer(digits: str) -> int | float:
    """An integer of up to 64 bits; beyond that a float, as orjson does it."""
    if len(digits) <= 20:
        value = int(digits)
        if -(2**63) <= value < 2**64:
            return value
    return float(digits)


def _unreadable(problem: str, position: int) -> InvalidArgument:
    return InvalidArgument(f"{UNREADABLE}{problem} at {position}")
