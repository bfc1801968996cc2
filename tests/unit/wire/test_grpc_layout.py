"""Messages like one that was read before are found again, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgument
from shoal.wire import grpc_layout
from shoal.wire.grpc_layout import KnownMessages, Places, find_sequence
from shoal.wire.grpc_request import InferDecoder
from shoal.wire.proto import messages
from shoal.wire.protobuf_wire import delimited, tag, take_out


def learnt(known, message, read):
    ids, raw = [], []
    take_out(message, {tag(3): ids, tag(7): raw})
    sequence = find_sequence(message)
    if sequence is not None:
        known.learn(message, Places(tuple(ids), tuple(raw), *sequence), read)


def make(id="1", contents=(b"abcd", b"ef"), name="m"):
    request = messages.ModelInferRequest(model_name=name, id=id)
    for number, content in enumerate(contents):
        request.inputs.add(name=f"IN{number}", datatype="UINT8", shape=[len(content)])
        request.raw_input_contents.append(content)
    return request.SerializeToString()


def test_id_and_contents_may_differ():
    known = KnownMessages()
    learnt(known, make(), "read")
    found = known.find(make("7", (b"ABCD", b"EF")))
    assert (found.read, found.sizes, found.sequence_id) == ("read", (4, 2), None)
    assert list(found.parts) == [b"7", b"", b"ABCD", b"EF", b""]


def test_a_message_without_an_id():
    known = KnownMessages()
    learnt(known, make(id=""), "read")
    assert list(known.find(make("", (b"ABCD", b"EF"))).parts) == [b"", b"", b"ABCD", b"EF", b""]


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
def test_other_messages_are_not_known(other):
    known = KnownMessages()
    learnt(known, make(), "read")
    assert known.find(other) is None


def test_large_messages_are_cut_without_a_copy():
    known = KnownMessages()
    message = make(contents=(bytes(5000),))
    learnt(known, message, "read")
    content = known.find(message).parts[2]
    assert isinstance(content, memoryview)
    assert len(content) == 5000


def test_an_id_is_not_taken_for_contents_at_the_same_place():
    known = KnownMessages()
    learnt(known, delimited(3, b"1"), "an id")
    learnt(known, delimited(7, b"1"), "contents")
    assert [known.find(delimited(field, b"2")).read for field in (3, 7)] == ["an id", "contents"]
    assert list(known.find(delimited(7, b"2")).parts) == [b"", b"", b"2", b""]


def test_what_protobuf_would_not_write_is_not_learnt():
    known = KnownMessages()
    for odd in (make() + delimited(3, b"2"), delimited(7, b"ab") + delimited(3, b"1")):
        learnt(known, odd, "read")
        assert known.find(odd) is None


def test_its_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(grpc_layout, "_MOST_LENGTHS", 3)
    known = KnownMessages()
    for size in range(10):
        learnt(known, make(contents=(bytes(size),)), size)
    assert len(known._layouts) == 3
    assert known.find(make(contents=(bytes(9),))).read == 9
    assert known.find(make(contents=(bytes(1),))) is None


def step(sequence_id, *, kind="int64_param", start=True, key="sequence_id", **more):
    request = messages.ModelInferRequest(model_name="m", **more)
    setattr(request.parameters[key], kind, sequence_id)
    request.parameters["sequence_start"].bool_param = start
    request.inputs.add(name="IN", datatype="UINT8", shape=[2])
    request.raw_input_contents.append(b"ab")
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
def test_the_ids_of_sequences_may_differ(kind, first, others):
    known = KnownMessages()
    learnt(known, step(first, kind=kind, id="9"), "read")
    for other in (first, *others):
        found = known.find(step(other, kind=kind, id="8"))
        wanted = other % 2**64 if isinstance(other, int) else other
        assert (found.read, found.sequence_id) == ("read", wanted)
    assert known.find(step(first, kind=kind, id="9", start=False)) is None


@pytest.mark.parametrize(
    "other",
    [
        step(0),  # no sequence
        step(7).replace(b"\x12\x02\x10\x07", b"\x12\x02\x10\x87"),  # no complete number
        step(7, key="sequence_ie"),
        step("7", kind="string_param")[:-1],
    ],
)
def test_what_need_not_be_a_sequence_is_not_taken_for_one(other):
    known = KnownMessages()
    learnt(known, step(5), "read")
    assert known.find(other) is None


def test_a_sequence_named_twice_is_not_learnt():
    known = KnownMessages()
    message = step(5) + step(6)
    learnt(known, message, "read")
    assert known.find(message) is None


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
def test_remembering_changes_no_answer(parts):
    message = b"".join(bytes([tag(field), len(content)]) + content for field, content in parts)
    outcomes = []
    for decoder in (InferDecoder(remembers=False), shared, shared):
        try:
            read = decoder.decode(message)
        except InvalidArgument as error:
            outcomes.append(error.message)
        else:
            inputs = {name: bytes(tensor.raw) for name, tensor in read.inputs.items()}
            head = read.head
            outcomes.append(
                (read.id, read.sequence_id, head.model_name, head.parameters, inputs, read.sizes)
            )
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_a_pattern_fits_what_is_found():
    known = KnownMessages()
    learnt(known, make(), "read")
    pattern = known.pattern(make("9"))
    assert (pattern.read, pattern.sizes) == ("read", (4, 2))
    other = make("7", (b"ABCD", b"EF"))
    assert pattern.fits(other)
    assert other[pattern.id] == b"7"
    assert [other[place] for place in pattern.contents] == [b"ABCD", b"EF"]
    assert not pattern.fits(make(name="n"))
    learnt(known, make(id=""), "read")
    assert known.pattern(make(id="")).id is None


def test_there_are_no_patterns_of_sequences_and_of_unknown_messages():
    known = KnownMessages()
    assert known.pattern(make()) is None
    request = messages.ModelInferRequest.FromString(make())
    request.parameters["sequence_id"].int64_param = 5
    message = request.SerializeToString()
    learnt(known, message, "read")
    assert known.find(message) is not None
    assert known.pattern(message) is None
    assert InferDecoder(remembers=False).pattern(make()) is None
