"""ModelInferResponse out: protobuf reads from our bytes what the response says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import dtypes
from shoal.core.planned import PlannedResponses, ResponseLayout
from shoal.core.response import Response
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.wire import grpc_response
from shoal.wire.grpc_response import (
    encode_infer,
    encode_stream,
    encode_stream_error,
    id_field,
    small_columns,
)
from shoal.wire.proto import messages

SCORES = Tensor.from_array("OUT", np.array([[1.5, 3.0, 2.0]], np.float32))


def read(parts, kind=None):
    return (kind or messages.ModelInferResponse).FromString(b"".join(parts))


def read_stream(parts):
    return read(parts, messages.ModelStreamInferResponse)


def plain(parameters):
    return {key: getattr(p, p.WhichOneof("parameter_choice")) for key, p in parameters.items()}


names = st.text(max_size=8)
values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
)
outputs = st.lists(
    st.tuples(
        names,
        st.sampled_from(dtypes.ALL),
        st.lists(st.integers(-1, 2**62), max_size=4),
        st.binary(max_size=200),
    ),
    max_size=3,
)


@given(names, st.integers(-1, 2**40), names, st.dictionaries(names, values, max_size=3), outputs)
def test_protobuf_reads_what_the_response_says(name, version, request_id, parameters, tensors):
    response = Response(
        name,
        version,
        request_id,
        [Tensor(n, datatype, tuple(shape), raw=raw) for n, datatype, shape, raw in tensors],
        dict(parameters),
    )
    message = read(encode_infer(response, {}))
    assert message.model_name == name
    assert message.model_version == (str(version) if version >= 0 else "")
    assert message.id == request_id
    assert plain(message.parameters) == parameters
    assert [
        (output.name, output.datatype, list(output.shape), raw)
        for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
    ] == [(n, datatype.name, shape, raw) for n, datatype, shape, raw in tensors]
    assert not any(output.HasField("contents") for output in message.outputs)

    response.final = False
    streamed = read_stream(encode_stream(response, {}))
    assert streamed.error_message == ""
    expected = {**parameters, "triton_final_response": False}
    assert plain(streamed.infer_response.parameters) == expected
    del streamed.infer_response.parameters["triton_final_response"]
    if "triton_final_response" not in parameters:
        assert streamed.infer_response == message


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
def test_every_datatype_leaves_as_its_raw_bytes(datatype):
    if datatype is dtypes.BYTES:
        array, raw = np.array([b"ab", b""], object), b"\x02\0\0\0ab\0\0\0\0"
    else:
        array = np.arange(2).astype(datatype.numpy)
        raw = array.tobytes()
    response = Response("m", 1, outputs=[Tensor("OUT", datatype, (2,), array=array)])
    message = read(encode_infer(response, {"OUT": 0}))
    assert message.raw_output_contents[0] == raw
    assert message.outputs[0].datatype == datatype.name


def test_large_tensors_are_not_copied():
    array = np.zeros(100_000, np.uint8)
    parts = encode_infer(Response("m", 1, outputs=[Tensor.from_array("OUT", array)]), {})
    array[0] = 7
    assert any(len(part) == array.nbytes and part[0] == 7 for part in parts)


def test_classification():
    spec = TensorSpec("OUT", dtypes.FP32, (3,), labels=("a", "b", "c"))
    signature = Signature("m", 8, {}, {"OUT": spec})
    message = read(encode_infer(Response("m", 1, outputs=[SCORES]), {"OUT": 2}, signature))
    assert (message.outputs[0].datatype, list(message.outputs[0].shape)) == ("BYTES", [1, 2])
    assert message.raw_output_contents[0] == b"\x0c\0\0\x003.000000:1:b\x0c\0\0\x002.000000:2:c"


def test_classification_of_what_has_no_order():
    texts = Tensor.from_array("OUT", np.array([b"a"], object))
    with pytest.raises(InvalidArgument, match="class result not available for output"):
        encode_infer(Response("m", 1, outputs=[texts]), {"OUT": 2}, Signature("m", 0, {}, {}))


def test_integers_beyond_64_bits_leave_as_doubles():
    message = read(encode_infer(Response("m", 1, parameters={"n": 2**63, "m": 2**64 + 2}), {}))
    assert plain(message.parameters) == {"n": float(2**63), "m": float(2**64)}


def test_text_that_is_no_unicode_is_replaced():
    response = Response("m", 1, "7", parameters={"text": "a\ud800"})
    assert plain(read(encode_infer(response, {})).parameters) == {"text": "a?"}


@pytest.mark.parametrize("encode", [encode_infer, encode_stream])
def test_a_response_beyond_what_grpc_takes(monkeypatch, encode):
    size = len(b"".join(encode(Response("m", 1, outputs=[SCORES]), {})))
    monkeypatch.setattr(grpc_response, "LARGEST_MESSAGE_BYTES", size)
    encode(Response("m", 1, outputs=[SCORES]), {})
    monkeypatch.setattr(grpc_response, "LARGEST_MESSAGE_BYTES", size - 1)
    text = rf"Response has byte size {size} which exceeds gRPC's byte size limit {size - 1}\."
    with pytest.raises(InvalidArgument, match=text):
        encode(Response("m", 1, outputs=[SCORES]), {})


@pytest.mark.parametrize("final", [True, False])
def test_stream_errors_say_whose_they_are(final):
    message = read_stream(encode_stream_error("it broke: ü", ("m", "3", "7"), final=final))
    assert message.error_message == "it broke: ü"
    response = message.infer_response
    assert (response.model_name, response.model_version, response.id) == ("m", "3", "7")
    assert plain(response.parameters) == {"triton_final_response": final}


def test_a_stream_error_is_never_empty():
    assert read_stream(encode_stream_error("", ("", "", ""))).error_message == "unknown error"


@given(
    ids=st.lists(st.text(max_size=5), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
)
def test_the_answers_of_a_batch_side_by_side(ids, sizes):
    outputs = [(f"OUT{number}", dtypes.UINT8, (1, size)) for number, size in enumerate(sizes)]
    form = ResponseLayout("m", 3, tuple(outputs), tuple(sizes))
    answer = PlannedResponses(form, [bytes(range(size)) * len(ids) for size in sizes])
    small_columns(answer)  # what it knows of the form serves the next batch
    columns, message_bytes = small_columns(answer)
    rows = zip(*columns, strict=False)
    for index, (request_id, row) in enumerate(zip(ids, rows, strict=True)):
        alone = b"".join(encode_infer(answer.response(index, request_id), {}))
        assert (id_field(request_id) if request_id else b"") + b"".join(row) == alone
        assert len(b"".join(row)) == message_bytes


def test_large_or_variable_outputs_are_not_put_side_by_side():
    large = ResponseLayout("m", 1, (("OUT", dtypes.UINT8, (1, 5000)),), (5000,))
    text = ResponseLayout("m", 1, (("OUT", dtypes.BYTES, (1,)),), (4,))
    none = ResponseLayout("m", 1, (), ())
    for form in (large, text, none):
        assert (
            small_columns(PlannedResponses(form, [bytes(2 * size) for size in form.sizes])) is None
        )
