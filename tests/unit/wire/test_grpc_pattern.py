"""Messages like one with a template are found again, and no others; sequences are split off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgument
from shoal.wire import grpc_pattern
from shoal.wire.grpc_pattern import MessagePatterns, split_sequence
from shoal.wire.grpc_request import InferDecoder
from shoal.wire.proto import messages
from shoal.wire.protobuf_wire import delimited, tag, take_out


def put(patterns, message, template):
    ids, raw = [], []
    take_out(message, {tag(3): ids, tag(7): raw})
    patterns.put(message, tuple(ids), tuple(raw), template)


def found(patterns, message):
    """The template, the id and the contents of a message; None if it matches no pattern."""
    pattern = patterns.find(message)
    if pattern is None:
        return None
    assert pattern.matches(message)
    request_id = None if pattern.id is None else message[pattern.id]
    return pattern.template, request_id, *[message[place] for place in pattern.contents]


def make(id="1", contents=(b"abcd", b"ef"), name="m"):
    request = messages.ModelInferRequest(model_name=name, id=id)
    for number, content in enumerate(contents):
        request.inputs.add(name=f"IN{number}", datatype="UINT8", shape=[len(content)])
        request.raw_input_contents.append(content)
    return request.SerializeToString()


def test_id_and_contents_may_differ():
    patterns = MessagePatterns()
    put(patterns, make(), "template")
    other = make("7", (b"ABCD", b"EF"))
    assert found(patterns, other) == ("template", b"7", b"ABCD", b"EF")


def test_a_message_without_an_id():
    patterns = MessagePatterns()
    put(patterns, make(id=""), "template")
    other = make("", (b"ABCD", b"EF"))
    assert found(patterns, other) == ("template", None, b"ABCD", b"EF")


@pytest.mark.parametrize(
    "other",
    [
        make(name="n"),
        make(id="12"),
        make(contents=(b"abc", b"efg")),
        make(contents=(b"abcde", b"f")),
        make() + delimited(3, b"2"),
        make()[:-1],
        b"",
    ],
)
def test_other_messages_do_not_match(other):
    patterns = MessagePatterns()
    put(patterns, make(), "template")
    assert found(patterns, other) is None
    if len(other) == len(make()):
        assert not patterns.find(make()).matches(other)


def test_an_id_is_not_taken_for_contents_at_the_same_place():
    patterns = MessagePatterns()
    put(patterns, delimited(3, b"1"), "an id")
    put(patterns, delimited(7, b"1"), "contents")
    assert found(patterns, delimited(3, b"2")) == ("an id", b"2")
    assert found(patterns, delimited(7, b"2")) == ("contents", None, b"2")


def test_what_protobuf_would_not_write_is_not_stored():
    patterns = MessagePatterns()
    for odd in (make() + delimited(3, b"2"), delimited(7, b"ab") + delimited(3, b"1")):
        put(patterns, odd, "template")
        assert found(patterns, odd) is None


def test_its_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(grpc_pattern, "_MOST_LENGTHS", 3)
    patterns = MessagePatterns()
    for size in range(10):
        put(patterns, make(contents=(bytes(size),)), size)
    assert len(patterns._layouts) == 3
    assert found(patterns, make(contents=(bytes(9),)))[0] == 9
    assert found(patterns, make(contents=(bytes(1),))) is None


def test_a_newer_template_replaces_the_older():
    patterns = MessagePatterns()
    put(patterns, make(), "old")
    put(patterns, make("2"), "new")
    assert found(patterns, make())[0] == "new"


# ---- sequences


def step(sequence_id, *, kind="int64_param", start=True, key="sequence_id", **more):
    request = messages.ModelInferRequest(model_name="m", **more)
    setattr(request.parameters[key], kind, sequence_id)
    request.parameters["sequence_start"].bool_param = start
    request.inputs.add(name="IN", datatype="UINT8", shape=[2])
    return request.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("kind", "first", "others"),
    [
        ("int64_param", 1, (2, 127)),
        ("int64_param", 300, (301, 16_383)),
        ("int64_param", 2**62, (2**62 + 1, 2**63 - 1)),
        ("int64_param", -1, (-2, -(2**63))),
        ("string_param", "abc", ("xyz", "a c")),
    ],
)
def test_messages_of_other_sequences_are_equal_around_the_id(kind, first, others):
    _, around = split_sequence(step(first, kind=kind))
    for other in (first, *others):
        expected = other % 2**64 if isinstance(other, int) else other
        assert split_sequence(step(other, kind=kind)) == (expected, around)
    assert split_sequence(step(first, kind=kind, start=False))[1] != around


@pytest.mark.parametrize(
    "message",
    [
        step(0),  # no sequence
        step(7).replace(b"\x12\x02\x10\x07", b"\x12\x02\x10\x87"),  # no complete number
        step(7, key="sequence_ie"),
        step(5) + step(6),
        make(),
    ],
)
def test_what_need_not_be_a_sequence_is_not_taken_for_one(message):
    assert split_sequence(message) is None


def test_a_decoder_reads_the_id_of_each_sequence():
    decoder = InferDecoder()
    heads = []
    for sequence_id in (5, 6, 300, 301, -1):
        read = decoder.decode(step(sequence_id) + delimited(7, b"ab"))
        assert read.sequence_id == sequence_id % 2**64
        heads.append(read.head)
    assert heads[0] is heads[1] is not heads[2]
    assert heads[2] is heads[3]


small = st.binary(max_size=6)
fields = st.lists(
    st.one_of(
        st.tuples(st.just(3), st.text("ab", max_size=3).map(str.encode)),
        st.tuples(st.just(7), small),
        st.tuples(st.just(1), st.sampled_from([b"m", b"n"])),
        st.tuples(
            st.just(5), st.sampled_from([b"\x0a\x01I\x12\x05UINT8", b"\x0a\x01J\x12\x05UINT8"])
        ),
    ),
    max_size=6,
)
shared = InferDecoder()


@given(fields)
def test_caching_changes_no_result(parts):
    message = b"".join(bytes([tag(field), len(content)]) + content for field, content in parts)
    outcomes = []
    for decoder in (InferDecoder(caches=False), shared, shared):
        try:
            read = decoder.decode(message)
        except InvalidArgument as error:
            outcomes.append(error.message)
        else:
            inputs = {name: bytes(tensor.raw) for name, tensor in read.inputs.items()}
            head = read.head
            outcomes.append(
                (read.id, read.sequence_id, head.model_name, head.parameters, inputs, read.contents)
            )
    assert outcomes[0] == outcomes[1] == outcomes[2]
