"""gRPC under load: a few calls at a time on one HTTP/2 connection, their answers merely checked.

    GrpcLane.send --> HEADERS + DATA --> … --> DATA, trailers --> Receiver.finished

With a stream the call stays open and each message on it is a request. The server is asked to leave
HPACK's table empty: then equal bytes always mean equal headers and are read once.
"""

from __future__ import annotations

import ssl
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from urllib.parse import unquote

import hpack

from shoal.perf.connection import Connection, LoadFailed, Place, Receiver
from shoal.perf.poller import Poller
from shoal.perf.requests import Replay, Turn
from shoal.perf.sequences import RunningSequence
from shoal.wire import http2_frames as frames
from shoal.wire.http2_frames import ErrorCode, Setting
from shoal.wire.proto import messages

LANES_PER_CONNECTION = 6  # as many as NVIDIA's client puts on one
UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"

_FRAME_BYTES = 131_072  # what one frame from the server may hold
_HUGE_WINDOW = frames.MAX_WINDOW
_TOP_UP = 1 << 30
_PREFIX_BYTES = 5
_LENGTH = struct.Struct(">I")
_FINAL = b"triton_final_response\x12\x02\x08\x01"  # a parameter, and the bool it holds


@dataclass(frozen=True, slots=True)
class CallHeaders:
    """What every call says of itself."""

    path: str
    authority: str
    encrypted: bool
    more: tuple[tuple[str, str], ...] = ()
    compression: str = ""

    def block(self, encoder: hpack.Encoder) -> bytes:
        """As HPACK; the second one made by an encoder is short."""
        fields = [
            (":method", "POST"),
            (":scheme", "https" if self.encrypted else "http"),
            (":path", self.path),
            (":authority", self.authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "shoal-perf"),
        ]
        if self.compression:
            fields.append(("grpc-encoding", self.compression))
        fields += [(name.lower(), value) for name, value in self.more]
        made: bytes = encoder.encode(fields)
        return made


@dataclass(slots=True)
class _Sending:
    """A message that waits for the peer's windows."""

    lane: GrpcLane
    stream_id: int
    data: memoryview
    end_stream: bool


@dataclass(slots=True)
class _Meaning:
    """What a block of headers says."""

    http_status: str = ""
    code: str = ""
    message: str = ""


@dataclass(slots=True)
class _Block:
    """Headers that go on in further frames."""

    stream_id: int
    end_stream: bool
    parts: list[bytes] = field(default_factory=list)


class GrpcLane:
    """One call at a time, or one stream, on a shared connection."""

    def __init__(self, connection: GrpcConnection, streaming: bool, decoupled: bool) -> None:
        self.start_ns = 0
        self.turn: Turn | None = None
        self.sequence: RunningSequence | None = None
        self.streaming = streaming
        self.decoupled = decoupled
        self.stream_id = 0
        self.window = 0  # bytes the peer takes on this stream
        self.first_ns = 0  # when the answer began to arrive
        self.answered_ns = 0  # when the first response was complete
        self.moments: list[int] = []  # of all responses, where a request has several
        self.partial = b""
        self._connection = connection

    def send(self, replay: Replay, turn: Turn | None) -> None:
        """Send a request. Raises LoadFailed."""
        data = replay.filled(turn)
        self.turn = turn
        self.first_ns = self.answered_ns = 0
        if self.decoupled:
            self.moments = []
        self._connection.send(self, data)


class GrpcConnection(Connection):
    """One HTTP/2 connection and the calls on it."""

    def __init__(
        self,
        place: Place,
        context: ssl.SSLContext | None,
        poller: Poller,
        receiver: Receiver,
        headers: CallHeaders,
    ) -> None:
        """Connect and say hello. Raises LoadFailed."""
        self.lanes = 0
        encoder = hpack.Encoder()
        self._blocks = [headers.block(encoder), headers.block(encoder)]
        self._decoder = hpack.Decoder()
        self._decoder.header_table_size = 0
        self._meanings: dict[bytes, _Meaning] = {}
        self._streams: dict[int, GrpcLane] = {}
        self._next_id = 1
        self._window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._queue: deque[_Sending] = deque()
        self._block: _Block | None = None
        self._consumed = 0
        self._rest = b""
        super().__init__(place, context, poller, receiver)
        self._write(
            frames.PREFACE
            + frames.settings(
                [
                    (Setting.HEADER_TABLE_SIZE, 0),
                    (Setting.ENABLE_PUSH, 0),
                    (Setting.INITIAL_WINDOW_SIZE, _HUGE_WINDOW),
                    (Setting.MAX_FRAME_SIZE, _FRAME_BYTES),
                ]
            )
            + frames.window_update(0, _HUGE_WINDOW - frames.DEFAULT_WINDOW)
        )

    # ---- sending

    def send(self, lane: GrpcLane, data: bytes) -> None:
        """Send a message: on a call of its own, or on the lane's stream. Raises LoadFailed."""
        start_ns = lane.start_ns = perf_counter_ns()
        parts: list[bytes] = []
        if not lane.streaming or not lane.stream_id:
            lane.stream_id = stream_id = self._next_id
            self._next_id += 2
            lane.window = self._stream_window
            self._streams[stream_id] = lane
            block = self._blocks[0]
            if len(self._blocks) > 1:  # the first one fills the peer's table
                del self._blocks[0]
            flags = frames.END_HEADERS
            parts += (frames.header(len(block), frames.HEADERS, flags, stream_id), block)
        size = len(data)
        end_stream = not lane.streaming
        if size <= min(self._frame_bytes, self._window, lane.window) and not self._queue:
            self._window -= size
            lane.window -= size
            flags = frames.END_STREAM if end_stream else 0
            parts += (frames.header(size, frames.DATA, flags, lane.stream_id), data)
            self._write(b"".join(parts))
        else:
            if parts:
                self._write(b"".join(parts))
            self._queue.append(_Sending(lane, lane.stream_id, memoryview(data), end_stream))
            self._pump()
        self._receiver.send_ns += perf_counter_ns() - start_ns

    def _pump(self) -> None:
        """Send of what waits as much as the peer takes."""
        parts: list[bytes | memoryview] = []
        waiting: deque[_Sending] = deque()
        while self._queue and self._window:
            sending = self._queue.popleft()
            lane = sending.lane
            while len(sending.data) and self._window and lane.window > 0:
                size = min(len(sending.data), self._window, lane.window, self._frame_bytes)
                last = size == len(sending.data)
                flags = frames.END_STREAM if last and sending.end_stream else 0
                parts += (
                    frames.header(size, frames.DATA, flags, sending.stream_id),
                    sending.data[:size],
                )
                sending.data = sending.data[size:]
                self._window -= size
                lane.window -= size
            if len(sending.data):
                waiting.append(sending)
        waiting.extend(self._queue)
        self._queue = waiting
        if parts:
            self._write(b"".join(parts))

    # ---- receiving

    def on_readable(self) -> None:
        """Take what arrived. Raises LoadFailed."""
        begun_ns = perf_counter_ns()
        data = self._read()
        if self._rest:
            data = self._rest + data
        size = len(data)
        position = 0
        while size - position >= 9:
            high, low, kind, flags, stream_id = frames.HEADER.unpack_from(data, position)
            end = position + 9 + (high << 8 | low)
            if end > size:
                break
            if kind == frames.DATA:
                self._consumed += end - position - 9
                lane = self._streams.get(stream_id)
                if lane is not None:
                    lane.first_ns = lane.first_ns or begun_ns
                    if lane.streaming:
                        self._messages(lane, _unpadded(data[position + 9 : end], flags))
            elif kind == frames.HEADERS:
                block = data[position + 9 : end]
                if flags & (frames.PADDED | frames.HAS_PRIORITY):
                    block = _unpadded(block, flags)
                    block = block[5:] if flags & frames.HAS_PRIORITY else block
                if flags & frames.END_HEADERS:
                    self._headers(stream_id, block, bool(flags & frames.END_STREAM), begun_ns)
                else:
                    self._block = _Block(stream_id, bool(flags & frames.END_STREAM), [block])
            else:
                self._other(kind, flags, stream_id, data[position + 9 : end], begun_ns)
            position = end
        self._rest = data[position:]
        if self._consumed > _TOP_UP:
            self._write(frames.window_update(0, self._consumed))
            self._consumed = 0

    def _headers(self, stream_id: int, block: bytes, end_stream: bool, begun_ns: int) -> None:
        meaning = self._meanings.get(block)
        if meaning is None:
            meaning = self._meanings[block] = self._decoded(block)
        if meaning.http_status not in ("", "200"):
            raise LoadFailed(
                f"{self._place.authority} answered gRPC with HTTP status {meaning.http_status}; "
                f"is that its gRPC port?"
            )
        lane = self._streams.get(stream_id)
        if lane is None:
            return
        lane.first_ns = lane.first_ns or begun_ns
        if not end_stream:
            return
        del self._streams[stream_id]
        if meaning.code != "0":
            raise LoadFailed(
                f"the server refused a request with gRPC status {meaning.code or 'unknown'}: "
                f"{meaning.message}"
            )
        if lane.streaming:
            raise LoadFailed("the server ended the stream")
        self._finish(lane, perf_counter_ns())

    def _messages(self, lane: GrpcLane, data: bytes) -> None:
        """Whole messages on a stream; what is left of one waits for the rest."""
        if lane.partial:
            data = lane.partial + data
        position = 0
        while len(data) - position >= _PREFIX_BYTES:
            (length,) = _LENGTH.unpack_from(data, position + 1)
            end = position + _PREFIX_BYTES + length
            if end > len(data):
                break
            self._message(lane, data[position + _PREFIX_BYTES : end])
            position = end
        lane.partial = data[position:]

    def _message(self, lane: GrpcLane, message: bytes) -> None:
        """One ModelStreamInferResponse."""
        if message[:1] == b"\x0a":
            said = messages.ModelStreamInferResponse.FromString(message).error_message
            raise LoadFailed(f"the server refused a request: {said}")
        now_ns = perf_counter_ns()
        if not lane.decoupled:
            self._finish(lane, now_ns)
            return
        final = _FINAL in message
        if not (final and len(message) < 256 and _is_empty(message)):
            lane.answered_ns = lane.answered_ns or now_ns
            lane.moments.append(now_ns)
        if final:
            self._finish(lane, lane.answered_ns or now_ns)

    def _finish(self, lane: GrpcLane, end_ns: int) -> None:
        if not lane.decoupled:
            self._receiver.receive_ns += end_ns - lane.first_ns
        self._receiver.finished(lane, end_ns)

    def _decoded(self, block: bytes) -> _Meaning:
        try:
            found = {str(name): str(value) for name, value in self._decoder.decode(block)}
        except hpack.HPACKError as error:
            raise LoadFailed(
                f"{self._place.authority} sent headers nobody can read: {error}"
            ) from None
        return _Meaning(
            found.get(":status", ""),
            found.get("grpc-status", ""),
            unquote(found.get("grpc-message", "")),
        )

    def _other(self, kind: int, flags: int, stream_id: int, payload: bytes, begun_ns: int) -> None:
        """The frames that keep a connection going."""
        if kind == frames.WINDOW_UPDATE:
            (increment,) = _LENGTH.unpack(payload)
            if stream_id == 0:
                self._window += increment
            elif stream_id in self._streams:
                self._streams[stream_id].window += increment
            if self._queue:
                self._pump()
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._settings(payload)
        elif kind == frames.PING and not flags & frames.ACK:
            self._write(frames.ping(payload, ack=True))
        elif kind == frames.CONTINUATION and self._block is not None:
            self._block.parts.append(payload)
            if flags & frames.END_HEADERS:
                block, self._block = self._block, None
                self._headers(block.stream_id, b"".join(block.parts), block.end_stream, begun_ns)
        elif kind == frames.RST_STREAM and stream_id in self._streams:
            raise LoadFailed(f"the server broke a call off ({_error_name(payload)})")
        elif kind == frames.GOAWAY:
            said = payload[8:].decode("utf-8", "replace") or "no reason given"
            name = _error_name(payload[4:8])
            raise LoadFailed(f"the server closes the connection ({name}: {said})")

    def _settings(self, payload: bytes) -> None:
        for name, value in frames.parse_settings(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                for lane in self._streams.values():
                    lane.window += value - self._stream_window
                self._stream_window = value
            elif name == Setting.MAX_FRAME_SIZE:
                self._frame_bytes = value
        self._write(frames.SETTINGS_ACK)
        if self._queue:
            self._pump()


def _unpadded(payload: bytes, flags: int) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & frames.PADDED else payload


def _is_empty(message: bytes) -> bool:
    """Whether a response that marks the end carries no outputs."""
    response = messages.ModelStreamInferResponse.FromString(message)
    return not response.infer_response.outputs


def _error_name(payload: bytes) -> str:
    (code,) = _LENGTH.unpack(payload[:4])
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def lane_headers(
    place: Place, *, streaming: bool, more: Sequence[tuple[str, str]] = (), compression: str = ""
) -> CallHeaders:
    """The headers of inference calls."""
    path = STREAM if streaming else UNARY
    encrypted = place.tls is not None
    return CallHeaders(path, place.authority, encrypted, tuple(more), compression)
