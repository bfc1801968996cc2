"""`shoal.tritonserver.frontends`, which programs import as `tritonfrontend`: ports opened later."""

from __future__ import annotations

import socket
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from shoal import tritonserver
from shoal.tritonserver.frontends import KServeGrpc, KServeHttp, Metrics
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_model

IDENTITY = (
    'backend: "identity" input { name: "a" data_type: TYPE_FP32 dims: [ -1 ] } '
    'output { name: "b" data_type: TYPE_FP32 dims: [ -1 ] }'
)
LOCAL = {"address": "127.0.0.1", "port": 0}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_model(folder, "same", IDENTITY, {"1/empty": b""})
    return str(folder)


@pytest.fixture(scope="module")
def server(repository):
    running = tritonserver.Server(model_repository=repository).start(wait_until_ready=True)
    yield running
    running.stop()


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("frontend", "library"),
    [(KServeHttp, http_client), (KServeGrpc, grpc_client)],
    ids=["http", "grpc"],
)
def test_clients_use_the_models(server, frontend, library):
    with frontend(server, frontend.Options(**LOCAL)) as service:
        port = service.port
        with library.InferenceServerClient(f"127.0.0.1:{port}") as client:
            tensor = library.InferInput("a", [2], "FP32")
            tensor.set_data_from_numpy(np.ones(2, np.float32))
            assert client.infer("same", [tensor]).as_numpy("b").tolist() == [1, 1]
    assert not is_open(port)
    assert server.ready()


def test_metrics(server):
    family = tritonserver.MetricFamily(tritonserver.MetricKind.GAUGE, "of_the_program", "a level")
    metric = tritonserver.Metric(family)
    metric.set_value(7)
    with Metrics(server, Metrics.Options(**LOCAL)) as service:
        url = f"http://127.0.0.1:{service.port}/metrics"
        with urllib.request.urlopen(url, timeout=WAIT_SECS) as reply:
            text = reply.read().decode()
    assert 'nv_inference_count{model="same",version="1"}' in text
    assert "of_the_program 7" in text


def test_it_starts_once_and_stops_any_number_of_times(server):
    service = KServeHttp(server, KServeHttp.Options(**LOCAL))
    service.stop()
    assert service.port == 0
    service.start()
    with pytest.raises(tritonserver.AlreadyExistsError, match=r"HTTP server is already running\."):
        service.start()
    service.stop()
    service.stop()


def test_a_port_that_is_taken(server):
    with KServeHttp(server, KServeHttp.Options(**LOCAL)) as service:
        taken = KServeHttp.Options(address="127.0.0.1", port=service.port)
        with pytest.raises(tritonserver.UnavailableError, match="is in use"):
            KServeHttp(server, taken).start()


def test_ports_close_with_the_server(repository):
    server = tritonserver.Server(model_repository=repository).start()
    service = KServeHttp(server, KServeHttp.Options(**LOCAL))
    service.start()
    port = service.port
    server.stop()
    assert not is_open(port)
    service.stop()
    with pytest.raises(tritonserver.InvalidArgumentError, match="Server not started"):
        KServeHttp(server)


@pytest.mark.parametrize(
    ("frontend", "options", "kind"),
    [
        (KServeHttp, {"port": -15}, ValueError),
        (KServeHttp, {"thread_count": 0}, ValueError),
        (KServeHttp, {"header_forward_pattern": 10}, TypeError),
        (KServeGrpc, {"port": 70_000}, ValueError),
        (KServeGrpc, {"keepalive_time_ms": -1}, ValueError),
        (KServeGrpc, {"infer_allocation_pool_size": "big"}, TypeError),
        (Metrics, {"port": True}, TypeError),
    ],
)
def test_options_that_are_wrong(frontend, options, kind):
    with pytest.raises(kind, match=next(iter(options))):
        frontend.Options(**options)


def test_options_of_another_frontend(server):
    with pytest.raises(tritonserver.InvalidArgumentError, match=r"of type KServeHttp\.Options"):
        KServeHttp(server, {"port": 8001})
    high = KServeGrpc.Options(infer_compression_level=KServeGrpc.Grpc_compression_level.HIGH)
    settings = KServeGrpc(server, high)._settings()
    assert settings["grpc_infer_response_compression_level"] == "high"
