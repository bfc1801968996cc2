"""`shoal.tritonserver`, the module that programs for Triton's Python bindings import."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from shoal import tritonserver
from shoal.core.request import Request
from shoal.tritonserver import DataType, MemoryType, ModelControlMode, Tensor
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_model

torch = pytest.importorskip("torch")

ECHO = """
backend: "python" max_batch_size: {batch}
model_transaction_policy {{ decoupled: {decoupled} }}
input {{ name: "text" data_type: TYPE_STRING dims: [ -1 ] optional: true }}
input {{ name: "fp32" data_type: TYPE_FP32 dims: [ -1 ] optional: true }}
input {{ name: "bf16" data_type: TYPE_BF16 dims: [ -1 ] optional: true }}
output {{ name: "text_out" data_type: TYPE_STRING dims: [ -1 ] }}
output {{ name: "fp32_out" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "bf16_out" data_type: TYPE_BF16 dims: [ -1 ] }}
"""
ANSWERS = '''
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Returns its inputs; the parameter "times" of a decoupled model says how often."""

    def initialize(self, args):
        self.decoupled = '"decoupled": true' in args["model_config"].replace('":true', '": true')

    def execute(self, requests):
        responses = []
        for request in requests:
            told = __import__("json").loads(request.parameters())
            error = None
            if told.get("fail"):
                error = pb_utils.TritonError("asked to fail", pb_utils.TritonError.NOT_FOUND)
            outputs = [
                pb_utils.Tensor.from_dlpack(tensor.name() + "_out", tensor.to_dlpack())
                if tensor.name() != "text"
                else pb_utils.Tensor("text_out", tensor.as_numpy())
                for tensor in request.inputs()
            ]
            if error is not None:
                response = pb_utils.InferenceResponse([], error)
            else:
                facts = {"id": request.request_id(), "corrid": request.correlation_id(), "flags": request.flags()}
                response = pb_utils.InferenceResponse(outputs, parameters=facts)
            if not self.decoupled:
                responses.append(response)
                continue
            sender = request.get_response_sender()
            for _ in range(told.get("times", 1)):
                sender.send(response)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None if self.decoupled else responses
'''


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    files = {"1/model.py": ANSWERS.encode()}
    add_model(folder, "echo", ECHO.format(batch=0, decoupled="false"), files)
    add_model(folder, "repeat", ECHO.format(batch=4, decoupled="true"), files)
    return str(folder)


@pytest.fixture(scope="module")
def server(repository):
    running = tritonserver.Server(
        model_repository=repository,
        server_id="embedded",
        model_control_mode=ModelControlMode.EXPLICIT,
        startup_models=["*"],
    ).start(wait_until_ready=True)
    yield running
    running.stop()


# ---- tensors


def test_numpy_and_dlpack_share_memory():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = Tensor.from_dlpack(array)
    assert (tensor.data_type, list(tensor.shape), tensor.size) == (DataType.FP32, [2, 3], 24)
    assert tensor.data_ptr == array.ctypes.data
    assert (tensor.memory_type, tensor.memory_type_id) == (MemoryType.CPU, 0)
    back = np.from_dlpack(tensor)
    assert back.ctypes.data == array.ctypes.data
    assert torch.from_dlpack(tensor).tolist() == array.tolist()
    assert tensor.to_host() is tensor
    assert tensor.to_device((tritonserver.DLDeviceType.kDLCPU, 0)) is tensor


def test_bfloat16_comes_from_torch_and_goes_there():
    tensor = Tensor.from_dlpack(torch.tensor([1, 2.5], dtype=torch.bfloat16))
    assert tensor.data_type is DataType.BF16
    assert torch.from_dlpack(tensor).tolist() == [1, 2.5]


def test_exported_memory_keeps_its_tensor_and_owner():
    owner = np.ones(4)
    before = sys.getrefcount(owner)
    tensor = Tensor.from_dlpack(owner)
    assert sys.getrefcount(owner) == before + 1
    array = np.from_dlpack(tensor)
    del tensor
    gc.collect()
    assert sys.getrefcount(owner) == before + 1
    del array
    gc.collect()
    assert sys.getrefcount(owner) == before


@pytest.mark.parametrize(
    "value", [["é", "b"], [b"\xc3\xa9", b"b"], np.array(["é", "b"]), np.array(["é", b"b"], object)]
)
def test_text(value):
    tensor = Tensor.from_string_array(value)
    assert tensor.to_bytes_array().tolist() == ["é".encode(), b"b"]
    assert Tensor.from_bytes_array([["a"]]).to_string_array().tolist() == [["a"]]


@pytest.mark.parametrize(
    ("action", "kind", "sentence"),
    [
        (
            lambda: Tensor.from_bytes_array([1.5]),
            tritonserver.InvalidArgumentError,
            "Got TRITONSERVER_DataType.FP64",
        ),
        (lambda: Tensor.from_dlpack(3), tritonserver.InvalidArgumentError, "does not support DL"),
        (
            lambda: Tensor.from_dlpack(np.ones((2, 2)).T),
            tritonserver.InvalidArgumentError,
            "not contiguous",
        ),
        (
            lambda: Tensor._from_object({}),
            tritonserver.InvalidArgumentError,
            "Input type <class 'dict'> not supported",
        ),
        (
            lambda: Tensor._from_object([1j]),
            tritonserver.InvalidArgumentError,
            "Can't convert complex128",
        ),
        (
            lambda: Tensor._from_object([[1], [2, 3]]),
            tritonserver.InvalidArgumentError,
            "Conversion from",
        ),
        (
            lambda: Tensor._from_object([1]).to_bytes_array(),
            tritonserver.InvalidArgumentError,
            "not TRITONSERVER_DataType.BYTES",
        ),
        (
            lambda: np.from_dlpack(Tensor._from_object(["a"])),
            tritonserver.InvalidArgumentError,
            "to DLPack data type",
        ),
        (
            lambda: Tensor._from_object([1]).to_device("disk"),
            tritonserver.InvalidArgumentError,
            "Invalid memory type 'disk'",
        ),
        (
            lambda: Tensor._from_object([1]).to_device("gpu:0"),
            tritonserver.UnsupportedError,
            "to .*GPU.* not supported.*needs? the package cupy|package cupy",
        ),
    ],
)
def test_tensors_that_cannot_be(action, kind, sentence):
    with pytest.raises(kind, match=sentence):
        action()


# ---- options


def test_options_are_those_of_the_server():
    options = tritonserver.Options(
        model_repository="models",
        server_id="x",
        exit_timeout=7,
        strict_model_config=True,
        rate_limiter_mode=tritonserver.RateLimitMode.EXEC_COUNT,
        rate_limiter_resources=[tritonserver.RateLimiterResource("r", 4, 0)],
        cuda_memory_pool_sizes={0: 8},
        cache_config={"local": {"size": 1048576}},
        backend_configuration={"onnxruntime": {"default-max-batch-size": "4"}},
        metrics_configuration={"": {"summary_latencies": "true"}},
        model_load_device_limits=[
            tritonserver.ModelLoadDeviceLimit(tritonserver.InstanceGroupKind.GPU, 0, 0.5)
        ],
        log_verbose=1,
        log_format=tritonserver.LogFormat.ISO8601,
    )
    options._check()
    settings = options._settings()
    expected = {
        "id": "x",
        "exit_timeout_secs": 7,
        "disable_auto_complete_config": True,
        "rate_limit": "execution_count",
        "rate_limit_resource": ["r:4:0"],
        "cuda_memory_pool_byte_size": ["0:8"],
        "cache_config": [("local", "size", "1048576")],
        "backend_config": [("onnxruntime", "default-max-batch-size", "4")],
        "metrics_config": [("", "summary_latencies", "true")],
        "model_load_gpu_limit": ["0:0.5"],
        "log_verbose": 1,
        "log_error": True,
        "log_format": "ISO8601",
        "allow_http": False,
    }
    assert {name: settings.get(name) for name in expected} == expected
    assert (
        "pinned_memory_pool_byte_size" not in settings
    )  # its default, which would be warned about
    tritonserver.server.ShoalServer("models", **settings)  # all of them are options


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"server_id": 1}, TypeError, "server_id takes str, found 1"),
        ({"model_repository": 1}, TypeError, "model_repository takes str or list, found 1"),
        ({"exit_timeout": True}, TypeError, "exit_timeout takes int, found True"),
        ({"model_repository": None}, tritonserver.InvalidArgumentError, "must be specified"),
        ({}, tritonserver.InvalidArgumentError, "there are no models to serve"),
        ({"model_repository": "/missing"}, tritonserver.InternalError, "/missing' does not exist"),
        (
            {"model_repository": ".", "startup_models": ["*", "a"]},
            tritonserver.InvalidArgumentError,
            "ONLY startup model",
        ),
        (
            {
                "model_repository": ".",
                "model_load_device_limits": [
                    tritonserver.ModelLoadDeviceLimit(tritonserver.InstanceGroupKind.CPU, 0, 0.5)
                ],
            },
            tritonserver.UnsupportedError,
            "got: CPU",
        ),
    ],
)
def test_options_that_are_wrong(options, kind, sentence):
    with pytest.raises(kind, match=sentence):
        tritonserver.Server(**options).start()


def test_a_server_that_is_not_started():
    server = tritonserver.Server(model_repository=".")
    for call in (server.ready, server.live, server.models, server.stop, lambda: server.model("a")):
        with pytest.raises(tritonserver.InvalidArgumentError, match="Server not started"):
            call()


# ---- inference


def test_one_response(server):
    model = server.model("echo")
    (response,) = model.infer(
        inputs={
            "text": ["a", "b"],
            "fp32": np.ones(2, np.float32),
            "bf16": torch.ones(1, dtype=torch.bfloat16),
        },
        request_id="seven",
    )
    assert response.final
    assert (response.model.name, response.model.version, response.request_id) == (
        "echo",
        1,
        "seven",
    )
    assert response.parameters["id"] == "seven"
    assert response.outputs["text_out"].to_string_array().tolist() == ["a", "b"]
    assert np.from_dlpack(response.outputs["fp32_out"]).tolist() == [1, 1]
    assert torch.from_dlpack(response.outputs["bf16_out"]).tolist() == [1]
    assert list(response.model.__dict__) == ["_server", "name", "version", "state", "reason"]


def test_a_request_object_with_a_sequence(server):
    model = server.model("echo")
    request = model.create_request(correlation_id=9, flags=3, inputs={"fp32": [np.float32(1)]})
    request.inputs["fp32"] = Tensor.from_dlpack(np.array([2], np.float32))
    (response,) = model.infer(request)
    assert (response.parameters["corrid"], response.parameters["flags"]) == (9, 3)
    assert np.from_dlpack(response.outputs["fp32_out"]).tolist() == [2]
    assert tritonserver.InferenceRequest(model).model is model


def test_a_decoupled_model(server):
    responses = list(
        server.model("repeat").infer(inputs={"text": [["a"]]}, parameters={"times": 2})
    )
    assert [response.final for response in responses] == [False, False, True]
    assert [len(response.outputs) for response in responses] == [1, 1, 0]


def test_errors_of_a_model(server):
    fails = {"inputs": {"text": ["a"]}, "parameters": {"fail": True}}
    with pytest.raises(tritonserver.NotFoundError, match="asked to fail") as caught:
        next(server.model("echo").infer(**fails))
    assert caught.value.args[1].final
    (response,) = server.model("echo").infer(raise_on_error=False, **fails)
    assert isinstance(response.error, tritonserver.NotFoundError)


@pytest.mark.parametrize(
    ("model", "request_", "kind", "sentence"),
    [
        ("missing", {}, tritonserver.NotFoundError, "'missing' is not found"),
        (
            "echo",
            {"inputs": {"x": [1]}},
            tritonserver.InvalidArgumentError,
            "unexpected inference input 'x'",
        ),
        (
            "echo",
            {"inputs": {"text": 3}},
            tritonserver.InvalidArgumentError,
            "Input type <class 'int'>",
        ),
        (
            "echo",
            {"inputs": {"fp32": [1]}},
            tritonserver.InvalidArgumentError,
            "data-type is 'INT64'",
        ),
        (
            "echo",
            {"parameters": {"a": {}}},
            tritonserver.InvalidArgumentError,
            "to Request Parameter",
        ),
        ("echo", {"output_memory_type": "disk"}, tritonserver.InvalidArgumentError, "'disk'"),
        ("echo", {"colour": 1}, TypeError, "unexpected keyword argument 'colour'"),
    ],
)
def test_requests_that_are_refused(server, model, request_, kind, sentence):
    with pytest.raises(kind, match=sentence):
        server.model(model).infer(**request_)


def test_output_memory(server):
    class Mine(tritonserver.MemoryAllocator):
        def allocate(self, size, memory_type, memory_type_id, tensor_name):
            taken.append((size, memory_type, tensor_name))
            return tritonserver.default_memory_allocators[MemoryType.CPU].allocate(
                size, memory_type, memory_type_id, tensor_name
            )

    taken = []
    inputs = {"fp32": np.ones(2, np.float32)}
    (response,) = server.model("echo").infer(
        inputs=inputs, output_memory_type="cpu", output_memory_allocator=Mine()
    )
    assert taken == [(8, MemoryType.CPU, "fp32_out")]
    assert np.from_dlpack(response.outputs["fp32_out"]).tolist() == [1, 1]
    with pytest.raises(tritonserver.InvalidArgumentError, match="Memory type gpu not supported"):
        next(server.model("echo").infer(inputs=inputs, output_memory_type="gpu"))


def test_a_queue_of_the_program(server):
    mine = queue.SimpleQueue()
    responses = server.model("repeat").infer(inputs={"text": [["a"]]}, response_queue=mine)
    found = [mine.get(timeout=WAIT_SECS) for _ in range(2)]
    assert [response.final for response in found] == [False, True]
    assert list(responses) == found


def test_coroutines(server):
    async def main():
        mine = asyncio.Queue()
        model = server.model("repeat")
        responses = model.async_infer(inputs={"text": [["a"]]}, response_queue=mine)
        found = [response async for response in responses]
        assert [response.final for response in found] == [False, True]
        assert [mine.get_nowait() for _ in range(2)] == found
        responses.cancel()
        with pytest.raises(tritonserver.NotFoundError):
            await anext(
                server.model("echo").async_infer(inputs={"text": ["a"]}, parameters={"fail": True})
            )

    asyncio.run(main())


def test_requests_leave_no_garbage(server):
    """Memory of tensors is free as soon as the program drops a response."""

    def ask():
        for response in server.model("echo").infer(inputs={"fp32": np.ones(2, np.float32)}):
            np.from_dlpack(response.outputs["fp32_out"])

    ask()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            ask()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kept = [found for found in gc.garbage if isinstance(found, (Tensor, np.ndarray, Request))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert kept == []


# ---- status and control


def test_status(server):
    assert server.live()
    assert server.metadata()["name"] == "embedded"
    echo, repeat = server.model("echo"), server.model("repeat")
    assert echo.ready()
    assert not server.model("missing").ready()
    assert echo.metadata()["platform"] == "python"
    assert echo.config()["name"] == "echo"
    with pytest.raises(tritonserver.UnsupportedError, match="supported versions are: 1"):
        echo.config(config_version=2)
    assert echo.batch_properties() is tritonserver.ModelBatchFlag.UNKNOWN
    assert repeat.batch_properties() is tritonserver.ModelBatchFlag.FIRST_DIM
    assert echo.transaction_properties() is tritonserver.ModelTxnPropertyFlag.ONE_TO_ONE
    assert repeat.transaction_properties() is tritonserver.ModelTxnPropertyFlag.DECOUPLED
    list(echo.infer(inputs={"text": ["a"]}))
    assert echo.statistics()["model_stats"][0]["inference_count"] >= 1
    assert 'nv_inference_count{model="echo",version="1"}' in server.metrics()
    assert server.options.server_id == "embedded"


def test_models_by_name_and_version(server):
    models = server.models()
    assert str(models["echo", 1]) == "{'name': 'echo', 'version': 1, 'state': 'READY'}"
    assert models["echo"].version == -1
    assert set(models) == {("echo", 1), ("repeat", 1)}
    for key in ("missing", ("echo", 2)):
        with pytest.raises(KeyError, match="Unknown Model"):
            models[key]


def test_load_and_unload(server, repository):
    server.unload("echo", wait_until_unloaded=True)
    assert not server.model("echo").ready()
    assert ("echo", 1) not in server.models(exclude_not_ready=True)
    config = json.dumps({"backend": "python", "max_batch_size": 2})
    files = {"file:1/model.py": Path(repository, "echo", "1", "model.py").read_bytes()}
    assert server.load("sent", {"config": config, **files}).ready()
    server.unload(server.model("sent"))
    with pytest.raises(tritonserver.InvalidArgumentError, match="Unrecognized load parameter 'x'"):
        server.load("echo", {"x": 1})
    with pytest.raises(tritonserver.InternalError, match="failed to load 'missing'"):
        server.load("missing")
    assert server.load("echo").ready()


def test_repositories(server, tmp_path, repository):
    files = {"1/model.py": ANSWERS.encode()}
    add_model(tmp_path, "plain", ECHO.format(batch=0, decoupled="false"), files)
    server.register_model_repository(str(tmp_path), {"plain": "renamed"})
    assert server.models()["renamed"].name == "renamed"
    assert server.load("renamed").ready()
    server.unload("renamed")
    server.unregister_model_repository(str(tmp_path))
    with pytest.raises(tritonserver.AlreadyExistsError):
        server.register_model_repository(repository)
    with pytest.raises(tritonserver.UnavailableError, match="polling is disabled"):
        server.poll_model_repository()


def test_poll_mode(tmp_path):
    files = {"1/model.py": ANSWERS.encode()}
    server = tritonserver.Server(
        model_repository=str(tmp_path), model_control_mode=ModelControlMode.POLL
    ).start()
    add_model(tmp_path, "added", ECHO.format(batch=0, decoupled="false"), files)
    server.poll_model_repository()
    assert server.model("added").ready()
    with pytest.raises(tritonserver.UnsupportedError, match="is not EXPLICIT"):
        server.register_model_repository(str(tmp_path))
    with pytest.raises(tritonserver.UnavailableError, match="polling is enabled"):
        server.load("added")
    server.stop()


def test_metrics_of_the_program(server):
    family = tritonserver.MetricFamily(tritonserver.MetricKind.COUNTER, "my_total", "what I count")
    metric = tritonserver.Metric(family, {"a": "b"})
    metric.increment(2)
    assert (metric.value, metric.kind) == (2, tritonserver.MetricKind.COUNTER)
    assert 'my_total{a="b"} 2' in server.metrics()
    with pytest.raises(tritonserver.UnsupportedError):
        metric.set_value(5)
    with pytest.raises(tritonserver.InvalidArgumentError):
        metric.increment(-1)
    with pytest.raises(tritonserver.InvalidArgumentError):
        tritonserver.Metric(family, {"not a name": "b"})
    gauge_family = tritonserver.MetricFamily(tritonserver.MetricKind.GAUGE, "my_gauge", "a level")
    gauge = tritonserver.Metric(gauge_family)
    gauge.set_value(5)
    assert gauge.value == 5
    del metric, family
    gc.collect()
    assert "my_total" not in server.metrics()


def test_the_log(repository, tmp_path):
    file = tmp_path / "log.txt"
    server = tritonserver.Server(
        model_repository=repository,
        model_control_mode=ModelControlMode.EXPLICIT,
        log_file=str(file),
        log_info=True,
        pinned_memory_pool_size=1,
    ).start()
    tritonserver.LogMessage(tritonserver.LogLevel.WARN, "of mine")
    server.stop()
    text = file.read_text()
    assert "test_tritonserver.py:" in text
    assert '"of mine"' in text
    assert "--pinned-memory-pool-byte-size has no effect" in text


def test_a_server_that_nothing_refers_to_stops(repository):
    server = tritonserver.Server(
        model_repository=repository, model_control_mode=ModelControlMode.EXPLICIT
    ).start()
    inner = server._server.server
    model = server.model("echo")
    del server
    gc.collect()
    assert inner.live  # the model refers to it
    del model
    gc.collect()
    assert inner._stopped.wait(WAIT_SECS)
    for thread in threading.enumerate():
        if thread.name == "shoal-stop":
            thread.join(WAIT_SECS)


# ---- by Triton's name

PROGRAM = """
import tritonserver
import tritonserver._api._response
from tritonserver._c.triton_bindings import TRITONSERVER_DataType, TRITONSERVER_DataTypeString
assert tritonserver._api._response.InferenceResponse is tritonserver.InferenceResponse
assert TRITONSERVER_DataType is tritonserver.DataType
assert TRITONSERVER_DataTypeString(tritonserver.DataType.BYTES) == "BYTES"
assert tritonserver.TritonError.__module__ == "tritonserver"
from tritonfrontend import KServeGrpc, KServeHttp, Metrics
print(tritonserver.__name__, KServeHttp.__module__)
"""


@pytest.fixture(scope="module")
def alias():
    return Path(__file__).parents[2] / "packages" / "tritonserver" / "src"


def run(program, *paths):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_module_by_tritons_name(alias):
    done = run(PROGRAM, alias)
    assert done.stdout == "shoal.tritonserver shoal.tritonserver.frontends\n", done.stderr


@pytest.mark.parametrize("is_there", [False, True], ids=["alone", "with NVIDIA's"])
def test_the_package_of_nvidia_is_found_first(alias, tmp_path, is_there):
    """As the wheel lays it out, whichever of the two packages was installed later."""
    shutil.copytree(alias / "tritonserver", tmp_path / "shoal_tritonserver" / "tritonserver")
    shutil.copy(alias.parent / "shoal_tritonserver.pth", tmp_path)
    if is_there:
        (tmp_path / "tritonserver").mkdir()
        (tmp_path / "tritonserver" / "__init__.py").write_text("")
    program = (
        f"import site, importlib.util; site.addsitedir({str(tmp_path)!r})\n"
        "print(importlib.util.find_spec('tritonserver').origin)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False
    )
    expected = tmp_path / ("tritonserver" if is_there else "shoal_tritonserver/tritonserver")
    assert done.stdout == f"{expected / '__init__.py'}\n", done.stderr
