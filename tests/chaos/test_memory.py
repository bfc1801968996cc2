"""Memory that cannot be allocated: the request that needs it fails, and no other one."""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.chaos.checker import Checker
from tests.chaos.faults import address_space_left, connect
from tests.chaos.schedule import rounds
from tests.support.repositories import add_model, parameter

MB = 1 << 20
LEFT_BYTES = 128 * MB
NEEDED_BYTES = 512 * MB
FUNCTIONS = """
import numpy as np
import numpy.typing as npt
import shoal


@shoal.model
def large(count: int) -> npt.NDArray[np.uint8]:
    return np.ones(count, np.uint8)
"""
LARGE_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "count").as_numpy()[0])
            made = pb_utils.Tensor("output", np.ones(count, np.uint8))
            responses.append(pb_utils.InferenceResponse([made]))
        return responses
"""
CONFIG = """
backend: "python"
input { name: "count" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "output" data_type: TYPE_UINT8 dims: [ -1 ] }
"""


@pytest.fixture
def server(serve, repository, tmp_path):
    """A server with models whose output is as large as the client likes."""
    functions = tmp_path / "functions.py"
    functions.write_text(FUNCTIONS)
    for place in ("thread", "process"):
        more = parameter("python_execution", place)
        files = {"1/model.py": LARGE_MODEL.encode()}
        add_model(repository, f"large_{place}", CONFIG + more, files)
    return serve("onnx", "python", paths=[functions])


def ask(server, model, count):
    entry = {"name": "count", "datatype": "INT64", "shape": [1], "data": [count]}
    body = {"inputs": [entry], "outputs": [{"name": "output", "parameters": {"binary_data": True}}]}
    return server.call("POST", f"/v2/models/{model}/infer", body)


def test_outputs_without_memory_for_them(server, settled):
    models = ("large", "large_thread", "large_process")
    for model in models:
        assert ask(server, model, 10).status == 200
    before = settled(server, "onnx", "python")
    with Checker(server, "onnx", "python") as checker:
        for _ in rounds():
            with address_space_left(server, LEFT_BYTES):
                for model in models:
                    answer = ask(server, model, NEEDED_BYTES)
                    assert answer.status >= 400, model
                    assert answer.error
                checker.wait_for_answers(2)
            for model in models:
                assert ask(server, model, 10).status == 200
    checker.check()
    server.check_holds_no_more_than(before)
    server.checked_stop()


def test_bodies_without_memory_for_them(server, settled):
    before = settled(server, "onnx")
    with Checker(server, "onnx", "python") as checker:
        for _ in rounds():
            with address_space_left(server, LEFT_BYTES):
                send_body(server, NEEDED_BYTES)
                checker.wait_for_answers(2)
            checker.wait_for_answers(2)
    checker.check()
    server.check_holds_no_more_than(before)
    server.checked_stop()


def send_body(server, size):
    """Send a body that is too large for the memory; the answer is an error, or the end."""
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "datatype": "FP32",
                    "shape": [size // 16, 4],
                    "parameters": {"binary_data_size": size},
                }
            ]
        }
    ).encode()
    head = (
        "POST /v2/models/onnx/infer HTTP/1.1\r\nHost: a\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {size + len(header)}\r\n\r\n"
    )
    with connect(server.http_port) as line:
        piece = bytes(MB)
        with contextlib.suppress(ConnectionError):
            line.sendall(head.encode() + header)
            for _ in range(size // MB):
                line.sendall(piece)
        with contextlib.suppress(ConnectionError):
            answer = line.recv(65536)
            assert answer == b"" or answer.split()[1] in (b"400", b"413", b"500", b"503"), answer
