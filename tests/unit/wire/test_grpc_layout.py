"""Messages like one that was read before are found again, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgument
from shoal.wire import grpc_layout
from shoal.wire.grpc_layout import KnownMessages
from shoal.wire.grpc_request import InferDecoder
from shoal.wire.proto import messages
from shoal.wire.protobuf_wire import delimited, tag, take_out


def learnt(known, message, read):
    ids, raw = [], []
    take_out(message, {tag(3): ids, tag(7): raw})
    known.learn(message, ids, raw, read)


def make(id="1", contents=(b"abcd", b"ef"), name="m"):
    request = messages.ModelInferRequest(model_name=name, id=id)
    for number, content in enumerate(contents):
        request.inputs.add(name=f"IN{number}", datatype="UINT8", shape=[len(content)])
        request.raw_input_contents.append(content)
    return request.SerializeToString()


def test_id_and_contents_may_differ():
    known = KnownMessages()
    learnt(known, make(), "read")
    read, parts, sizes = known.find(make("7", (b"ABCD", b"EF")))
    assert (read, list(parts), sizes) == ("read", [b"7", b"ABCD", b"EF", b""], (4, 2))


def test_a_message_without_an_id():
    known = KnownMessages()
    learnt(known, make(id=""), "read")
    _, parts, _ = known.find(make("", (b"ABCD", b"EF")))
    assert list(parts) == [b"", b"ABCD", b"EF", b""]


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
    _, parts, _ = known.find(message)
    assert isinstance(parts[1], memoryview)
    assert len(parts[1]) == 5000


def test_an_id_is_not_taken_for_contents_at_the_same_place():
    known = KnownMessages()
    learnt(known, delimited(3, b"1"), "an id")
    learnt(known, delimited(7, b"1"), "contents")
    assert [known.find(delimited(field, b"2"))[0] for field in (3, 7)] == ["an id", "contents"]
    assert list(known.find(delimited(7, b"2"))[1]) == [b"", b"2", b""]


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
    assert known.find(make(contents=(bytes(9),)))[0] == 9
    assert known.find(make(contents=(bytes(1),))) is None


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
            outcomes.append((read.id, read.head.model_name, inputs, read.sizes))
    assert outcomes[0] == outcomes[1] == outcomes[2]
