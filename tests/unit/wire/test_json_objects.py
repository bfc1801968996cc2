"""Objects one after the other: told apart however they arrive, and what is none is told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.json_objects import JsonObjects, StreamError

SPACES = st.text(" \t\r\n", max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


def drained(objects):
    """All that can be taken now."""
    return list(iter(objects.take, None))


@given(
    st.lists(st.tuples(OBJECTS, SPACES, st.booleans()), max_size=5),
    st.lists(st.integers(1, 12), min_size=1),
)
def test_objects_in_pieces_of_any_size(parts, sizes):
    texts = [json.dumps(value, ensure_ascii=ascii_only) for value, _, ascii_only in parts]
    stream = "".join(f"{text}{part[1]}" for text, part in zip(texts, parts, strict=True)).encode()
    objects, taken, at = JsonObjects(1 << 20), [], 0
    while at < len(stream):
        size = sizes[len(taken) % len(sizes)]
        objects.feed(stream[at : at + size])
        at += size
        taken += drained(objects)
    assert [message.data.decode() for message in taken] == texts
    assert [message.line for message in taken] == ["\n" in part[1] for part in parts]
    assert not objects.begun


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "}"}',
        '{"a": "\\"}"}',
        '{"a": "\\\\"}',
        '{"a": "\\\\\\"{"}',
        '{"{": {"}": [{}, {"x": "y"}]}}',
        '{"a": "' + '\\"' * 5000 + '"}',
        '{"a": "' + "\\\\" * 5000 + '"}',
        "{}",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_braces_in_strings_do_not_count(text, size):
    objects = JsonObjects(1 << 20)
    data = text.encode()
    found = []
    for at in range(0, len(data), size):
        objects.feed(data[at : at + size])
        found += drained(objects)
    assert [message.data for message in found] == [data]


def test_a_large_object_in_many_pieces_is_looked_at_once():
    objects = JsonObjects(1 << 30)
    objects.feed(b'{"text": "')
    for _ in range(50_000):  # 3 MB; looking again at each piece would be 80 GB
        objects.feed(b"word " * 12)
        assert objects.take() is None
    objects.feed(b'"}')
    assert len(objects.take().data) == 50_000 * 60 + 12


def test_a_newline_counts_when_it_comes_later():
    objects = JsonObjects(100)
    objects.feed(b"{}")
    message = objects.take()
    assert not message.line
    objects.feed(b" ")
    assert not message.line
    objects.feed(b"\r\n{")
    assert message.line


def test_a_newline_counts_for_the_object_before_it_only():
    objects = JsonObjects(100)
    objects.feed(b"\n{} {}\n{}")
    assert [message.line for message in drained(objects)] == [False, True, False]


def test_what_is_no_object_costs_its_line():
    objects = JsonObjects(100)
    objects.feed(b"hello there\n{}\n[1]\n{}")
    with pytest.raises(StreamError, match="expected a JSON object, found 'hello there'") as caught:
        objects.take()
    assert not caught.value.final
    assert objects.take().data == b"{}"
    with pytest.raises(StreamError, match=r"found '\[1\]'"):
        objects.take()
    assert objects.take().data == b"{}"


def test_what_is_no_object_and_no_line_is_the_end():
    objects = JsonObjects(100)
    objects.feed(b"\xff\xfe hello" + b"x" * 1000)
    with pytest.raises(StreamError, match="expected a JSON object") as caught:
        objects.take()
    assert caught.value.final
    assert len(caught.value.message) < 100


@pytest.mark.parametrize("data", [b'{"a": "' + b"x" * 100, b'{"a": "' + b"x" * 100 + b'"}'])
def test_too_large(data):
    objects = JsonObjects(64)
    objects.feed(data)
    with pytest.raises(StreamError, match="more than 64 bytes") as caught:
        objects.take()
    assert caught.value.final


def test_small_objects_may_be_many():
    objects = JsonObjects(16)
    objects.feed(b'{"a": 1}' * 1000)
    assert len(drained(objects)) == 1000


def test_too_deep():
    objects = JsonObjects(1 << 20)
    objects.feed(b'{"a":' * 200)
    with pytest.raises(StreamError, match="nested more than 100 deep") as caught:
        objects.take()
    assert caught.value.final
