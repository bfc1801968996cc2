"""Long lists of numbers, which are parsed in pieces, mean what they mean when parsed at once."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgument
from shoal.wire import json_arrays, json_data, json_limits, json_text
from shoal.wire.http_body import InferBodyDecoder

MOST_BYTES = 64 << 20


@pytest.fixture
def small(monkeypatch):
    """Every list is long, and every request has too many elements to be parsed at once."""
    monkeypatch.setattr(json_arrays, "_LONG_BYTES", 0)
    monkeypatch.setattr(json_limits, "_SHORT", 0)
    monkeypatch.setattr(json_limits, "MOST_ELEMENTS", 8)


def body(data, datatype="FP32", shape="[3]", more=b""):
    head = f'{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":{shape},"data":'
    return head.encode() + data + more + b"}]}"


def read(text):
    decoded = InferBodyDecoder().decode(text, None, model_name="m", max_json_bytes=MOST_BYTES)
    return decoded.inputs["x"]


@pytest.mark.parametrize(
    ("datatype", "shape", "unit", "expected"),
    [
        ("FP32", "[600000]", b"0.5", np.full(600_000, 0.5, np.float32)),
        ("INT64", "[2,300000]", b"-7", np.full((2, 300_000), -7, np.int64)),
        ("UINT8", "[600000]", b"255", np.full(600_000, 255, np.uint8)),
        ("BOOL", "[600000]", b"true", np.full(600_000, True)),
        ("FP32", "[600000]", b"NaN", np.full(600_000, np.nan, np.float32)),
        ("INT32", "[300000,2]", b"[1,2]", np.tile(np.array([[1, 2]], np.int32), (300_000, 1))),
    ],
)
def test_tensors_of_many_numbers(datatype, shape, unit, expected):
    count = 300_000 if unit == b"[1,2]" else 600_000
    data = b"[" + (unit + b", ") * (count - 1) + unit + b"]"
    found = read(body(data, datatype, shape))
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.array, expected)
    assert found.array.dtype == expected.dtype


@pytest.mark.parametrize("more", [b',"parameters":{}', b' , "parameters" : {}\n'])
def test_members_behind_many_numbers(more):
    data = b"[" + b"0.5, " * 599_999 + b"0.5]"
    found = read(body(data, shape="[600000]", more=more))
    np.testing.assert_array_equal(found.array, np.full(600_000, 0.5, np.float32))


@pytest.mark.parametrize(
    ("data", "datatype", "message"),
    [
        (b"[" + b"1," * 600_000 + b"1]", "FP32", "holds at least"),
        (b"[" + b"1.5," * 599_999 + b"1]", "INT32", "non-signed-integer"),
        (b"[" + b"1," * 599_999 + b"true]", "INT32", "non-signed-integer"),
        (b"[" + b"1," * 500_000 + b"1]", "FP32", "holds 500001"),
        (b"[" + b"1," * 600_000 + b"]", "FP32", "failed to parse"),
        (b"[" + b"1," * 300_000 + b"," + b"1," * 300_000 + b"1]", "FP32", "failed to parse"),
        (b"[" + b"1," * 599_999 + b"1]]", "FP32", "failed to parse"),
        (b"[[" + b"1," * 599_999 + b"1]", "FP32", "failed to parse"),
        (b"[" + b"1," * 599_999 + b"1]", "BYTES", "non-string as string"),
        (b"[" + b"[]," * 600_000 + b"[]]", "FP32", "more than 500000 lists"),
        (b'["' + b"1," * 600_000 + b'1"]', "FP32", "holds 1"),
        (b"[" + b'"a",' * 600_000 + b'"a"]', "BYTES", "more than 400000 elements"),
    ],
)
def test_what_does_not_fit_is_refused(data, datatype, message):
    with pytest.raises(InvalidArgument, match=message):
        read(body(data, datatype, "[600000]"))


def test_a_list_that_is_no_input_is_not_cut_out():
    parameters = b'{"parameters":{"data":[' + b"1," * 600_000 + b'1]},"inputs":[]}'
    with pytest.raises(InvalidArgument, match="parameter 'data' has invalid type"):
        read(parameters)


NUMBERS = st.recursive(
    st.sampled_from(["1", "-2", "2.5", "true", "NaN", "300", "null"]),
    lambda inner: st.lists(inner, max_size=6).map(lambda items: "[" + ",".join(items) + "]"),
    max_leaves=30,
)


@given(
    st.lists(NUMBERS, min_size=1, max_size=12),
    st.sampled_from([",", ", ", " ,\n"]),
    st.integers(40, 90),
    st.integers(0, 300),
    st.sampled_from(["", "", "", "]", "[", ",", ",,", "1", "x"]),
)
def test_pieces_mean_the_same_as_the_whole(items, comma, piece_bytes, place, fault):
    text = "[" + comma.join(items) + "]"
    place %= len(text)
    text = text[:place] + fault + text[place:]
    whole = b'{"inputs":[{"data":%b,"name":"x"}]}' % text.encode()
    try:
        expected = json_data.flatten(json_text.loads(whole)["inputs"][0]["data"])
    except InvalidArgument:
        expected = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrays, "_LONG_BYTES", 0)
        patch.setattr(json_arrays, "_PIECE_BYTES", piece_bytes)
        patch.setattr(json_limits, "_SHORT", 0)
        patch.setattr(json_limits, "MOST_ELEMENTS", 3)
        try:
            data = json_arrays.loads(whole, MOST_BYTES)["inputs"][0]["data"]
            pieces = data.pieces() if type(data) is json_arrays.LongArray else [data]
            found = [item for piece in pieces for item in json_data.flatten(piece)]
        except InvalidArgument:
            found = None
    assert json.dumps(found) == json.dumps(expected)


@pytest.mark.parametrize("key", [b'"\\"data"', b'"data "', b'"Data"'])
def test_other_keys_stay_where_they_are(small, key):
    text = b'{"inputs":[{%b:[1,2,3,4,5,6,7,8,9,10]}]}' % key
    with pytest.raises(json_limits.TooMuch):
        json_arrays.loads(text, MOST_BYTES)
