"""Our part of protobuf's wire format agrees with protobuf's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgument
from shoal.wire.proto import messages
from shoal.wire.protobuf_wire import delimited, prefix, signed, tag, take_out, varint

RAW = tag(7)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (2**64 - 1, b"\xff" * 9 + b"\x01"),
    ],
)
def test_varint(value, encoded):
    assert varint(value) == encoded


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_is_what_protobuf_writes(value):
    written = messages.InferParameter(int64_param=value).SerializeToString()
    assert b"\x10" + signed(value) == written


def test_delimited_leaves_out_what_is_empty():
    assert delimited(1, b"") == b""
    assert delimited(1, b"ab") == b"\x0a\x02ab"
    assert prefix(16, 300) == b"\x82\x01\xac\x02"


@given(st.binary(max_size=40), st.lists(st.binary(max_size=300), max_size=4), st.text())
def test_take_out_splits_a_message(shape, contents, name):
    request = messages.ModelInferRequest(model_name=name, id="7")
    request.inputs.add(name="IN", shape=list(shape))
    request.raw_input_contents.extend(contents)
    taken: list[tuple[int, int]] = []
    message = request.SerializeToString()
    rest = take_out(message, {RAW: taken})
    assert [message[slice(*span)] for span in taken] == contents
    del request.raw_input_contents[:]
    assert messages.ModelInferRequest.FromString(rest) == request


def test_take_out_finds_a_field_wherever_it_stands():
    message = delimited(7, b"a") + delimited(1, b"model") + delimited(7, b"b") + prefix(7, 0)
    taken: list[tuple[int, int]] = []
    assert take_out(message, {RAW: taken}) == delimited(1, b"model")
    assert [message[slice(*span)] for span in taken] == [b"a", b"b", b""]


def test_take_out_leaves_unknown_fields_and_other_wire_types_alone():
    varint_field, eight_bytes, four_bytes = b"\xf8\x3f\x05", b"\x99\x0112345678", b"\xa5\x011234"
    other_seven = b"\x38\x01"  # field 7 as a varint: not the field we know
    unknown = varint_field + eight_bytes + four_bytes + other_seven
    taken: list[tuple[int, int]] = []
    assert take_out(unknown + delimited(7, b"z"), {RAW: taken}) == unknown
    assert taken == [(len(unknown) + 2, len(unknown) + 3)]
    assert messages.ModelInferRequest.FromString(unknown).model_name == ""


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"\x0a", "no complete number at byte 1"),
        (b"\x0a\x05abc", "field 1 at byte 0 reaches beyond the end"),
        (b"\x80", "no complete number at byte 0"),
        (b"\xff" * 11, "no complete number at byte 0"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "reaches beyond the end"),
        (b"\x0b", "field 1 at byte 0 has wire type 3"),
        (b"\x0f", "has wire type 7"),
        (b"\x09\x00", "reaches beyond the end"),
        (b"\x10", "no complete number at byte 1"),
    ],
)
def test_take_out_refuses_what_is_no_message(message, why):
    with pytest.raises(InvalidArgument, match="is not a valid protobuf message") as caught:
        take_out(message, {RAW: []})
    assert why in caught.value.message


@given(st.binary(max_size=60))
def test_take_out_raises_nothing_but_invalid_argument(message):
    taken: list[tuple[int, int]] = []
    try:
        rest = take_out(message, {RAW: taken})
    except InvalidArgument:
        return
    sizes = [end - start for start, end in taken]
    assert len(rest) + sum(len(prefix(7, size)) + size for size in sizes) <= len(message)


def test_take_out_reads_no_more_fields_than_allowed():
    message = delimited(7, b"z") * 10
    taken = []
    assert take_out(message, {RAW: taken}, 10) == b""
    assert len(taken) == 10
    with pytest.raises(InvalidArgument, match="more than 9 fields"):
        take_out(message, {RAW: []}, 9)


def test_take_out_refuses_field_0():
    with pytest.raises(InvalidArgument, match="field 0 at byte 0"):
        take_out(bytes(1_000), {RAW: []})
