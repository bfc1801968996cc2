"""Inference requests whose JSON has tensors of millions of numbers: those are parsed in pieces.

    {"inputs": [{"name": "a", "data": [1, 2, … ]}]}  --loads-->  the document, data: LongArray

Parsed at once, such a list takes many times its size in memory, and the GIL for as long. So it is
cut out of the text, and `json_data` reads it piece by piece into the tensor. A list may be cut at
any of its commas: what is before is closed with as many brackets as are open there, and what
follows is opened with as many, which leaves the elements and their order as they are.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument
from shoal.wire import json_limits, json_scan, json_text

_PIECE_BYTES = 128 * 1024  # parsed in 2 to 5 ms
_LONG_BYTES = 256 * 1024  # a shorter list stays where it is
_MOST_LISTS = 10 * json_limits.MOST_CONTAINERS  # within the lists that were cut out
_WINDOW_BYTES = 1 << 20
_MOST_KEYS = 256  # that are tried: a window may be searched for each of them
_TAIL_BYTES = 256
_KEY = b'"data"'
_COLON = re.compile(rb"[ \t\r\n]{0,100}:[ \t\r\n]{0,100}(?=\[)")
_SPACE = b" \t\r\n"
# Stands for a list that was cut out. Clients cannot know it.
_TOKEN = secrets.token_hex(16)


class LongArray:
    """A list of numbers or booleans, possibly nested, as text."""

    __slots__ = ("_offset", "_text")

    def __init__(self, text: memoryview, offset: int) -> None:
        """`offset` is where in the request it begins, for errors."""
        self._text = text
        self._offset = offset

    def pieces(self) -> Iterator[list[Any]]:
        """Lists, possibly nested, which hold the elements in order. Raises InvalidArgument."""
        text, start, depth = self._text, 0, 0
        while start < len(text):
            piece = bytes(text[start : start + _PIECE_BYTES])
            is_last = start + len(piece) == len(text)
            if not is_last:
                piece = piece[: max(piece.rfind(b","), 0)]
                if not piece or piece.rstrip(_SPACE)[-1:] in b"[,":
                    raise self._invalid(start)
            if start and piece.lstrip(_SPACE)[:1] in b"],":
                raise self._invalid(start)
            after = depth + piece.count(b"[") - piece.count(b"]")
            if after > json_text.MOST_NESTED:
                raise json_text.TooDeep
            if (after == 0) != is_last or after < 0:
                raise self._invalid(start)
            yield json_text.loads(b"%b%b%b" % (b"[" * depth, piece, b"]" * after))
            depth = after
            start += len(piece) + 1

    def _invalid(self, position: int) -> InvalidArgument:
        return InvalidArgument(
            f"failed to parse the request JSON buffer: not a list of values at or after "
            f"{self._offset + position}"
        )


def loads(text: Buffer, most_bytes: int) -> Any:
    """Read the JSON of an inference request. Raises InvalidArgument.

    The `data` of an input may be a LongArray. `most_bytes` is the longest text that is accepted.
    """
    try:
        return json_limits.loads(text, most_bytes)
    except json_limits.TooMuch:
        shorter, arrays = _cut(memoryview(text).cast("B"), most_bytes)
        if not arrays:
            raise
    document = json_limits.loads(shorter, most_bytes)
    inputs = document.get("inputs") if type(document) is dict else None
    for entry in inputs if type(inputs) is list else ():
        data = entry.get("data") if type(entry) is dict else None
        if type(data) is list and len(data) == 2 and data[0] == _TOKEN:
            entry["data"] = arrays[data[1]]
    return document


def _cut(text: memoryview, most_bytes: int) -> tuple[bytes, list[LongArray]]:
    """The text without its long lists, and those; empty if there are none."""
    arrays: list[LongArray] = []
    kept: list[Buffer] = []
    characters = np.frombuffer(text, np.uint8)
    position = kept_to = lists = keys = 0
    while position < len(text) and keys < _MOST_KEYS:
        window = bytes(text[position : position + _WINDOW_BYTES + len(_KEY)])
        place = window.find(_KEY)
        if place < 0:
            position += _WINDOW_BYTES
            continue
        keys += 1
        place += position
        position = place + len(_KEY)
        # After an escaped quote it would be part of a text.
        colon = _COLON.match(text, position)
        if colon is None or (place and text[place - 1] == b"\\"[0]):
            continue
        start = colon.end()
        position = _end_of_list(characters, start)
        if position - start < _LONG_BYTES:
            continue
        lists += sum(
            json_scan.count(piece, b"[") for piece in json_scan.pieces(text[start:position])
        )
        if lists > _MOST_LISTS * max(1, most_bytes >> 26):
            raise json_limits.TooMuch(
                f"the 'data' of the inputs has more than {_MOST_LISTS} lists; send flat lists of "
                f"numbers, or binary data"
            )
        kept += [text[kept_to:start], b'["%b",%d]' % (_TOKEN.encode(), len(arrays))]
        arrays.append(LongArray(text[start:position], start))
        kept_to = position
    kept.append(text[kept_to:])
    return b"".join(kept) if arrays else b"", arrays


def _end_of_list(characters: np.ndarray, start: int) -> int:
    """Where the list ends that begins at `start`; `start` if it is short or has other values."""
    end = len(characters)
    if _others(characters[start : start + _LONG_BYTES]).any():
        return start
    for position in range(start, len(characters), _WINDOW_BYTES):
        window = characters[position : position + _WINDOW_BYTES]
        other = _others(window)
        if other.any():
            end = position + int(other.argmax())
            break
    # After the list there is at most a comma and the quote of the next key, or the closing brace.
    tail = bytes(characters[max(start, end - _TAIL_BYTES) : end])
    close = tail.rfind(b"]")
    if close < 0 or tail[close + 1 :].strip(_SPACE) not in (b"", b","):
        return start
    return end - len(tail) + close + 1


def _others(characters: np.ndarray) -> np.ndarray:
    """Which of them cannot be part of a list of numbers."""
    found: np.ndarray = (characters == b'"'[0]) | (characters == b"}"[0]) | (characters == b"{"[0])
    return found
