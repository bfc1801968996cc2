"""gRPC's own client against our transport, on both event loops, with a service that echoes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import resource
import threading
import time

import grpc
import pytest
import uvloop

from shoal.core.buffers import BufferPool
from shoal.frontends.grpc import (
    Call,
    CompressionLevel,
    GrpcLimits,
    GrpcListener,
    GrpcSettings,
    KeepAlive,
    Kind,
    Method,
)
from tests.support.fakes import WAIT_SECS
from tests.support.tls import server_tls

UNLIMITED = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # no connection is shared between tests
]
LARGE = bytes(range(256)) * 80_000  # 20 MB


class Echo:
    """What the tests call. Everything happens on the server's loop."""

    def __init__(self) -> None:
        self.held: list[Call] = []
        self.cancelled = threading.Semaphore(0)
        self.holding = threading.Semaphore(0)
        self.metadata: list = []
        self.most_queued = 0

    def method(self, path: str) -> Method | None:
        starts = {
            "/test.Echo/Unary": (Kind.UNARY, self._unary),
            "/test.Echo/Stream": (Kind.STREAM, self._stream),
            "/test.Echo/Hold": (Kind.UNARY, self._hold),
            "/test.Echo/Metadata": (Kind.UNARY, self._metadata),
            "/test.Echo/Fail": (Kind.UNARY, self._fail),
            "/test.Echo/Quit": (Kind.STREAM, self._quit),
            "/test.Echo/Firehose": (Kind.STREAM, self._firehose),
        }
        found = starts.get(path)
        return Method(*found) if found else None

    def _unary(self, call: Call) -> None:
        call.on_message = lambda message: call.reply((message,))

    def _stream(self, call: Call) -> None:
        call.on_message = lambda message: call.send((message,))
        call.on_half_close = call.finish

    def _hold(self, call: Call) -> None:
        def message(_message):
            self.held.append(call)
            self.holding.release()

        call.on_message = message
        call.on_cancel = self.cancelled.release

    def _metadata(self, call: Call) -> None:
        def message(_message):
            self.metadata = call.metadata
            call.reply((b"",), [("seen", "yes"), ("raw-bin", b"\x00\xff")])

        call.on_message = message

    def _fail(self, call: Call) -> None:
        call.on_message = lambda message: call.finish(5, bytes(message).decode(), [("why", "that")])

    def _quit(self, call: Call) -> None:
        call.on_message = lambda _message: call.finish(7, "that is enough")

    def _firehose(self, call: Call) -> None:
        """100 MB as fast as the client reads them."""
        left = 1600
        piece = b"\x77" * 65_536

        def more():
            nonlocal left
            while left and call.writable:
                left -= 1
                call.send((piece,))
                self.most_queued = max(self.most_queued, call._stream.queued_bytes)
            if not left:
                call.finish()

        call.on_drain = more
        call.on_half_close = more


async def until(condition) -> None:
    """Wait until `condition` holds; a transport has no events for its own insides."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


class Server:
    """A listener on a loop in a thread of its own."""

    def __init__(self, new_loop=uvloop.new_event_loop, settings=None, tls=None) -> None:
        self.service = Echo()
        self.loop = new_loop()
        self.listener = GrpcListener(self.service, settings, pool=BufferPool())
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.port = self.run(self.listener.start("127.0.0.1", 0, tls=tls))
        self.target = f"127.0.0.1:{self.port}"

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(2 * WAIT_SECS)

    def on_loop(self, function):
        async def call():
            return function()

        return self.run(call())

    def close(self) -> None:
        self.on_loop(self.listener.abort_all)
        self.run(self.listener.drain(WAIT_SECS))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def wait_until(self, condition) -> None:
        """Until `condition` holds on the loop."""
        self.run(asyncio.wait_for(until(condition), WAIT_SECS))


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def server(request):
    running = Server(request.param)
    yield running
    running.close()


@pytest.fixture
def make_server():
    servers = []

    def make(**arguments):
        servers.append(Server(**arguments))
        return servers[-1]

    yield make
    for running in servers:
        running.close()


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.target, options=UNLIMITED) as open_channel:
        yield open_channel


def unary(channel, name):
    return channel.unary_unary(f"/test.Echo/{name}")


def test_unary_calls(channel):
    echo = unary(channel, "Unary")
    for size in (0, 1, 100, 16_379, 16_384, 32_768, 32_769, 70_000, 1_000_000):
        message = bytes([size % 251]) * size
        assert echo(message, timeout=WAIT_SECS) == message


def test_many_calls_at_once(channel):
    echo = unary(channel, "Unary")
    futures = [echo.future(b"%d" % number * 50) for number in range(500)]
    assert [future.result(WAIT_SECS) for future in futures] == [b"%d" % n * 50 for n in range(500)]


def test_large_messages_both_ways(server, channel):
    assert unary(channel, "Unary")(LARGE, timeout=WAIT_SECS) == LARGE
    del channel
    gc.collect()
    server.wait_until(lambda: server.listener.lent_buffers == 0)


def test_several_large_messages_at_once(channel):
    echo = unary(channel, "Unary")
    messages = [bytes([number]) * 3_000_000 for number in range(6)]
    futures = [echo.future(message) for message in messages]
    assert [future.result(WAIT_SECS) for future in futures] == messages


def test_streams(channel):
    echo = channel.stream_stream("/test.Echo/Stream")
    messages = [b"one", b"", b"x" * 100_000, b"two", LARGE[:5_000_000]]
    assert list(echo(iter(messages), timeout=WAIT_SECS)) == messages
    assert list(echo(iter([]), timeout=WAIT_SECS)) == []


def test_ping_pong_on_a_stream(channel):
    ready = threading.Semaphore(1)
    stop = object()
    waiting: list = [b"0"]

    def requests():
        while True:
            ready.acquire()
            message = waiting.pop()
            if message is stop:
                return
            yield message

    seen = []
    for answer in channel.stream_stream("/test.Echo/Stream")(requests(), timeout=WAIT_SECS):
        seen.append(answer)
        waiting.append(stop if len(seen) == 100 else b"%d" % len(seen))
        ready.release()
    assert seen == [b"%d" % number for number in range(100)]


def test_metadata(server, channel):
    _, call = unary(channel, "Metadata").with_call(
        b"", metadata=(("k", "v"), ("bytes-bin", b"\x00\x80\xff"), ("k", "w")), timeout=WAIT_SECS
    )
    seen = [item for item in server.service.metadata if item[0] != "user-agent"]
    assert seen == [("k", "v"), ("bytes-bin", b"\x00\x80\xff"), ("k", "w")]
    assert dict(server.service.metadata)["user-agent"].startswith("grpc-python")
    assert list(call.trailing_metadata()) == [("seen", "yes"), ("raw-bin", b"\x00\xff")]


def test_errors(channel):
    with pytest.raises(grpc.RpcError) as error:
        unary(channel, "Fail")("gone: 'Größe' is 100% ✓\n".encode(), timeout=WAIT_SECS)
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert error.value.details() == "gone: 'Größe' is 100% ✓\n"
    assert ("why", "that") in error.value.trailing_metadata()
    with pytest.raises(grpc.RpcError) as error:
        unary(channel, "Nothing")(b"", timeout=WAIT_SECS)
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_server_that_ends_a_stream_first(channel):
    def requests():
        while True:
            yield b"x" * 10_000

    with pytest.raises(grpc.RpcError) as error:
        list(channel.stream_stream("/test.Echo/Quit")(requests(), timeout=WAIT_SECS))
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert error.value.details() == "that is enough"
    assert unary(channel, "Unary")(b"next", timeout=WAIT_SECS) == b"next"


def test_deadlines(server, channel):
    while not server.service.holding.acquire(blocking=False):  # until one has arrived in its time
        with pytest.raises(grpc.RpcError) as error:
            unary(channel, "Hold")(b"", timeout=0.05)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert server.service.cancelled.acquire(timeout=WAIT_SECS)
    server.wait_until(lambda: all(call.cancelled for call in server.service.held))
    server.wait_until(lambda: server.listener.streams == 0)
    assert server.listener.pending_deadlines == 0
    assert unary(channel, "Unary")(b"next", timeout=WAIT_SECS) == b"next"


def test_cancellation(server, channel):
    future = unary(channel, "Hold").future(b"")
    assert server.service.holding.acquire(timeout=WAIT_SECS)
    future.cancel()
    assert server.service.cancelled.acquire(timeout=WAIT_SECS)
    server.wait_until(lambda: server.listener.streams == 0)


def test_a_client_that_disconnects_cancels_its_calls(server):
    channel = grpc.insecure_channel(server.target, options=UNLIMITED)
    futures = [unary(channel, "Hold").future(b"") for _ in range(5)]
    for _ in futures:
        assert server.service.holding.acquire(timeout=WAIT_SECS)
    channel.close()
    for _ in futures:
        assert server.service.cancelled.acquire(timeout=WAIT_SECS)
    server.wait_until(lambda: server.listener.connections == 0)


def test_a_request_the_client_takes_back_halfway(server, channel):
    blocked = threading.Event()

    def requests():
        yield LARGE
        blocked.wait(WAIT_SECS)

    call = channel.stream_stream("/test.Echo/Hold")(requests())
    server.wait_until(lambda: server.listener.streams == 1)
    call.cancel()
    blocked.set()
    server.wait_until(lambda: server.listener.streams == 0)
    assert server.listener.unfinished_bytes == 0


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("level", [CompressionLevel.NONE, CompressionLevel.MEDIUM])
def test_compression(make_server, algorithm, level):
    server = make_server(settings=GrpcSettings(compression=level))
    with grpc.insecure_channel(server.target, options=UNLIMITED) as channel:
        message = b"compress me " * 50_000
        echo = unary(channel, "Unary")
        assert echo(message, compression=algorithm, timeout=WAIT_SECS) == message
        assert echo(b"tiny", compression=algorithm, timeout=WAIT_SECS) == b"tiny"
        stream = channel.stream_stream("/test.Echo/Stream")
        assert list(stream(iter([message] * 3), compression=algorithm)) == [message] * 3


def test_messages_beyond_the_limits(make_server):
    limits = GrpcLimits(max_receive_message_bytes=1000, max_send_message_bytes=500)
    server = make_server(settings=GrpcSettings(limits))
    with grpc.insecure_channel(server.target, options=UNLIMITED) as channel:
        echo = unary(channel, "Unary")
        for size, words in ((1_000_000, "Received message larger"), (800, "Sent message larger")):
            with pytest.raises(grpc.RpcError) as error:
                echo(b"x" * size, timeout=WAIT_SECS)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert words in error.value.details()
        assert echo(b"x" * 400, timeout=WAIT_SECS) == b"x" * 400


def test_metadata_beyond_the_limit(make_server):
    server = make_server(settings=GrpcSettings(GrpcLimits(max_header_list_bytes=2048)))
    with grpc.insecure_channel(server.target, options=UNLIMITED) as channel:
        with pytest.raises(grpc.RpcError) as error:
            unary(channel, "Unary")(b"x", metadata=(("big", "x" * 3000),), timeout=WAIT_SECS)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert unary(channel, "Unary")(b"x", timeout=WAIT_SECS) == b"x"


def test_a_slow_reader_takes_no_memory(server, channel):
    responses = channel.stream_stream("/test.Echo/Firehose")(iter([]), timeout=WAIT_SECS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = next(responses)
    # The client's library reads ahead a little and then stops; the server stops with it.
    server.wait_until(lambda: server.service.most_queued > 1 << 20)
    assert server.listener.streams == 1
    assert sum(map(len, responses)) + len(first) == 1600 * 65_536
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert server.service.most_queued <= (1 << 20) + 65_541
    assert grown_kib < 60 * 1024, "the whole answer was never in memory"


@pytest.mark.parametrize(
    "new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"]
)
def test_tls(make_server, certificates, new_loop):
    server = make_server(new_loop=new_loop, tls=server_tls(certificates, "h2"))
    credentials = grpc.ssl_channel_credentials((certificates / "root.pem").read_bytes())
    with grpc.secure_channel(f"localhost:{server.port}", credentials, UNLIMITED) as channel:
        assert unary(channel, "Unary")(b"secret", timeout=WAIT_SECS) == b"secret"
        assert unary(channel, "Unary")(LARGE[:3_000_000], timeout=WAIT_SECS) == LARGE[:3_000_000]
        stream = channel.stream_stream("/test.Echo/Stream")
        assert list(stream(iter([b"a", b"b"]), timeout=WAIT_SECS)) == [b"a", b"b"]
        with pytest.raises(grpc.RpcError) as error:
            unary(channel, "Hold")(b"", timeout=0.05)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert server.run(server.listener.drain(WAIT_SECS))


def test_mutual_tls_refuses_clients_without_a_certificate(make_server, certificates):
    server = make_server(tls=server_tls(certificates, "h2", clients=True))
    root, key, own = (
        (certificates / name).read_bytes() for name in ("root.pem", "own.key", "own.pem")
    )
    known = grpc.ssl_channel_credentials(root, key, own)
    with grpc.secure_channel(f"localhost:{server.port}", known, UNLIMITED) as channel:
        assert unary(channel, "Unary")(b"x", timeout=WAIT_SECS) == b"x"
    stranger = grpc.ssl_channel_credentials(root)
    with grpc.secure_channel(f"localhost:{server.port}", stranger, UNLIMITED) as channel:
        with pytest.raises(grpc.RpcError) as error:
            unary(channel, "Unary")(b"x", timeout=WAIT_SECS)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_draining_lets_calls_finish(server, channel):
    future = unary(channel, "Hold").future(b"")
    assert server.service.holding.acquire(timeout=WAIT_SECS)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        drained = pool.submit(server.run, server.listener.drain(WAIT_SECS))
        server.wait_until(
            lambda: all(t.connection.draining for t in server.listener._registry.transports)
        )
        server.on_loop(lambda: server.service.held[0].reply((b"finished",)))
        assert future.result(WAIT_SECS) == b"finished"
        assert drained.result(WAIT_SECS) is True
    assert server.listener.connections == 0


def test_draining_gives_up_after_its_time(server, channel):
    future = unary(channel, "Hold").future(b"")
    assert server.service.holding.acquire(timeout=WAIT_SECS)
    assert server.run(server.listener.drain(0.1)) is False
    assert future.code() is grpc.StatusCode.UNAVAILABLE
    assert server.service.cancelled.acquire(timeout=WAIT_SECS)
    assert server.listener.connections == 0


def test_old_connections_make_room_without_losing_a_call(make_server):
    settings = GrpcSettings(keepalive=KeepAlive(max_connection_age_ms=100))
    server = make_server(settings=settings)
    with grpc.insecure_channel(server.target, options=UNLIMITED) as channel:
        echo = unary(channel, "Unary")
        peers = set()
        end = time.monotonic() + WAIT_SECS
        while len(peers) < 3 and time.monotonic() < end:
            assert echo(b"x", timeout=WAIT_SECS) == b"x"
            server.on_loop(
                lambda: peers.update(
                    t.connection.peer for t in server.listener._registry.transports
                )
            )
    assert len(peers) >= 3


def test_keepalive_pings_keep_a_living_connection(make_server):
    keepalive = KeepAlive(time_ms=40, timeout_ms=15_000, max_pings_without_data=0)
    server = make_server(settings=GrpcSettings(keepalive=keepalive))
    with grpc.insecure_channel(server.target, options=UNLIMITED) as channel:
        future = unary(channel, "Hold").future(b"")
        assert server.service.holding.acquire(timeout=WAIT_SECS)
        pings = []

        def count():
            (transport,) = server.listener._registry.transports
            pings.append(transport._lifetime._pings_without_data)
            return pings[-1] >= 4

        server.wait_until(count)
        server.on_loop(lambda: server.service.held[0].reply((b"alive",)))
        assert future.result(WAIT_SECS) == b"alive"


def test_clients_that_ping_too_often_are_disconnected(make_server):
    server = make_server(settings=GrpcSettings(keepalive=KeepAlive(max_ping_strikes=1)))
    options = [
        *UNLIMITED,
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with grpc.insecure_channel(server.target, options=options) as channel:
        future = unary(channel, "Hold").future(b"")
        with pytest.raises(grpc.RpcError) as error:
            future.result(WAIT_SECS)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "too_many_pings" in str(error.value)


def test_the_port_is_free_again_and_can_be_shared():
    async def scenario():
        first, second = GrpcListener(Echo()), GrpcListener(Echo())
        port = await first.start("127.0.0.1", 0, reuse_port=True)
        assert await second.start("127.0.0.1", port, reuse_port=True) == port
        third = GrpcListener(Echo())
        with pytest.raises(OSError, match="Address already in use"):
            await third.start("127.0.0.1", port)
        assert await first.drain(WAIT_SECS)
        assert await second.drain(WAIT_SECS)
        assert await third.start("127.0.0.1", port) == port
        third.abort_all()
        assert await third.drain(WAIT_SECS)

    asyncio.run(scenario())


def test_grpc_aio():
    async def scenario():
        listener = GrpcListener(Echo())
        port = await listener.start("127.0.0.1")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel:
            echo = channel.unary_unary("/test.Echo/Unary")
            answers = await asyncio.gather(*(echo(b"%d" % n) for n in range(200)))
            assert list(answers) == [b"%d" % n for n in range(200)]
            assert await echo(LARGE[:4_000_000]) == LARGE[:4_000_000]

            stream = channel.stream_stream("/test.Echo/Stream")()
            for number in range(50):
                await stream.write(b"%d" % number)
                assert await stream.read() == b"%d" % number
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK

            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary("/test.Echo/Hold")(b"", timeout=0.05)
            assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

            held = channel.unary_unary("/test.Echo/Hold")(b"")
            await until(lambda: listener.streams == 1)
            held.cancel()
            await until(lambda: listener.streams == 0)
        assert await listener.drain(WAIT_SECS)

    asyncio.run(scenario())
