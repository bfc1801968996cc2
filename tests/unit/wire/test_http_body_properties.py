"""Whatever a client sends is read as it was meant, or refused with a ShoalError."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.core import bytes_tensor
from shoal.core.dtypes import ALL, BF16, BYTES, FP16
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.errors import ShoalError
from shoal.wire.http_body import InferBodyDecoder, encode_infer, parse_header_length

MOST = 1 << 20
DECODER = InferBodyDecoder()  # one for all tests: what it caches must do no harm
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def arrays(datatype, shape, *, as_json):
    if datatype is BYTES:
        elements = texts.map(str.encode) if as_json else st.binary(max_size=5)
        return hnp.arrays(object, shape, elements=elements)
    return hnp.arrays(datatype.numpy, shape)


@st.composite
def tensors(draw):
    """A datatype, an array of it, whether it goes as JSON, and how its JSON is nested."""
    as_json = draw(st.booleans())
    known = [datatype for datatype in ALL if not (as_json and datatype in (FP16, BF16))]
    datatype = draw(st.sampled_from(known))
    array = draw(arrays(datatype, draw(shapes), as_json=as_json))
    return datatype, array, as_json, draw(st.booleans())


def described(name, datatype, array, as_json, nested):
    """One input as a client writes it, and its binary part."""
    entry = {"name": name, "datatype": datatype.name, "shape": list(array.shape)}
    if not as_json:
        blob = (
            bytes_tensor.encode(array.reshape(-1).tolist())
            if datatype is BYTES
            else array.tobytes()
        )
        entry["parameters"] = {"binary_data_size": len(blob)}
        return entry, blob
    data = (array if nested and array.ndim else array.reshape(-1)).tolist()
    entry["data"] = decoded_texts(data) if datatype is BYTES else data
    return entry, b""


def decoded_texts(data):
    return data.decode() if isinstance(data, bytes) else [decoded_texts(item) for item in data]


def assert_same(one, other):
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    if one.dtype == object:
        assert one.tolist() == other.tolist()
    else:
        np.testing.assert_array_equal(one, other)


@given(st.lists(tensors(), min_size=1, max_size=4))
def test_inputs_arrive_as_they_were_sent(sent):
    entries, blobs = [], b""
    for position, (datatype, array, as_json, nested) in enumerate(sent):
        entry, blob = described(f"in{position}", datatype, array, as_json, nested)
        entries.append(entry)
        blobs += blob
    header = json.dumps({"inputs": entries}).encode()
    decoded = DECODER.decode(header + blobs, len(header), model_name="m", max_json_bytes=MOST)
    assert len(decoded.inputs) == len(sent)
    for position, (datatype, array, _, _) in enumerate(sent):
        tensor = decoded.inputs[f"in{position}"]
        assert tensor.datatype is datatype
        assert_same(tensor.array, array)


@given(tensors(), st.text(max_size=3))
def test_outputs_arrive_as_they_were_made(made, request_id):
    datatype, array, as_json, _ = made
    try:
        encoded = encode_infer(
            Response("m", 1, request_id, [Tensor.from_array("y", array, datatype)]),
            (),
            binary_default=not as_json,
        )
    except ShoalError:  # half a surrogate pair in the id
        return
    header = json.loads(bytes(encoded.parts[0]))
    assert header.get("id", "") == request_id
    (output,) = header["outputs"]
    assert output["shape"] == list(array.shape)
    if as_json:
        flat = [x.encode() for x in output["data"]] if datatype is BYTES else output["data"]
        back = np.array(flat, dtype=datatype.numpy).reshape(array.shape)
    else:
        blob = b"".join(encoded.parts[1:])
        assert output["parameters"]["binary_data_size"] == len(blob)
        back = Tensor("y", datatype, array.shape, raw=blob).array
    assert_same(back, array)


def attempt(body, length):
    try:
        decoded = DECODER.decode(body, length, model_name="m", max_json_bytes=MOST)
    except ShoalError:
        return
    for tensor in decoded.inputs.values():
        if not tensor.has_raw:
            assert tensor.array.size == math.prod(tensor.shape)


@given(st.binary(max_size=100), st.binary(max_size=8))
def test_any_bytes_at_all(body, length):
    try:
        parsed = parse_header_length(length, len(body))
    except ShoalError:
        parsed = None
    attempt(body, parsed)


oddities = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**62, 2**63, 2**64, 2**70, -1, 0, 1, 4])
    | st.floats()
    | st.sampled_from(["", "a", "INT8", "FP32", "BYTES", "BOOL", "UINT64", "FP16", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "binary_data_size", "classification"]), inner)
    ),
    max_leaves=8,
)
inputs = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "b"]) | oddities,
        "datatype": st.sampled_from([datatype.name for datatype in ALL]) | oddities,
        "shape": st.lists(st.integers(0, 2), max_size=2) | oddities,
        "data": st.lists(oddities, max_size=4) | oddities,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(0, 9)}) | oddities,
    },
)
documents = st.fixed_dictionaries(
    {"inputs": st.lists(inputs, max_size=3) | oddities},
    optional={
        "id": oddities,
        "parameters": st.dictionaries(
            st.sampled_from(["sequence_id", "priority", "timeout", "x", "triton_x"]), oddities
        ),
        "outputs": st.lists(st.dictionaries(st.sampled_from(["name", "parameters"]), oddities))
        | oddities,
    },
)


@given(documents, st.binary(max_size=9))
def test_any_json_at_all(document, tail):
    header = json.dumps(document).encode()
    attempt(header + tail, len(header))


ids = st.one_of(
    st.none(),
    st.sampled_from(['"1"', '"22"', '""', '"\\u0031"', '"\\""', '"x","id":"y"', "7", "null"]),
)
sequences = st.one_of(
    st.none(),
    st.sampled_from(
        ["1", "2", "300", "0", "07", "1.0", "-1", '"a"', '"bc"', '""', '"a\\u0041"', '3,"x":1']
    ),
)


@given(
    st.lists(
        st.tuples(ids, sequences, st.integers(0, 9), st.sampled_from(["", " "])),
        min_size=1,
        max_size=8,
    )
)
def test_caching_headers_changes_no_result(bodies):
    caching, plain = InferBodyDecoder(), InferBodyDecoder(caches=False)
    for request_id, sequence_id, size, space in bodies:
        members = [] if request_id is None else [f'"id":{space}{request_id}']
        if sequence_id is not None:
            members.append(f'"parameters":{{"sequence_id":{space}{sequence_id}}}')
        members.append(
            '"inputs":[{"name":"a","datatype":"UINT8","shape":[4],'
            '"parameters":{"binary_data_size":4}}]'
        )
        header = ("{" + f",{space}".join(members) + "}").encode()
        outcomes = []
        for decoder in (plain, caching, caching):
            try:
                read = decoder.decode(
                    header + bytes(size), len(header), model_name="m", max_json_bytes=MOST
                )
            except ShoalError as error:
                outcomes.append(error.message)
            else:
                inputs = [(one.name, one.shape, bytes(one.raw)) for one in read.inputs.values()]
                outcomes.append((read.id, read.sequence_id, read.parameters, inputs))
        assert outcomes[0] == outcomes[1] == outcomes[2]
