"""Ensembles through NVIDIA's own programs: tritonclient over both protocols, and perf_analyzer."""

from __future__ import annotations

import queue
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from shoal.backends.base import Backend, LoadedModel, RequestExecutor
from shoal.backends.registry import BackendRegistry
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_model, add_onnx

PAIR = """
platform: "ensemble"
max_batch_size: 8
input { name: "A" data_type: TYPE_INT32 dims: [ 16 ] }
input { name: "B" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "SUM" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "DIFFERENCE" data_type: TYPE_INT32 dims: [ 16 ] }
ensemble_scheduling {
  step {
    model_name: "sum" model_version: -1
    input_map { key: "INPUT0" value: "A" } input_map { key: "INPUT1" value: "B" }
    output_map { key: "OUTPUT0" value: "s" } output_map { key: "OUTPUT1" value: "d" }
  }
  step {
    model_name: "sum" model_version: 1
    input_map { key: "INPUT0" value: "s" } input_map { key: "INPUT1" value: "d" }
    output_map { key: "OUTPUT0" value: "SUM" } output_map { key: "OUTPUT1" value: "DIFFERENCE" }
  }
}
"""
COUNTER = """
backend: "counter"
model_transaction_policy { decoupled: true }
input { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] }
"""
COUNTING = """
platform: "ensemble"
input { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling {
  %s
  step {
    model_name: "counter" model_version: -1
    input_map { key: "COUNT" value: "COUNT" } output_map { key: "NUMBER" value: "raw" }
  }
  step {
    model_name: "echo" model_version: -1
    input_map { key: "INPUT0" value: "raw" } output_map { key: "OUTPUT0" value: "NUMBER" }
  }
}
"""


class CounterBackend(Backend):
    """Counts from 0 to what it is given, a response for each number; refuses what is negative."""

    name = "counter"

    def complete(self, config, model_folder, version_folder, settings):
        return config

    def load(self, context):
        return _Counter()


class _Counter(LoadedModel):
    def executor(self, placement):
        return _CounterExecutor()


class _CounterExecutor(RequestExecutor):
    def execute(self, batch):
        for pending in batch:
            count = int(pending.request.inputs["COUNT"].array[0])
            if count < 0:
                pending.send(error=InvalidArgument("cannot count to that"))
                continue
            for number in range(count):
                if pending.request.cancelled:
                    break
                outputs = [Tensor.from_array("NUMBER", np.array([number], np.int32))]
                pending.send(outputs, final=False)
            pending.send()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensembles")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    add_model(folder, "pair", PAIR)
    add_model(folder, "counter", COUNTER)
    add_onnx(folder, "echo", onnx_models.identity("INT32", dims=(1,), batch=False), "")
    add_model(folder, "counting", COUNTING % "")
    add_model(folder, "limited", COUNTING % "max_inflight_requests: 1")
    backends = BackendRegistry({"counter": CounterBackend})
    with running_server(folder, backends=backends) as running:
        yield SimpleNamespace(running=running, http=running.http_address, grpc=running.grpc_address)


@pytest.fixture(params=[httpclient, grpcclient], ids=["http", "grpc"])
def protocol(request, world):
    address = world.http if request.param is httpclient else world.grpc
    with request.param.InferenceServerClient(address) as client:
        yield SimpleNamespace(library=request.param, client=client)


def pair_inputs(library, rows=1):
    made = []
    for name, number in (("A", 3), ("B", 4)):
        array = np.full((rows, 16), number, np.int32)
        made.append(library.InferInput(name, array.shape, "INT32"))
        made[-1].set_data_from_numpy(array)
    return made


@pytest.mark.parametrize("rows", [1, 8])
def test_infer(protocol, rows):
    result = protocol.client.infer("pair", pair_inputs(protocol.library, rows))
    assert (result.as_numpy("SUM") == 6).all()
    assert (result.as_numpy("DIFFERENCE") == 8).all()
    assert result.as_numpy("SUM").shape == (rows, 16)


def test_one_output(protocol):
    wanted = [protocol.library.InferRequestedOutput("DIFFERENCE")]
    result = protocol.client.infer("pair", pair_inputs(protocol.library), outputs=wanted)
    assert (result.as_numpy("DIFFERENCE") == 8).all()
    assert result.as_numpy("SUM") is None


def test_a_batch_that_is_too_large(protocol):
    with pytest.raises(InferenceServerException, match="batch-size must be <= 8 for 'pair'"):
        protocol.client.infer("pair", pair_inputs(protocol.library, rows=9))


def test_what_clients_see_of_it(protocol):
    client = protocol.client
    if protocol.library is httpclient:
        metadata, config = client.get_model_metadata("pair"), client.get_model_config("pair")
        streams = client.get_model_config("counting")
    else:
        metadata = client.get_model_metadata("pair", as_json=True)
        config = client.get_model_config("pair", as_json=True)["config"]
        streams = client.get_model_config("counting", as_json=True)["config"]
    assert metadata["platform"] == "ensemble"
    assert [step["model_name"] for step in config["ensemble_scheduling"]["step"]] == ["sum", "sum"]
    assert streams["model_transaction_policy"]["decoupled"] is True


def count(client, model, number):
    """The answers to one request on a stream, up to the final one or an error."""
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    given = grpcclient.InferInput("COUNT", [1], "INT32")
    given.set_data_from_numpy(np.array([number], np.int32))
    client.async_stream_infer(model, [given], enable_empty_final_response=True)
    numbers, error, final = [], None, False
    while not final and error is None:
        result, error = answers.get(timeout=WAIT_SECS)
        if error is None:
            final = result.get_response().parameters["triton_final_response"].bool_param
            output = result.as_numpy("NUMBER")
            numbers += [] if output is None else [int(output[0])]
    client.stop_stream()
    return numbers, error


class TestStreams:
    @pytest.fixture
    def client(self, world):
        with grpcclient.InferenceServerClient(world.grpc) as client:
            yield client

    @pytest.mark.parametrize("model", ["counting", "limited"])
    @pytest.mark.parametrize("number", [0, 1, 50])
    def test_every_response_of_a_decoupled_step_comes_through(self, client, model, number):
        assert count(client, model, number) == (list(range(number)), None)

    def test_an_error_of_a_decoupled_step(self, client):
        numbers, error = count(client, "counting", -1)
        assert numbers == []
        assert "in ensemble 'counting', cannot count to that" in error.message()

    def test_an_ensemble_with_one_response_too(self, client):
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for start, end in ((True, False), (False, False), (False, True)):
            client.async_stream_infer(
                "pair",
                pair_inputs(grpcclient),
                sequence_id=42,
                sequence_start=start,
                sequence_end=end,
            )
            result, error = answers.get(timeout=WAIT_SECS)
            assert error is None
            parameters = result.get_response().parameters
            assert parameters["sequence_id"].int64_param == 42
            assert parameters["sequence_start"].bool_param is start
            assert parameters["sequence_end"].bool_param is end
        client.stop_stream()

    def test_unary_calls_and_http_refuse_it(self, world, client):
        given = grpcclient.InferInput("COUNT", [1], "INT32")
        given.set_data_from_numpy(np.array([1], np.int32))
        with pytest.raises(InferenceServerException, match="decoupled"):
            client.infer("counting", [given])


@pytest.mark.perf_analyzer
def test_perf_analyzer_reads_the_ensemble(world, perf_analyzer, tmp_path):
    table = tmp_path / "table.csv"
    words = ("-m", "pair", "-u", world.http, "-i", "http", "--concurrency-range", 2, "-f", table)
    run = perf_analyzer(*words)
    assert "Composing models:" in run.stdout
    assert "sum, version" in run.stdout
    names, numbers = (line.split(",") for line in table.read_text().splitlines()[:2])
    measured = dict(zip(names, numbers, strict=True))
    assert float(measured["Inferences/Second"]) > 0
    assert float(measured["Server Compute Infer"]) > 0
