"""Whole files pass; every beginning of one is refused."""

from __future__ import annotations

import struct

import pytest

from shoal.backends.tabular import ubjson
from shoal.backends.tabular.ubjson import TruncatedFile


def key(name):
    return b"L" + struct.pack(">q", len(name)) + name


def text(content):
    return b"SL" + struct.pack(">q", len(content)) + content


NUMBERS = b"[$d#L" + struct.pack(">q3f", 3, 1, 2, 3)
MIXED = b"[" + b"i\x05" + b"T" + text(b"x") + b"]"
COUNTED = b"[#U\x02" + b"Z" + b"D" + bytes(8)
NESTED = b"{" + key(b"a") + b"I\x00\x01" + key(b"b") + MIXED + b"}"
SHARED = b"{$i#U\x01" + key(b"n") + b"\x07"
WHOLE = (
    b"{"
    + b"".join(
        key(name) + value
        for name, value in (
            (b"learner", NESTED),
            (b"numbers", NUMBERS),
            (b"counted", COUNTED),
            (b"shared", SHARED),
            (b"name", text(b"gbtree")),
            (b"long", b"l" + bytes(4)),
        )
    )
    + b"}"
)


def test_a_whole_file():
    ubjson.check(WHOLE)
    ubjson.check(b"{}")


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_every_beginning_of_it(length):
    with pytest.raises(TruncatedFile):
        ubjson.check(WHOLE[:length])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[]", "does not begin with an object"),
        (b"{" + key(b"a") + b"?" + b"}", "no type '\\?'"),
        (b"{" + b"i\xff" + b"}", "negative length"),
        (b"{" + key(b"a") + b"[" * 200, "nested too deeply"),
        (b"{" + key(b"a") + b"[$d#L" + struct.pack(">q", 1 << 60) + b"}", "ends too soon"),
        (b"{x", "ends too soon"),
    ],
)
def test_other_bytes(content, why):
    with pytest.raises(TruncatedFile, match=why):
        ubjson.check(content)
