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
# A text with one of these has a boolean in it, or, for integers, an exponent.
_OF_INTEGERS = (b"e",)
_OF_FLOATS = (b"u", b"l")


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
        "_between",
        "_counts",
        "_decoded",
        "_forbidden",
        "_inputs",
        "_last",
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
        *self._between, self._last = body.frame[1:]
        tensors = decoded.inputs.values()
        self._inputs = tuple([(item.name, item.datatype, item.shape) for item in tensors])
        self._counts = tuple([item.element_count for item in tensors])
        self._forbidden = tuple([_forbidden(item.datatype) for item in tensors])
        codes = zip(self._counts, tensors, strict=True)
        self._struct = struct.Struct(
            "<" + "".join([f"{count}{_CODES[item.datatype]}" for count, item in codes])
        )
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

    def split(self, data: bytes, start: int) -> list[bytes] | None:
        """The texts of the lists in a body, of which the first begins at `start`; None if what is
        around them differs."""
        last = len(data) - len(self._last)
        if last < start or not data.endswith(self._last):
            return None
        texts = []
        for between in self._between:
            end = data.find(between, start, last)
            if end < 0:
                return None
            texts.append(data[start:end])
            start = end + len(between)
        texts.append(data[start:last])
        return texts

    def pack(self, texts: Sequence[bytes]) -> bytes | None:
        """The inputs as bytes, one after the other, from the texts of their lists; None if one of
        them is not a list of as many numbers as there were, each within the datatype's range."""
        numbers: list[Any] = []
        try:
            for text, count, forbidden in zip(texts, self._counts, self._forbidden, strict=True):
                for token in forbidden:
                    if token in text:
                        return None
                values = orjson.loads(text)
                if type(values) is not list:
                    return None
                if len(values) != count or type(values[0]) is list:
                    values = _flattened(values, text)
                    if len(values) != count:
                        return None
                if not forbidden and set(map(type, values)) != {bool}:
                    return None
                numbers += values
            return self._struct.pack(*numbers)
        except (ValueError, TypeError, OverflowError, struct.error):
            return None

    def is_within_limits(self, texts: Sequence[bytes]) -> bool:
        """Whether long texts may be parsed: they have the elements that they should have, and not
        too many lists. Others, up to `SHORT_BYTES` together, cannot have too many."""
        most_lists = json_limits.MOST_CONTAINERS // len(texts)
        for text, count in zip(texts, self._counts, strict=True):
            characters = np.frombuffer(text, np.uint8)
            if json_scan.count(characters, b",") != count - 1:
                return False
            if json_scan.count(characters, b"[") > most_lists:
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


def _forbidden(datatype: DataType) -> tuple[bytes, ...]:
    """What no text of numbers of this datatype has in it; nothing for booleans."""
    if datatype is BOOL:
        return ()
    return _OF_FLOATS if datatype in (FP32, FP64) else _OF_INTEGERS


def _flattened(values: list[Any], text: bytes) -> list[Any]:
    """The elements of evenly nested lists in order; with others, something that is not packed."""
    if b'"' in text or b"{" in text:  # an empty one would not be noticed
        return []
    for _ in range(_MOST_NESTED):
        if not values or type(values[0]) is not list:
            break
        values = list(chain.from_iterable(values))
    return values
