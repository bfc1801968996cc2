"""JSON bodies that are alike but for their id and numbers: read as if there were no frames."""

from __future__ import annotations

import json

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.dtypes import ALL, BF16, BY_NAME, BYTES, FP16
from shoal.errors import ShoalError
from shoal.wire import json_data, json_frame, json_limits, json_text
from shoal.wire.http_body import InferBodyDecoder
from shoal.wire.infer_json import WantedOutput

MOST = 1 << 26
NUMBERS = [one for one in ALL if one not in (FP16, BF16, BYTES)]


def entry(data, datatype="INT32", shape=(3,), name="x"):
    return f'{{"name":"{name}","datatype":"{datatype}","shape":{json.dumps(shape)},"data":{data}}}'


def body(*entries, front="", more=""):
    return f'{{{front}"inputs":[{",".join(entries)}]{more}}}'.encode()


def decode(decoder, text):
    """What a decoder makes of a text: everything that can be observed, or the error."""
    try:
        decoded = decoder.decode(text, None, model_name="m", max_json_bytes=MOST)
    except ShoalError as error:
        return type(error), error.message
    tensors = [
        (tensor.name, tensor.datatype, tensor.shape, bytes(tensor.raw))
        for tensor in decoded.inputs.values()
    ]
    return tensors, decoded.id, decoded.outputs, decoded.parameters, decoded.priority


def compare(*texts):
    """Decode the texts in order with and without frames; how many of them had one already."""
    known = InferBodyDecoder()
    hits = 0
    for text in texts:
        cut = json_frame.cut(text)
        frame = cut and known._frames.get(cut.key)
        hits += bool(frame) and frame.pack(text, cut.lists[0].start) is not None
        assert decode(known, text) == decode(InferBodyDecoder(caches=False), text)
    return hits


# ---- cutting


def test_a_body_is_cut_at_its_lists():
    text = body(entry("[1,2,3]"), entry("[[4], [5,6]]", name="y"), front='"id":"7",')
    cut = json_frame.cut(text)
    assert cut.request_id == b"7"
    assert [text[place] for place in cut.lists] == [b"[1,2,3]", b"[[4], [5,6]]"]
    assert b"".join(cut.frame) == text[len(b'{"id":"7",') :].replace(b"[1,2,3]", b"").replace(
        b"[[4], [5,6]]", b""
    )
    assert json_frame.cut(b"123" + text, 3) == (
        *cut[:2],
        [slice(place.start + 3, place.stop + 3) for place in cut.lists],
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        body(),
        body(entry('["a","b"]', "BYTES")),
        body(entry('{"a":1}')),
        b'{"data":[',
        body(*[entry("[1]")] * 65),
    ],
)
def test_what_has_no_lists_of_numbers_is_not_cut(text):
    assert json_frame.cut(text) is None


@settings(max_examples=2 * settings.default.max_examples)
@given(st.binary(max_size=30), st.lists(st.sampled_from(('"data":[', "1", ",", "]", "}", '"'))))
def test_cutting_loses_nothing(front, tokens):
    text = front + "".join(tokens).encode()
    cut = json_frame.cut(text)
    if cut is not None:
        lists = [text[place] for place in cut.lists]
        rest = b"".join(part + text for part, text in zip(cut.frame, [*lists, b""], strict=True))
        assert text.endswith(rest)


# ---- reading


def test_a_frame_is_used_for_other_numbers_and_ids():
    more = ',"outputs":[{"name":"o"}],"parameters":{"a":1,"priority":3}'
    texts = [body(entry(f"[{n},2,3]"), front=f'"id":"{n}",', more=more) for n in range(3)]
    assert compare(*texts) == 2
    decoder = InferBodyDecoder()
    first, second = (
        decoder.decode(text, None, model_name="m", max_json_bytes=MOST) for text in texts[:2]
    )
    assert second.frame is first.frame
    assert (second.id, second.outputs) == ("1", [WantedOutput("o")])
    assert first.parameters == second.parameters == {"a": 1}
    assert first.parameters is not second.parameters


@pytest.mark.parametrize(
    "text",
    [
        body(entry("[1,2,3]"), more=',"x":{"data":[1]}'),
        body(entry("[1,2,3]"), more=',"id":"late"'),
        body(entry("[1,2,3]"), more=',"x":"\\u0069d"'),
        body(entry("[1,2,3]"), more=',"inputs":[' + entry("[4,5,6]") + "]"),
        body(entry("[1,2,3]"), more=',"parameters":{"sequence_id":3}'),
        body(entry('[1,2,3],"data":[4,5,6]')),
        body(entry('[1,2,3],"data":"x"')),
        body(entry("[]", shape=(0,))),
        body(entry("[1,2,3]", name='a\\"data')),
        body(entry("[1,2,3]"), more=',"x":NaN'),
        body(entry("[1,2,3]"), more=',"x":"' + "x" * 20_000 + '"'),
    ],
)
def test_such_bodies_have_no_frame(text):
    assert compare(text, text, text) == 0


@pytest.mark.parametrize("datatype", NUMBERS, ids=repr)
def test_every_datatype_at_its_limits(datatype):
    kind = datatype.numpy.kind
    info = np.finfo(datatype.numpy) if kind == "f" else None
    if kind == "b":
        values = [True, False, True]
    elif info is not None:
        values = [float(info.max), float(info.smallest_subnormal), -0.0]
    else:
        limits = np.iinfo(datatype.numpy)
        values = [int(limits.min), int(limits.max), 0]
    texts = [body(entry(json.dumps(values), datatype.name)) for _ in range(2)]
    assert compare(*texts) == 1
    if kind in "iu":
        beyond = json.dumps([int(limits.max) + 1, 0, 0])
        assert compare(texts[0], body(entry(beyond, datatype.name))) == 0


floats = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(-(2**64), 2**65),
    st.sampled_from([3.4028235677973366e38, 3.4028235677973362e38, 1e39, 5e-324, 2**53 + 1]),
)


@given(
    st.sampled_from(NUMBERS),
    st.lists(st.tuples(floats, floats, floats), min_size=1, max_size=4),
    st.booleans(),
)
def test_numbers_become_the_same_bytes(datatype, rows, nested):
    def text(row):
        if datatype.numpy.kind in "iu":
            row = [int(value) for value in row]
        if datatype.numpy.kind == "b":
            row = [value > 0 for value in row]
        data = [[row[0]], list(row[1:])] if nested else list(row)
        return body(entry(json.dumps(data), datatype.name))

    sound = body(entry("[true,true,true]" if datatype.name == "BOOL" else "[1,2,3]", datatype.name))
    compare(sound, *map(text, rows))


def test_a_long_body_is_read_alike():
    count = 100_000
    shape = (count // 100, 100)
    numbers = np.linspace(-1e6, 1e6, count)
    flat = [
        body(entry(orjson.dumps((numbers + n).tolist()).decode(), "FP32", shape)) for n in (0, 1)
    ]
    rows = orjson.dumps(numbers.reshape(shape).tolist()).decode()
    assert compare(*flat, body(entry(rows, "FP32", shape))) == 2


# In the middle of a piece, around the end of one, and at the ends of the list.
PLACES = [5, 40_000, *range(json_frame._PIECE_BYTES - 2, json_frame._PIECE_BYTES + 6), -2, -1]


@pytest.mark.parametrize("datatype", ["INT32", "FP32", "BOOL"])
@pytest.mark.parametrize(
    "inserted",
    [",", ", ", ",1", "true,", "null,", "1.5,", "[],", "[1],", '"",', " ", "e", "-", "]"],
)
def test_a_long_list_with_something_in_it_is_read_alike(datatype, inserted):
    word, count = ("true", 20_000) if datatype == "BOOL" else ("7", 50_000)
    whole = "[" + ",".join([word] * count) + "]"
    texts = [whole[:place] + inserted + whole[place:] for place in PLACES]
    compare(*[body(entry(data, datatype, (count,))) for data in (whole, whole, *texts)])


def test_limits_hold_for_bodies_with_a_frame():
    """Neither more elements nor more lists are parsed than the full reader parses."""
    count = 60_000
    sound = body(entry(json.dumps([1] * count), shape=(count,)))
    decoder = InferBodyDecoder()
    decode(decoder, sound)
    frame = decoder._frames.get(json_frame.cut(sound).key)

    def fits(data):
        return frame._is_within_limits(data.encode(), [slice(0, len(data))])

    def packed(data):
        return frame.pack_long(data.encode(), [slice(0, len(data))])

    assert packed(json.dumps([2] * count)) == np.full(count, 2, np.int32).tobytes()
    assert packed(json.dumps([2] * (count + 1))) is None
    assert fits(json.dumps([2] * count))
    assert not fits(json.dumps([2] * (count + 1)))
    assert not fits("[" + "[]," * (count - 1) + "[]]")
    assert not fits("[" * (json_limits.MOST_CONTAINERS + 1) + "1," * (count - 1))
    compare(sound, body(entry("[" + "[]," * json_limits.MOST_CONTAINERS + "[]]", shape=(count,))))
    compare(sound, body(entry("[" * (json_limits.MOST_CONTAINERS + 1), shape=(count,))))


# ---- writing


@pytest.mark.parametrize("datatype", NUMBERS, ids=repr)
@pytest.mark.parametrize("count", [1, 3, 33])
def test_several_tensors_are_written_as_each_alone(datatype, count):
    raw = np.random.default_rng(7).integers(0, 2, 5 * count * datatype.itemsize * 8).astype("u1")
    array = np.packbits(raw).view(datatype.numpy if datatype.name != "BOOL" else "u1")
    if datatype.name == "BOOL":
        array = array % 2 == 0
    rows = np.nan_to_num(array).reshape(5, count)
    texts = json_data.write_several(BY_NAME[datatype.name], rows[0].nbytes, rows.tobytes())
    for row, text in zip(rows, texts, strict=True):
        numbers = row.astype("f8") if datatype.numpy.kind == "f" else row
        assert b"[%b]" % text == json_text.dumps(numbers)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_not_written(value):
    rows = np.array([[1, 2], [3, value]], "f4")
    assert json_data.write_several(BY_NAME["FP32"], 8, rows.tobytes()) is None
