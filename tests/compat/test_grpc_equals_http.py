"""Both frontends give the same answer to the same request, bit for bit in the tensors."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from shoal.core.dtypes import ALL, BOOL, BYTES
from shoal.wire.proto import messages
from tests.support.client import Infer, outputs, to_bytes


def elements(datatype, seed):
    """Every bit pattern may come up, NaNs and infinities too."""
    random = np.random.default_rng(seed)
    if datatype is BYTES:
        texts = ["".join(map(chr, random.integers(0, 0xD800, length))) for length in range(24)]
        array = np.array([text.encode() for text in texts], object)
    elif datatype is BOOL:
        array = random.integers(0, 2, 24).astype(bool)
    else:
        array = np.frombuffer(random.bytes(24 * datatype.itemsize), datatype.numpy)
    return array.reshape(4, 6)


@pytest.fixture
def client(address):
    with grpcclient.InferenceServerClient(address) as made:
        yield made


def over_grpc(client, model, blob, datatype, shape, **fields):
    request = messages.ModelInferRequest(model_name=model, id="7", **fields)
    request.inputs.add(name="INPUT0", datatype=datatype.name, shape=shape)
    request.raw_input_contents.append(blob)
    send = client._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    return messages.ModelInferResponse.FromString(send(request.SerializeToString()))


@pytest.mark.parametrize("datatype", ALL, ids=str)
def test_every_datatype(world, client, datatype):
    for seed in range(3):
        array = elements(datatype, seed)
        blob = to_bytes(array, datatype)
        model = f"echo_{datatype.name}"
        asked = Infer(id="7", binary_data_output=True)
        answer = asked.add("INPUT0", array, datatype.name, binary=True).send(world.running, model)
        http = outputs(answer)["OUTPUT0"]
        answered = over_grpc(client, model, blob, datatype, array.shape)
        assert answered.raw_output_contents[0] == to_bytes(http, datatype) == blob
        assert list(answered.outputs[0].shape) == list(http.shape)
        head = answer.body[: int(answer.headers["inference-header-content-length"])]
        assert (answered.model_name, answered.model_version, answered.id) == (model, "1", "7")
        assert b'"id":"7"' in head


def test_classification(world, client):
    array = np.array([[0.5, 3, -1, np.nan], [1, 1, 2, np.inf]], np.float32)
    asked = Infer().add("INPUT0", array).want("OUTPUT0", classification=3, binary_data=True)
    http = outputs(asked.send(world.running, "scores"))["OUTPUT0"]
    tensor = grpcclient.InferInput("INPUT0", [2, 4], "FP32")
    tensor.set_data_from_numpy(array)
    wanted = grpcclient.InferRequestedOutput("OUTPUT0", class_count=3)
    got = client.infer("scores", [tensor], outputs=[wanted]).as_numpy("OUTPUT0")
    np.testing.assert_array_equal(got, http)


def test_metadata_config_and_statistics(world, client):
    running = world.running
    assert client.get_server_metadata(as_json=True) == running.get("/v2").json
    ours = running.get("/v2/models/scores").json
    theirs = client.get_model_metadata("scores", as_json=True)
    assert [tensor["name"] for tensor in theirs["outputs"]] == [t["name"] for t in ours["outputs"]]
    assert (theirs["versions"], theirs["platform"]) == (ours["versions"], ours["platform"])
    config = running.get("/v2/models/scores/config").json
    message = client.get_model_config("scores").config
    assert message.max_batch_size == config["max_batch_size"]
    assert [group.count for group in message.instance_group] == [
        group["count"] for group in config["instance_group"]
    ]
    counted = running.statistics("scores")
    (entry,) = client.get_inference_statistics("scores").model_stats
    assert entry.inference_count == counted["inference_count"]
    assert entry.inference_stats.success.ns == counted["inference_stats"]["success"]["ns"]


@pytest.mark.parametrize(
    ("model", "shape", "blob"),
    [
        ("nope", [1, 1], b"\0\0\0\0"),
        ("echo_INT32", [1, 1], b"\0\0\0"),
        ("echo_INT32", [1], b"\0\0\0\0"),
        ("echo_INT32", [9, 1], bytes(36)),
        ("echo_FP32", [1, 1], b"\0\0\0\0"),
    ],
)
def test_errors_have_the_same_text(world, client, model, shape, blob):
    asked = Infer(id="7", binary_data_output=True)
    asked.document["inputs"].append(
        {
            "name": "INPUT0",
            "datatype": "INT32",
            "shape": shape,
            "parameters": {"binary_data_size": len(blob)},
        }
    )
    asked.blobs.append(blob)
    http = asked.send(world.running, model).error
    request = messages.ModelInferRequest(model_name=model, id="7")
    request.inputs.add(name="INPUT0", datatype="INT32", shape=shape)
    request.raw_input_contents.append(blob)
    send = client._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    with pytest.raises(grpc.RpcError) as caught:
        send(request.SerializeToString())
    assert caught.value.details() == http
