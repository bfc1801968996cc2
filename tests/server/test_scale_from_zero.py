"""The first requests to a server that was started for them, as Knative's activator sends them.

A replica is started because a request waits. The request is sent as soon as the port accepts it, or
as soon as the readiness probe succeeds. In lazy mode no model is loaded then: the request waits.
"""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until
from tests.chaos.server import ADDRESS, ChaosServer
from tests.support import onnx_models
from tests.support.repositories import add_onnx

BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [5]}]}


class Activated(ChaosServer):
    """A server whose first requests wait for it."""

    def __init__(self, *arguments):
        self.answers = {}
        self.before = []  # what readiness said before it was 200
        super().__init__(*arguments)

    def _ready(self):
        """Called from the start of the process on, until it is true."""
        if not self.answers:
            self.waiting = [
                self._begin(name, send)
                for name, send in {
                    "http": lambda: self._http("http"),
                    "grpc": lambda: self._grpc("grpc"),
                    "probed": self._after_the_probe,
                }.items()
            ]
        return not any(thread.is_alive() for thread in self.waiting)

    def _begin(self, name, send):
        def keep():
            try:
                self.answers[name] = send()
            except Exception as error:  # noqa: BLE001 - the test compares it
                self.answers[name] = error

        self.answers[name] = None
        thread = threading.Thread(target=keep)
        thread.start()
        return thread

    def _wait_for_port(self, port):
        def accepts():
            with socket.socket() as probe:
                return probe.connect_ex((ADDRESS, port)) == 0

        wait_until(accepts, f"port {port} accepts")

    def _http(self, model):
        self._wait_for_port(self.http_port)
        response = self.call("POST", f"/v2/models/{model}/infer", BODY)
        return response.status, response.json

    def _grpc(self, model):
        self._wait_for_port(self.grpc_port)
        tensor = grpcclient.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[5]], np.float32))
        with grpcclient.InferenceServerClient(f"{ADDRESS}:{self.grpc_port}") as client:
            answer = client.infer(model, [tensor], client_timeout=WAIT_SECS)
            return answer.as_numpy("OUTPUT0").item()

    def _after_the_probe(self):
        self._wait_for_port(self.http_port)

        def ready():
            status = self.get("/v2/health/ready").status
            if status != 200:
                self.before.append(status)
            return status == 200

        wait_until(ready, "the readiness probe succeeds")
        return self._http("probed")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zero")
    for model in ("http", "grpc", "probed"):
        add_onnx(folder / "models", model, onnx_models.plus(1), "max_batch_size: 8")
    started = Activated(folder, str(folder / "models"), "--model-control-mode=lazy")
    yield started
    started.checked_stop()


def test_the_first_requests_are_answered(server):
    for name in ("http", "probed"):
        status, answer = server.answers[name]
        assert status == 200, answer
        assert (answer["model_name"], answer["outputs"][0]["data"]) == (name, [6.0])
    assert server.answers["grpc"] == 6.0


def test_readiness_before_models_are_known_is_not_an_error_of_the_probe(server):
    assert set(server.before) <= {400}  # of how many there are, time decides
    assert server.get("/v2/health/ready").status == 200


def test_each_model_was_loaded_for_its_request(server):
    text = server.metrics()
    for name in ("http", "grpc", "probed"):
        assert f'shoal_on_demand_loads_total{{model="{name}"}} 1' in text
        assert f'nv_inference_request_success{{model="{name}",version="1"}} 1' in text
