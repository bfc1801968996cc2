"""Inferences like others before them, many at a time over real connections: the same answers and
counts, wherever the model runs and whatever becomes of it meanwhile."""

from __future__ import annotations

import threading

import grpc
import numpy as np
import pytest

from shoal.testing.server import running_server, wait_until
from shoal.wire.proto import messages
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import EXECUTION_MODES, add_onnx, execution

BATCHED = "max_batch_size: 16 dynamic_batching { }"
PATH = "/inference.GRPCInferenceService/ModelInfer"
EXPLICIT = {"model_control_mode": "explicit", "load_model": ("plus",)}


def message(number, id=""):
    request = messages.ModelInferRequest(model_name="plus", id=id)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(np.full(4, number, np.float32).tobytes())
    return request.SerializeToString()


def read(answer):
    response = messages.ModelInferResponse.FromString(answer)
    (value,) = set(np.frombuffer(response.raw_output_contents[0], np.float32).tolist())
    return response.id, value


@pytest.fixture
def together(monkeypatch):
    """How many requests were submitted as a group, by loop iteration."""
    from shoal.engine.local import LocalEngine

    taken = []
    infer_group = LocalEngine.infer_group

    def counted(self, requests, model):
        left = infer_group(self, requests, model)
        taken.append(len(requests) - len(left))
        return left

    monkeypatch.setattr(LocalEngine, "infer_group", counted)
    return taken


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_many_at_once(tmp_path, together, mode, numbered):
    add_onnx(tmp_path, "plus", onnx_models.plus(1, 4), BATCHED + execution(mode))
    count = 600
    with (
        running_server(tmp_path, plans=True) as running,
        grpc.insecure_channel(running.grpc_address) as line,
    ):
        infer = line.unary_unary(PATH)
        for start in range(0, count, 60):
            numbers = range(start, start + 60)
            calls = [infer.future(message(n, str(n) if numbered else "")) for n in numbers]
            answers = [read(call.result(WAIT_SECS)) for call in calls]
            expected = [(str(n) if numbered else "", n + 1) for n in numbers]
            assert answers == expected
        statistics = running.statistics("plus")
    assert statistics["inference_count"] == count
    assert statistics["inference_stats"]["success"]["count"] == count
    assert sum(together) > count // 2


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_a_model_that_is_replaced_under_load(tmp_path, together, mode):
    add_onnx(tmp_path, "plus", onnx_models.plus(1, 4), BATCHED + execution(mode))
    stop, failures, seen = threading.Event(), [], set()

    def ask(address):
        with grpc.insecure_channel(address) as line:
            infer = line.unary_unary(PATH)
            while not stop.is_set():
                calls = [(n, infer.future(message(n))) for n in range(10)]
                for number, call in calls:
                    try:
                        seen.add(read(call.result(WAIT_SECS))[1] - number)
                    except grpc.RpcError as error:
                        failures.append(error)

    with running_server(tmp_path, plans=True, **EXPLICIT) as running:
        clients = [threading.Thread(target=ask, args=(running.grpc_address,)) for _ in range(2)]
        for client in clients:
            client.start()
        try:
            wait_until(lambda: 1 in seen, "the first model answers")
            for number in (2, 3, 4):
                add_onnx(tmp_path, "plus", onnx_models.plus(number, 4), BATCHED + execution(mode))
                running.server.repository.load("plus", None, {})
                with grpc.insecure_channel(running.grpc_address) as line:
                    for _ in range(5):
                        answer = line.unary_unary(PATH)(message(0), timeout=WAIT_SECS)
                        assert read(answer) == ("", number)
                wait_until(lambda number=number: number in seen, "everybody is answered by it")
        finally:
            stop.set()
            for client in clients:
                client.join(WAIT_SECS)
    assert not failures
    assert seen == {1, 2, 3, 4}
    assert together


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_calls_that_are_taken_back(tmp_path, mode):
    add_onnx(tmp_path, "plus", onnx_models.plus(1, 4), BATCHED + execution(mode))
    with (
        running_server(tmp_path, plans=True) as running,
        grpc.insecure_channel(running.grpc_address) as line,
    ):
        infer = line.unary_unary(PATH)
        for _ in range(10):
            calls = [(n, infer.future(message(n))) for n in range(30)]
            for _, call in calls[::3]:
                call.cancel()
            for number, call in calls:
                if not call.cancelled():
                    assert read(call.result(WAIT_SECS)) == ("", number + 1)
        assert read(infer(message(5), timeout=WAIT_SECS)) == ("", 6)
