"""The gRPC port as part of a server: its options, TLS, and how it goes down."""

from __future__ import annotations

import asyncio
import queue

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from shoal.config.options import NamedSetting
from shoal.errors import InvalidArgument, Unavailable
from shoal.frontends.closing import EXIT_TIMEOUT
from shoal.testing.server import running_server, wait_until
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import add_fake

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
TRANSPORTS = ("native", "grpcio")


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    return request.param


@pytest.fixture
def fake():
    return FakeBackend()


@pytest.fixture
def serve(tmp_path, fake):
    add_fake(tmp_path, "held")

    def start(**options):
        return running_server(tmp_path, backends=fake.registry(), **options)

    return start


def one_row(value=1):
    tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return [tensor]


# ---- options


def test_grpc_can_be_switched_off(serve):
    with serve(allow_grpc=False) as running:
        assert running.server.grpc_port == 0
        assert running.get("/v2/health/ready").status == 200


def test_restricted_protocols(serve, transport):
    restricted = (NamedSetting("model-repository,inference", "key", "secret"),)
    with (
        serve(grpc_transport=transport, grpc_restricted_protocol=restricted) as running,
        grpcclient.InferenceServerClient(running.grpc_address) as client,
    ):
        assert client.is_server_ready()
        for ask in (
            client.get_model_repository_index,
            lambda **k: client.infer("held", one_row(), **k),
        ):
            with pytest.raises(InferenceServerException) as caught:
                ask()
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            assert caught.value.message() == (
                "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
            )
            ask(headers={"triton-grpc-protocol-key": "secret"})


@pytest.mark.parametrize("level", ["low", "high"])
def test_compressed_responses(serve, transport, level):
    with (
        serve(grpc_transport=transport, grpc_infer_response_compression_level=level) as running,
        grpcclient.InferenceServerClient(running.grpc_address) as client,
    ):
        assert client.infer("held", one_row(5)).as_numpy("OUTPUT0").tolist() == [[5]]


def test_calls_continue_when_a_connection_reaches_its_maximum_age(serve, transport, fake):
    """Those that are open end on the old connection, all others are sent on new ones."""
    fake.gate.clear()
    age = {"grpc_max_connection_age": 60, "grpc_max_connection_age_grace": 600_000}
    with (
        serve(grpc_transport=transport, **age) as running,
        grpcclient.InferenceServerClient(running.grpc_address) as client,
    ):
        answers: queue.Queue = queue.Queue()
        for _ in range(2):
            client.async_infer(
                "held", one_row(7), lambda result, error: answers.put((result, error))
            )
        assert fake.started.acquire(timeout=WAIT_SECS)
        ports: set[int] = set()

        def reconnects():
            assert client.is_server_ready()
            ports.update(
                each.laddr.port
                for each in psutil.Process().net_connections("tcp")
                if each.raddr and each.raddr.port == running.server.grpc_port
            )
            return len(ports) >= 4

        wait_until(reconnects, "the client has connected three more times")
        assert answers.empty()
        fake.gate.set()
        for _ in range(2):
            result, error = answers.get(timeout=WAIT_SECS)
            assert error is None
            assert result.as_numpy("OUTPUT0").tolist() == [[7]]


def test_a_port_that_is_taken(serve, transport):
    with serve() as running:
        port = running.server.grpc_port
        with (
            pytest.raises(Unavailable, match=f"--grpc-port={port}"),
            serve(grpc_transport=transport, grpc_port=port),
        ):
            pass


# ---- TLS


def tls_options(folder, **more):
    return {
        "grpc_server_cert": str(folder / "own.pem"),
        "grpc_server_key": str(folder / "own.key"),
        "grpc_root_cert": str(folder / "root.pem"),
        **more,
    }


def test_tls(serve, transport, certificates):
    with (
        serve(grpc_transport=transport, **tls_options(certificates, grpc_use_ssl=True)) as running,
        grpcclient.InferenceServerClient(
            running.grpc_address, ssl=True, root_certificates=str(certificates / "root.pem")
        ) as client,
    ):
        assert client.infer("held", one_row(3)).as_numpy("OUTPUT0").tolist() == [[3]]


def test_mutual_tls(serve, transport, certificates):
    options = tls_options(certificates, grpc_use_ssl_mutual=True)
    root = (certificates / "root.pem").read_bytes()
    with serve(grpc_transport=transport, **options) as running:
        with grpcclient.InferenceServerClient(
            running.grpc_address,
            ssl=True,
            root_certificates=str(certificates / "root.pem"),
            private_key=str(certificates / "own.key"),
            certificate_chain=str(certificates / "own.pem"),
        ) as client:
            assert client.is_server_ready()
        stranger = grpc.secure_channel(
            running.grpc_address, grpc.ssl_channel_credentials(root_certificates=root)
        )
        with stranger, pytest.raises(grpc.RpcError) as caught:
            stranger.unary_unary("/inference.GRPCInferenceService/ServerLive")(
                b"", timeout=WAIT_SECS
            )
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"grpc_server_cert": ""},
            "TLS needs --grpc-server-cert: name a PEM file with the certificate",
        ),
        ({"grpc_server_key": "/nowhere/key"}, "--grpc-server-key=/nowhere/key cannot be read"),
    ],
)
def test_tls_files_that_are_missing(serve, transport, certificates, change, text):
    options = tls_options(certificates, grpc_use_ssl=True, grpc_transport=transport) | change
    with pytest.raises(InvalidArgument, match=text), serve(**options):
        pass


def test_tls_files_that_do_not_go_together(serve, certificates):
    options = tls_options(certificates, grpc_use_ssl=True)
    options["grpc_server_key"] = str(certificates / "root.key")
    with pytest.raises(InvalidArgument, match="do not go together"), serve(**options):
        pass


# ---- going down


def test_requests_in_flight_get_responses(serve, fake, transport):
    fake.gate.clear()
    done = queue.Queue()
    streamed = queue.Queue()
    with serve(grpc_transport=transport) as running:
        client = grpcclient.InferenceServerClient(running.grpc_address)
        client.async_infer("held", one_row(1), lambda result, error: done.put((result, error)))
        assert fake.started.acquire(timeout=WAIT_SECS)
        client.start_stream(lambda result, error: streamed.put((result, error)))
        client.async_stream_infer("held", one_row(2))
        running.wait_for_pending("held", 1)
        idle = grpcclient.InferenceServerClient(running.grpc_address)
        ended = queue.Queue()
        idle.start_stream(lambda result, error: ended.put(error))
        wait_until(
            lambda: len(running.server.ports.grpc._service._stream._open) == 2, "two streams"
        )
        stopping = asyncio.run_coroutine_threadsafe(running.server.stop(), running._loop.loop)
        error = ended.get(timeout=WAIT_SECS)
        assert (error.status(), error.message()) == ("StatusCode.UNAVAILABLE", SHUTTING_DOWN)
        fake.gate.set()
        result, error = done.get(timeout=WAIT_SECS)
        assert error is None
        assert result.as_numpy("OUTPUT0").tolist() == [[1]]
        result, error = streamed.get(timeout=WAIT_SECS)
        assert error is None
        assert result.as_numpy("OUTPUT0").tolist() == [[2]]
        assert stopping.result(WAIT_SECS)
        for each in (client, idle):
            each.stop_stream()
            each.close()


def test_a_request_that_takes_too_long_is_cut_off(serve, fake, transport):
    fake.gate.clear()
    done = queue.Queue()
    late = pytest.raises(TimeoutError, match="did not stop within its exit timeout")
    with late, serve(grpc_transport=transport, exit_timeout_secs=0) as running:
        client = grpcclient.InferenceServerClient(running.grpc_address)
        client.async_infer("held", one_row(1), lambda result, error: done.put(error))
        assert fake.started.acquire(timeout=WAIT_SECS)
        assert not running.run(running.server.stop())
        error = done.get(timeout=WAIT_SECS)
        assert (error.status(), error.message()) == ("StatusCode.UNAVAILABLE", EXIT_TIMEOUT)
        client.close()
    fake.gate.set()  # not before: the second stop would find nothing left to wait for
