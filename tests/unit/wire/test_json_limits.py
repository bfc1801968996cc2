"""How much a JSON text may contain, counted before it is parsed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgument
from shoal.wire import json_limits, json_scan, json_text

MOST_BYTES = 64 << 20
TEXTS = st.text('ab"\\[]{},:\n€', max_size=12)
VALUES = st.recursive(
    st.one_of(st.integers(), st.booleans(), TEXTS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def containers(value):
    if isinstance(value, list):
        return 1 + sum(map(containers, value))
    if isinstance(value, dict):
        return 1 + sum(map(containers, value.values()))
    return 0


@given(VALUES, st.integers(1, 40), st.booleans())
def test_only_what_is_outside_strings_counts(value, piece_bytes, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "PIECE_BYTES", piece_bytes)
        found = sum(
            json_scan.count(piece, b"[") + json_scan.count(piece, b"{")
            for piece in json_scan.outside_strings(memoryview(text))
        )
    assert found == containers(value)


@pytest.mark.parametrize(
    ("unit", "around", "message"),
    [
        (b"[]", b"[%b]", "more than 50000 lists and objects"),
        (b"{}", b"[%b]", "more than 50000 lists and objects"),
        (b'"":1', b"{%b}", "more than 50000 members of objects"),
        (b"1", b"[%b]", "more than 400000 elements of lists"),
        (b'""', b"[%b]", "more than 400000 elements of lists"),
    ],
)
def test_a_text_of_too_many_values_is_refused(unit, around, message):
    with pytest.raises(json_limits.TooMuch, match=message):
        json_limits.loads(around % ((unit + b",") * 400_001 + unit), MOST_BYTES)


def test_the_limits_grow_with_the_longest_text():
    text = b"[" + b"[]," * 60_000 + b"[]]"
    with pytest.raises(json_limits.TooMuch):
        json_limits.loads(text, MOST_BYTES)
    assert len(json_limits.loads(text, 2 * MOST_BYTES)) == 60_001


@pytest.mark.parametrize("escape", [b"", b"\\\\", b'\\"'])
def test_a_long_text_may_have_any_number_of_brackets(escape):
    text = b'{"prompt":"%b"}' % ((b"[{,:" + escape) * 500_000)
    assert len(json_limits.loads(text, MOST_BYTES)["prompt"]) == 500_000 * (4 + bool(escape))


@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
def test_depth_is_reported_as_such(bracket):
    with pytest.raises(json_text.TooDeep):
        json_limits.loads(bracket * 100_000, MOST_BYTES)


@given(st.binary(max_size=100))
def test_any_bytes_are_counted(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_limits, "_SHORT", 0)
        patch.setattr(json_limits, "MOST_CONTAINERS", 3)
        refused = False
        try:
            json_limits.check_counts(text, MOST_BYTES)
        except InvalidArgument:
            refused = True
    assert not refused or text.count(b"[") + text.count(b"{") > 3


def depth(value):
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0) if isinstance(value, (list, dict)) else 0


@given(VALUES, st.integers(1, 40))
def test_depth_is_that_of_lists_and_objects(value, piece_bytes):
    text = memoryview(json.dumps(value).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "PIECE_BYTES", piece_bytes)
        assert not json_scan.is_deeper(text, depth(value))
        assert depth(value) == 0 or json_scan.is_deeper(text, depth(value) - 1)
