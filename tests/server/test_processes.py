"""A server of several processes: two front ends and one engine, with real clients."""

from __future__ import annotations

import base64
import contextlib
import re
import signal
import socket

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import shared_memory as system_memory

from shoal.testing.server import wait_until
from tests.chaos.server import ADDRESS, ChaosServer
from tests.support import onnx_models
from tests.support.repositories import add_onnx

BATCHED = "max_batch_size: 8\ndynamic_batching {}"
FUNCTIONS = """
from collections.abc import Iterator
from dataclasses import dataclass
import shoal

@dataclass
class Box:
    name: str
    size: float = 1.0

@shoal.model(path="/grow", batch=8)
def grow(box: list[Box]) -> list[Box]:
    return [Box(each.name, 2 * each.size) for each in box]

@shoal.model(path="/size", config='parameters { key: "isolation" value { string_value: "process" } }')
def size(data: bytes) -> int:
    if not data:
        raise ValueError("no data")
    return len(data)

@shoal.model(path="GET /count/{start}")
def count(start: int) -> Iterator[int]:
    yield from range(start)

async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode(), "more_body": True})
    await send({"type": "http.response.body"})
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), BATCHED)
    add_onnx(folder, "echo", onnx_models.identity("FP32"), BATCHED)
    functions = tmp_path_factory.mktemp("functions") / "functions.py"
    functions.write_text(FUNCTIONS)
    started = ChaosServer(
        tmp_path_factory.mktemp("server"),
        str(folder),
        str(functions),
        "--frontend-processes=2",
        "--model-control-mode=explicit",
        "--load-model=sum",
        "--allow-vertex-ai=true",
        "--vertex-ai-port=0",
        "--allow-client-shm=true",
        environment={"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"},
    )
    yield started
    started.checked_stop()


@pytest.fixture(params=["http", "grpc"])
def client(server, request):
    kit = httpclient if request.param == "http" else grpcclient
    port = server.http_port if request.param == "http" else server.grpc_port
    with kit.InferenceServerClient(f"{ADDRESS}:{port}") as made:
        made.kit = kit
        yield made


def infer(client, model, **arrays):
    inputs = []
    for name, array in arrays.items():
        kind = {"int32": "INT32", "float32": "FP32"}[str(array.dtype)]
        inputs.append(client.kit.InferInput(name, array.shape, kind))
        inputs[-1].set_data_from_numpy(array)
    return client.infer(model, inputs, request_id="7")


def sum_works(client):
    rows = np.arange(16, dtype=np.int32).reshape(1, 16)
    for number in range(4):  # the first ones take the slow path
        result = infer(client, "sum", INPUT0=rows, INPUT1=rows + number)
        assert (result.as_numpy("OUTPUT0") == rows + rows + number).all()
        assert (result.as_numpy("OUTPUT1") == -number).all()


def test_small_and_large_tensors_arrive_whole(server, client):
    sum_works(client)
    client.load_model("echo")
    for size in (16, 200_000):
        row = np.random.default_rng(0).random((1, size), np.float32)
        with pytest.raises(client.kit.InferenceServerException, match="expects 'FP32'"):
            infer(client, "echo", INPUT0=row.astype(np.int32))
        for _ in range(3):
            assert (infer(client, "echo", INPUT0=row).as_numpy("OUTPUT0") == row).all()
    client.unload_model("echo")


def test_every_front_end_knows_what_a_client_has_loaded(server):
    """Each request has its own connection, so that both front ends are asked."""
    for _ in range(5):
        assert server.load("echo").status == 200
        for _ in range(4):
            assert server.get("/v2/models/echo").status == 200
        assert server.call("POST", "/v2/repository/models/echo/unload").status == 200
        for _ in range(4):
            assert server.get("/v2/models/echo").status == 404


def test_every_front_end_serves_functions(server):
    """Their code is in the engine process only, or in one of their own."""
    names = ("grow", "size", "count", "app")
    assert server.call("POST", "/grow", b"{}").status == 404
    for name in names:
        assert server.load(name).status == 200
    for _ in range(4):
        grown = server.call("POST", "/grow", b'{"name": "a"}')
        assert grown.json == {"name": "a", "size": 2.0}
        wrong = server.call("POST", "/grow", b'{"nam": "a"}')
        assert wrong.error == "unknown field `nam`: did you mean `name`?"
        sent = base64.b64encode(bytes(300_000)).decode()
        assert server.call("POST", "/size", f'{{"data": "{sent}"}}'.encode()).json == 300_000
        assert server.call("POST", "/size", b'{"data": ""}').error == "ValueError: no data"
        assert server.get("/count/2").body == b"data: 0\n\ndata: 1\n\n"
        found = server.get("/some/path")  # of the ASGI application
        assert (found.status, found.body) == (201, b"/some/path")
        assert "/grow" in server.get("/openapi.json").json["paths"]
    assert server.call("POST", "/v2/repository/models/grow/unload").status == 200
    for _ in range(4):
        assert server.call("POST", "/grow", b'{"name": "a"}').status == 201  # the application's
    for name in names[1:]:
        assert server.call("POST", f"/v2/repository/models/{name}/unload").status == 200
    assert server.call("POST", "/grow", b"{}").status == 404


def test_a_front_end_that_is_killed_is_replaced(server, client):
    server.replace_one("frontend")
    for _ in range(4):
        assert server.get("/v2/health/live").status == 200
    with client.kit.InferenceServerClient(client_address(server, client)) as another:
        another.kit = client.kit
        sum_works(another)


def client_address(server, client):
    port = server.http_port if client.kit is httpclient else server.grpc_port
    return f"{ADDRESS}:{port}"


def test_connections_outlive_an_engine_that_is_killed(server, client):
    sum_works(client)
    assert server.load("echo").status == 200
    (engine,) = server.processes("engine")
    engine.send_signal(signal.SIGKILL)

    refusals = set()

    def recovered():
        try:
            sum_works(client)
        except client.kit.InferenceServerException as error:
            refusals.add(error.message())
            return False
        return True

    wait_until(recovered, "the connection serves again")
    assert refusals <= {"the engine process is being restarted; try again in a moment"}
    assert server.get("/v2/models/echo/ready").status == 200  # a client had loaded it
    server.call("POST", "/v2/repository/models/echo/unload")


def test_regions_are_known_to_every_front_end(server, client):
    """They are registered through one of them, used through all, and by one that starts later."""
    row = np.arange(16, dtype=np.int32).reshape(1, 16)
    key = f"/shoal-test-{server.http_port}-{client.kit.__name__.rpartition('.')[2]}"
    handle = system_memory.create_shared_memory_region("rows", key, row.nbytes)
    try:
        system_memory.set_shared_memory_region(handle, [row])
        client.register_system_shared_memory("rows", key, row.nbytes)
    finally:
        system_memory.destroy_shared_memory_region(handle)  # what was opened stays open

    def each_serves():
        """Every request has its own connection."""
        for _ in range(6):
            with client.kit.InferenceServerClient(client_address(server, client)) as another:
                inputs = [client.kit.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in (0, 1)]
                for tensor in inputs:
                    tensor.set_shared_memory("rows", row.nbytes)
                assert (another.infer("sum", inputs).as_numpy("OUTPUT0") == 2 * row).all()
                with pytest.raises(client.kit.InferenceServerException, match="already in manager"):
                    another.register_system_shared_memory("rows", key, row.nbytes)

    each_serves()
    server.replace_one("frontend")
    each_serves()
    with client.kit.InferenceServerClient(client_address(server, client)) as another:
        another.unregister_system_shared_memory("rows")
    for _ in range(6):
        response = server.get("/v2/systemsharedmemory/region/rows/status")
        assert (response.status, response.json) == (
            404,
            {"error": "Unable to find system shared memory region: 'rows'"},
        )


def test_regions_that_cannot_be_opened_are_refused(server, client):
    with pytest.raises(client.kit.InferenceServerException, match="Unable to open shared memory"):
        client.register_system_shared_memory("none", "/no-such-region", 64)
    with pytest.raises(client.kit.InferenceServerException, match="no GPU that this server"):
        client.register_cuda_shared_memory("gpu", base64.b64encode(bytes(64)), 0, 64)
    assert server.get("/v2/systemsharedmemory/status").json == []
    assert server.get("/v2/cudasharedmemory/status").json == []


def test_every_front_end_knows_the_default_model_of_vertex_ai(server):
    """Also one that has started later, and whichever engine serves it."""
    line = re.compile(r"Started Vertex AI HTTPService at [\d.]+:(\d+)")
    (port,) = wait_until(lambda: line.findall(server.log), "the start is complete")
    row = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
    body = {"inputs": [{"name": name, **row} for name in ("INPUT0", "INPUT1")]}
    server.replace_one("frontend")
    for _ in range(6):
        response = server.call("POST", "/predict", body, port=int(port))
        assert (response.status, response.json["model_name"]) == (200, "sum")


def connections(server):
    """How many clients each front end has, by the metrics."""
    return [
        int(value)
        for value in re.findall(
            r'^shoal_server_process_connections\{process="frontend-\d"\} (\d+)$',
            server.metrics(),
            re.MULTILINE,
        )
    ]


def test_connections_are_spread_evenly(server):
    wait_until(lambda: connections(server) == [0, 0], "earlier clients are gone")
    with contextlib.ExitStack() as clients:
        for number in range(32):
            port = (server.http_port, server.grpc_port)[number % 2]
            clients.enter_context(socket.create_connection((ADDRESS, port)))
        wait_until(lambda: sum(connections(server)) == 32, "all are accepted")
        spread = connections(server)
        assert min(spread) >= 12, spread


def test_a_front_end_that_is_stopped_delays_nobody(server, client):
    stopped = next(iter(server.processes("frontend")))
    stopped.suspend()
    try:
        for _ in range(4):
            assert server.get("/v2/health/live").status == 200
            with client.kit.InferenceServerClient(client_address(server, client)) as another:
                another.kit = client.kit
                sum_works(another)
    finally:
        stopped.resume()
