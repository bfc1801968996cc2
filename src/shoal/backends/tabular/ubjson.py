"""Whether a UBJSON file is complete.

XGBoost reads past the end of a truncated file, which crashes the process. So a file is scanned
before XGBoost reads it: from value to value, without creating them.
"""

from __future__ import annotations

import struct

# Marker to bytes that follow it; strings, arrays and objects follow their own rules.
_SIZES = {
    **dict.fromkeys(b"ZNTF", 0),
    **dict.fromkeys(b"iUC", 1),
    ord("I"): 2,
    ord("l"): 4,
    ord("d"): 4,
    ord("L"): 8,
    ord("D"): 8,
}
_LENGTHS = {
    ord("i"): struct.Struct(">b"),
    ord("U"): struct.Struct(">B"),
    ord("I"): struct.Struct(">h"),
    ord("l"): struct.Struct(">i"),
    ord("L"): struct.Struct(">q"),
}
_DEEPEST = 64


class TruncatedFile(ValueError):
    """The bytes are not a complete UBJSON object."""


def check(content: bytes) -> None:
    """Raise TruncatedFile unless `content` is one object from its first byte to its last."""
    if content[:1] != b"{":
        raise TruncatedFile("it does not begin with an object")
    try:
        end = _value(content, 0, 0)
    except (IndexError, struct.error, KeyError):
        raise TruncatedFile("it ends too soon") from None
    if end > len(content):
        raise TruncatedFile("it ends too soon")


def _value(content: bytes, at: int, depth: int) -> int:
    """Where the value whose marker is at `at` ends."""
    return _behind(content, content[at], at + 1, depth)


def _behind(content: bytes, marker: int, at: int, depth: int) -> int:
    if depth > _DEEPEST:
        raise TruncatedFile("it is nested too deeply")
    size = _SIZES.get(marker)
    if size is not None:
        return at + size
    if marker in b"SH":
        length, at = _length(content, at)
        return at + length
    if marker == ord("["):
        return _items(content, at, depth, named=False)
    if marker == ord("{"):
        return _items(content, at, depth, named=True)
    raise TruncatedFile(f"there is no type {chr(marker)!r}")


def _items(content: bytes, at: int, depth: int, *, named: bool) -> int:
    """Where an array or an object ends; they may have a common type and a count."""
    shared = count = None
    if content[at] == ord("$"):
        shared, at = content[at + 1], at + 2
    if content[at] == ord("#"):
        count, at = _length(content, at + 1)
    if shared is not None and count is not None and not named and shared in _SIZES:
        return at + count * _SIZES[shared]
    closing = ord("}" if named else "]")
    while count is None or count > 0:
        if count is None:
            if content[at] == closing:
                return at + 1
        else:
            count -= 1
        if named:
            length, at = _length(content, at)
            at += length
        marker = shared
        if marker is None:
            marker, at = content[at], at + 1
        at = _behind(content, marker, at, depth + 1)
    return at


def _length(content: bytes, at: int) -> tuple[int, int]:
    """A whole number, and where it ends."""
    form = _LENGTHS[content[at]]
    (length,) = form.unpack_from(content, at + 1)
    if length < 0:
        raise TruncatedFile("it has a negative length")
    return length, at + 1 + form.size
