"""The server's HTTP side beside inference: health, metadata, methods, CORS, headers, restrictions."""

import gzip
import http.client
import json
import queue
import socket

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

import shoal
from shoal.config.options import NamedSetting
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_onnx

CONFIG = """
max_batch_size: 8
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  priority_levels: 2
  default_priority_level: 1
}
parameters { key: "colour" value: { string_value: "blue" } }
"""
REQUEST = Infer().add("INPUT0", np.array([[7]], np.float32))
READABLE = [
    "/",
    "/metrics",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/echo",
    "/v2/models/echo/config",
    "/v2/models/echo/ready",
    "/v2/models/echo/stats",
    "/v2/models/stats",
    "/v2/models/echo/versions/1",
    "/v2/models/echo/versions/1/config",
    "/v2/models/echo/versions/1/ready",
    "/v2/models/echo/versions/1/stats",
]
WRITABLE = ["/v2/models/echo/infer", "/v2/repository/index", "/v2/repository/models/echo/load"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "echo", onnx_models.identity(), CONFIG)
    return folder


@pytest.fixture(scope="module")
def running(repository):
    with running_server(repository, id="a name of my own") as server:
        yield server


# ---- metadata


def test_server_metadata(running):
    document = running.get("/v2").json
    assert (document["name"], document["version"]) == ("a name of my own", shoal.__version__)
    assert {"classification", "model_repository", "binary_tensor_data", "statistics"} <= set(
        document["extensions"]
    )


def test_model_metadata(running):
    assert running.get("/v2/models/echo").json == {
        "name": "echo",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}],
        "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1, -1]}],
    }


def test_the_config_is_written_out_in_full(running):
    """Clients in C++ read numbers as numbers and find every field, set or not."""
    config = running.get("/v2/models/echo/config").json
    batching = config["dynamic_batching"]
    assert batching["preferred_batch_size"] == [4, 8]
    assert batching["max_queue_delay_microseconds"] == 100
    assert (batching["priority_levels"], batching["default_priority_level"]) == (2, 1)
    assert batching["preserve_ordering"] is False
    assert config["input"][0]["dims"] == [-1]
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["format"] == "FORMAT_NONE"
    assert config["input"][0]["optional"] is False
    assert config["output"][0]["label_filename"] == ""
    assert config["default_model_filename"] == "model.onnx"
    assert config["parameters"]["colour"] == {"string_value": "blue"}
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["optimization"]["input_pinned_memory"] == {"enable": True}


# ---- health


def test_health_is_a_status_and_nothing_else(running):
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/echo/ready"):
        answer = running.get(path)
        assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")


def test_health_from_the_first_moment_to_the_last(repository):
    with running_server(repository, start=False) as server:
        server.run(server.server.listen())
        assert server.get("/v2/health/live").status == 200
        not_yet = server.get("/v2/health/ready")
        assert (not_yet.status, not_yet.body) == (400, b"")
        early = [REQUEST.call(server, model) for model in ("echo", "missing")]
        server.run(server.server.load())
        assert [call.response().status for call in early] == [200, 404]  # they have waited
        assert server.get("/v2/health/ready").status == 200
        assert server.get("/v2/models/echo/ready").status == 200
        server.server.engine.begin_exit()
        assert server.get("/v2/health/live").status == 200  # whoever probes must let it finish
        answer = server.get("/v2/health/ready")
        assert (answer.status, answer.error) == (503, "Server exiting")
        assert REQUEST.send(server, "echo").status == 200  # still served


@pytest.mark.one_process
def test_requests_wait_for_the_start_no_longer_than_their_own_time(repository):
    own_time = Infer(timeout=1000).add("INPUT0", np.array([[7]], np.float32))
    body, headers = own_time.body()
    packed = {**headers, "Content-Encoding": "gzip"}
    with running_server(repository, start=False) as server:
        server.run(server.server.listen())
        patient = REQUEST.call(server, "echo")
        for call in (
            own_time.call(server, "echo"),
            server.call("POST", "/v2/models/echo/infer", gzip.compress(body), packed),
        ):
            answer = call.response()
            assert (answer.status, answer.error) == (503, "Request timeout expired")
        with grpcclient.InferenceServerClient(server.grpc_address) as client:
            tensor = grpcclient.InferInput("INPUT0", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.array([[7]], np.float32))
            with pytest.raises(InferenceServerException, match="Request timeout expired"):
                client.infer("echo", [tensor], timeout=1000)
            answers = queue.Queue()
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer("echo", [tensor], timeout=1000)
            client.async_stream_infer("echo", [tensor])
            _, error = answers.get(timeout=WAIT_SECS)
            assert error.message() == "Request timeout expired"
            server.run(server.server.load())
            assert patient.response().status == 200
            result, _ = answers.get(timeout=WAIT_SECS)
            assert result.as_numpy("OUTPUT0") == [[7]]
            client.stop_stream()
        assert own_time.send(server, "echo").status == 200


@pytest.mark.one_process
def test_an_exit_answers_requests_that_wait_for_the_start(repository):
    with running_server(repository, start=False) as server:
        server.run(server.server.listen())
        engine = server.server.engine
        call, other = REQUEST.call(server, "echo"), REQUEST.call(server, "echo")
        wait_until(lambda: len(engine._start_up._waiting) == 2)
        other.disconnect()  # it does not wait any longer
        wait_until(lambda: len(engine._start_up._waiting) == 1)
        engine.begin_exit()
        answer = call.response()
        assert (answer.status, answer.error) == (503, "Server exiting")


# ---- methods


@pytest.mark.parametrize("path", READABLE)
def test_head_is_get_without_its_body(running, path):
    get = running.get(path)
    head = running.call("HEAD", path).response()
    assert (head.status, head.body) == (get.status, b"")
    assert set(head.headers) == set(get.headers)
    assert head.headers.get("content-type") == get.headers.get("content-type")
    if "stats" not in path and path != "/metrics":  # these change from one to the other
        assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize("path", [*READABLE, *WRITABLE])
def test_options_lists_the_allowed_methods(running, path):
    answer = running.call("OPTIONS", path).response()
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["allow"] == (
        "POST, OPTIONS" if path in WRITABLE else "GET, HEAD, OPTIONS"
    )


def test_options_of_the_server_itself(running):
    answer = running.call("OPTIONS", "*").response()
    assert answer.status == 204
    assert "POST" in answer.headers["allow"]


@pytest.mark.parametrize("path", READABLE)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_what_can_only_be_read(running, path, method):
    answer = running.call(method, path, b"{}").response()
    assert (answer.status, answer.error) == (405, "Method Not Allowed")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("path", WRITABLE)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_what_can_only_be_posted(running, path, method):
    answer = running.call(method, path).response()
    assert answer.status == 405
    assert answer.headers["allow"] == "POST, OPTIONS"


def test_every_kind_of_request_on_one_connection(running):
    connection = http.client.HTTPConnection(
        "127.0.0.1", running.server.http_port, timeout=WAIT_SECS
    )
    connection.connect()
    sock = connection.sock
    body, _ = REQUEST.body()
    for _ in range(3):
        for method, path, sent in [
            *(("GET", path, None) for path in READABLE),
            *(("HEAD", path, None) for path in READABLE),
            ("POST", "/v2/models/echo/infer", body),
            ("POST", "/v2/repository/index", b"{}"),
            ("GET", "/no/such/path", None),
            ("POST", "/v2/models/echo/infer", b"broken"),
        ]:
            connection.request(method, path, sent)
            response = connection.getresponse()
            received = response.read()
            assert response.status in (200, 400, 404)
            if received and path != "/metrics":
                json.loads(received)
            assert connection.sock is sock, f"{method} {path} closed the connection"
    connection.close()


def test_paths_may_carry_a_query(running):
    assert running.get("/v2/models/echo?verbose=1").status == 200
    assert running.post("/v2/models/echo/infer?x=y", REQUEST.body()[0]).status == 200


# ---- patience


@pytest.mark.parametrize(
    ("option", "sent", "status"),
    [
        ("http_head_timeout_secs", b"GET /v2 HTTP/1.1\r\nHost: x\r\n", 408),
        (
            "http_body_timeout_secs",
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
            408,
        ),
        ("http_idle_timeout_secs", b"", None),
    ],
)
def test_slow_clients_are_not_waited_for(repository, option, sent, status):
    with (
        running_server(repository, **{option: 0.1}) as server,
        socket.create_connection(
            ("127.0.0.1", server.server.http_port), timeout=WAIT_SECS
        ) as client,
    ):
        client.sendall(sent)
        received = b""
        while piece := client.recv(1 << 16):
            received += piece
        if status is None:
            assert received == b""
        else:
            assert received.startswith(b"HTTP/1.1 %d " % status)
            assert b'{"error":"' in received


def test_a_client_that_does_not_read_is_cut(repository):
    """Its answers are far larger than what sockets hold."""
    array = np.zeros((1, 4 << 20), np.float32)
    infer = Infer(binary_data_output=True).add("INPUT0", array, binary=True)
    with running_server(repository, http_write_timeout_secs=0.1) as server:
        call = infer.call(server, "echo")
        wait_until(lambda: server.statistics("echo")["inference_count"] == 1)
        wait_until(
            lambda: not server.metric("shoal_connections", protocol="http"), "the client is cut"
        )
        call.disconnect()
        assert server.get("/v2/health/ready").status == 200


# ---- CORS

HOME = "https://home.example"


@pytest.mark.parametrize(("origins", "allowed"), [((HOME,), HOME), (("*",), "*")])
def test_pages_that_may_call(repository, origins, allowed):
    with running_server(repository, cors=origins) as server:
        asked = {
            "Origin": HOME,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type,inference-header-content-length",
        }
        preflight = server.call("OPTIONS", "/v2/models/echo/infer", headers=asked).response()
        assert (preflight.status, preflight.body) == (204, b"")
        assert preflight.headers["access-control-allow-origin"] == allowed
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert (
            preflight.headers["access-control-allow-headers"]
            == asked["Access-Control-Request-Headers"]
        )
        answer = REQUEST.send(server, "echo", {"Origin": HOME})
        assert outputs(answer)["OUTPUT0"].tolist() == [[7]]
        assert answer.headers["access-control-allow-origin"] == allowed
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert "inference-header-content-length" in exposed
        error = server.get("/v2/models/nope", {"Origin": HOME})
        assert error.status == 404
        assert error.headers["access-control-allow-origin"] == allowed


def test_pages_that_may_not_call(repository, running):
    stranger = {"Origin": "https://stranger.example", "Access-Control-Request-Method": "POST"}
    with running_server(repository, cors=(HOME,)) as server:
        for answer in (
            server.get("/v2", stranger),
            server.call("OPTIONS", "/v2/models/echo/infer", headers=stranger).response(),
            server.get("/v2"),
            running.get("/v2", {"Origin": HOME}),  # CORS is not enabled there
        ):
            assert answer.status in (200, 204)
            assert not any(name.startswith("access-control") for name in answer.headers)


# ---- headers for the model


@pytest.fixture
def seen(monkeypatch):
    """Notes the parameters of each request that reaches the engine of a server."""

    def watch(server):
        parameters = []
        engine = server.server.engine
        infer, infer_group = engine.infer, engine.infer_group

        def note(request):
            parameters.append(request.parameters)
            infer(request)

        def note_group(requests, model):
            parameters.extend(request.parameters for request in requests)
            return infer_group(requests, model)

        monkeypatch.setattr(engine, "infer", note)
        monkeypatch.setattr(engine, "infer_group", note_group)
        return parameters

    return watch


def test_headers_become_parameters(repository, seen):
    with running_server(repository, http_header_forward_pattern="(x-my|tenant)") as server:
        parameters = seen(server)
        headers = {"X-My-Header": "one", "Y-Tenant-Id": "zwölf".encode().decode("latin-1")}
        for _ in range(3):  # the second time a request may be recognised by its bytes
            infer = Infer(own=1).add("INPUT0", np.array([[7]], np.float32), binary=True)
            assert infer.send(server, "echo", headers | {"Other": "no"}).status == 200
        expected = {"own": 1, "x-my-header": "one", "y-tenant-id": "zwölf"}
        assert parameters == [expected] * 3


@pytest.mark.parametrize("name", ["priority", "timeout", "sequence_id", "triton_thing"])
def test_reserved_names_are_not_forwarded(repository, name):
    with running_server(repository, http_header_forward_pattern=".*") as server:
        answer = REQUEST.send(server, "echo", {name: "1"})
        assert answer.status == 400
        assert (
            answer.error == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
        )


def test_headers_are_forwarded_only_on_request(running, seen):
    parameters = seen(running)
    assert REQUEST.send(running, "echo", {"X-My-Header": "one"}).status == 200
    assert parameters == [{}]


# ---- restrictions


def test_restricted_requests_need_their_header(repository):
    restricted = (
        NamedSetting("model-repository,model-config", "admin-key", "secret"),
        NamedSetting("inference", "infer-key", "other secret"),
    )
    with running_server(repository, http_restricted_api=restricted) as server:
        refused = "This API is restricted, expecting header 'admin-key'"
        for headers in ({}, {"admin-key": "wrong"}, {"admin-key": ""}, {"infer-key": "secret"}):
            answer = server.get("/v2/models/echo/config", headers)
            assert (answer.status, answer.error) == (403, refused)
            assert server.post("/v2/repository/index", b"", headers).status == 403
        assert server.get("/v2/models/echo/config", {"Admin-Key": "secret"}).status == 200
        assert server.post("/v2/repository/index", b"", {"admin-key": "secret"}).status == 200
        for _ in range(3):
            assert REQUEST.send(server, "echo").status == 403
            assert REQUEST.send(server, "echo", {"infer-key": "other secret"}).status == 200
        assert server.get("/v2/health/ready").status == 200
        assert server.get("/v2/models/echo").status == 200
