"""The methods of `shoal.Server` and `shoal.AsyncServer`: both against one running server."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import shoal
from shoal.client import AsyncClient, Client
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.inprocess.responses import Result
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_model, add_onnx
from tests.support.sequences import running_total, total_config

torch = pytest.importorskip("torch")

IDENTITY = (
    'backend: "identity" input {{ name: "a" data_type: TYPE_{0} dims: [ -1 ] }} '
    'output {{ name: "b" data_type: TYPE_{0} dims: [ -1 ] }}'
)
PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "a").as_numpy()
            array += 1
            told = {"id": request.request_id(), "timeout": request.timeout()}
            outputs = [pb_utils.Tensor("b", array)]
            responses.append(pb_utils.InferenceResponse(outputs, parameters=told))
        return responses
"""
gate = threading.Event()
left = threading.Event()


@shoal.model
def count(n: int) -> Iterator[int]:
    yield from range(n)


@shoal.model
def waits(n: int) -> int:
    gate.wait(WAIT_SECS)
    return n


@shoal.model
def forever(n: int) -> Iterator[int]:
    try:
        while True:
            yield n
    finally:
        left.set()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for kind in ("FP32", "BF16", "STRING"):
        add_model(folder, kind.lower(), IDENTITY.format(kind), {"1/empty": b""})
    add_model(
        folder,
        "python",
        IDENTITY.format("FP32").replace("identity", "python"),
        {"1/model.py": PYTHON.encode()},
    )
    add_onnx(folder, "total", running_total(), total_config("direct { }"))
    add_onnx(folder, "sum", onnx_models.add_sub("FP32"))
    with shoal.Server(
        folder,
        [count, waits, forever],
        model_control_mode="explicit",
        load_model=["*"],
        allow_http=False,
        allow_grpc=False,
        allow_metrics=False,
    ) as running:
        gate.set()
        yield running


@pytest.fixture
def closed_gate(server):
    gate.clear()
    yield
    gate.set()


# ---- tensors


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, 2.5], np.float32),
        [1, 2.5],
        torch.tensor([1, 2.5]),
        torch.tensor([[1, 0], [2.5, 0]])[:, 0],  # not contiguous
    ],
    ids=["numpy", "list", "torch", "strided"],
)
def test_numbers_of_several_libraries(server, value):
    assert server.infer("fp32", {"a": value})["b"].tolist() == [1, 2.5]


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, 2.5], np.float32),
        np.array([0x3F80, 0x4020], np.uint16),
        [1, 2.5],
        torch.tensor([1, 2.5], dtype=torch.bfloat16),
    ],
    ids=["float32", "bits", "list", "torch"],
)
def test_bfloat16(server, value):
    found = server.infer("bf16", {"a": value})["b"]
    assert found.dtype == np.float32
    assert found.tolist() == [1, 2.5]


@pytest.mark.parametrize(
    "value", [["é", b"\0"], np.array(["é", b"\0"], object)], ids=["list", "numpy"]
)
def test_text(server, value):
    assert server.infer("string", {"a": value})["b"].tolist() == ["é".encode(), b"\0"]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (torch.ones(2, requires_grad=True), "input 'a' cannot be read: .*require gradient"),
        ([[1], [2, 3]], "input 'a' is not a regular array"),
        (np.array([1, "a"], object), "input 'a' takes text, found an element of type int"),
    ],
)
def test_values_that_are_no_tensors(server, value, sentence):
    with pytest.raises(shoal.InvalidArgument, match=sentence):
        server.infer("fp32", {"a": value})


def test_tensors_of_a_device(server):
    class OnDevice:
        def __dlpack__(self):
            raise AssertionError

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(shoal.InvalidArgument, match="pass a copy on the CPU"):
        server.infer("fp32", {"a": OnDevice()})


def test_neither_side_sees_what_the_other_writes(server):
    mine = np.zeros(3, np.float32)
    theirs = server.infer("python", {"a": mine})["b"]  # it writes to its input
    assert theirs.tolist() == [1, 1, 1]
    same = server.infer("fp32", {"a": mine})["b"]  # its output is its input
    same += 5
    assert mine.tolist() == [0, 0, 0]


@pytest.mark.parametrize("is_shared", [False, True])
def test_outputs_are_copied_only_if_they_are_shared(is_shared):
    array = np.ones(4, np.float32)
    address = array.ctypes.data
    response = Response("m", 1, outputs=[Tensor.from_array("b", array)])
    if not is_shared:
        del array
    assert (Result(response)["b"].ctypes.data != address) == is_shared


# ---- requests


def test_options_of_a_request(server):
    found = server.infer(
        "python", {"a": [1]}, id="seven", server_timeout_us=9_000_000, version=1, outputs=["b"]
    )
    assert dict(found) == {"b": [2]}
    assert (found.id, found.model_name, found.model_version) == ("seven", "python", 1)
    assert found.parameters == {"id": "seven", "timeout": 9_000_000}
    with pytest.raises(shoal.InvalidArgument, match="priority= takes a whole number"):
        server.infer("python", {"a": [1]}, priority=-1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
        server.infer("python", {"a": [1]}, timeout=3)
    with pytest.raises(shoal.NotFound, match="'missing' is not found"):
        server.infer("missing", {})


def test_a_sequence(server):
    totals = [
        server.infer(
            "total", {"INPUT": [[n]]}, sequence_id=7, sequence_start=n == 1, sequence_end=n == 3
        )
        for n in (1, 2, 3)
    ]
    assert [found["OUTPUT"].item() for found in totals] == [1, 3, 6]


def test_another_thread_cancels(server, closed_gate):
    busy = server.stream("waits", {"n": 1})
    queued = server.stream("waits", {"n": 2})
    threading.Thread(target=queued.cancel).start()
    with pytest.raises(shoal.Cancelled):
        next(queued)
    gate.set()
    assert [found["output"].item() for found in busy] == [1]


def test_the_parameters_are_documented(server):
    for kind in (shoal.Server, shoal.AsyncServer):
        parameters = inspect.signature(kind.infer).parameters
        assert {"sequence_id", "priority", "timeout_secs"} <= set(parameters)
        assert kind.infer.__doc__.startswith("Send a request")


def test_both_servers_and_clients_have_the_same_methods():
    assert public(shoal.Server) - {"wait"} == public(shoal.AsyncServer)
    shared = {"infer", "metadata", "config", "statistics", "index", "load", "unload"}
    assert shared <= public(shoal.Server) & public(Client) & public(AsyncClient)


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


# ---- status and control


def test_status(server):
    assert server.live
    assert server.ready
    assert server.problems() == ()
    assert server.model_ready("sum")
    assert not server.model_ready("missing")
    assert server.server_metadata()["name"] == "triton"
    assert server.metadata("fp32")["inputs"] == [{"name": "a", "datatype": "FP32", "shape": [-1]}]
    assert server.config("fp32")["backend"] == "identity"
    server.infer("fp32", {"a": [1]})
    (counted,) = server.statistics("fp32")["model_stats"]
    assert counted["inference_stats"]["success"]["count"] >= 1
    assert {"fp32", "bf16"} <= {row["name"] for row in server.statistics()["model_stats"]}
    assert 'nv_inference_count{model="fp32",version="1"}' in server.metrics()
    assert server.explain("sum")[0]["name"] == "sum"


def test_load_and_unload(server):
    server.unload("bf16")
    assert not server.model_ready("bf16")
    assert "bf16" not in {row["name"] for row in server.index(ready=True)}
    assert {
        "name": "bf16",
        "version": "1",
        "state": "UNAVAILABLE",
        "reason": "unloaded",
    } in server.index()
    server.load("bf16", config=IDENTITY_JSON | {"max_batch_size": 4})
    assert server.config("bf16")["max_batch_size"] == 4
    server.load("bf16")
    assert server.config("bf16")["max_batch_size"] == 0
    with pytest.raises(shoal.InvalidArgument, match="override files need a 'config'"):
        server.load("new", files={"1/empty": b""})
    server.load("new", config=IDENTITY_JSON, files={"1/empty": b""})
    assert server.infer("new", {"a": [1]})["b"].tolist() == [1]
    server.unload("new")


IDENTITY_JSON = {
    "backend": "identity",
    "input": [{"name": "a", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "b", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def test_repositories_that_are_registered_later(server, tmp_path):
    add_model(tmp_path, "late", IDENTITY.format("FP32"), {"1/empty": b""})
    server.register_repository(tmp_path, {"late": "renamed"})
    assert {"name": "renamed"} in server.index()
    server.load("renamed")
    assert server.infer("renamed", {"a": [1]})["b"].tolist() == [1]
    with pytest.raises(shoal.AlreadyExists, match="has already been registered"):
        server.register_repository(tmp_path)
    with pytest.raises(shoal.AlreadyExists, match="conflicting mapping for 'renamed'"):
        server.register_repository(tmp_path / "late", {"1": "renamed"})
    with pytest.raises(shoal.InvalidArgument, match="missing', repository not found"):
        server.register_repository(tmp_path / "missing")
    server.unregister_repository(tmp_path)
    assert server.infer("renamed", {"a": [1]})["b"].tolist() == [1]
    server.unload("renamed")
    with pytest.raises(shoal.Internal, match="failed to load 'renamed'"):
        server.load("renamed")
    with pytest.raises(shoal.InvalidArgument, match="failed to unregister"):
        server.unregister_repository(tmp_path)


def test_what_other_modes_refuse(server, tmp_path):
    with pytest.raises(shoal.Unavailable, match="polling is disabled"):
        server.poll_repositories()
    with shoal.Server(
        tmp_path, count, model_control_mode="poll", repository_poll_secs=0.1
    ) as other:
        with pytest.raises(shoal.Unsupported, match="not allowed if model control mode is not EXP"):
            other.register_repository(tmp_path)
        with pytest.raises(shoal.Unavailable, match="not allowed if polling is enabled"):
            other.load("count")
        add_model(tmp_path, "added", IDENTITY.format("FP32"), {"1/empty": b""})
        other.poll_repositories()
        assert other.infer("added", {"a": [1]})["b"].tolist() == [1]


def test_settings(server):
    assert server.log_settings({"log_info": False})["log_info"] is False
    with pytest.raises(shoal.InvalidArgument, match="log_format takes 'default'"):
        server.log_settings({"log_format": "xml"})
    with pytest.raises(shoal.InvalidArgument, match="Request for unknown model : missing"):
        server.trace_settings(model="missing")


def test_requests_are_traced(tmp_path):
    file = tmp_path / "trace.json"
    with shoal.Server(count, trace_config=["mode=triton", f"triton,file={file}"]) as server:
        settings = server.trace_settings({"trace_rate": 1, "trace_level": ["TIMESTAMPS"]})
        assert (settings["trace_rate"], settings["trace_level"]) == (["1"], ["TIMESTAMPS"])
        list(server.stream("count", {"n": 1}, id="seen"))
        with pytest.raises(shoal.InvalidArgument):
            server.stream("count", {})
        restored = server.trace_settings({"trace_rate": None, "trace_level": None})
        assert restored["trace_level"] == ["OFF"]
        list(server.stream("count", {"n": 1}, id="not seen"))
    traced = json.loads(file.read_text())
    assert "seen" in {entry.get("request_id") for entry in traced}
    assert "not seen" not in file.read_text()


def test_a_log_file(tmp_path):
    file = tmp_path / "log.txt"
    handlers = list(logging.getLogger("shoal").handlers)
    with shoal.Server(count, log_file=file, log_verbose=1, allow_http=False, allow_grpc=False):
        pass
    assert "successfully loaded 'count'" in file.read_text()
    assert logging.getLogger("shoal").handlers == handlers


# ---- asyncio


def run(server, coroutine):
    return asyncio.run(coroutine(shoal.AsyncServer(server)))


def test_coroutines(server):
    async def main(other):
        results = await asyncio.gather(*(other.infer("fp32", {"a": [n]}) for n in range(20)))
        assert [found["b"].item() for found in results] == list(range(20))
        assert [found["output"].item() async for found in other.stream("count", {"n": 3})] == [
            0,
            1,
            2,
        ]
        assert (await other.metadata("sum"))["name"] == "sum"
        assert await other.index(ready=True)
        assert "nv_inference_count" in await other.metrics()
        await other.unload("bf16")
        await other.load("bf16")
        assert other.ready
        with pytest.raises(shoal.InvalidArgument, match="use stream"):
            await other.infer("count", {"n": 3})
        with pytest.raises(shoal.NotFound):
            await other.infer("missing", {})

    run(server, main)


def test_a_task_that_is_cancelled_cancels_its_request(server, closed_gate):
    async def main(other):
        busy = asyncio.create_task(other.infer("waits", {"n": 1}))
        queued = asyncio.create_task(other.infer("waits", {"n": 2}))
        await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        with pytest.raises(shoal.DeadlineExceeded, match="no response within"):
            await other.infer("waits", {"n": 3}, timeout_secs=0.01)
        gate.set()
        assert (await busy)["output"].item() == 1

    run(server, main)
    (counted,) = server.statistics("waits")["model_stats"]
    assert counted["inference_stats"]["fail"]["count"] >= 2


def test_an_asynchronous_stream_that_is_closed_early(server):
    async def main(other):
        left.clear()
        async with other.stream("forever", {"n": 1}) as responses:
            assert (await anext(responses))["output"].item() == 1
        return await asyncio.to_thread(left.wait, WAIT_SECS)

    assert run(server, main)


def test_an_asynchronous_server_of_its_own(tmp_path):
    add_onnx(tmp_path, "sum", onnx_models.add_sub("FP32"))

    async def main():
        row = np.ones((1, 16), np.float32)
        async with shoal.AsyncServer(tmp_path, model_control_mode="lazy") as server:
            found = await server.infer("sum", {"INPUT0": row, "INPUT1": row})
            assert found["OUTPUT0"].tolist() == [[2] * 16]
            assert server.url.startswith("http://127.0.0.1:")
        assert not server.live
        with pytest.raises(shoal.Unavailable, match="is not running"):
            await server.index()

    asyncio.run(main())
