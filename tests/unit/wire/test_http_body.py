import json

import numpy as np
import pytest

from shoal.core import bytes_tensor, dtypes
from shoal.core.response import Response
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import Code, InvalidArgument, ShoalError, Unsupported
from shoal.wire.http_body import (
    InferBodyDecoder,
    WantedOutput,
    decode_raw,
    encode_infer,
    is_raw,
    parse_header_length,
)

MOST = 1 << 16
DECODER = InferBodyDecoder()  # one for all tests: what it caches must do no harm


def decode(document, tail=b"", most=MOST):
    header = document if isinstance(document, bytes) else json.dumps(document).encode()
    length = len(header) if tail else None
    return DECODER.decode(header + tail, length, model_name="m", max_json_bytes=most)


def one_input(**fields):
    return {"inputs": [{"name": "a", "datatype": "INT32", "shape": [1], "data": [1], **fields}]}


def binary_input(name, size, datatype="INT32", shape=(2,)):
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(shape),
        "parameters": {"binary_data_size": size},
    }


def refusal(document, tail=b"", most=MOST):
    with pytest.raises(ShoalError) as caught:
        decode(document, tail, most)
    return caught.value


def test_a_whole_request():
    body = decode(
        {
            "id": "7",
            "parameters": {
                "sequence_id": 5,
                "sequence_start": True,
                "sequence_end": False,
                "priority": 2,
                "timeout": 1000,
                "binary_data_output": True,
                "temperature": 0.5,
                "name": "x",
                "count": -3,
                "flag": True,
                "huge": 2**63,
            },
            "inputs": [
                {"name": "a", "datatype": "INT32", "shape": [1, 2], "data": [[1, 2]]},
                {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["é"]},
            ],
            "outputs": [
                {"name": "y"},
                {"name": "z", "parameters": {"binary_data": True, "classification": 3}},
            ],
        }
    )
    assert body.id == "7"
    assert body.inputs["a"].array.tolist() == [[1, 2]]
    assert body.inputs["b"].array.tolist() == ["é".encode()]
    assert body.outputs == [WantedOutput("y"), WantedOutput("z", binary=True, classification=3)]
    assert body.parameters == {
        "temperature": 0.5,
        "name": "x",
        "count": -3,
        "flag": True,
        "huge": 2.0**63,
    }
    assert body.parameters["flag"] is True
    assert (body.sequence_id, body.sequence_start, body.sequence_end) == (5, True, False)
    assert (body.priority, body.timeout_us, body.binary_default) == (2, 1000, True)


def test_a_bare_request_has_quiet_defaults():
    body = decode(one_input())
    assert (body.id, body.outputs, body.parameters) == ("", [], {})
    assert (body.sequence_id, body.priority, body.timeout_us) == (0, 0, 0)
    assert not (body.sequence_start)
    assert not (body.sequence_end)
    assert not (body.binary_default)


def test_a_sequence_id_may_be_text():
    assert decode({**one_input(), "parameters": {"sequence_id": "s"}}).sequence_id == "s"


@pytest.mark.parametrize("whole", [bytes, bytearray, memoryview])
def test_binary_tensors_are_views_of_the_body(whole):
    header = json.dumps(
        {
            "inputs": [
                binary_input("a", 8),
                one_input()["inputs"][0] | {"name": "json"},
                binary_input("empty", 0, shape=(0,)),
                binary_input("b", 7, "BYTES", (1,)),
            ]
        }
    ).encode()
    first, last = np.array([1, 2], "<i4").tobytes(), bytes_tensor.encode([b"abc"])
    plain = header + first + last
    body = whole(plain)
    decoded = DECODER.decode(body, len(header), model_name="m", max_json_bytes=len(header))
    assert list(decoded.inputs) == ["a", "json", "empty", "b"]
    assert decoded.inputs["a"].array.tolist() == [1, 2]
    assert decoded.inputs["empty"].array.shape == (0,)
    assert decoded.inputs["b"].array.tolist() == [b"abc"]
    for name in ("a", "b"):
        raw = decoded.inputs[name].raw
        assert isinstance(raw, memoryview)
        assert raw.obj is (plain if whole is memoryview else body)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"[]", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({"inputs": 1}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"inputs": [1]}, "Unable to parse 'inputs': each element must be an object"),
        (
            one_input(parameters=[]),
            "Unable to parse 'inputs': 'parameters' must be an object",
        ),
        ({**one_input(), "id": 1}, "Unable to parse 'id': attempt to access JSON non-string as"),
        (one_input(name=1), "Unable to parse 'name': attempt to access JSON non-string as string"),
        (
            {"inputs": [{"data": [1]}]},
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (
            {"inputs": [{"name": "a", "data": [1]}]},
            "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
        ),
        (
            {"inputs": [{"name": "a", "datatype": "INT32", "data": [1]}]},
            "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
        ),
        (one_input(datatype="INT4"), "input 'a': invalid datatype 'INT4', expected one of BOOL,"),
        (one_input(datatype=[[]]), "Unable to parse 'datatype': attempt to access JSON non-string"),
        (one_input(shape=3), "Unable to parse 'shape': attempt to access JSON non-array as array"),
        (
            one_input(shape=[2**63]),
            "invalid shape for input 'a': shape [9223372036854775808] contains one or more invalid",
        ),
        (
            one_input(shape=[16, 2**60 + 2]),
            (
                "invalid shape for input 'a': shape [16,1152921504606846978] causes total element "
                "count to exceed maximum size of 9223372036854775807"
            ),
        ),
        (
            one_input(shape=[4, 2**59 + 2]),
            (
                "byte size overflow for input 'a': element count (2305843009213693960) * data type "
                "size (4) exceeds maximum allowed size (9223372036854775807)"
            ),
        ),
        (one_input(shape=[0, 2**62, 4]), "invalid shape for input 'a': shape [0,"),
        (one_input(shape=[1] * 33), "invalid shape for input 'a': it has 33 dimensions"),
        (one_input(shape=[1, 2]), "Failed to parse 'data' field: shape does not match true shape"),
        (
            {"inputs": [{"name": "a"}]},
            (
                "Input must set only one of the following fields: 'data', 'binary_data_size' in "
                "'parameters', 'shared_memory_region' in 'parameters'. But no field is set"
            ),
        ),
        (
            one_input(parameters={"binary_data_size": 4, "shared_memory_region": "r"}),
            (
                "Input must set only one of the following fields: 'data', 'binary_data_size' in "
                "'parameters', 'shared_memory_region' in 'parameters'. But set 'data' "
                "'binary_data_size' 'shared_memory_region'"
            ),
        ),
        (
            {"inputs": [binary_input("a", "8")]},
            "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer",
        ),
        (
            {"inputs": [binary_input("a", -8)]},
            "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer",
        ),
        (
            {"inputs": [binary_input("a", 8)]},
            "unexpected size for input 'a', expecting 8 additional bytes for model 'm'",
        ),
        (
            {"inputs": one_input()["inputs"] * 2},
            "[request id: <id_unknown>] input 'a' already exists in request",
        ),
        (
            {**one_input(), "id": "q", "outputs": [{"name": "y"}, {"name": "y"}]},
            "[request id: q] output 'y' already exists in request",
        ),
        (
            {**one_input(), "outputs": {}},
            "Unable to parse 'outputs': attempt to access JSON non-array as array",
        ),
        ({**one_input(), "outputs": ["y"]}, "Unable to parse 'outputs': each element must be"),
        (
            {**one_input(), "outputs": [{}]},
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (
            {**one_input(), "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
            "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
        ),
        (
            {**one_input(), "outputs": [{"name": "y", "parameters": {"classification": -1}}]},
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as",
        ),
        (
            {
                **one_input(),
                "outputs": [
                    {
                        "name": "y",
                        "parameters": {"shared_memory_region": "r", "classification": 1},
                    }
                ],
            },
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
        (
            {
                **one_input(),
                "outputs": [
                    {
                        "name": "y",
                        "parameters": {"shared_memory_region": "r", "binary_data": True},
                    }
                ],
            },
            "Output can't set both 'shared_memory_region' and 'binary_data'",
        ),
        (
            {**one_input(), "parameters": 1},
            "failed to get request params.: attempt to get members for non-object",
        ),
        (
            {**one_input(), "parameters": {"triton_x": 1}},
            (
                "parameter keys starting with 'triton_' are reserved for Triton usage and should "
                "not be specified. Got 'triton_x'"
            ),
        ),
        (
            {**one_input(), "parameters": {"x": None}},
            "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            {**one_input(), "parameters": {"sequence_id": -1}},
            "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
        ),
        (
            {**one_input(), "parameters": {"sequence_start": 1}},
            "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
        ),
        (
            {**one_input(), "parameters": {"sequence_end": "yes"}},
            "Unable to parse 'sequence_end': attempt to access JSON non-boolean as boolean",
        ),
        (
            {**one_input(), "parameters": {"priority": -1}},
            "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned",
        ),
        (
            {**one_input(), "parameters": {"timeout": 1.5}},
            "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned",
        ),
        (
            {**one_input(), "parameters": {"binary_data_output": 1}},
            "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean",
        ),
        (b"{", "failed to parse the request JSON buffer: "),
        (b"[" * 10_000, "JSON nesting depth exceeds maximum allowed limit (100)"),
    ],
)
def test_refusals(document, text):
    error = refusal(document)
    assert error.message.startswith(text)
    assert error.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("dim", [-5, 1.0, "1", True, None, [1]])
def test_dims_that_are_no_counts_are_an_internal_error_as_in_triton(dim):
    error = refusal(one_input(shape=[2, dim]))
    assert error.code is Code.INTERNAL
    assert error.message == (
        "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"
    )


def test_binary_data_must_be_neither_short_nor_long():
    document = {"inputs": [binary_input("a", 8), binary_input("b", 8)]}
    decode(document, bytes(16))
    assert refusal(document, bytes(13)).message == (
        "unexpected size for input 'b', expecting 3 additional bytes for model 'm'"
    )
    assert refusal(document, bytes(17)).message == (
        "unexpected additional input data for model 'm'"
    )


@pytest.mark.parametrize("place", ["input", "output"])
def test_shared_memory_is_not_there(place):
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    entry = {"name": "a", "datatype": "INT32", "shape": [1], "parameters": region}
    document = {"inputs": [entry]} if place == "input" else {**one_input(), "outputs": [entry]}
    error = refusal(document)
    assert isinstance(error, Unsupported)
    assert "shared memory" in error.message


def test_the_json_has_a_limit_and_the_binary_tail_has_none():
    header = json.dumps({"inputs": [binary_input("a", 5000, "UINT8", (5000,))]}).encode()
    body = header + bytes(5000)
    DECODER.decode(body, len(header), model_name="m", max_json_bytes=len(header))
    with pytest.raises(InvalidArgument) as caught:
        DECODER.decode(body, len(header), model_name="m", max_json_bytes=len(header) - 1)
    assert caught.value.message == (
        f"request JSON size of {len(header)} bytes exceeds the maximum allowed input size of "
        f"{len(header) - 1} bytes. Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize(
    ("value", "length"), [(None, None), (b"0", 0), (b"10", 10), (b" 7 ", 7), (b"007", 7)]
)
def test_header_length(value, length):
    assert parse_header_length(value, 10) == length


@pytest.mark.parametrize("value", [b"", b"x", b"1x", b"1.0", b"+1", b"--1", b"\xb2", b"1 2"])
def test_header_length_that_is_no_number(value):
    with pytest.raises(InvalidArgument, match="Unable to parse Inference-Header-Content-Length, g"):
        parse_header_length(value, 10)


@pytest.mark.parametrize("value", [b"11", b"-1", b"99999999999", b"9" * 5000])
def test_header_length_beyond_the_body(value):
    text = f"inference header size should be in range (0, 10), got: {value.decode()}"
    with pytest.raises(InvalidArgument) as caught:
        parse_header_length(value, 10)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("length", "body", "raw"),
    [(0, b"x", True), (0, b"", True), (None, b"", True), (None, b"x", False), (1, b"x", False)],
)
def test_which_bodies_are_raw(length, body, raw):
    assert is_raw(length, body) is raw


def signature(*specs, batch=8, outputs=()):
    return Signature(
        "m", batch, {spec.name: spec for spec in specs}, {spec.name: spec for spec in outputs}
    )


@pytest.mark.parametrize(
    ("dims", "batch", "size", "shape"),
    [
        ((-1,), 8, 32, (1, 8)),
        ((-1,), 0, 32, (8,)),
        ((2, -1, 2), 8, 32, (1, 2, 2, 2)),
        ((2, 4), 0, 32, (2, 4)),
        ((2, 4), 8, 5, (1, 2, 4)),  # validation at the door finds the wrong size
        ((-1,), 8, 0, (1, 0)),
        ((0, -1), 8, 0, (1, 0, 0)),
    ],
)
def test_raw_shape_is_worked_out(dims, batch, size, shape):
    body = bytes(size)
    decoded = decode_raw(
        body, signature(TensorSpec("a", dtypes.FP32, dims), batch=batch), max_raw_bytes=32
    )
    assert decoded.binary_default
    tensor = decoded.inputs["a"]
    assert tensor.shape == shape
    assert tensor.raw == body
    assert tensor.raw.obj is body


@pytest.mark.parametrize(("dims", "shape"), [((1,), (1, 1)), ((), (1,)), ((1, 1), (1, 1, 1))])
def test_raw_bytes_are_one_element(dims, shape):
    decoded = decode_raw(b"427", signature(TensorSpec("a", dtypes.BYTES, dims)), max_raw_bytes=9)
    tensor = decoded.inputs["a"]
    assert tensor.array.shape == shape
    assert tensor.array.reshape(-1).tolist() == [b"427"]


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        (
            [TensorSpec(name, dtypes.FP32, (1,)) for name in "abc"],
            (
                "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be "
                "deduced but got 3 inputs in 'm' model configuration"
            ),
        ),
        (
            [TensorSpec("a", dtypes.FP16, (-1, -1))],
            (
                "[request id: <id_unknown>] The shape of the raw input 'a' can not be deduced "
                "because there are more than one variable-sized dimension"
            ),
        ),
        (
            [TensorSpec("a", dtypes.BYTES, (-1,))],
            (
                "[request id: <id_unknown>] For BYTE datatype raw input 'a', the model must have "
                "input shape [1]"
            ),
        ),
        (
            [TensorSpec("a", dtypes.BYTES, (2,))],
            (
                "[request id: <id_unknown>] For BYTE datatype raw input 'a', the model must have "
                "input shape [1]"
            ),
        ),
    ],
)
def test_raw_refusals(specs, text):
    with pytest.raises(InvalidArgument) as caught:
        decode_raw(b"1234", signature(*specs), max_raw_bytes=100)
    assert caught.value.message == text


def test_raw_has_a_limit():
    with pytest.raises(InvalidArgument) as caught:
        decode_raw(b"12345", signature(TensorSpec("a", dtypes.UINT8, (-1,))), max_raw_bytes=4)
    assert caught.value.message == (
        "Raw input has a byte_size (5 bytes) that exceeds the maximum allowed value of 4 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def encode(*outputs, wanted=(), binary_default=False, signature=None, **fields):
    response = Response("m", 3, outputs=list(outputs), **fields)
    return encode_infer(response, wanted, binary_default=binary_default, signature=signature)


Y = np.array([[1, 2]], np.int32)
Z = np.array([0.5], np.float32)


def test_json_response():
    encoded = encode(
        Tensor.from_array("y", Y), Tensor.from_array("z", Z), request_id="7", parameters={"p": 1}
    )
    assert encoded.content_type == b"application/json"
    assert encoded.header_length is None
    assert b"".join(encoded.parts) == (
        b'{"id":"7","model_name":"m","model_version":"3","parameters":{"p":1},"outputs":['
        b'{"name":"y","datatype":"INT32","shape":[1,2],"data":[1,2]},'
        b'{"name":"z","datatype":"FP32","shape":[1],"data":[0.5]}]}'
    )


def test_binary_response_sends_the_buffers_themselves():
    y, z = Tensor.from_array("y", Y), Tensor.from_array("z", Z)
    encoded = encode(y, z, binary_default=True)
    assert encoded.content_type == b"application/octet-stream"
    header, *blobs = encoded.parts
    assert encoded.header_length == len(header)
    assert header == (
        b'{"model_name":"m","model_version":"3","outputs":['
        b'{"name":"y","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}},'
        b'{"name":"z","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}'
    )
    assert [bytes(blob) for blob in blobs] == [Y.tobytes(), Z.tobytes()]
    assert np.shares_memory(np.frombuffer(blobs[0], np.int32), Y)


def test_each_output_is_sent_as_it_was_asked_for():
    wanted = [WantedOutput("z", binary=True), WantedOutput("y")]
    encoded = encode(Tensor.from_array("y", Y), Tensor.from_array("z", Z), wanted=wanted)
    header = json.loads(bytes(encoded.parts[0]))
    assert header["outputs"][0]["data"] == [1, 2]
    assert header["outputs"][1]["parameters"] == {"binary_data_size": 4}
    assert bytes(encoded.parts[1]) == Z.tobytes()


def test_binary_outputs_without_a_byte_leave_plain_json():
    encoded = encode(Tensor.from_array("y", np.zeros((0, 2), np.int32)), binary_default=True)
    assert encoded.content_type == b"application/json"
    assert encoded.header_length is None
    output = json.loads(encoded.parts[0])["outputs"][0]
    assert output["shape"] == [0, 2]
    assert output["parameters"] == {"binary_data_size": 0}


def test_no_outputs():
    assert b"".join(encode().parts) == b'{"model_name":"m","model_version":"3","outputs":[]}'


def test_parameters_that_are_not_finite():
    encoded = encode(parameters={"a": float("nan"), "b": float("-inf"), "c": True, "d": "x"})
    assert b'"parameters":{"a":NaN,"b":-Infinity,"c":true,"d":"x"}' in encoded.parts[0]


@pytest.mark.parametrize("binary", [False, True])
def test_classification_in_either_form(binary):
    scores = Tensor.from_array("y", np.array([[1, 9], [8, 2]], np.int32))
    labels = TensorSpec("y", dtypes.INT32, (2,), labels=("cat", "dog"))
    encoded = encode(
        scores,
        wanted=[WantedOutput("y", binary=binary, classification=1)],
        signature=signature(outputs=[labels]),
    )
    output = json.loads(bytes(encoded.parts[0]))["outputs"][0]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 1])
    if binary:
        assert bytes(encoded.parts[1]) == bytes_tensor.encode([b"9:1:dog", b"8:0:cat"])
    else:
        assert output["data"] == ["9:1:dog", "8:0:cat"]


def test_half_floats_go_out_in_binary_only():
    half = Tensor.from_array("y", np.ones(2, np.float16))
    assert len(encode(half, binary_default=True).parts[1]) == 4
    with pytest.raises(InvalidArgument, match="sending FP16 data via JSON is not supported"):
        encode(half)
