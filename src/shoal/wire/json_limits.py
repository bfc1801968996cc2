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
from shoal.wire import json_scan, json_text

# For texts of up to 64 MiB; a server that is set to read longer ones takes more in proportion.
_FOR_BYTES = 64 << 20
MOST_CONTAINERS = 50_000  # lists and objects: 100-200 ns each
MOST_MEMBERS = 50_000  # of objects: up to 400 ns each
MOST_ELEMENTS = 400_000  # texts and numbers: 20-200 ns each

_MOST_BYTES_WITH_TOKENS = 16 << 20  # long lists of numbers are not part of it
_SHORT = MOST_CONTAINERS  # a text of that many bytes is within all limits
_DEEP_BYTES = 1 << 20  # at the beginning, of which it is reported if they are nested too deep


class TooMuch(InvalidArgument):
    """The JSON has more values than any request needs."""


def loads(text: Buffer, most_bytes: int) -> Any:
    """Read a JSON document that a client has sent: `json_text.loads` within the limits.

    `most_bytes` is the longest text that the server is set to read.
    """
    if len(text) > _SHORT:
        check_counts(text, most_bytes)
    return json_text.loads(text, most_bytes_with_tokens=_MOST_BYTES_WITH_TOKENS)


def check_counts(text: Buffer, most_bytes: int) -> None:
    """Raise TooMuch for a text that would become too many objects."""
    if len(text) <= _SHORT:
        return
    scale = max(1.0, most_bytes / _FOR_BYTES)
    limits = [int(most * scale) for most in (MOST_CONTAINERS, MOST_MEMBERS, MOST_ELEMENTS)]
    view = memoryview(text).cast("B")
    if _exceeded(limits, json_scan.pieces(view)) is None:
        return
    # Some of what was counted may be inside strings.
    found = _exceeded(limits, json_scan.outside_strings(view))
    if found is None:
        return
    if found == 0 and json_scan.is_deeper(view[:_DEEP_BYTES], json_text.DEEPEST):
        raise json_text.TooDeep
    what = ("lists and objects", "members of objects", "elements of lists")[found]
    raise TooMuch(
        f"the JSON has more than {limits[found]} {what}; send tensors as binary data or as "
        f"flat lists of numbers, or several smaller requests"
    )


def _exceeded(limits: list[int], pieces: Iterator[np.ndarray]) -> int | None:
    """Which limit the pieces of a text exceed, by its index; None if none."""
    counts = [0, 0, 0]
    for piece in pieces:
        counts[0] += json_scan.count(piece, b"[") + json_scan.count(piece, b"{")
        counts[1] += json_scan.count(piece, b":")
        counts[2] += json_scan.count(piece, b",")
        for index, count in enumerate(counts):
            if count > limits[index]:
                return index
    return None
