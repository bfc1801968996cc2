"""DATA frames as they arrive: their stream, the flow-control windows, the memory for their bytes.

frame --window--> stream --receiver--> message's memory
                            `direct`: the socket writes the rest of a large frame there itself
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.frontends.grpc.control import ControlFrames, SharedByConnections
from shoal.frontends.grpc.flow import Receiver, ServerStream
from shoal.frontends.grpc.settings import GrpcSettings
from shoal.wire import http2_frames as frames
from shoal.wire.http2_frames import (
    END_STREAM,
    HEADER_BYTES,
    PADDED,
    ConnectionFault,
    H2Error,
)

_RUN_BYTES = 32 << 10  # a missing rest of this size may arrive in many frames
_RUN_FRAMES = 64  # are compared at once: 1 MB of what most clients send

_unpack_header = frames.HEADER.unpack_from


class DataFrames(ControlFrames):
    """The receiving side of flow control; `h2.Connection` calls it for each frame."""

    def __init__(
        self,
        settings: GrpcSettings,
        wake: Callable[[], None],
        clock: Callable[[], int],
        shared: SharedByConnections,
    ) -> None:
        super().__init__(settings, wake, clock, shared)
        limits = settings.limits
        self.direct: memoryview | None = None
        self.in_run = False  # whether the last read had small frames of a large message
        self._receive_window = limits.connection_window_bytes
        self._low_window = limits.connection_window_bytes // 2
        # The DATA frame of which a part has arrived.
        self._left = 0  # bytes of its payload, or of what is to be skipped
        self._padding_left = 0
        self._sink: ServerStream | None = None  # None: these bytes are dropped
        self._sink_ends = False

    def missing_bytes(self) -> int:
        """How much has to arrive at least before a call can go on: the rest of a large message, if
        there is only one call, which waits for nothing else. 0 if there is no such message."""
        if len(self.streams) != 1 or self.sender.queued_bytes:
            return 0
        (stream,) = self.streams.values()
        if stream.remote_closed or stream.receiver is None:
            return 0
        rest = stream.receiver.rest()
        return 0 if rest is None else len(rest)

    def direct_filled(self, count: int) -> None:
        """`count` bytes were written to `direct`. Never raises."""
        try:
            self._direct_filled(count)
        except ConnectionFault as fault:
            self.fail(fault.code, fault.message)

    def _direct_filled(self, count: int) -> None:
        assert self.direct is not None
        stream = self._sink
        assert stream is not None
        receiver = self._receiver(stream)
        self._left -= count
        self.direct = self.direct[count:]
        receiver.filled(count)
        if self._sink is not stream:  # the message was the end of it
            return
        if self._left:
            if not self.direct:
                self._aim(stream)
            return
        ends = self._sink_ends
        self.direct = None
        self._payload_done()
        if ends and self._end_remote(stream):
            receiver.ended()

    def _on_data(
        self,
        stream_id: int,
        flags: int,
        length: int,
        data: bytes | memoryview,
        start: int,
        end: int,
    ) -> None:
        """A DATA frame whose payload begins at `start`; `end` is where the received bytes end."""
        if not stream_id:
            raise ConnectionFault(H2Error.PROTOCOL_ERROR, "DATA on stream 0")
        self._receive_window -= length
        if self._receive_window < self._low_window:
            self._grant_connection()
        padding = 0
        payload = length
        if flags & PADDED:
            payload, padding = self._unpadded(length, data[start] if length else 0)
            start += 1
        stream = self._data_stream(stream_id, length)
        ends = flags & END_STREAM != 0
        stop = start + payload
        if stop + padding > end:
            self._left = max(0, stop - end)
            self._padding_left = stop + padding - max(stop, end)
            self._sink = stream
            self._sink_ends = ends
            if not self._left:
                self._payload_done()
        if not payload and not ends:
            self.idle_frame()
        if stream is None:
            return
        stream.received_bytes += payload
        if ends and stop <= end:
            if self._end_remote(stream):
                self._receiver(stream).data(data, start, stop, True)
            return
        if start < end:
            self._receiver(stream).data(data, start, min(stop, end), False)
        if stream.receiver is not None:
            if self._sink is stream:
                self._aim(stream)
            if not ends and stream.receive_window < self._low_stream_window:
                self.replenish(stream)

    def _data_run(self, stream_id: int, data: bytes | memoryview, position: int, end: int) -> int:
        """Whole DATA frames that follow each other inside one large message; many clients send
        16 KB to a frame. What ends a message is for `_on_data`."""
        stream = self.streams.get(stream_id)
        if stream is None or stream.remote_closed:
            return 0
        receiver = self._receiver(stream)
        room = receiver.rest()
        if room is None or len(room) < _RUN_BYTES:
            return 0
        high, low, _, _, _ = _unpack_header(data, position)
        length = high << 8 | low
        if not length:
            return 0
        frame_bytes = HEADER_BYTES + length
        most = min(len(room) - 1, self._receive_window, stream.receive_window)
        count = min(most // length, (end - position) // frame_bytes, _RUN_FRAMES)
        if not count:
            return 0
        # One row per frame, so that all of them are compared and copied at once.
        rows = np.ndarray((count, frame_bytes), np.uint8, data, position)
        headers = rows[:, :HEADER_BYTES].tobytes()
        count = _equal_headers(headers, count)
        filled = count * length
        np.ndarray((count, length), np.uint8, room)[:] = rows[:count, HEADER_BYTES:]
        position += count * frame_bytes
        self.in_run = True
        self._receive_window -= filled
        if self._receive_window < self._low_window:
            self._grant_connection()
        stream.receive_window -= filled
        stream.received_bytes += filled
        receiver.filled(filled)
        if stream.receiver is not None and stream.receive_window < self._low_stream_window:
            self.replenish(stream)
        return position

    def _unpadded(self, length: int, padding: int) -> tuple[int, int]:
        """How much of a padded payload is data, and how much padding follows it."""
        if not length:
            raise ConnectionFault(H2Error.FRAME_SIZE_ERROR, "a padded frame without its padding")
        if padding >= length:
            raise ConnectionFault(H2Error.PROTOCOL_ERROR, "more padding than payload")
        return length - 1 - padding, padding

    def _data_stream(self, stream_id: int, length: int) -> ServerStream | None:
        """The stream of a DATA frame; None when it is to be dropped."""
        stream = self.streams.get(stream_id)
        if stream is None:
            if self.is_idle(stream_id):
                raise ConnectionFault(H2Error.PROTOCOL_ERROR, "DATA on an idle stream")
            if stream_id not in self._reset_ids:
                self._reset(stream_id, H2Error.STREAM_CLOSED)
            return None
        stream.receive_window -= length
        if stream.remote_closed:
            self._reset(stream_id, H2Error.STREAM_CLOSED)
        elif stream.receive_window < 0:
            self._reset(stream_id, H2Error.FLOW_CONTROL_ERROR)
        else:
            return stream
        return None

    def _more_payload(self, data: bytes | memoryview, position: int, end: int) -> int:
        """What arrived of a DATA frame that began earlier."""
        stop = min(position + self._left, end)
        self._left -= stop - position
        stream = self._sink
        ends = self._sink_ends and not self._left
        if not self._left:
            self._payload_done()
        if stream is None:
            return stop
        if not ends:
            self._receiver(stream).data(data, position, stop, False)
            if self._sink is stream:
                self._aim(stream)
        elif self._end_remote(stream):
            self._receiver(stream).data(data, position, stop, True)
        return stop

    def _receiver(self, stream: ServerStream) -> Receiver:
        receiver = stream.receiver
        assert receiver is not None
        return receiver

    def _payload_done(self) -> None:
        """The rest of this frame is dropped; its padding is skipped."""
        self._left = self._padding_left
        self._padding_left = 0
        self._sink = None
        self._sink_ends = False

    def _aim(self, stream: ServerStream) -> None:
        """Point `direct` at the memory the rest of this frame belongs to, if it is worth it."""
        self.direct = self._receiver(stream).room(self._left)

    def _end_remote(self, stream: ServerStream) -> bool:
        """The client has sent everything; False if that is not what it announced."""
        stream.remote_closed = True
        announced = stream.content_length
        if announced is not None and announced != stream.received_bytes:
            self._reset(stream.id, H2Error.PROTOCOL_ERROR)
            return False
        return True

    def paid_for(self, stream: ServerStream) -> int:
        """The missing bytes of the frame that is arriving, if it belongs to `stream`."""
        return self._left if self._sink is stream else 0

    def _drop(self, stream: ServerStream) -> None:
        if self._sink is stream:  # the rest of its frame is skipped
            self._sink = None
            self._sink_ends = False
            self.direct = None
        super()._drop(stream)

    def _grant_connection(self) -> None:
        if self._receive_window < 0:
            raise ConnectionFault(
                H2Error.FLOW_CONTROL_ERROR, "more data than the connection's window allows"
            )
        target = self._limits.connection_window_bytes
        self.sender.control(frames.window_update(0, target - self._receive_window))
        self._receive_window = target


def _equal_headers(headers: bytes, count: int) -> int:
    """How many of `count` frame headers in a row are equal to the first one."""
    first = headers[:HEADER_BYTES]
    if headers == first * count:
        return count
    equal = 1
    while headers.startswith(first, equal * HEADER_BYTES):
        equal += 1
    return equal
