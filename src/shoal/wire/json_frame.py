"""JSON bodies that are alike but for their id and their numbers: the frame is parsed once.

    {"id":"7","inputs":[{"name":"a", … "data":[1,2,3]}, … ]}
          ---                               -------           left out: the rest is the frame

A body is cut at the lists of its inputs. If the rest is a frame that was read before, only the
lists are parsed, straight to the tensors' bytes. A list is a complete JSON value, so a frame means
the same around any list. Everything unusual (no frame yet, another number of elements, values that
do not fit their datatype, strings) is left to the full reader, which has the rules and the errors.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import orjson

from shoal.core import dtypes
from shoal.core.dtypes import BOOL, FP32, FP64, DataType
from shoal.core.tensor import Tensor
from shoal.wire import json_limits, json_scan
from shoal.wire.infer_json import InferBody
from shoal.wire.template import JSON_ID, LONGEST_KEY, is_plain_json

LARGEST_BODY_BYTES = 8 << 20  # 400,000 numbers, more than which the full reader parses in pieces
SHORT_BYTES = 64 * 1024  # so short a body cannot have too many lists
_PIECE_BYTES = 64 * 1024  # of a long list, parsed in a tenth of a millisecond
_MOST_LISTS = 64  # in one body
_MOST_NESTED = 8
_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
_TOKEN = secrets.token_hex(16)  # stands for a list; clients cannot know it

# How `struct` packs a datatype. It raises for numbers beyond the range and for floats among
# integers, but it takes booleans for numbers, so those are detected in the text.
_CODES = {
    BOOL: "?",
    dtypes.UINT8: "B",
    dtypes.UINT16: "H",
    dtypes.UINT32: "I",
    dtypes.UINT64: "Q",
    dtypes.INT8: "b",
    dtypes.INT16: "h",
    dtypes.INT32: "i",
    dtypes.INT64: "q",
    FP32: "f",
    FP64: "d",
}
_loads = orjson.loads


class CutBody(NamedTuple):
    """A body without its id and lists."""

    request_id: bytes | None  # None: no id stands first
    frame: tuple[bytes, ...]  # what is before each list and after the last
    lists: list[slice]  # where the lists are

    @property
    def key(self) -> tuple[bool, tuple[bytes, ...]]:
        """By which a frame is found."""
        return self.request_id is None, self.frame


def cut(data: bytes, start: int = 0) -> CutBody | None:
    """Cut the body that begins at `start`; None if it has no lists of numbers, or too many."""
    match = JSON_ID.match(data, start)
    request_id = None
    position = start
    if match is not None:
        request_id = match[1]
        position = match.end()
    frame = []
    lists: list[slice] = []
    while (found := _DATA.search(data, position)) is not None:
        begin = found.end()
        # The list ends before the next key or the end of the object.
        limit = data.find(b'"', begin)
        if limit < 0:
            limit = len(data)
        brace = data.find(b"}", begin, limit)
        end = data.rfind(b"]", begin, limit if brace < 0 else brace) + 1
        if not end or len(lists) == _MOST_LISTS:
            return None
        frame.append(data[position:begin])
        lists.append(slice(begin, end))
        position = end
    if not lists:
        return None
    frame.append(data[position:])
    return CutBody(request_id, tuple(frame), lists)


class JsonFrame:
    """What a body means whose inputs are all lists of numbers, less its id and the numbers."""

    __slots__ = (
        "_decoded",
        "_inputs",
        "_last",
        "_lists",
        "_struct",
        "key",
        "key_bytes",
        "nbytes",
        "places",
    )

    def __init__(self, body: CutBody, decoded: InferBody) -> None:
        """`decoded` is what the full reader made of the body; see `of`."""
        self.key = body.key
        self.key_bytes = sum(map(len, body.frame))
        self._decoded = dataclasses.replace(decoded, inputs={}, parameters=dict(decoded.parameters))
        self._last = body.frame[-1]
        tensors = decoded.inputs.values()
        self._inputs = tuple([(item.name, item.datatype, item.shape) for item in tensors])
        # For each list: what follows it, its elements, and what its text must not have in it.
        self._lists = tuple(
            [
                (after, item.element_count, _boolean_tokens(item.datatype), item.datatype is BOOL)
                for after, item in zip(body.frame[1:], tensors, strict=True)
            ]
        )
        codes = [f"{item.element_count}{_CODES[item.datatype]}" for item in tensors]
        self._struct = struct.Struct("<" + "".join(codes))
        self.nbytes = self._struct.size
        end = 0
        places = []
        for item in tensors:
            places.append(slice(end, end + item.nbytes))
            end += item.nbytes
        self.places = tuple(places)  # of the inputs in what `pack` returns

    @classmethod
    def of(cls, body: CutBody, decoded: InferBody) -> JsonFrame | None:
        """The frame of a body that was decoded; None if it has to be read anew each time."""
        if sum(map(len, body.frame)) > LONGEST_KEY:
            return None
        if decoded.leases or decoded.sequence_id or len(decoded.inputs) != len(body.lists):
            return None
        tensors = decoded.inputs.values()
        if any(item.datatype not in _CODES or not item.element_count for item in tensors):
            return None
        if sum([item.element_count for item in tensors]) > json_limits.MOST_ELEMENTS:
            return None
        # With a token in the place of each list, it shows whether that is the input's data.
        tokens = [b'["%b",%d]' % (_TOKEN.encode(), index) for index in range(len(body.lists))]
        rest = b"".join(chain(*zip(body.frame, [*tokens, b""], strict=True)))
        whole = rest if body.request_id is None else b'{"id":"%b",%b' % (body.request_id, rest)
        if not is_plain_json(whole, rest):
            return None
        for index, entry in enumerate(orjson.loads(whole)["inputs"]):
            if entry.get("data") != [_TOKEN, index]:
                return None
        return cls(body, decoded)

    def pack(self, data: bytes, start: int) -> bytes | None:
        """The inputs as bytes, one after the other, from a body whose first list begins at `start`;
        None if what is around the lists differs, or if one of them is not a list of as many numbers
        as there were, each within the datatype's range."""
        last = self._last
        if not data.endswith(last):
            return None
        numbers: list[Any] = []
        try:
            for after, count, tokens, is_bool in self._lists:
                end = data.find(after, start) if after is not last else len(data) - len(last)
                if end < start:
                    return None
                text = data[start:end]
                for token in tokens:
                    if text.find(token) >= 0:  # `in` takes twice as long
                        return None
                values = _loads(text)
                if len(values) != count or type(values[0]) is list:
                    values = _flattened(values, text)
                    if len(values) != count:
                        return None
                if is_bool and set(map(type, values)) != {bool}:
                    return None
                numbers = numbers + values if numbers else values
                start = end + len(after)
            return self._struct.pack(*numbers)
        except (ValueError, TypeError, LookupError, OverflowError, struct.error):
            return None

    def pack_long(self, data: bytes, lists: Sequence[slice]) -> bytes | None:
        """As `pack`, for a long body with these lists. Flat ones are parsed piece by piece: each
        piece uses the memory of the one before, and other threads get the GIL in between."""
        if any(data.find(b"[", place.start + 1, place.stop) >= 0 for place in lists):
            return self.pack(data, lists[0].start) if self._is_within_limits(data, lists) else None
        parts: list[bytes] = []
        try:
            for place, (_, count, tokens, is_bool), (_, datatype, _) in zip(
                lists, self._lists, self._inputs, strict=True
            ):
                start, stop = place.start + 1, place.stop - 1
                if any(data.find(token, start, stop) >= 0 for token in tokens):
                    return None
                missing = count
                while start <= stop:
                    end = data.find(b",", start + _PIECE_BYTES, stop)
                    if end < 0:
                        end = stop
                    values = _loads(b"[%b]" % data[start:end])
                    missing -= len(values)
                    if missing < 0 or not values:  # too many, or nothing after a comma
                        return None
                    if is_bool and set(map(type, values)) != {bool}:
                        return None
                    parts.append(struct.pack(f"<{len(values)}{_CODES[datatype]}", *values))
                    start = end + 1
                if missing:
                    return None
        except (ValueError, TypeError, OverflowError, struct.error):
            return None
        return b"".join(parts)

    def _is_within_limits(self, data: bytes, lists: Sequence[slice]) -> bool:
        """Whether the lists of a long body may be parsed: they have the elements that they should
        have, and not too many lists. Bodies of up to `SHORT_BYTES` cannot have too many."""
        most_lists = json_limits.MOST_CONTAINERS // len(lists)
        characters = np.frombuffer(data, np.uint8)
        for place, (_, count, *_) in zip(lists, self._lists, strict=True):
            if json_scan.count(characters[place], b",") != count - 1:
                return False
            if json_scan.count(characters[place], b"[") > most_lists:
                return False
        return True

    def body(self, request_id: bytes | None, packed: bytes) -> InferBody:
        """A body with this frame, and with the inputs that `pack` returned."""
        decoded = self._decoded
        view = memoryview(packed)
        inputs = {
            name: Tensor(name, datatype, shape, raw=view[place])
            for (name, datatype, shape), place in zip(self._inputs, self.places, strict=True)
        }
        return InferBody(
            request_id.decode("ascii") if request_id else "",
            inputs,
            decoded.outputs,
            dict(decoded.parameters),
            decoded.sequence_id,
            decoded.sequence_start,
            decoded.sequence_end,
            decoded.priority,
            decoded.timeout_us,
            decoded.binary_default,
            template_key=self.key,
            frame=self,
        )


def _boolean_tokens(datatype: DataType) -> tuple[bytes, ...]:
    """Texts, of which a list with a boolean among numbers has one, and a list of numbers none;
    integers have no exponent."""
    if datatype is BOOL:
        return ()
    return (b"u", b"l") if datatype in (FP32, FP64) else (b"e",)


def _flattened(values: list[Any], text: bytes) -> list[Any]:
    """The elements of evenly nested lists in order; with others, something that is not packed."""
    if b'"' in text or b"{" in text:  # an empty one would not be noticed
        return []
    for _ in range(_MOST_NESTED):
        if not values or type(values[0]) is not list:
            break
        values = list(chain.from_iterable(values))
    return values
