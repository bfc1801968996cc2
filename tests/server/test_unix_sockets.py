"""Unix sockets for HTTP and gRPC, and the port for probes."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import shutil
import socket
import stat
import subprocess
import tempfile
from pathlib import Path

import grpc
import numpy as np
import pytest

from shoal.client import AsyncClient, Client, ConnectionFailed
from shoal.errors import Unavailable
from shoal.testing.server import HttpCall, running_server
from shoal.wire.proto import messages
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_onnx

LIVE = "/inference.GRPCInferenceService/ServerLive"
LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
TRANSPORTS = ("native", "grpcio")


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=WAIT_SECS)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_SECS)
        self.sock.connect(self._path)


def ask(path, method, target, body=None, headers=None):
    """Status and body of one request."""
    with contextlib.closing(UnixConnection(path)) as client:
        client.request(method, target, body, headers or {})
        answer = client.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def folder():
    """A folder whose path is short enough for sockets, whatever that of pytest's folders."""
    made = Path(tempfile.mkdtemp())
    yield made
    shutil.rmtree(made)


@pytest.fixture
def repository(tmp_path):
    add_onnx(tmp_path / "models", "echo", onnx_models.identity("FP32", [-1]))
    return tmp_path / "models"


@pytest.fixture
def serve(repository, folder):
    def start(**options):
        return running_server(
            repository,
            http_unix_socket=str(folder / "http"),
            grpc_unix_socket=str(folder / "grpc"),
            **options,
        )

    return start


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_beside_the_ports(serve, folder, transport):
    with serve(grpc_transport=transport) as running:
        assert ask(folder / "http", "GET", "/v2/health/ready")[0] == 200
        assert running.get("/v2/health/ready").status == 200
        for target in (f"unix://{folder}/grpc", running.grpc_address):
            with grpc.insecure_channel(target) as channel:
                assert channel.unary_unary(LIVE)(b"", timeout=WAIT_SECS) == b"\x08\x01"
        for name in ("http", "grpc"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_instead_of_the_ports(serve, folder, transport):
    options = {"http_port": -1, "grpc_port": -1, "unix_socket_mode": "0660"}
    with serve(grpc_transport=transport, **options) as running:
        assert (running.server.http_port, running.server.grpc_port) == (0, 0)
        assert ask(folder / "http", "GET", "/v2/health/ready")[0] == 200
        with grpc.insecure_channel(f"unix://{folder}/grpc") as channel:
            channel.unary_unary(LIVE)(b"", timeout=WAIT_SECS)
        for name in ("http", "grpc"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o660


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sockets_in_use(serve, folder, transport):
    with serve():
        for name in ("http", "grpc"):
            taken = {f"{name}_unix_socket": str(folder / name)}
            with (
                pytest.raises(Unavailable, match=f"--{name}-unix-socket={folder}/{name} is in use"),
                running_server(grpc_transport=transport, **taken),
            ):
                pass
            assert (folder / name).exists()


def test_a_folder_that_does_not_exist(repository):
    with (
        pytest.raises(Unavailable, match=r"--http-unix-socket=/nowhere/s: No such file"),
        running_server(repository, http_unix_socket="/nowhere/s"),
    ):
        pass


def test_they_are_plain_where_the_port_is_encrypted(serve, folder, certificates):
    files = {
        "https_cert": str(certificates / "own.pem"),
        "https_key": str(certificates / "own.key"),
    }
    with serve(**files):
        assert ask(folder / "http", "GET", "/v2/health/ready")[0] == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(serve, folder):
    with serve():
        words = ["curl", "-sS", "--unix-socket", str(folder / "http"), "http://localhost/v2"]
        found = subprocess.run(words, capture_output=True, check=True, timeout=WAIT_SECS)
        assert json.loads(found.stdout)["name"] == "triton"


# ---- rules


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("setting", ["auto", "false"])
def test_uploads_are_local(serve, folder, repository, transport, setting):
    model = (repository / "echo" / "1" / "model.onnx").read_bytes()
    config = json.dumps({"max_batch_size": 4})
    options = {"model_control_mode": "explicit", "allow_model_upload": setting}
    with serve(grpc_transport=transport, **options):
        body = {
            "parameters": {"config": config, "file:1/model.onnx": base64.b64encode(model).decode()}
        }
        status, text = ask(
            folder / "http", "POST", "/v2/repository/models/sent/load", json.dumps(body)
        )
        assert status == (200 if setting == "auto" else 403), text
        request = messages.RepositoryModelLoadRequest(model_name="also_sent")
        request.parameters["config"].string_param = config
        request.parameters["file:1/model.onnx"].bytes_param = model
        with grpc.insecure_channel(f"unix://{folder}/grpc") as channel:
            load = channel.unary_unary(LOAD)
            if setting == "auto":
                load(request.SerializeToString(), timeout=WAIT_SECS)
            else:
                with pytest.raises(grpc.RpcError) as caught:
                    load(request.SerializeToString(), timeout=WAIT_SECS)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_web_pages_have_the_same_rules(serve, folder):
    page = {"Host": "evil.example", "Origin": "http://evil.example"}
    with serve():
        assert ask(folder / "http", "POST", "/v2/repository/index", b"", page)[0] == 403
        assert ask(folder / "http", "POST", "/v2/repository/index", b"")[0] == 200


# ---- the port for probes


@pytest.fixture
def probed(repository, certificates):
    """A server that speaks HTTPS only, and has the port for probes."""
    files = {
        "https_cert": str(certificates / "own.pem"),
        "https_key": str(certificates / "own.key"),
    }
    with running_server(repository, health_port=0, **files) as running:
        yield running


def probe(running, path, method="GET", headers=None):
    return HttpCall(running.server.health_port, method, path, headers=headers).response()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/health/live", 200),
        ("HEAD", "/v2/health/ready", 200),
        ("GET", "/v2/models/echo/ready", 200),
        ("GET", "/v2/models/echo/versions/1/ready", 200),
        ("GET", "/v2/models/none/ready", 404),
        ("POST", "/v2/health/live", 405),
        ("GET", "/v2", 404),
        ("GET", "/", 404),
        ("GET", "/metrics", 404),
        ("POST", "/v2/models/echo/infer", 404),
        ("POST", "/v2/repository/index", 404),
        ("OPTIONS", "*", 404),
        ("GET", "/v2/models/echo/versions/" + "9" * 30 + "/ready", 400),
    ],
)
def test_probes(probed, method, path, status):
    assert probe(probed, path, method).status == status


def test_the_refusal_of_other_paths_says_what_is_served(probed):
    assert probe(probed, "/v2/models/echo").json["error"] == (
        "this port serves /v2/health/live, /v2/health/ready and /v2/models/<model>/ready; use the HTTP port for everything else"
    )


def test_probes_see_the_drain(repository):
    with running_server(repository, health_port=0, start=False) as running:
        running.run(running.server.listen())
        assert probe(running, "/v2/health/live").status == 200
        assert probe(running, "/v2/health/ready").status == 400
        running.run(running.server.load())
        assert probe(running, "/v2/health/ready").status == 200
        running.server.engine.begin_exit()
        assert probe(running, "/v2/health/ready").status == 503
        assert probe(running, "/v2/health/live").status == 200


def test_probes_are_answered_when_no_more_connections_are_accepted(repository):
    with running_server(repository, health_port=0, max_connections=3) as running:
        address = ("127.0.0.1", running.server.http_port)
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                client = stack.enter_context(socket.create_connection(address, WAIT_SECS))
                client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert running.get("/v2/health/live").status == 503
            assert probe(running, "/v2/health/live").status == 200


# ---- our own clients


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_client_library(serve, folder, protocol):
    values = np.arange(300_000, dtype=np.float32).reshape(1, -1)
    with serve(), Client(f"unix://{folder}/{protocol}", protocol=protocol) as client:
        assert client.ready()
        found = client.infer("echo", {"INPUT0": values})["OUTPUT0"]
        assert (found == values).all()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_async_client(serve, folder, protocol):
    async def scenario():
        async with AsyncClient(f"unix:{folder}/{protocol}", protocol=protocol) as client:
            values = np.arange(8, dtype=np.float32).reshape(1, -1)
            return (await client.infer("echo", {"INPUT0": values}))["OUTPUT0"]

    with serve() as running:
        assert running.run(scenario()).tolist() == [list(range(8))]


def test_a_socket_without_a_server(folder):
    with (
        Client(f"unix://{folder}/none") as client,
        pytest.raises(ConnectionFailed, match=f"no server answers at unix:{folder}/none"),
    ):
        client.ready()
