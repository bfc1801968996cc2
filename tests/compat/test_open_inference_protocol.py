"""The Open Inference Protocol, rule by rule: docs/deploy/kserve.md names the test of each.

Requests are made by hand (JSON, and messages of the published protocol), so that no client library
hides a difference.
"""

from __future__ import annotations

import grpc
import numpy as np
import pytest

from shoal.core.bytes_tensor import encode
from shoal.testing import WAIT_SECS
from shoal.testing.server import running_server
from shoal.wire.proto import messages
from tests.support import onnx_models
from tests.support.repositories import add_onnx

JSON = {"Accept": "application/json"}
# The types of the specification, with values that JSON can hold, and the field of gRPC's contents.
TYPES = {
    "BOOL": ([True, False], "bool_contents"),
    "UINT8": ([0, 255], "uint_contents"),
    "UINT16": ([0, 65535], "uint_contents"),
    "UINT32": ([0, 2**32 - 1], "uint_contents"),
    "UINT64": ([0, 2**64 - 1], "uint64_contents"),
    "INT8": ([-128, 127], "int_contents"),
    "INT16": ([-(2**15), 2**15 - 1], "int_contents"),
    "INT32": ([-(2**31), 2**31 - 1], "int_contents"),
    "INT64": ([-(2**63), 2**63 - 1], "int64_contents"),
    "FP32": ([0.5, -2.0], "fp32_contents"),
    "FP64": ([0.1, -2e300], "fp64_contents"),
    "BYTES": (["one", "zwölf"], "bytes_contents"),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for kind in (*TYPES, "FP16"):
        model = onnx_models.identity(kind, dims=(2,))
        add_onnx(folder, kind.lower(), model, "max_batch_size: 4", versions=(3,))
    add_onnx(folder, "sums", onnx_models.add_sub(), "max_batch_size: 4")
    with running_server(folder) as server:
        yield server


@pytest.fixture(scope="module")
def call(running):
    """Calls a method of the service."""
    with grpc.insecure_channel(running.grpc_address) as channel:

        def ask(method, **fields):
            made = getattr(messages, f"{method}Request")(**fields)
            path = f"/inference.GRPCInferenceService/{method}"
            sent = channel.unary_unary(path)(made.SerializeToString(), timeout=WAIT_SECS)
            return getattr(messages, f"{method}Response").FromString(sent)

        yield ask


def tensor(kind, data, name="INPUT0", shape=(1, 2)):
    return {"name": name, "shape": list(shape), "datatype": kind, "data": data}


def infer(running, model, *inputs, path="", **fields):
    return running.post(f"/v2/models/{model}{path}/infer", {"inputs": list(inputs), **fields})


# ---- REST


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"live": True, "ready": True}),
        ("/v2/models/fp32/ready", {"name": "fp32", "ready": True}),
        ("/v2/models/fp32/versions/3/ready", {"name": "fp32", "ready": True}),
    ],
)
def test_health(running, path, body):
    answer = running.get(path, JSON)
    assert (answer.status, answer.json) == (200, body)
    assert running.get(path).status == 200


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_server_metadata(running, path):
    found = running.get(path).json
    assert {type(found[name]) for name in ("name", "version")} == {str}
    assert all(isinstance(name, str) for name in found["extensions"])


@pytest.mark.parametrize("version", ["", "/versions/3"])
def test_model_metadata(running, version):
    found = running.get(f"/v2/models/fp32{version}").json
    assert (found["name"], found["versions"]) == ("fp32", ["3"])
    assert found["platform"] == "onnxruntime_onnx"
    for side, name in (("inputs", "INPUT0"), ("outputs", "OUTPUT0")):
        assert found[side] == [{"name": name, "datatype": "FP32", "shape": [-1, 2]}]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("nested", [False, True])
def test_tensor_data(running, kind, nested):
    values = TYPES[kind][0]
    answer = infer(running, kind.lower(), tensor(kind, [values] if nested else values))
    (output,) = answer.json["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("OUTPUT0", kind, [1, 2])
    assert output["data"] == values


@pytest.mark.parametrize("version", ["", "/versions/3"])
def test_an_inference_response(running, version):
    answer = infer(running, "int32", tensor("INT32", [1, 2]), path=version, id="42")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    found = answer.json
    assert (found["id"], found["model_name"], found["model_version"]) == ("42", "int32", "3")
    assert "id" not in infer(running, "int32", tensor("INT32", [1, 2])).json


def test_requested_outputs(running):
    inputs = [tensor("INT32", [[3] * 16], name, (1, 16)) for name in ("INPUT0", "INPUT1")]
    both = infer(running, "sums", *inputs).json["outputs"]
    assert {output["name"] for output in both} == {"OUTPUT0", "OUTPUT1"}
    (one,) = infer(running, "sums", *inputs, outputs=[{"name": "OUTPUT1"}]).json["outputs"]
    assert (one["name"], one["data"]) == ("OUTPUT1", [0] * 16)


def test_parameters_of_each_type(running):
    own = {"text": "a", "number": 1, "share": 0.5, "switch": True}
    given = {**tensor("INT32", [1, 2]), "parameters": own}
    wanted = [{"name": "OUTPUT0", "parameters": own}]
    answer = infer(running, "int32", given, parameters=own, outputs=wanted)
    assert answer.status == 200, answer


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v2/models/missing", None),
        ("GET", "/v2/models/int32/versions/9", None),
        ("POST", "/v2/models/missing/infer", {"inputs": []}),
        ("POST", "/v2/models/int32/infer", {}),
        ("POST", "/v2/models/int32/infer", {"inputs": [tensor("INT32", [1, 2], "other")]}),
        ("POST", "/v2/models/int32/infer", {"inputs": [tensor("FP32", [1, 2])]}),
        ("POST", "/v2/models/int32/infer", {"inputs": [tensor("INT32", [1, 2, 3])]}),
        ("POST", "/v2/models/int32/infer", {"inputs": [tensor("INT32", ["a", "b"])]}),
    ],
)
def test_errors(running, method, path, body):
    answer = running.call(method, path, body).response()
    assert 400 <= answer.status < 500
    assert list(answer.json) == ["error"]
    assert answer.json["error"]


# ---- gRPC


def test_grpc_health(call):
    assert call("ServerLive").live
    assert call("ServerReady").ready
    assert call("ModelReady", name="fp32").ready
    assert call("ModelReady", name="fp32", version="3").ready


def test_grpc_metadata(call):
    server = call("ServerMetadata")
    assert server.name
    assert server.version
    model = call("ModelMetadata", name="fp32")
    assert (model.name, list(model.versions)) == ("fp32", ["3"])
    assert model.platform == "onnxruntime_onnx"
    (given,) = model.inputs
    assert (given.name, given.datatype, list(given.shape)) == ("INPUT0", "FP32", [-1, 2])


@pytest.mark.parametrize("kind", TYPES)
def test_grpc_contents(call, kind):
    values, field = TYPES[kind]
    if kind == "BYTES":
        values = [value.encode() for value in values]
    given = {"name": "INPUT0", "datatype": kind, "shape": [1, 2], "contents": {field: values}}
    found = call("ModelInfer", model_name=kind.lower(), id="42", inputs=[given])
    assert (found.model_name, found.model_version, found.id) == (kind.lower(), "3", "42")
    (output,) = found.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("OUTPUT0", kind, [1, 2])
    assert list(found.raw_output_contents) == [_raw(kind, values)]


@pytest.mark.parametrize("kind", [*TYPES, "FP16"])
def test_grpc_raw_contents(call, kind):
    values = [0.5, -2.0] if kind == "FP16" else TYPES[kind][0]
    if kind == "BYTES":
        values = [value.encode() for value in values]
    given = {"name": "INPUT0", "datatype": kind, "shape": [1, 2]}
    sent = [_raw(kind, values)]
    asked = {"model_name": kind.lower(), "inputs": [given], "raw_input_contents": sent}
    assert list(call("ModelInfer", **asked).raw_output_contents) == sent


def test_grpc_errors(call):
    given = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 2]}
    contents = {"int_contents": [1, 2]}
    raw = [np.int32([1, 2]).tobytes()]
    for fields, code in (
        ({"model_name": "missing"}, grpc.StatusCode.NOT_FOUND),
        ({"model_name": "int32", "inputs": [given]}, grpc.StatusCode.INVALID_ARGUMENT),
        (  # either raw contents or contents
            {
                "model_name": "int32",
                "inputs": [{**given, "contents": contents}],
                "raw_input_contents": raw,
            },
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call("ModelInfer", **fields)
        assert caught.value.code() is code
        assert caught.value.details()


def _raw(kind, values):
    if kind == "BYTES":
        return bytes(encode(values))
    types = {"BOOL": np.bool_, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
    return np.array(values, types.get(kind) or kind.lower()).tobytes()
