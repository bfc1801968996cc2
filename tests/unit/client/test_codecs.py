"""Requests and results over both protocols, checked with others' parsers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client import InvalidInput, ProtocolError, ServerError
from shoal.client.address import parse
from shoal.client.codec import CallOptions, InferenceCall, RawResponse
from shoal.client.grpc_codec import GrpcCodec
from shoal.client.http_codec import HttpCodec
from shoal.client.inputs import Input, Placed, tensor
from shoal.wire.proto import messages

HTTP = HttpCodec(parse("host:8000"), {"x-all": "1"})
GRPC = GrpcCodec(parse("grpc://host:8001"), {"x-all": "1"})
ROW = np.arange(3, dtype=np.int32)


def ask(*tensors, **arguments):
    made = InferenceCall("mo/del", "", list(tensors))
    for name, value in arguments.items():
        setattr(made, name, value)
    return made


def http_request(made, headers=None):
    request = HTTP.infer(made, CallOptions(headers)).request
    whole = b"".join(request.parts)
    assert len(whole) == request.size
    head, _, body = whole.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


def grpc_request(made):
    parts, size = GRPC.infer_message(made)
    whole = b"".join(parts)
    assert len(whole) == size
    return messages.ModelInferRequest.FromString(whole)


# ---- HTTP


def test_binary_data_behind_the_json():
    made = ask(tensor("a", ROW), tensor("b", ["x"]), id="7", parameters={"p": 1.5})
    first, headers, body = http_request(made, {"x-one": "2"})
    assert first == "POST /v2/models/mo%2Fdel/infer HTTP/1.1"
    assert headers["Host"] == "host:8000"
    assert (headers["x-all"], headers["x-one"]) == ("1", "2")
    assert int(headers["Content-Length"]) == len(body)
    length = int(headers["Inference-Header-Content-Length"])
    assert json.loads(body[:length]) == {
        "id": "7",
        "inputs": [
            {
                "name": "a",
                "datatype": "INT32",
                "shape": [3],
                "parameters": {"binary_data_size": 12},
            },
            {"name": "b", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
        ],
        "parameters": {"p": 1.5, "binary_data_output": True},
    }
    assert body[length:] == ROW.tobytes() + b"\x01\x00\x00\x00x"


def test_outputs_and_classes_by_name():
    made = ask(tensor("a", ROW), outputs=("o", "c"), classes={"c": 3}, version="2")
    first, headers, body = http_request(made)
    document = json.loads(body[: int(headers["Inference-Header-Content-Length"])])
    assert first.startswith("POST /v2/models/mo%2Fdel/versions/2/infer ")
    assert document["outputs"] == [
        {"name": "o", "parameters": {"binary_data": True}},
        {"name": "c", "parameters": {"binary_data": True, "classification": 3}},
    ]
    assert "parameters" not in document


def test_json_alone():
    floats = np.array([[1.5, np.nan]], np.float32)
    made = ask(tensor("a", floats), tensor("b", [b"x"]), binary=False)
    _, headers, body = http_request(made)
    assert "Inference-Header-Content-Length" not in headers
    assert headers["Content-Type"] == "application/json"
    assert b'"data":[1.5,NaN]' in body
    assert json.loads(body)["inputs"][1]["data"] == ["x"]


@pytest.mark.parametrize("value", [np.zeros(1, np.float16), Input([1.0], "BF16"), [b"\xff"]])
def test_what_json_cannot_carry(value):
    with pytest.raises(InvalidInput, match="leave binary=True"):
        http_request(ask(tensor("a", value), binary=False))


def test_shared_memory_needs_no_binary_data():
    placed = Placed("region", 64, 12, "INT32", (3,))
    _, headers, body = http_request(ask(tensor("a", placed)))
    assert "Inference-Header-Content-Length" not in headers
    assert json.loads(body)["inputs"][0]["parameters"] == {
        "shared_memory_region": "region",
        "shared_memory_offset": 64,
        "shared_memory_byte_size": 12,
    }


def response(document, blob=b"", status=200):
    header = json.dumps(document).encode()
    headers = {"inference-header-content-length": str(len(header))} if blob else {}
    return RawResponse(status, headers, bytearray(header + blob))


def test_results_in_json_and_binary():
    document = {
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {
                "name": "a",
                "datatype": "INT32",
                "shape": [3],
                "parameters": {"binary_data_size": 12},
            },
            {"name": "b", "datatype": "BYTES", "shape": [1, 1], "data": ["x"]},
        ],
    }
    result = HTTP.read_result(response(document, ROW.tobytes()))
    assert result["a"].tolist() == [0, 1, 2]
    assert result["b"].tolist() == [[b"x"]]
    for _ in range(2):  # from what is remembered, too
        only = {**document, "outputs": document["outputs"][:1], "parameters": {"p": 1}}
        result = HTTP.read_result(response(only, ROW.tobytes()))
        assert result["a"].tolist() == [0, 1, 2]
        assert result.parameters == {"p": 1}


@pytest.mark.parametrize(
    ("status", "body", "name", "text"),
    [
        (404, b'{"error":"no model"}', "NOT_FOUND", "no model"),
        (503, b"", "UNAVAILABLE", "HTTP status 503"),
        (418, b"teapot", "UNKNOWN", "teapot"),
        (400, b"[1]", "INVALID_ARGUMENT", "HTTP status 400"),
    ],
)
def test_refusals_over_http(status, body, name, text):
    with pytest.raises(ServerError, match=text) as caught:
        HTTP.read_result(RawResponse(status, {"retry-after": "2"}, body))
    assert (caught.value.status, caught.value.server_code) == (name, status)
    assert caught.value.retry_after_secs == 2


@pytest.mark.parametrize(
    "document",
    [
        {"outputs": [{"name": "a", "datatype": "FP33", "shape": [1], "data": [1]}]},
        {"outputs": [{"name": "a", "datatype": "FP32", "shape": [2], "data": [1]}]},
        {"outputs": [{"name": "a"}]},
        {"outputs": 3},
        {"outputs": [3]},
    ],
)
def test_results_that_make_no_sense(document):
    with pytest.raises(ProtocolError, match="is malformed"):
        HTTP.read_result(response(document))


# ---- gRPC


def test_a_message_protobuf_can_read():
    made = ask(
        tensor("a", ROW.reshape(1, 3)),
        tensor("shared", Placed("region", 64, 12, "INT32", (3,))),
        tensor("b", ["x"]),
        id="7",
        outputs=("o", "c"),
        classes={"c": 3},
        parameters={"i": -1, "s": "t", "b": True, "f": 1.5, "priority": 2, "sequence_id": 1 << 62},
    )
    found = grpc_request(made)
    assert found.model_name == "mo/del"
    assert found.id == "7"
    assert [list(each.shape) for each in found.inputs] == [[1, 3], [3], [1]]
    assert found.inputs[1].parameters["shared_memory_offset"].int64_param == 64
    assert list(found.raw_input_contents) == [ROW.tobytes(), b"\x01\x00\x00\x00x"]
    assert found.outputs[1].parameters["classification"].int64_param == 3
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in found.parameters.items()
    }
    assert parameters == made.parameters
    assert found.parameters["priority"].WhichOneof("parameter_choice") == "uint64_param"


@given(
    st.lists(st.integers(0, 300), max_size=3),
    st.text(max_size=5),
    st.dictionaries(st.text(max_size=5), st.integers(-(1 << 63), (1 << 63) - 1), max_size=3),
)
def test_any_message(shape, id, parameters):
    size = int(np.prod(shape)) if len(shape) < 2 else 0
    given_shape = tuple(shape) if len(shape) < 2 else (0, *shape)
    value = Input(bytes(size), "UINT8", given_shape)
    try:
        id.encode()
        [name.encode() for name in parameters]
    except UnicodeEncodeError:
        return
    parameters.pop("priority", None)
    found = grpc_request(ask(tensor("a", value), id=id, parameters=parameters))
    assert found.id == id
    assert tuple(found.inputs[0].shape) == given_shape
    assert {key: each.int64_param for key, each in found.parameters.items()} == parameters


def test_lists_of_numbers_for_servers_that_know_nothing_else():
    found = grpc_request(ask(tensor("a", ROW), tensor("b", ["x"]), binary=False, id="1"))
    assert list(found.inputs[0].contents.int_contents) == [0, 1, 2]
    assert list(found.inputs[1].contents.bytes_contents) == [b"x"]
    assert not found.raw_input_contents
    with pytest.raises(InvalidInput, match="leave binary=True"):
        grpc_request(ask(tensor("a", np.zeros(1, np.float16)), binary=False))


def infer_response(**fields):
    output = {"name": "a", "datatype": "INT32", "shape": [3]}
    message = messages.ModelInferResponse(
        model_name="m", model_version="1", outputs=[output], **fields
    )
    return message.SerializeToString()


def test_results_over_grpc():
    for _ in range(2):
        body = infer_response(raw_output_contents=[ROW.tobytes()])
        result = GRPC.read_result(RawResponse(0, {}, body))
        assert result["a"].tolist() == [0, 1, 2]
    body = infer_response(
        raw_output_contents=[ROW.tobytes()], id="9", parameters={"p": {"bool_param": True}}
    )
    result = GRPC.result(body)
    assert (result.id, result.parameters) == ("9", {"p": True})


def test_results_in_lists_of_numbers():
    output = {
        "name": "a",
        "datatype": "INT8",
        "shape": [2],
        "contents": {"int_contents": [1, 2]},
    }
    body = messages.ModelInferResponse(outputs=[output]).SerializeToString()
    assert GRPC.result(body)["a"].tolist() == [1, 2]


@pytest.mark.parametrize("body", [b"\xff\xff\xff", b"\x0a\xff\x01", b"\x0a\x02\xff\xff"])
def test_messages_that_make_no_sense(body):
    with pytest.raises(ProtocolError, match="is malformed"):
        GRPC.result(body)


@pytest.mark.parametrize("headers", [{"grpc-x": "1"}, {"a b": "1"}, {"a": "é"}, {"a": "x\n"}])
def test_metadata_grpc_cannot_carry(headers):
    with pytest.raises(InvalidInput):
        GRPC.block("ModelInfer", CallOptions(headers))


@pytest.mark.parametrize(
    ("secs", "written"),
    [(0.0001, b"1m"), (60, b"60000m"), (1e6, b"1000000S"), (1e12, b"99999999S")],
)
def test_timeouts_in_eight_digits(secs, written):
    assert written in GRPC.block("ModelInfer", CallOptions(None, secs))


@pytest.mark.parametrize("value", [1 << 64, [1], None])
def test_parameters_that_are_none(value):
    with pytest.raises(InvalidInput, match="'p'"):
        grpc_request(ask(tensor("a", ROW), parameters={"p": value}))
