"""The part of a connection that is not about requests: settings, windows, pings, the ends of
streams and of the connection itself.

    open --drain--> GOAWAY, ping --pong--> GOAWAY with the last stream --no streams--> closed
    drain before the client's preface: the same, after it
    open --fault--> GOAWAY with the reason --> closed
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shoal.frontends.grpc.flow import Sender, ServerStream
from shoal.frontends.grpc.guard import FloodGuard, PingGuard
from shoal.frontends.grpc.settings import GrpcSettings
from shoal.frontends.grpc.turns import GAP_NS, TURN_NS, Turns
from shoal.frontends.memory_budget import MemoryBudget
from shoal.wire import http2_frames as frames
from shoal.wire.http2_frames import ConnectionFault, H2Error, Setting, StreamFault

_REMEMBERED_RESETS = 1_024
_MAX_SETTINGS_BYTES = 6 * 256
_PADDING_AND_PRIORITY_BYTES = 1 + 255 + 5
_DEFAULT_TABLE_BYTES = 4_096
_PROGRESS_BYTES = 16 << 10  # a client that takes so much while it is watched keeps its stream
_DRAIN_PING = b"draining"
_KEEPALIVE_PING = b"alive?\0\0"

_EXACT_SIZES = {
    frames.RST_STREAM: 4,
    frames.PING: 8,
    frames.WINDOW_UPDATE: 4,
}
_ON_STREAM_ZERO = frozenset((frames.SETTINGS, frames.PING, frames.GOAWAY))
_NOT_ON_STREAM_ZERO = frozenset(
    (frames.HEADERS, frames.PRIORITY, frames.RST_STREAM, frames.CONTINUATION)
)


@dataclass(frozen=True, slots=True)
class SharedByConnections:
    """What all connections of a listener share."""

    memory: MemoryBudget
    turns: Turns


class ControlFrames(ABC):
    """Streams, settings, windows and the end of one connection; `h2.Connection` adds requests."""

    def __init__(
        self,
        settings: GrpcSettings,
        wake: Callable[[], None],
        clock: Callable[[], int],
        shared: SharedByConnections,
    ) -> None:
        self.peer = ""  # the client's address, for people
        self.streams: dict[int, ServerStream] = {}
        self.last_id = 0  # the highest stream a client has opened
        self.greeted = False  # the client's preface has arrived
        self.settled = False  # ... and its SETTINGS
        self.closed = False  # nothing more is read, nothing more will be sent than is in `out`
        self.fault = ""  # why, when it was the client's fault
        self.draining = False
        self.drained_at: int | None = None  # streams above this id are ignored
        limits = settings.limits
        self.sender = Sender(
            wake,
            self._local_end,
            limits.send_low_bytes,
            shared.memory,
            max(limits.max_queued_bytes, int(limits.max_buffered_bytes * limits.queued_share)),
        )
        self.turns = shared.turns
        self._in_turn = False  # whether this read has had frames that are not on the fast path
        self._turn_began_ns = 0
        self._worked_ns = 0  # when it last worked
        self._put_off: deque[Callable[[], None]] = deque()  # what calls do in the next turn
        self.guard = FloodGuard(settings.limits, clock())
        self._limits = settings.limits
        self._max_frame_bytes = settings.limits.max_frame_bytes
        self._low_stream_window = settings.limits.stream_window_bytes // 2
        self._clock = clock
        self._ping_guard = PingGuard(settings.keepalive)
        self._peer_table_bytes = _DEFAULT_TABLE_BYTES
        self._reset_ids: dict[int, None] = {}  # streams we gave up, the oldest first

    def greet(self) -> None:
        """Our half of the preface."""
        self.greeted = True
        limits = self._limits
        self.sender.control(
            frames.settings(
                (
                    (Setting.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams),
                    (Setting.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
                    (Setting.MAX_FRAME_SIZE, limits.max_frame_bytes),
                    (Setting.MAX_HEADER_LIST_SIZE, limits.max_header_list_bytes),
                )
            )
        )
        extra = limits.connection_window_bytes - frames.DEFAULT_WINDOW
        if extra:
            self.sender.control(frames.window_update(0, extra))
        if self.draining:
            self._announce_end("")

    def turn_over(self) -> bool:
        """Whether this connection has worked so long in this loop iteration that the others should
        have theirs; to be asked after each piece of work that is not on the fast path."""
        now_ns = self._clock()
        if not self._in_turn:
            self._in_turn = True
            if now_ns - self._worked_ns > GAP_NS:
                self._turn_began_ns = now_ns
        return now_ns - self._turn_began_ns > TURN_NS and self.turns.loop is not None

    def begin_turn(self) -> None:
        """Work again, in a later loop iteration."""
        self._in_turn = True
        self._turn_began_ns = self._clock()

    def end_reading(self) -> None:
        """All frames of a read are done with, or left for the next turn."""
        if self._in_turn:
            self._in_turn = False
            self._worked_ns = self._clock()

    def put_off(self, work: Callable[[], None]) -> None:
        """Call `work` in the next turn of this connection."""
        if not self._put_off:
            self.turns.soon(self._catch_up)
        self._put_off.append(work)

    def _catch_up(self) -> None:
        self.begin_turn()
        waiting, self._put_off = self._put_off, deque()
        while waiting and not self.turn_over():
            waiting.popleft()()
        if waiting and not self._put_off:
            self.turns.soon(self._catch_up)
        self._put_off.extendleft(reversed(waiting))
        self.end_reading()

    # What arrives.

    def check_size(self, kind: int, flags: int, length: int, stream_id: int) -> None:
        """The rules about length and stream 0 for every type but DATA; the payload may still be
        on its way."""
        if kind in _ON_STREAM_ZERO if stream_id else kind in _NOT_ON_STREAM_ZERO:
            raise ConnectionFault(
                H2Error.PROTOCOL_ERROR, f"a frame of type {kind} on stream {stream_id}"
            )
        wrong = False
        if kind in _EXACT_SIZES:
            wrong = length != _EXACT_SIZES[kind]
        elif kind == frames.PRIORITY and length != 5:
            if self.is_idle(stream_id):  # which cannot be reset
                wrong = True
            else:
                raise StreamFault(stream_id, H2Error.FRAME_SIZE_ERROR, "PRIORITY is not 5 bytes")
        elif kind == frames.SETTINGS:
            wrong = length % 6 != 0 or bool(flags & frames.ACK and length)
        elif kind == frames.GOAWAY:
            wrong = length < 8
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(H2Error.PROTOCOL_ERROR, "clients cannot push")
        if wrong:
            raise ConnectionFault(
                H2Error.FRAME_SIZE_ERROR,
                f"a frame of type {kind} cannot have {length} bytes",
            )
        most = self._limits.max_header_block_bytes + _PADDING_AND_PRIORITY_BYTES
        if (kind in (frames.HEADERS, frames.CONTINUATION) and length > most) or (
            kind == frames.SETTINGS and length > _MAX_SETTINGS_BYTES
        ):
            raise ConnectionFault(
                H2Error.ENHANCE_YOUR_CALM, f"a frame of type {kind} with {length} bytes"
            )

    def on_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A whole frame that is neither DATA nor part of a header block, of a legal size."""
        if kind == frames.RST_STREAM:
            self._on_rst_stream(stream_id)
        elif kind == frames.SETTINGS:
            self._on_settings(flags, payload)
        elif kind == frames.PING:
            self._on_ping(flags, payload)
        else:  # GOAWAY and PRIORITY change nothing for us, unknown types are to be ignored
            self.idle_frame()

    def is_idle(self, stream_id: int) -> bool:
        """Whether that stream has not been opened; the server would open those with even ids."""
        return stream_id > self.last_id or not stream_id & 1

    def idle_frame(self) -> None:
        """Count a frame that moves nothing."""
        self.guard.idle_frame(self.sender.sent_frames)

    def skippable(self, kind: int, length: int) -> bool:
        """Whether a frame's payload does not matter, so that it need not be kept until whole."""
        return (
            kind in (frames.GOAWAY, frames.PUSH_PROMISE)
            or kind > frames.CONTINUATION
            or (kind == frames.PRIORITY and length != 5)
        )

    def _on_rst_stream(self, stream_id: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            receiver = stream.receiver
            self._drop(stream)
            if receiver is not None:
                receiver.reset()
            self.guard.reset(self._clock())
        elif self.is_idle(stream_id):
            raise ConnectionFault(H2Error.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        else:
            self.idle_frame()

    def _on_settings(self, flags: int, payload: bytes) -> None:
        self.idle_frame()
        if flags & frames.ACK:
            return
        self.settled = True
        for name, value in frames.parse_settings(payload):
            self._apply(name, value)
        self.sender.control(frames.SETTINGS_ACK)

    def _apply(self, name: int, value: int) -> None:
        if name == Setting.HEADER_TABLE_SIZE:
            if value < self._peer_table_bytes:
                self.sender.shrink_table()
            self._peer_table_bytes = value
        elif name == Setting.ENABLE_PUSH:
            if value > 1:
                raise ConnectionFault(H2Error.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
        elif name == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise ConnectionFault(
                    H2Error.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is at most 2^31-1"
                )
            self.sender.change_initial_window(value, list(self.streams.values()))
        elif name == Setting.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME_BYTES <= value <= frames.LARGEST_FRAME_BYTES:
                raise ConnectionFault(
                    H2Error.PROTOCOL_ERROR, "MAX_FRAME_SIZE is from 16384 to 16777215"
                )
            self.sender.max_frame_bytes = value

    def _on_ping(self, flags: int, payload: bytes) -> None:
        self.idle_frame()
        if flags & frames.ACK:
            if payload == _DRAIN_PING and self.draining:
                self.end_drain()
            return
        self.sender.control(frames.ping(payload, ack=True))
        self._ping_guard.ping(
            self._clock(), calls_open=bool(self.streams), sent_frames=self.sender.sent_frames
        )

    def on_window_update(self, stream_id: int, increment: int) -> None:
        """The client lets us send `increment` bytes more."""
        self.guard.idle_frame(self.sender.sent_frames)
        increment &= frames.MAX_WINDOW  # the first bit is reserved: ignored
        if not stream_id:
            if not increment:
                raise ConnectionFault(H2Error.PROTOCOL_ERROR, "a WINDOW_UPDATE of 0")
            self.sender.enlarge(increment)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self.is_idle(stream_id):
                raise ConnectionFault(H2Error.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
        elif not increment:
            raise StreamFault(stream_id, H2Error.PROTOCOL_ERROR, "a WINDOW_UPDATE of 0")
        else:
            self.sender.enlarge_stream(stream, increment)

    # Windows and resets.

    def replenish(self, stream: ServerStream) -> None:
        """Let the client send more on `stream` once half of its window is used up."""
        if stream.receive_window < self._low_stream_window and not stream.receive_paused:
            target = self._limits.stream_window_bytes
            self.sender.control(frames.window_update(stream.id, target - stream.receive_window))
            stream.receive_window = target

    def expect(self, stream: ServerStream, length: int) -> None:
        """`length` bytes of a message are missing: grant a window in which all of them fit."""
        length -= self.paid_for(stream)
        missing = min(length, frames.MAX_WINDOW) - stream.receive_window
        if missing > 0 and not stream.remote_closed and not stream.receive_paused:
            self.sender.control(frames.window_update(stream.id, missing))
            stream.receive_window += missing

    @abstractmethod
    def paid_for(self, stream: ServerStream) -> int:
        """How many bytes of `stream` are on their way in a frame that its window has paid for."""

    def resume_receiving(self, stream: ServerStream) -> None:
        """Grant again what was held back while the stream was paused."""
        stream.receive_paused = False
        if not stream.remote_closed:
            self.replenish(stream)

    def give_up(self, stream: ServerStream, code: H2Error) -> None:
        """Reset a stream. Its receiver is not notified."""
        self.sender.control(frames.rst_stream(stream.id, code))
        self._remember_reset(stream.id)
        self._drop(stream)

    def ping(self) -> None:
        """Ask the client for a sign of life."""
        self.sender.control(frames.ping(_KEEPALIVE_PING, ack=False))

    def sweep_stalled(self, most_sweeps: int) -> None:
        """Give up on requests of which nothing arrived during that number of sweeps."""
        stalled: list[ServerStream] = []
        for stream in self.streams.values():
            if stream.remote_closed or not stream.must_end:
                continue
            if stream.received_bytes != stream.swept_bytes:
                stream.swept_bytes = stream.received_bytes
                stream.idle_sweeps = 0
                continue
            stream.idle_sweeps += 1
            if stream.idle_sweeps > most_sweeps:
                stalled.append(stream)
        for stream in stalled:
            if stream.receiver is not None:
                stream.receiver.stalled()

    def sweep_unsent(self, most_sweeps: int) -> None:
        """Give up on streams whose client takes next to nothing of what waits for it, during so
        many sweeps: their windows are closed, or opened by a few bytes at a time."""
        if not self.sender.queued_bytes:
            return
        stalled: list[ServerStream] = []
        for stream in self.streams.values():
            if not stream.queued_bytes or stream.sent_bytes >= _PROGRESS_BYTES:
                stream.sent_bytes = stream.unsent_sweeps = 0
                continue
            stream.unsent_sweeps += 1
            if stream.unsent_sweeps > most_sweeps:
                stalled.append(stream)
        for stream in stalled:
            if stream.id in self.streams:
                receiver = stream.receiver
                self.give_up(stream, H2Error.CANCEL)
                if receiver is not None:
                    receiver.reset()

    # Ends.

    def drain(self, message: str = "") -> None:
        """Let open calls finish and take no new ones; `closed` follows after the last one.

        A client that has just connected may send its first calls.
        """
        if self.closed or self.draining:
            return
        self.draining = True
        if self.greeted:
            self._announce_end(message)

    def _announce_end(self, message: str) -> None:
        # Calls that were sent already still count: the ping's response arrives after all of them.
        self.sender.control(frames.goaway(frames.MAX_STREAM_ID, H2Error.NO_ERROR, message))
        self.sender.control(frames.ping(_DRAIN_PING, ack=False))

    def give_up_all(self, message: str) -> None:
        """Respond to every open call with UNAVAILABLE, then close."""
        for stream in list(self.streams.values()):
            if stream.receiver is not None:
                stream.receiver.give_up(message)
        if self.greeted:
            self.end_drain()
        else:
            self.close()

    def fail(self, code: H2Error, message: str) -> None:
        """End the connection because of a fault of the client, and send the reason."""
        if self.closed:
            return
        self.fault = f"{code.name}: {message}"
        self.sender.control(frames.goaway(self.last_id, code, message))
        self.close()

    def close(self) -> None:
        """Nothing more will be read or sent; open calls are notified."""
        if self.closed:
            return
        self.closed = True
        for stream in list(self.streams.values()):
            receiver = stream.receiver
            self._drop(stream)
            if receiver is not None:
                receiver.reset()

    def end_drain(self) -> None:
        """Take no new calls from now on."""
        if self.drained_at is None and not self.closed:
            self.drained_at = self.last_id
            self.sender.control(frames.goaway(self.last_id, H2Error.NO_ERROR, ""))
            if not self.streams:
                self.close()

    def answered(self, stream: ServerStream) -> None:
        """The whole response was sent to a request that had arrived in one piece."""
        del self.streams[stream.id]
        stream.receiver = None
        if self.drained_at is not None and not self.streams:
            self.close()

    def _local_end(self, stream: ServerStream) -> None:
        """We have sent everything a stream will ever get."""
        if not stream.remote_closed:  # what the client still sends is not read
            self.sender.control(frames.rst_stream(stream.id, H2Error.NO_ERROR))
            self._remember_reset(stream.id)
        receiver = stream.receiver
        self._drop(stream)
        if receiver is not None:
            receiver.closed()

    def _reset(self, stream_id: int, code: H2Error) -> None:
        """Answer a fault of the client on one stream, which may be closed already."""
        self.sender.control(frames.rst_stream(stream_id, code))
        self._remember_reset(stream_id)
        stream = self.streams.get(stream_id)
        if stream is not None:
            receiver = stream.receiver
            self._drop(stream)
            if receiver is not None:
                receiver.reset()
        self.guard.reset(self._clock())

    def _drop(self, stream: ServerStream) -> None:
        del self.streams[stream.id]
        self.sender.drop(stream)
        stream.receiver = None
        if self.drained_at is not None and not self.streams:
            self.close()

    def _remember_reset(self, stream_id: int) -> None:
        """Frames the client sent before it knew are not held against it."""
        if len(self._reset_ids) >= _REMEMBERED_RESETS:
            del self._reset_ids[next(iter(self._reset_ids))]
        self._reset_ids[stream_id] = None
