"""A client without a socket: frames in, frames out, and an echo service behind them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import hpack
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
)

from shoal.core.buffers import BufferPool
from shoal.frontends.grpc.call import Call, Kind, Method
from shoal.frontends.grpc.dispatch import Dispatcher
from shoal.frontends.grpc.h2 import Connection
from shoal.frontends.grpc.service import GrpcService
from shoal.frontends.grpc.settings import GrpcSettings
from shoal.wire.http2_frames import PREFACE, H2Error
from tests.support.grpc_calls import DirectInbox
from tests.support.scripted_engine import ScriptedEngine

HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Echo/Unary"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


class EchoService:
    """Echoes what it hears and writes down what happened."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.messages: list[bytes] = []
        self.events: list[str] = []
        self._methods = {
            "/test.Echo/Unary": Method(Kind.UNARY, self._unary),
            "/test.Echo/ServerStream": Method(Kind.STREAM, self._stream),
            "/test.Echo/Hold": Method(Kind.UNARY, self._hold),
            "/test.Echo/Small": Method(Kind.UNARY, self._unary, 100, 100),
            "/test.Echo/Broken": Method(Kind.UNARY, self._broken),
        }

    def method(self, path: str) -> Method | None:
        return self._methods.get(path)

    def _unary(self, call: Call) -> None:
        self._watch(call)

        def message(data: Any) -> None:
            self.messages.append(bytes(data))
            call.reply((data,))

        call.on_message = message

    def _stream(self, call: Call) -> None:
        self._watch(call)

        def message(data: Any) -> None:
            self.messages.append(bytes(data))
            call.send((data,))

        call.on_message = message
        call.on_half_close = call.finish

    def _hold(self, call: Call) -> None:
        self._watch(call)
        call.on_message = lambda data: self.messages.append(bytes(data))
        call.on_half_close = lambda: self.events.append("half-close")

    def _broken(self, call: Call) -> None:
        self._watch(call)

        def message(_data: Any) -> None:
            raise RuntimeError("the service is broken")

        call.on_message = message

    def _watch(self, call: Call) -> None:
        self.calls.append(call)
        call.on_cancel = lambda: self.events.append("cancel")
        call.on_drain = lambda: self.events.append("drain")


class FakeClock:
    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, secs: float) -> None:
        self.now_ns += int(secs * 1e9)


class Answer:
    """What one stream got: headers, messages, trailers."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, str]] = []
        self.data = b""
        self.ended = False
        self.reset: int | None = None

    @property
    def messages(self) -> list[tuple[int, bytes]]:
        found = []
        data = self.data
        while data:
            flag, length = struct.unpack_from(">BI", data)
            assert len(data) >= 5 + length, "a message is cut short"
            found.append((flag, data[5 : 5 + length]))
            data = data[5 + length :]
        return found

    @property
    def status(self) -> int | None:
        return int(self.blocks[-1]["grpc-status"]) if self.ended else None

    @property
    def text(self) -> str:
        return self.blocks[-1].get("grpc-message", "")


class Peer:
    """The client's end of a connection, which feeds it as the transport does."""

    def __init__(
        self, settings: GrpcSettings | None = None, service: Any = None, *, fast: bool = True
    ) -> None:
        """`fast`: whether calls may take the fast path, if the service has one."""
        self.clock = FakeClock()
        self.service = EchoService() if service is None else service
        self.deadlines: list[int] = []
        self.dispatcher = Dispatcher(
            self.service,
            settings or GrpcSettings(),
            self.deadlines.append,
            self.clock,
            BufferPool(),
        )
        self.woken = 0
        self.connection = Connection(
            self.dispatcher.settings,
            self.dispatcher.accept,
            self._wake,
            self.clock,
            self.dispatcher.shared,
            self.dispatcher.fast_path if fast else None,
        )
        self.connection.peer = "ipv4:127.0.0.1:5"
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.frames: list[Frame] = []  # everything received
        self.answers: dict[int, Answer] = {}
        self.direct_bytes = 0
        self._pending = b""
        self._block: Frame | None = None

    def _wake(self) -> None:
        self.woken += 1

    def feed(self, data: bytes) -> None:
        """Give bytes to the connection, into its own memory where it asks for that."""
        while data:
            direct = self.connection.direct
            if direct is not None:
                count = min(len(direct), len(data))
                direct[:count] = data[:count]
                self.direct_bytes += count
                self.connection.direct_filled(count)
                data = data[count:]
                continue
            whole = self._pending + data
            used = self.connection.receive(whole)
            self._pending = whole[used:]
            data = b""
        for fast_path in self.dispatcher._fast_paths:
            fast_path.inbox.end_iteration()

    def collect(self) -> list[Frame]:
        """What the connection has to say, as the transport would take it."""
        sender = self.connection.sender
        written = b""
        while True:
            if sender.sendable:
                sender.pump()
            if not sender.out:
                break
            written += b"".join(sender.out)
            sender.out = []
        sender.awake = False
        received = parse(written)
        for frame in received:
            self._record(frame)
        self.frames += received
        return received

    def send(self, *frames: Frame | bytes) -> list[Frame]:
        """Send frames and return what comes back."""
        self.feed(b"".join(f if isinstance(f, bytes) else f.serialize() for f in frames))
        return self.collect()

    def greet(self, settings: dict[int, int] | None = None) -> Peer:
        self.send(PREFACE, SettingsFrame(0, settings=settings or {}))
        return self

    def headers(self, stream_id: int, *, end: bool = False, **changes: str | None) -> HeadersFrame:
        """A HEADERS frame for one call; keywords replace, add or remove fields."""
        path = changes.pop("path", None)
        fields = [(name, path if path and name == ":path" else value) for name, value in HEADERS]
        for key, value in changes.items():
            name = key.replace("_", "-")
            fields = [field for field in fields if field[0] != name]
            if value is not None:
                fields.append((name, value))
        return self.block(stream_id, fields, end=end)

    def block(
        self, stream_id: int, fields: Iterable[tuple[str, str]], *, end: bool = False
    ) -> HeadersFrame:
        flags = ["END_HEADERS"] + (["END_STREAM"] if end else [])
        return HeadersFrame(stream_id, data=self.encoder.encode(list(fields)), flags=flags)

    def call(self, stream_id: int, message: bytes = b"hi", **changes: Any) -> list[Frame]:
        """One whole unary call."""
        return self.send(
            self.headers(stream_id, **changes), data(stream_id, prefixed(message), end=True)
        )

    def _record(self, frame: Frame) -> None:
        answer = self.answers.setdefault(frame.stream_id, Answer()) if frame.stream_id else None
        if isinstance(frame, (HeadersFrame, ContinuationFrame)):
            assert answer is not None
            if isinstance(frame, HeadersFrame):
                self._block = HeadersFrame(frame.stream_id, data=b"", flags=frame.flags)
            assert self._block is not None
            self._block.data += frame.data
            if "END_HEADERS" in frame.flags:
                answer.blocks.append(dict(self.decoder.decode(self._block.data)))
                answer.ended = answer.ended or "END_STREAM" in self._block.flags
        elif isinstance(frame, DataFrame):
            assert answer is not None
            answer.data += frame.data
        elif isinstance(frame, RstStreamFrame):
            assert answer is not None
            answer.reset = frame.error_code

    @property
    def goaway(self) -> GoAwayFrame | None:
        found = [frame for frame in self.frames if isinstance(frame, GoAwayFrame)]
        return found[-1] if found else None


def parse(data: bytes) -> list[Frame]:
    view = memoryview(data)
    frames = []
    while view:
        frame, length = Frame.parse_frame_header(view[:9])
        frame.parse_body(view[9 : 9 + length])
        frames.append(frame)
        view = view[9 + length :]
    return frames


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


def data(stream_id: int, payload: bytes, *, end: bool = False) -> DataFrame:
    return DataFrame(stream_id, data=payload, flags=["END_STREAM"] if end else [])


def raw(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Any frame, also one that no library would make."""
    return (
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload
    )


class Tools:
    """The functions above, for tests that cannot import this file."""

    Peer = Peer
    HEADERS = HEADERS
    H2Error = H2Error
    EchoService = EchoService
    FakeClock = FakeClock
    data = staticmethod(data)
    prefixed = staticmethod(prefixed)
    raw = staticmethod(raw)
    parse = staticmethod(parse)


@pytest.fixture
def tools():
    return Tools


@pytest.fixture
def peer():
    return Peer().greet()


@pytest.fixture
def engine():
    return ScriptedEngine()


@pytest.fixture
def service(engine):
    made = GrpcService(engine, DirectInbox())
    yield made
    made.close()
