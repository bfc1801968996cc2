"""Python models as Triton's users write them, asked by Triton's own clients."""

from __future__ import annotations

import queue
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_model, add_onnx

ADD_SUB = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        output = pb_utils.get_output_config_by_name(config, "OUTPUT0")
        self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("OUTPUT0", (a + b).astype(self.dtype)),
                        pb_utils.Tensor("OUTPUT1", (a - b).astype(self.dtype)),
                    ]
                )
            )
        return responses
"""
ADD_SUB_CONFIG = """
backend: "python"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
dynamic_batching { }
"""
COMPLETED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "LENGTH", "data_type": "TYPE_INT64", "dims": [1]})
        config.set_max_batch_size(0)
        return config

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("LENGTH", np.array([len(request.inputs()[0].as_numpy()[0])]))]
            )
            for request in requests
        ]
"""
PIPELINE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(
            name="pipeline_requests", description="Requests", kind=pb_utils.MetricFamily.COUNTER
        )
        self.metric = self.family.Metric(labels={"model": args["model_name"]})

    def execute(self, requests):
        responses = []
        for request in requests:
            self.metric.increment(1)
            inner = pb_utils.InferenceRequest(
                model_name="sum",
                requested_output_names=["OUTPUT0"],
                inputs=request.inputs(),
            )
            response = inner.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            responses.append(pb_utils.InferenceResponse(response.output_tensors()))
        return responses
"""
PIPELINE_CONFIG = ADD_SUB_CONFIG.replace(
    ',\n  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] }', ""
)
COUNTDOWN = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            threading.Thread(
                target=self.send, args=(request.get_response_sender(), count), daemon=True
            ).start()
        return None

    def send(self, sender, count):
        for number in range(count, 0, -1):
            out = pb_utils.Tensor("OUT", np.array([number], np.int32))
            sender.send(pb_utils.InferenceResponse([out]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNTDOWN_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: True }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
MOODY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    ready = True

    def execute(self, requests):
        TritonPythonModel.ready = not TritonPythonModel.ready
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def is_ready(self):
        return TritonPythonModel.ready
"""
MOODY_CONFIG = COUNTDOWN_CONFIG.replace("decoupled: True", "decoupled: False")
MANAGER = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        states = [pb_utils.is_model_ready("spare")]
        pb_utils.load_model("spare")
        states.append(pb_utils.is_model_ready("spare"))
        pb_utils.unload_model("spare")
        states.append(pb_utils.is_model_ready("spare"))
        out = pb_utils.Tensor("OUT", np.array([sum(s << i for i, s in enumerate(states))], np.int32))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""

# Writes into its input, as models do that normalise a picture in place. "boss" has that done to its
# own input by another model, before it reads it.
SCRIBBLER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            if BOSS:
                inner = pb_utils.InferenceRequest(
                    model_name="scribbler", inputs=[tensor], requested_output_names=["OUT"]
                )
                answer = pb_utils.get_output_tensor_by_name(inner.exec(), "OUT").as_numpy()
                answer += tensor.as_numpy()
            else:
                answer = tensor.as_numpy()
                answer += 1
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]))
        return responses
"""
SCRIBBLER_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
SCRIBBLERS_CONFIG = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [
  { name: "ONE" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "OTHER" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "SECOND" data_type: TYPE_FP32 dims: [ -1 ] }
]
ensemble_scheduling { step [
  { model_name: "scribbler" input_map { key: "IN" value: "IN" }
    output_map { key: "OUT" value: "ONE" } },
  { model_name: "boss" input_map { key: "IN" value: "IN" }
    output_map { key: "OUT" value: "OTHER" } },
  { model_name: "scribbler" input_map { key: "IN" value: "ONE" }
    output_map { key: "OUT" value: "SECOND" } }
] }
"""


def python_model(folder, name, source, config):
    add_model(folder, name, config, {"1/model.py": source.encode()})


@pytest.fixture(scope="module", params=["thread", "process"])
def world(request, tmp_path_factory):
    """A server whose Python models all run the one way or the other."""
    folder = tmp_path_factory.mktemp("models")
    python_model(folder, "add_sub", ADD_SUB, ADD_SUB_CONFIG)
    python_model(folder, "completed", COMPLETED, None)
    python_model(folder, "pipeline", PIPELINE, PIPELINE_CONFIG)
    python_model(folder, "countdown", COUNTDOWN, COUNTDOWN_CONFIG)
    python_model(folder, "moody", MOODY, MOODY_CONFIG)
    python_model(folder, "manager", MANAGER, MOODY_CONFIG)
    python_model(folder, "spare", ADD_SUB, ADD_SUB_CONFIG)
    for name in ("scribbler", "boss"):
        source = SCRIBBLER.replace("BOSS", str(name == "boss"))
        python_model(folder, name, source, SCRIBBLER_CONFIG)
    add_model(folder, "scribblers", SCRIBBLERS_CONFIG)
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    names = ("add_sub", "completed", "pipeline", "countdown", "moody", "manager", "sum")
    names = (*names, "scribbler", "boss", "scribblers")
    with running_server(
        folder,
        model_control_mode="explicit",
        load_model=names,
        backend_config=(("python", "execution", request.param),),
    ) as running:
        yield SimpleNamespace(running=running, folder=folder)


@pytest.fixture(params=["http", "grpc"])
def client(request, world):
    """A client of each protocol with the words they share."""
    if request.param == "http":
        module, address = httpclient, world.running.http_address
    else:
        module, address = grpcclient, world.running.grpc_address
    with module.InferenceServerClient(address) as opened:

        def infer(model, arrays, **options):
            inputs = []
            for name, array in arrays.items():
                kind = np_to_triton_dtype(array.dtype)
                made = module.InferInput(name, list(array.shape), kind)
                made.set_data_from_numpy(array)
                inputs.append(made)
            return opened.infer(model, inputs, **options)

        yield SimpleNamespace(infer=infer, ready=opened.is_model_ready)


def rows(first):
    whole = np.arange(first, first + 16, dtype=np.int32).reshape(1, 16)
    return {"INPUT0": whole, "INPUT1": np.ones((1, 16), np.int32)}


def test_add_sub(client):
    result = client.infer("add_sub", rows(5))
    assert result.as_numpy("OUTPUT0").tolist() == [list(range(6, 22))]
    assert result.as_numpy("OUTPUT1").tolist() == [list(range(4, 20))]


def test_a_model_without_a_config(client):
    result = client.infer("completed", {"TEXT": np.array(["seven ch"], object)})
    assert result.as_numpy("LENGTH").tolist() == [8]


def test_a_python_model_calls_an_onnx_model(client, world):
    result = client.infer("pipeline", rows(1))
    assert result.as_numpy("OUTPUT0").tolist() == [list(range(2, 18))]
    assert world.running.metric("pipeline_requests", model="pipeline") >= 1


@pytest.mark.parametrize("size", [4, 100_000])
def test_a_model_that_writes_to_its_inputs_affects_no_other_request(client, size):
    result = client.infer("scribblers", {"IN": np.zeros(size, np.float32)})
    values = {name: set(result.as_numpy(name)) for name in ("ONE", "OTHER", "SECOND")}
    assert values == {"ONE": {1.0}, "OTHER": {1.0}, "SECOND": {2.0}}


def test_an_error_of_the_inner_model_reaches_the_client(world, client):
    world.running.unload("sum")
    try:
        with pytest.raises(InferenceServerException) as raised:
            client.infer("pipeline", rows(1))
    finally:
        assert world.running.load("sum").status == 200
    expected = "Model sum - Error when running inference: Request for unknown model: 'sum' has no"
    assert expected in str(raised.value)


def test_a_decoupled_model_streams(world):
    results = queue.Queue()
    with grpcclient.InferenceServerClient(world.running.grpc_address) as opened:
        opened.start_stream(lambda result, error: results.put((result, error)))
        made = grpcclient.InferInput("IN", [1], "INT32")
        made.set_data_from_numpy(np.array([4], np.int32))
        opened.async_stream_infer("countdown", [made], enable_empty_final_response=True)
        numbers = []
        while True:
            result, error = results.get(timeout=WAIT_SECS)
            assert error is None
            response = result.get_response()
            if response.parameters["triton_final_response"].bool_param:
                break
            numbers.append(int(result.as_numpy("OUT")[0]))
        opened.stop_stream()
    assert numbers == [4, 3, 2, 1]


def test_a_model_reports_when_it_is_not_ready(client):
    assert client.ready("moody")
    client.infer("moody", {"IN": np.array([1], np.int32)})
    assert not client.ready("moody")
    client.infer("moody", {"IN": np.array([1], np.int32)})
    assert client.ready("moody")


def test_a_model_loads_and_unloads_another(client):
    result = client.infer("manager", {"IN": np.array([1], np.int32)})
    assert result.as_numpy("OUT").tolist() == [0b010]


def test_a_changed_model_is_served_after_a_reload(world, client):
    python_model(world.folder, "spare", ADD_SUB, ADD_SUB_CONFIG)
    assert world.running.load("spare").status == 200
    assert client.infer("spare", rows(0)).as_numpy("OUTPUT0")[0, 0] == 1
    changed = ADD_SUB.replace("(a + b)", "(a + b + 100)")
    python_model(world.folder, "spare", changed, ADD_SUB_CONFIG)
    assert world.running.load("spare").status == 200
    assert client.infer("spare", rows(0)).as_numpy("OUTPUT0")[0, 0] == 101
    assert world.running.unload("spare").status == 200


def test_a_broken_model_keeps_the_old_one(world, client):
    python_model(world.folder, "spare", ADD_SUB, ADD_SUB_CONFIG)
    assert world.running.load("spare").status == 200
    python_model(
        world.folder, "spare", ADD_SUB.replace("import json", "import jsn"), ADD_SUB_CONFIG
    )
    answer = world.running.load("spare")
    assert answer.status == 400
    assert "No module named 'jsn'" in answer.error
    assert client.infer("spare", rows(0)).as_numpy("OUTPUT0")[0, 0] == 1
    assert world.running.unload("spare").status == 200


def test_files_can_come_with_the_load(world, client):
    config = (
        '{"name": "brought", "backend": "python", "input": [{"name": "TEXT", "data_type": '
        '"TYPE_STRING", "dims": [1]}], "output": [{"name": "LENGTH", "data_type": "TYPE_INT64", '
        '"dims": [1]}]}'
    )
    import base64

    content = base64.b64encode(COMPLETED.encode()).decode()
    answer = world.running.load("brought", config=config, **{"file:1/model.py": content})
    assert answer.status == 200, answer
    result = client.infer("brought", {"TEXT": np.array(["four"], object)})
    assert result.as_numpy("LENGTH").tolist() == [4]
    assert world.running.unload("brought").status == 200
