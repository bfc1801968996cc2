"""Connections: kept, shared, lost, late, encrypted; and servers that are none."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.client import (
    AsyncClient,
    Client,
    ClientError,
    ConnectionFailed,
    InvalidInput,
    ProtocolError,
    ServerError,
    Timeout,
    Unavailable,
)
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import add_fake, add_onnx

ONE = np.array([[1]], np.int32)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
HANG_UP = b""


class Scripted:
    """A server that answers each connection's requests with given bytes.

    None hangs up at the next request, HANG_UP without one.
    """

    def __init__(self, *connections):
        self.requests = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._connections = connections
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        with contextlib.ExitStack() as stack:
            for answers in self._connections:
                connection, _ = self._socket.accept()
                stack.enter_context(connection)
                for answer in answers:
                    if answer != HANG_UP:
                        self.requests.append(connection.recv(65536))
                    if not answer:
                        connection.close()
                        break
                    connection.sendall(answer)
            self._over.wait(WAIT_SECS)  # the connections stay open until then

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self._socket.close()


def ask_both(address, ask, **arguments):
    """Have both kinds of client do the same; the results in turn."""
    with Client(address, **arguments) as client:
        yield ask(client)

    async def main():
        async with AsyncClient(address, **arguments) as client:
            return await ask(client)

    yield asyncio.run(main())


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_fake(folder, "held")
    add_onnx(folder, "bf16", onnx_models.identity("BF16"), "max_batch_size: 8")
    fake = FakeBackend()
    with running_server(folder, backends=fake.registry()) as running:
        yield SimpleNamespace(
            fake=fake,
            running=running,
            urls={"http": running.http_address, "grpc": f"grpc://{running.grpc_address}"},
        )
        fake.gate.set()


@pytest.fixture(params=["http", "grpc"])
def url(world, request):
    return world.urls[request.param]


# ---- nobody, or somebody else


@pytest.mark.parametrize("address", ["localhost:1", "grpc://localhost:1"])
def test_no_server_is_running(address):
    with pytest.raises(ConnectionFailed, match="no server answers at localhost:1; is it running"):
        Client(address).live()


def test_an_unknown_host():
    with pytest.raises(ConnectionFailed, match=r"unknown host 'nowhere.invalid'"):
        Client("nowhere.invalid:8000").live()


def test_the_wrong_port(world):
    http, grpc = world.running.http_address, world.running.grpc_address
    with pytest.raises(ProtocolError, match=f"does not speak gRPC .* write 'http://{http}'"):
        Client(f"grpc://{http}").live()
    with pytest.raises(ClientError):
        Client(grpc).live()
    with (
        Scripted([b"\x00\x00\x12\x04junk"]) as server,
        pytest.raises(ProtocolError, match="grpc://"),
    ):
        Client(server.address).live()


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", ProtocolError, "not JSON"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 5\r\n\r\n<html", ServerError, "<html"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", ServerError, "HTTP status 500"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", ProtocolError, "not a number"),
        (b'HTTP/1.1 404 No\r\nContent-Length: 16\r\n\r\n{"detail": "no"}', ServerError, "^no$"),
    ],
)
def test_responses_that_are_invalid(answer, error, text):
    with Scripted([answer]) as server, pytest.raises(error, match=text):
        Client(server.address).metadata("m")


def test_bodies_of_every_kind():
    whole = b'{"name":"m"}'
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n%b\r\n7;x=y\r\n%b\r\n0\r\nA: b\r\n\r\n"
    answers = [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n" + whole,
        chunked % (whole[:5], whole[5:]),
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 12\r\n\r\n" + whole,
    ]
    with Scripted(answers, [b"HTTP/1.0 200 OK\r\n\r\n" + whole, HANG_UP]) as server:
        client = Client(server.address)
        for _ in range(4):
            assert client.metadata("m") == {"name": "m"}
        assert len(server.requests) == 4


# ---- connections are kept


def test_a_connection_the_server_closed_meanwhile():
    with Scripted([OK, None], [OK]) as server:
        client = Client(server.address)
        assert client.live()
        assert client.live()
        client.close()


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_that_hangs_up_on_everybody(scheme):
    async def ask(url):
        async with AsyncClient(url) as client:
            await client.live(timeout=WAIT_SECS)

    closed = pytest.raises(ConnectionFailed, match="closed the connection")
    with Scripted([None], [None]) as server:
        url = f"{scheme}://{server.address}"
        with closed, Client(url) as client:
            client.live()
        with closed:
            asyncio.run(ask(url))


def test_a_server_that_stops_before_the_retry():
    with Scripted([OK, HANG_UP]) as server:
        client = Client(server.address, connections=1)
        assert client.live()
    for _ in range(3):
        with pytest.raises(ConnectionFailed, match="no server answers"):
            client.live()
        assert client._transport._pool._count == 0

    async def main(server):
        async with AsyncClient(server.address, connections=1) as client:
            assert await client.live()
            server.__exit__()
            for _ in range(3):
                with pytest.raises(ConnectionFailed):
                    await client.live()
                assert client._transport._count == 0

    asyncio.run(main(Scripted([OK, HANG_UP])))


def test_one_connection_for_many_threads(url):
    with Client(url, connections=2) as client:
        found = []

        def ask():
            for _ in range(20):
                found.append(client.live())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 160


def test_all_connections_busy(world, url):
    while world.fake.started.acquire(blocking=False):
        pass  # those of other tests
    world.fake.gate.clear()
    with Client(url, connections=1) as client:
        call = threading.Thread(target=client.infer, args=("held", {"INPUT0": ONE}))
        call.start()
        assert world.fake.started.acquire(timeout=WAIT_SECS)
        with pytest.raises(Timeout, match="all 1 connections stayed busy"):
            client.live(timeout=0.05)
        world.fake.gate.set()
        call.join()
        assert client.live()


def test_a_closed_client(url):
    client = Client(url)
    assert client.live()
    client.close()
    with pytest.raises(ClientError, match="closed"):
        client.live()


# ---- time


def test_what_json_cannot_carry(world):
    with Client(world.urls["http"]) as client, pytest.raises(InvalidInput, match="as JSON"):
        client.infer("held", {"INPUT0": ONE}, parameters={"a": object()})
    with Client(world.urls["http"]) as client, pytest.raises(InvalidInput, match="name the model"):
        client.infer("", {"INPUT0": ONE})


def test_a_response_that_does_not_come(world, url):
    def ask(client):
        return client.infer("held", {"INPUT0": ONE}, timeout=0.1)

    async def ask_async():
        async with AsyncClient(url) as client:
            await ask(client)

    world.fake.gate.clear()
    try:
        with pytest.raises(Timeout, match=r"0.1 s|Deadline|deadline"), Client(url) as client:
            ask(client)
        with pytest.raises(Timeout, match=r"0.1 s|Deadline|deadline"):
            asyncio.run(ask_async())
    finally:
        world.fake.gate.set()
    assert list(ask_both(url, lambda client: client.live(timeout=math.inf))) == [True, True]


def test_a_slow_drip_is_too_late_in_all():
    start = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1"
    late = pytest.raises(Timeout, match=r"no response from .* within 0.2 s")
    with Scripted([start]) as server, late:
        Client(server.address).metadata("m", timeout=0.2)


# ---- overload


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("shoal.client.steps.FIRST_PAUSE_SECS", 0.001)


def body(text):
    return b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)


def test_calls_to_an_overloaded_server_are_retried(quick):
    busy = body(b'{"error":"the queue is full"}')
    answer = b'{"model_name":"m","model_version":"1","outputs":[]}'
    good = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer)
    with Scripted([busy, busy, good, busy, busy, busy], [busy, busy, good]) as server:
        with Client(server.address, retries=2) as client:
            assert client.infer("m", {"x": ONE}).model_name == "m"
            with pytest.raises(Unavailable, match="the queue is full") as caught:
                client.infer("m", {"x": ONE})
            assert (caught.value.status, caught.value.server_code) == ("UNAVAILABLE", 503)

        async def main():
            async with AsyncClient(server.address) as client:
                return await client.infer("m", {"x": ONE})

        assert asyncio.run(main()).model_name == "m"
        assert len(server.requests) == 9


@pytest.mark.parametrize("retries", [0, 3])
def test_nothing_else_is_retried(quick, retries):
    failed = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"
    with Scripted([failed, body(b"{}"), failed]) as server:
        client = Client(server.address, retries=retries)
        with pytest.raises(ServerError):
            client.infer("m", {"x": ONE})
        with pytest.raises(Unavailable):
            client.load("m")
        assert len(server.requests) == 2
        client.close()


# ---- other types


def test_bfloat16(url):
    import ml_dtypes

    from shoal.client import Input

    numbers = np.array([[1.5, -2.0, 3.140625] + [0.0] * 13], np.float32)
    (name,) = [entry["name"] for entry in Client(url).metadata("bf16")["inputs"]]
    shape = Client(url).metadata("bf16")["inputs"][0]["shape"]
    numbers = numbers[:, : shape[1]] if shape[1] > 0 else numbers
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    with Client(url) as client:
        for given in (numbers.astype(ml_dtypes.bfloat16), Input(bits, "BF16"), numbers.tolist()):
            (array,) = client.infer("bf16", {name: given}).values()
            assert array.dtype == np.float32
            np.testing.assert_array_equal(array, numbers)


# ---- TLS


@pytest.fixture(scope="module")
def secure(tmp_path_factory, certificates):
    """Shoal with TLS for gRPC, and a small program that adds it to HTTP."""
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    options = {
        "grpc_use_ssl": True,
        "grpc_server_cert": str(certificates / "own.pem"),
        "grpc_server_key": str(certificates / "own.key"),
    }
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "own.pem", certificates / "own.key")
    with running_server(folder, **options) as running:
        port = int(running.http_address.rpartition(":")[2])

        async def relay(reader, writer):
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        async def serve(reader, writer):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(relay(reader, inner_writer), relay(inner_reader, writer))

        door = running.run(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
        port_of_door = door.sockets[0].getsockname()[1]
        yield SimpleNamespace(
            http=f"https://localhost:{port_of_door}",
            grpc=f"grpcs://localhost:{running.grpc_address.rpartition(':')[2]}",
        )

        async def close():
            door.close()

        running.run(close())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tls(secure, certificates, protocol):
    url = getattr(secure, protocol)
    array = np.arange(16, dtype=np.int32).reshape(1, 16)

    def ask(client):
        return client.infer("sum", {"INPUT0": array, "INPUT1": array})

    for result in ask_both(url, ask, ca=str(certificates / "root.pem")):
        np.testing.assert_array_equal(result["OUTPUT0"], array * 2)
    with Client(url, verify=False) as client:
        assert client.live()
    with pytest.raises(ConnectionFailed, match=r"is not trusted.*ca="):
        Client(url).live()
    with pytest.raises(ClientError):
        Client(url.replace("https", "http").replace("grpcs", "grpc")).live(timeout=5)


def test_tls_on_a_stream(secure, certificates):
    array = np.arange(16, dtype=np.int32).reshape(1, 16)
    with (
        Client(secure.grpc, ca=str(certificates / "root.pem")) as client,
        client.stream("sum") as stream,
    ):
        for _ in range(50):
            stream.send({"INPUT0": array, "INPUT1": array})
        assert sum(int(result["OUTPUT0"].sum()) for result in stream) == 50 * 240


def test_tls_where_there_is_none(world, certificates, url):
    plain = url if url.startswith("grpc") else f"http://{url}"
    with pytest.raises(ConnectionFailed, match=r"no encrypted connection|does the server use TLS"):
        Client(plain.replace("http", "https").replace("grpc", "grpcs"), verify=False).live()
    with pytest.raises(InvalidInput, match="https:// or grpcs://"):
        Client(url, ca=str(certificates / "root.pem"))
    with pytest.raises(InvalidInput, match="invalid certificates"):
        Client("https://localhost", ca=str(certificates / "own.key"))
