"""Sending under flow control: what may leave now, what waits, and in which order.

    call --message--> stream's queue --pump--> frames in `out` --> transport

Two windows bound what leaves: the stream's and the connection's. A third bound is the transport:
while it is full (`open` is False) only control frames leave. What waits stays in the queue of its
stream, and the caller can read its size in `queued_bytes`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence

from shoal.core.tensor import Buffer
from shoal.frontends.grpc.message import no_room
from shoal.frontends.grpc.status import (
    OK_TRAILERS,
    RESPONSE_HEADERS,
    TABLE_SIZE_ZERO,
    status_block,
)
from shoal.frontends.memory_budget import MemoryBudget
from shoal.wire import http2_frames as frames
from shoal.wire.http2_frames import ConnectionFault, H2Error, StreamFault

PUMP_BYTES = 256 << 10  # what one pump may add to `out`; then the transport decides
_ROUND_BYTES = 64 << 10  # what one stream may send before the next one
_JOIN_BYTES = 16 << 10  # up to here one string is cheaper than several buffers

_HEADERS_LENGTH = len(RESPONSE_HEADERS)
# HEADERS frame with its block, DATA frame header, message prefix; and the trailers of success.
_UNARY_HEAD = struct.Struct(f">HBBBI{_HEADERS_LENGTH}sHBBBIBI")
_UNARY_TAIL = struct.Struct(f">HBBBI{len(OK_TRAILERS)}s")
_MESSAGE_HEAD = struct.Struct(">HBBBIBI")
_PREFIX = struct.Struct(">BI")
_ENDS = frames.END_HEADERS | frames.END_STREAM
# The frames around a small response, without the ids of their stream.
_BEFORE = frames.header(_HEADERS_LENGTH, frames.HEADERS, frames.END_HEADERS, 0)[:-4]
_AFTER = frames.header(len(OK_TRAILERS), frames.HEADERS, _ENDS, 0)[:-4]


def unary_pieces(size: int) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """What is around a message of `size` bytes in a small response: three pieces before it and two
    after it, with the stream's id between the first two, the second and third, and the last two.

    So, with `before, between, prefix, after, trailers` and the id as four bytes, the response is
    `id.join((before, between, prefix + message + after, trailers))`, for `Sender.whole`.
    """
    between = RESPONSE_HEADERS + frames.header(size + 5, frames.DATA, 0, 0)[:-4]
    return _BEFORE, between, _PREFIX.pack(0, size), _AFTER, OK_TRAILERS


class Receiver:
    """Receives what arrives on a stream: a call. Each method may be left out that is not needed."""

    __slots__ = ()

    def data(self, data: bytes | memoryview, start: int, stop: int, ended: bool) -> None:
        """Take `data[start:stop]`, which is only valid during this call."""

    def room(self, limit: int) -> memoryview | None:  # noqa: ARG002 - the contract
        """Where the next bytes may be written directly, at most `limit` of them."""
        return None

    def rest(self) -> memoryview | None:
        """Where the missing rest of the message goes, as far as there is memory for it."""
        return None

    def filled(self, count: int) -> None:
        """`count` bytes were written to `room` or `rest`."""

    def ended(self) -> None:
        """The peer sends no more."""

    def reset(self) -> None:
        """The peer has cancelled the stream, or its connection is lost."""

    def closed(self) -> None:
        """The stream has ended as it should."""

    def stalled(self) -> None:
        """Nothing has arrived for long, though the stream `must_end`."""

    def drained(self) -> None:
        """The queue has shrunk so far that more may be sent."""

    def give_up(self, message: str) -> None:
        """End the stream with UNAVAILABLE: the server cannot wait for the response."""


class ServerStream:
    """One HTTP/2 stream: its receiver, both windows, what waits to be sent."""

    __slots__ = ("__dict__", "id", "receiver", "send_window")

    # Most streams change few of these: the rest costs them nothing.
    receive_window = 0
    remote_closed = False
    receive_paused = False
    must_end = False  # a unary request: it may not stay half-sent for long
    content_length: int | None = None  # if one was announced
    received_bytes = 0
    swept_bytes = 0  # `received_bytes` at the last sweep
    idle_sweeps = 0
    queue: deque[Buffer] | None = None  # made when something has to wait
    queued_bytes = 0
    sent_bytes = 0  # of what was queued, since the last sweep that saw progress
    unsent_sweeps = 0  # since then
    trailers: bytes | None = None  # the block that ends the stream after its queue
    scheduled = False  # in the sender's ready queue
    waits_for_drain = False

    def __init__(self, stream_id: int, send_window: int) -> None:
        self.id = stream_id
        self.send_window = send_window
        self.receiver: Receiver | None = None


class Sender:
    """Everything one connection sends. `wake` is called when `out` stops being empty."""

    def __init__(
        self,
        wake: Callable[[], None],
        ended: Callable[[ServerStream], None],
        low_bytes: int,
        memory: MemoryBudget,
        max_queued_bytes: int,
    ) -> None:
        """`memory` bounds what all connections queue, `max_queued_bytes` what this one does."""
        self.out: list[Buffer] = []
        self.open = True  # whether the transport takes more data
        self.awake = False  # whether `out` will be collected anyway
        self.window = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW
        self.max_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self.queued_bytes = 0  # of all streams
        self.sent_frames = 0  # with headers or data: they reset ping strikes
        self._table_update = b""
        self._wake = wake
        self.ended = ended
        self._low_bytes = low_bytes
        self._memory = memory
        self._max_queued_bytes = max_queued_bytes
        self._ready: deque[ServerStream] = deque()

    # Responses.

    def unary(self, stream: ServerStream, parts: Sequence[Buffer], size: int) -> None:
        """Headers, one message of `size` bytes and the trailers of success: in one write if the
        windows allow, else as far as they do."""
        total = size + 5
        if (
            total > self.window
            or total > stream.send_window
            or total > self.max_frame_bytes
            or not self.open
            or self._table_update
        ):
            self.headers(stream, RESPONSE_HEADERS)
            if self.message(stream, parts, size):
                self.end(stream, OK_TRAILERS)
            else:
                fault = no_room(self._memory)
                self.end(stream, status_block(fault.code, fault.message))
            return
        if total > _JOIN_BYTES:
            parts = _byte_parts(parts)
        self.window -= total
        head = _UNARY_HEAD.pack(
            0, _HEADERS_LENGTH, frames.HEADERS, frames.END_HEADERS, stream.id, RESPONSE_HEADERS,
            total >> 8, total & 0xFF, frames.DATA, 0, stream.id,
            0, size,
        )  # fmt: skip
        tail = _UNARY_TAIL.pack(0, len(OK_TRAILERS), frames.HEADERS, _ENDS, stream.id, OK_TRAILERS)
        if total <= _JOIN_BYTES:
            self.out.append(b"".join((head, *parts, tail)))
        else:
            self.out += (head, *parts, tail)
        self._has_output()
        self.ended(stream)

    def whole(self, stream: ServerStream, response: bytes, total: int) -> bool:
        """A response in one piece, from headers to trailers, with `total` bytes of data. The caller
        ends the stream; false, with nothing done, if it cannot be sent like this."""
        if (
            total > self.window
            or total > stream.send_window
            or total > self.max_frame_bytes
            or not self.open
            or self._table_update
        ):
            return False
        self.window -= total
        self.out.append(response)
        self.sent_frames += 1
        if not self.awake:
            self.awake = True
            self._wake()
        return True

    def headers(self, stream: ServerStream, block: bytes) -> None:
        """The headers of a response; they need no window."""
        self._block(stream, block, end_stream=False)

    def message(
        self, stream: ServerStream, parts: Sequence[Buffer], size: int, *, compressed: bool = False
    ) -> bool:
        """One message of `size` bytes: at once if the windows allow, else it is queued. False, with
        nothing done, where too much is queued already."""
        total = size + 5
        parts = _byte_parts(parts)
        if (
            not stream.queued_bytes
            and total <= self.window
            and total <= stream.send_window
            and total <= self.max_frame_bytes
            and self.open
        ):
            self.window -= total
            stream.send_window -= total
            head = _MESSAGE_HEAD.pack(
                total >> 8, total & 0xFF, frames.DATA, 0, stream.id, compressed, size
            )
            if total <= _JOIN_BYTES:
                self.out.append(b"".join((head, *parts)))
            else:
                self.out += (head, *parts)
            self._has_output()
            return True
        # A single response may be as large as it likes: it is in memory already.
        memory = self._memory
        if self.queued_bytes and (
            self.queued_bytes + total > self._max_queued_bytes or not memory.has_room(total)
        ):
            return False
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(_PREFIX.pack(compressed, size))
        stream.queue += parts
        stream.queued_bytes += total
        self.queued_bytes += total
        memory.queued_bytes += total
        self._schedule(stream)
        return True

    def end(self, stream: ServerStream, block: bytes) -> None:
        """Trailers, after everything that is still queued."""
        if stream.queued_bytes:
            stream.trailers = block
            return
        self._block(stream, block, end_stream=True)
        self.ended(stream)

    def drop(self, stream: ServerStream) -> None:
        """Drop what a stream still had to send; it is over."""
        self.queued_bytes -= stream.queued_bytes
        self._memory.queued_bytes -= stream.queued_bytes
        stream.queued_bytes = 0
        stream.queue = None
        stream.trailers = None
        stream.waits_for_drain = False

    # What belongs to no call.

    def control(self, frame: bytes) -> None:
        """A frame that no window holds back."""
        self.out.append(frame)
        if not self.awake:
            self.awake = True
            self._wake()

    # What the peer grants.

    def enlarge(self, increment: int) -> None:
        """WINDOW_UPDATE for the connection."""
        self.window += increment
        if self.window > frames.MAX_WINDOW:
            raise ConnectionFault(
                H2Error.FLOW_CONTROL_ERROR, "the connection's window grew beyond 2^31-1"
            )
        if self._ready:
            self._request_pump()

    def enlarge_stream(self, stream: ServerStream, increment: int) -> None:
        """WINDOW_UPDATE for one stream."""
        stream.send_window += increment
        if stream.send_window > frames.MAX_WINDOW:
            raise StreamFault(
                stream.id,
                H2Error.FLOW_CONTROL_ERROR,
                "the stream's window grew beyond 2^31-1",
            )
        if stream.queued_bytes:
            self._schedule(stream)

    def change_initial_window(self, size: int, streams: Sequence[ServerStream]) -> None:
        """A new INITIAL_WINDOW_SIZE moves the window of every open stream, also below zero."""
        difference = size - self.initial_window
        self.initial_window = size
        for stream in streams:
            stream.send_window += difference
            if stream.send_window > frames.MAX_WINDOW:
                raise ConnectionFault(
                    H2Error.FLOW_CONTROL_ERROR,
                    "the new initial window makes a stream's window larger than 2^31-1",
                )
            if stream.queued_bytes:
                self._schedule(stream)

    def shrink_table(self) -> None:
        """The peer made the header table smaller: the next block must acknowledge that."""
        self._table_update = TABLE_SIZE_ZERO

    # The way out.

    @property
    def sendable(self) -> bool:
        """Whether `pump` would add something."""
        return self.open and self.window > 0 and bool(self._ready)

    def pump(self) -> None:
        """Turn queued messages into frames, as far as windows and PUMP_BYTES allow.

        Streams send in rounds. `drained` is called at the end for receivers that may send again.
        """
        budget = PUMP_BYTES
        drained: list[ServerStream] = []
        while budget > 0 and self.sendable:
            stream = self._ready.popleft()
            stream.scheduled = False
            if not stream.queued_bytes:  # it ended while it waited
                continue
            limit = min(_ROUND_BYTES, budget) if self._ready else budget
            budget -= self._send_round(stream, limit)
            if stream.waits_for_drain and stream.queued_bytes < self._low_bytes:
                stream.waits_for_drain = False
                drained.append(stream)
            if stream.queued_bytes:
                self._schedule(stream)
            elif stream.trailers is not None:
                self._block(stream, stream.trailers, end_stream=True)
                self.ended(stream)
        for stream in drained:
            if stream.receiver is not None:
                stream.receiver.drained()

    def _send_round(self, stream: ServerStream, limit: int) -> int:
        """Frames of one stream, at most `limit` bytes of data; returns how many were sent."""
        queue = stream.queue
        assert queue is not None
        out = self.out
        room = sending = max(0, min(limit, self.window, stream.send_window, stream.queued_bytes))
        most = self.max_frame_bytes
        header = frames.header(min(room, most), frames.DATA, 0, stream.id)
        left = 0  # of the frame that was begun
        while room:
            part = queue.popleft()
            if len(part) > room:
                view = memoryview(part)
                queue.appendleft(view[room:])
                part = view[:room]
            size = len(part)
            room -= size
            if size <= left:
                out.append(part)
                left -= size
                continue
            view = memoryview(part)
            if left:
                out.append(view[:left])
            whole_from, position = left, left + (size - left) // most * most
            for start in range(whole_from, position, most):  # frames that lie in this part
                out += (header, view[start : start + most])
            left = 0
            if position < size:
                left = min(room + size - position, most)
                if left < most:  # the last one
                    header = frames.header(left, frames.DATA, 0, stream.id)
                out += (header, view[position:])
                left -= size - position
        self.window -= sending
        stream.send_window -= sending
        stream.queued_bytes -= sending
        stream.sent_bytes += sending
        self.queued_bytes -= sending
        self._memory.queued_bytes -= sending
        self.sent_frames += 1
        return sending

    def _schedule(self, stream: ServerStream) -> None:
        if not stream.scheduled and stream.send_window > 0:
            stream.scheduled = True
            self._ready.append(stream)
            self._request_pump()

    def _request_pump(self) -> None:
        if self.open and not self.awake:
            self.awake = True
            self._wake()

    def _block(self, stream: ServerStream, block: bytes, *, end_stream: bool) -> None:
        if self._table_update:
            block, self._table_update = self._table_update + block, b""
        self.out.append(
            frames.header_block(
                stream.id, block, end_stream=end_stream, max_frame_bytes=self.max_frame_bytes
            )
        )
        self._has_output()

    def _has_output(self) -> None:
        self.sent_frames += 1
        if not self.awake:
            self.awake = True
            self._wake()


def _byte_parts(parts: Sequence[Buffer]) -> list[Buffer]:
    """The parts that are not empty, in a form whose length is their number of bytes."""
    return [
        part.cast("B")
        if isinstance(part, memoryview) and (part.itemsize, part.ndim) != (1, 1)
        else part
        for part in parts
        if len(part)
    ]
