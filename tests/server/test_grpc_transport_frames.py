"""Frames on a real socket: clients that are slow, silent, rude or merely different."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import struct
import subprocess

import h2.config
import h2.connection
import h2.events
import hpack
import pytest
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

from shoal.frontends.grpc import (
    GrpcLimits,
    GrpcListener,
    GrpcSettings,
    KeepAlive,
    Kind,
    Method,
)
from shoal.frontends.grpc.h2 import Connection
from tests.support.fakes import WAIT_SECS

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Echo/Unary"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


WRONG = bytes.fromhex("000008060000000003") + b"12345678"  # a PING on stream 3
OPEN: list[Client] = []  # what the scenario closes at its end


class Echo:
    def __init__(self) -> None:
        self.calls: list = []
        self.cancelled = asyncio.Event()
        self._methods = {
            "/test.Echo/Unary": Method(Kind.UNARY, self._unary),
            "/test.Echo/Hold": Method(Kind.STREAM, self._hold),
        }

    def method(self, path: str) -> Method | None:
        return self._methods.get(path)

    def _unary(self, call) -> None:
        self.calls.append(call)
        call.on_message = lambda message: call.reply((message,))
        call.on_cancel = self.cancelled.set

    def _hold(self, call) -> None:
        self.calls.append(call)
        call.on_cancel = self.cancelled.set


class Client:
    """A socket that speaks frames."""

    def __init__(self, reader, writer) -> None:
        self.reader, self.writer = reader, writer
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()

    @classmethod
    async def connect(cls, port, *, greet=True, limit=2**16):
        client = cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit))
        OPEN.append(client)
        if greet:
            client.send(PREFACE, SettingsFrame(0, settings={4: 1 << 20}))
        return client

    def send(self, *frames) -> None:
        self.writer.write(b"".join(f if isinstance(f, bytes) else f.serialize() for f in frames))

    def headers(self, stream_id, path="/test.Echo/Unary") -> HeadersFrame:
        fields = [(name, path if name == ":path" else value) for name, value in HEADERS]
        return HeadersFrame(stream_id, data=self.encoder.encode(fields), flags=["END_HEADERS"])

    def request(self, stream_id, message=b"hi", path="/test.Echo/Unary") -> list[Frame]:
        body = struct.pack(">BI", 0, len(message)) + message
        return [
            self.headers(stream_id, path),
            DataFrame(stream_id, data=body, flags=["END_STREAM"]),
        ]

    async def frame(self) -> Frame:
        frame, length = Frame.parse_frame_header(memoryview(await self.reader.readexactly(9)))
        frame.parse_body(memoryview(await self.reader.readexactly(length)))
        return frame

    async def expect(self, kind) -> Frame:
        while True:
            frame = await self.frame()
            if isinstance(frame, kind) and "ACK" not in frame.flags:
                return frame

    async def answer(self) -> tuple[bytes, dict]:
        """The next message and the trailers after it, of the only call."""
        ((_, answer),) = (await self.answers(1)).items()
        return answer

    async def answers(self, count) -> dict[int, tuple[bytes, dict]]:
        """The next `count` messages, each with its trailers, by their streams."""
        data: dict[int, bytes] = {}
        answers: dict[int, tuple[bytes, dict]] = {}
        while len(answers) < count:
            frame = await self.frame()
            if isinstance(frame, DataFrame):
                data[frame.stream_id] = data.get(frame.stream_id, b"") + frame.data
            if isinstance(frame, HeadersFrame):
                block = dict(self.decoder.decode(frame.data))
                if "END_STREAM" in frame.flags:
                    answers[frame.stream_id] = data.pop(frame.stream_id, b"")[5:], block
        return answers

    async def closed(self) -> None:
        """Wait until the server closes the connection."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass

    async def close(self) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def scenario(settings=None, **arguments):
    """Run a test with a listener and its service, and leave nothing behind."""

    def decorate(test):
        def run():
            async def main():
                service = Echo()
                listener = GrpcListener(service, settings)
                port = await listener.start("127.0.0.1", 0, **arguments)
                try:
                    await asyncio.wait_for(test(port, listener, service), WAIT_SECS)
                finally:
                    while OPEN:
                        await OPEN.pop().close()
                    listener.abort_all()
                    await listener.drain(WAIT_SECS)
                assert listener.connections == listener.streams == 0
                assert listener.unfinished_bytes == listener.pending_deadlines == 0

            asyncio.run(main())

        run.__name__ = test.__name__
        return run

    return decorate


@scenario()
async def test_a_call_by_hand(port, listener, service):
    client = await Client.connect(port)
    client.send(*client.request(1, b"by hand"))
    assert await client.answer() == (b"by hand", {"grpc-status": "0"})
    assert listener.connections == 1
    assert service.calls[0].peer.startswith("ipv4:127.0.0.1:")


@scenario()
async def test_frames_inside_a_large_message_do_not_wait_for_its_end(port, listener, service):
    """The server waits for the rest of a large message, but not for long."""
    client = await Client.connect(port)
    message = struct.pack(">BI", 0, 600_000) + bytes(100_000)
    client.send(client.headers(1), DataFrame(1, data=message[:16_000]))
    client.send(DataFrame(1, data=message[16_000:]))
    client.send(PingFrame(0, opaque_data=b"12345678"))
    while not isinstance(await client.frame(), PingFrame):
        pass
    client.send(DataFrame(1, data=bytes(50_000)), RstStreamFrame(1, error_code=8))
    await service.cancelled.wait()
    client.send(*client.request(3, b"the next call"))
    assert await client.answer() == (b"the next call", {"grpc-status": "0"})


@scenario()
async def test_a_client_that_leaves_inside_a_large_message(port, listener, service):
    client = await Client.connect(port)
    message = struct.pack(">BI", 0, 600_000) + bytes(100_000)
    client.send(client.headers(1), DataFrame(1, data=message))
    await until(lambda: listener.unfinished_bytes > 0)
    await client.close()
    await service.cancelled.wait()


@scenario()
async def test_the_h2_library(port, listener, service):
    """An independent implementation keeps the books of both windows and checks every frame."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    connection.update_settings({4: 20_000, 5: 20_000, 1: 512})
    message = random.Random(1).randbytes(400_000)
    body = {n: struct.pack(">BI", 0, len(message)) + message for n in (1, 3, 5, 7)}
    received = dict.fromkeys(body, b"")
    for stream_id in body:
        connection.send_headers(stream_id, HEADERS)
    ended, trailers = set(), {}
    while len(ended) < 4:
        for stream_id in list(body):
            while body[stream_id]:
                room = connection.local_flow_control_window(stream_id)
                room = min(room, connection.max_outbound_frame_size, 50_000)
                if not room:
                    break
                connection.send_data(stream_id, body[stream_id][:room])
                body[stream_id] = body[stream_id][room:]
                if not body[stream_id]:
                    connection.end_stream(stream_id)
        writer.write(connection.data_to_send())
        data = await reader.read(65_536)
        assert data
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                received[event.stream_id] += event.data
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                trailers[event.stream_id] = dict(event.headers)
            elif isinstance(event, h2.events.StreamEnded):
                ended.add(event.stream_id)
            assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated)
    assert all(data[5:] == message for data in received.values())
    assert all(block[b"grpc-status"] == b"0" for block in trailers.values())
    connection.close_connection()
    writer.write(connection.data_to_send())
    writer.close()


@scenario()
async def test_pieces_of_any_size(port, listener, service):
    chance = random.Random(7)
    client = await Client.connect(port, greet=False)
    message = chance.randbytes(150_000)
    data = PREFACE + SettingsFrame(0, settings={4: 1 << 22}).serialize()
    data += bytes.fromhex("000004080000000000") + struct.pack(">I", 1 << 24)
    for number in range(6):
        stream_id = 1 + 2 * number
        body = struct.pack(">BI", 0, len(message)) + message
        data += client.headers(stream_id).serialize()
        for start in range(0, len(body), 60_000):
            piece = body[start : start + 60_000]
            last = start + 60_000 >= len(body)
            data += struct.pack(">I", len(piece))[1:] + bytes([0, last])
            data += struct.pack(">I", stream_id) + piece
    while data:
        size = chance.choice([1, 5, 9, 14, 700, 20_000, 90_000])
        client.send(data[:size])
        data = data[size:]
        await client.writer.drain()
        await asyncio.sleep(0)  # a chance for the server to read just that
    answers = await client.answers(6)
    assert answers == {1 + 2 * number: (message, {"grpc-status": "0"}) for number in range(6)}


@scenario()
async def test_the_reason_reaches_a_client_that_keeps_sending(port, listener, service):
    client = await Client.connect(port)
    client.send(client.headers(1, "/test.Echo/Hold"), WRONG)
    client.send(b"\0" * 300_000)
    goaway = await client.expect(GoAwayFrame)
    assert goaway.error_code == 1
    assert goaway.last_stream_id == 1
    await service.cancelled.wait()
    assert await client.reader.read() == b""


@scenario(GrpcSettings(GrpcLimits(linger_secs=0.05)))
async def test_a_client_that_does_not_hang_up_is_hung_up_on(port, listener, service):
    client = await Client.connect(port)
    client.send(WRONG)
    await client.expect(GoAwayFrame)
    await client.closed()
    await until(lambda: listener.connections == 0)


async def until(condition) -> None:
    """Wait until `condition` holds; a transport has no events for its own insides."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@scenario(GrpcSettings(GrpcLimits(handshake_secs=0.5)))
async def test_a_silent_client_is_disconnected(port, listener, service):
    silent = await Client.connect(port, greet=False)
    slow = await Client.connect(port, greet=False)
    slow.send(PREFACE[:10])
    greeted = await Client.connect(port)
    await silent.closed()
    await slow.closed()
    greeted.send(*greeted.request(1))
    assert (await greeted.answer())[0] == b"hi"


@scenario(GrpcSettings(GrpcLimits(stalled_request_secs=0.05)))
async def test_a_request_that_stops_arriving_is_answered(port, listener, service):
    client = await Client.connect(port)
    client.send(client.headers(1), client.headers(3, "/test.Echo/Hold"))
    client.send(DataFrame(1, data=b"\0\0\0"))
    _, trailers = await client.answer()
    assert trailers["grpc-status"] == "4"
    assert listener.streams == 1, "the stream may stay"


@scenario(GrpcSettings(keepalive=KeepAlive(time_ms=40, timeout_ms=40)))
async def test_an_unresponsive_peer_is_disconnected(port, listener, service):
    client = await Client.connect(port)
    client.send(client.headers(1, "/test.Echo/Hold"))
    await client.expect(PingFrame)
    await client.closed()
    await service.cancelled.wait()


@scenario(
    GrpcSettings(keepalive=KeepAlive(max_connection_age_ms=50, max_connection_age_grace_ms=500))
)
async def test_age_and_grace(port, listener, service):
    client = await Client.connect(port)
    client.send(client.headers(1, "/test.Echo/Hold"))
    goaway = await client.expect(GoAwayFrame)
    assert (goaway.error_code, goaway.additional_data) == (0, b"max_age")
    ping = await client.expect(PingFrame)
    client.send(PingFrame(0, opaque_data=ping.opaque_data, flags=["ACK"]))
    assert (await client.expect(GoAwayFrame)).last_stream_id == 1
    await client.closed()
    await service.cancelled.wait()


@scenario(GrpcSettings(keepalive=KeepAlive(max_ping_strikes=0)))
async def test_a_client_that_sends_requests_and_never_reads_is_cut_off(port, listener, service):
    client = await Client.connect(port, limit=1)
    client.writer.transport.pause_reading()
    ping = PingFrame(0, opaque_data=b"12345678").serialize()
    await until(lambda: listener.connections)
    (transport,) = listener._registry.transports
    stream_id = 1
    with contextlib.suppress(ConnectionError):
        while listener.connections:
            client.send(*client.request(stream_id), ping * 1500)
            stream_id += 2
            await client.writer.drain()
            await asyncio.sleep(0)  # the server's turn
    assert not transport.connection.fault
    assert stream_id > 10


@scenario(GrpcSettings(GrpcLimits(write_stall_secs=0.5)))
async def test_a_socket_that_takes_nothing_is_given_up(port, listener, service):
    client = await Client.connect(port, limit=1)
    client.send(SettingsFrame(0, settings={4: (1 << 31) - 1}))
    client.send(bytes.fromhex("000004080000000000") + struct.pack(">I", 1 << 30))
    client.send(client.headers(1, "/test.Echo/Hold"))
    await until(lambda: service.calls)
    client.writer.transport.pause_reading()
    call = service.calls[0]
    for _ in range(64):
        call.send((b"x" * (1 << 20),))
    assert not call.writable
    (transport,) = listener._registry.transports
    await until(lambda: transport._paused)
    waiting = transport._transport.get_write_buffer_size()
    assert waiting < 2 << 20, "what does not leave stays with its stream"
    await service.cancelled.wait()
    await until(lambda: listener.connections == 0)


@scenario()
async def test_half_a_connection_is_none(port, listener, service):
    client = await Client.connect(port)
    client.send(client.headers(1, "/test.Echo/Hold"))
    client.writer.write_eof()
    await service.cancelled.wait()
    await client.closed()


@scenario()
async def test_plain_http_gets_a_sentence(port, listener, service):
    client = await Client.connect(port, greet=False)
    client.send(b"POST /v2/models/x/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
    answer = await client.reader.read()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"This port speaks gRPC" in answer


def test_an_internal_error_ends_the_connection_with_a_reason(monkeypatch, caplog):
    def broken(self, data):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Connection, "receive", broken)

    @scenario()
    async def run(port, listener, service):
        client = await Client.connect(port)
        assert (await client.expect(GoAwayFrame)).error_code == 2
        assert "a bug" in caplog.text

    run()


# Programs that are not ours.


async def output_of(*command, data=b""):
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.PIPE
    )
    out, _ = await process.communicate(data)
    return process.returncode, out.decode()


@pytest.mark.nghttp2
def test_nghttp(tmp_path):
    message = bytes(range(256)) * 1000
    body = tmp_path / "body"
    body.write_bytes(struct.pack(">BI", 0, len(message)) + message)

    @scenario()
    async def run(port, listener, service):
        code, out = await output_of(
            *(shutil.which("nghttp"), "-v", "-n", "--no-dep", f"--data={body}"),
            *(
                "-H",
                "content-type: application/grpc",
                "-H",
                "te: trailers",
                "--header-table-size=0",
            ),
            *("--max-concurrent-streams=5", "--window-bits=17", "--trailer=a: b", "--padding=50"),
            f"http://127.0.0.1:{port}/test.Echo/Unary",
        )
        assert code == 0, out
        assert "grpc-status: 0" in out
        assert "error_code=NO_ERROR" in out
        assert out.count("error_code=") == 1, out
        assert len(service.calls) == 1

    run()


@pytest.mark.nghttp2
@pytest.mark.parametrize("size", [20, 100_000])
def test_h2load(tmp_path, size):
    body = tmp_path / "body"
    body.write_bytes(struct.pack(">BI", 0, size) + b"x" * size)
    requests = 3000 if size < 1000 else 300

    @scenario()
    async def run(port, listener, service):
        code, out = await output_of(
            *(shutil.which("h2load"), "-n", str(requests), "-c", "10", "-m", "20", "-d", str(body)),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            f"http://127.0.0.1:{port}/test.Echo/Unary",
        )
        assert code == 0, out
        assert f"{requests} succeeded, 0 failed, 0 errored" in out
        assert f"status codes: {requests} 2xx" in out

    run()
