"""How much a JSON text from a client may contain, checked before it is parsed.

A parser makes an object of every value, so 64 KB of compressed text can become gigabytes; and it
holds the GIL meanwhile, so that no other request is served. The limits are chosen so that parsing a
text at all of them takes less than 100 ms. They are counts of brackets, colons and commas outside
strings, which numpy finds at more than a gigabyte a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument
from shoal.wire import json_text

# For texts of up to 64 MiB; a server that is set to read longer ones takes more in proportion.
_FOR_BYTES = 64 << 20
MOST_CONTAINERS = 50_000  # lists and objects: 100-200 ns each
MOST_MEMBERS = 50_000  # of objects: up to 400 ns each
MOST_ELEMENTS = 400_000  # texts and numbers: 20-200 ns each

_SHORT = MOST_CONTAINERS  # a text of that many bytes is within all limits
_PIECE_BYTES = 1 << 20
_QUOTE, _BACKSLASH = b'"\\'


class TooMuch(InvalidArgument):
    """The JSON has more values than any request needs."""


def loads(text: Buffer, most_bytes: int) -> Any:
    """Read a JSON document that a client has sent: `json_text.loads` within the limits.

    `most_bytes` is the longest text that the server is set to read.
    """
    if len(text) > _SHORT:
        check_counts(text, most_bytes)
    return json_text.loads(text)


def check_counts(text: Buffer, most_bytes: int) -> None:
    """Raise TooMuch for a text that would become too many objects."""
    if len(text) <= _SHORT:
        return
    scale = max(1.0, most_bytes / _FOR_BYTES)
    limits = [int(most * scale) for most in (MOST_CONTAINERS, MOST_MEMBERS, MOST_ELEMENTS)]
    view = memoryview(text).cast("B")
    if _exceeded(limits, _pieces(view)) is None:
        return
    # Some of what was counted may be inside strings.
    found = _exceeded(limits, _outside_strings(view))
    if found is None:
        return
    if found == 0 and _depth(next(_outside_strings(view))) > json_text.DEEPEST:
        raise json_text.TooDeep
    what = ("lists and objects", "members of objects", "elements of lists")[found]
    raise TooMuch(
        f"the request JSON has more than {limits[found]} {what}; send tensors as binary data or as "
        f"flat lists of numbers, or several smaller requests"
    )


def _exceeded(limits: list[int], pieces: Iterator[np.ndarray]) -> int | None:
    """Which limit the pieces of a text exceed, by its index; None if none."""
    counts = [0, 0, 0]
    for piece in pieces:
        counts[0] += _count(piece, b"[") + _count(piece, b"{")
        counts[1] += _count(piece, b":")
        counts[2] += _count(piece, b",")
        for index, count in enumerate(counts):
            if count > limits[index]:
                return index
    return None


def _depth(piece: np.ndarray) -> int:
    """How deep the lists and objects at the beginning of a text are nested."""
    opened = ((piece == b"["[0]) | (piece == b"{"[0])).astype(np.int32)
    closed = (piece == b"]"[0]) | (piece == b"}"[0])
    return int(np.cumsum(opened - closed).max())


def _count(piece: np.ndarray, character: bytes) -> int:
    return int(np.count_nonzero(piece == character[0]))


def _pieces(text: memoryview) -> Iterator[np.ndarray]:
    whole = np.frombuffer(text, np.uint8)
    for start in range(0, len(text), _PIECE_BYTES):
        yield whole[start : start + _PIECE_BYTES]


def _outside_strings(text: memoryview) -> Iterator[np.ndarray]:
    """The pieces of a text with zeros in place of its strings."""
    inside = escaped = False  # where a piece begins
    for start in range(0, len(text), _PIECE_BYTES):
        piece = bytes(text[start : start + _PIECE_BYTES])
        if escaped:
            piece = b"_" + piece[1:]
        escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
        if _BACKSLASH in piece:
            piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        characters = np.frombuffer(piece, np.uint8)
        quotes = (characters == _QUOTE).view(np.uint8)
        if not quotes.any():
            if not inside:
                yield characters
            continue
        quotes[0] ^= inside
        within = np.bitwise_xor.accumulate(quotes)
        inside = bool(within[-1])
        yield characters * (within ^ 1)
