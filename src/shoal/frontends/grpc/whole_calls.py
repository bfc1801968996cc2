"""Small calls that arrived in one piece: their frames together, instead of one after the other.

    HEADERS [WINDOW_UPDATE] DATA --> a call, if nothing about it is unusual
    ... like the last ones       --> the fast path, if the method has one; see `call_pattern`

Everything else is left to `h2.Connection`, which reads frame by frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from shoal.frontends.grpc.call_pattern import CallPattern
from shoal.frontends.grpc.control import ControlFrames, SharedByConnections
from shoal.frontends.grpc.data import DataFrames
from shoal.frontends.grpc.flow import ServerStream
from shoal.frontends.grpc.headers import HeaderBlock, HeaderDecoder, RequestHead
from shoal.frontends.grpc.message import PREFIX_BYTES, SMALL_BYTES
from shoal.frontends.grpc.settings import GrpcSettings
from shoal.wire import http2_frames as frames
from shoal.wire.http2_frames import DATA, END_STREAM, HEADER_BYTES, WINDOW_UPDATE

if TYPE_CHECKING:
    from shoal.frontends.grpc.fast_path import GrpcFastPath

Accept: TypeAlias = Callable[[ControlFrames, ServerStream, RequestHead, bytes | None], None]
FindFastPath: TypeAlias = "Callable[[RequestHead, int], GrpcFastPath | None]"

# What may follow the HEADERS of a small unary call: a DATA frame that begins with its message, or
# WINDOW_UPDATE for the response (as the C++ library does) and then that.
_unpack_message = struct.Struct(">HBBBIBI").unpack_from
_MESSAGE_BYTES = HEADER_BYTES + PREFIX_BYTES
_unpack_window_and_message = struct.Struct(">HBBBIIHBBBIBI").unpack_from
_WINDOW_BYTES = HEADER_BYTES + 4
_MOST_PATTERNS = 4  # of one connection
_CONNECTION_WINDOW = frames.header(4, WINDOW_UPDATE, 0, 0)


class WholeCalls(DataFrames):
    """Calls in one piece; `h2.Connection` tells it where one may begin."""

    def __init__(
        self,
        settings: GrpcSettings,
        accept: Accept,
        wake: Callable[[], None],
        clock: Callable[[], int],
        shared: SharedByConnections,
        find_fast_path: FindFastPath | None,
    ) -> None:
        super().__init__(settings, wake, clock, shared)
        limits = settings.limits
        self._accept = accept
        self._find_fast_path = find_fast_path
        self._decoder = HeaderDecoder(limits.max_header_list_bytes, limits.max_header_block_bytes)
        self._block: HeaderBlock | None = None  # one that continues in the next frame
        self.interrupted = False  # whether the last `receive` has left whole frames for later
        # The latest first; several, because ids have two or three lengths at a time.
        self._patterns: list[CallPattern] = []

    def begins_with_match(self, data: memoryview) -> bool:
        """Whether what has arrived begins like one of the last calls: then it is many small ones,
        which are read faster as bytes."""
        next_id = (self.last_id + 2).to_bytes(4, "big")
        return any(
            data[: pattern.front_bytes] == next_id.join(pattern.pieces)
            for pattern in self._patterns
        )

    def _matching(self, data: bytes | memoryview, position: int, end: int) -> int:
        """As many calls like the last ones as follow each other, and the WINDOW_UPDATE frames
        between them. Returns where they end.

        On the fast path, a small inference takes 3.2 µs until it is queued; frame by frame and
        object by object it took 9.6.
        """
        patterns = self._patterns
        if not patterns or not isinstance(data, bytes):
            return position
        position = self._run_of(patterns[0], data, position, end)
        while position < end and len(patterns) > 1 and not self.interrupted:
            next_id = (self.last_id + 2).to_bytes(4, "big")
            for pattern in patterns[1:]:
                if data.startswith(next_id.join(pattern.pieces), position):
                    break
            else:
                break
            patterns.remove(pattern)
            patterns.insert(0, pattern)
            start, position = position, self._run_of(pattern, data, position, end)
            if position == start:
                break
        return position

    def _run_of(self, pattern: CallPattern, data: bytes, position: int, end: int) -> int:
        """Calls of one pattern, as `_matching`."""
        if (
            self._block is not None
            or self.closed
            or self.drained_at is not None
            or self.sender.queued_bytes > self._limits.max_queued_bytes
            or self._decoder.cached.get(pattern.block) is not pattern.head
        ):
            return position
        window = self.sender.initial_window + pattern.increment
        if window > frames.MAX_WINDOW:
            return position
        pieces, front_bytes, total_bytes = (
            pattern.pieces,
            pattern.front_bytes,
            pattern.total_bytes,
        )
        received_bytes = pattern.message_bytes + PREFIX_BYTES
        streams, most_streams = self.streams, self._limits.max_concurrent_streams
        fast_path = pattern.fast_path
        stream_id = self.last_id + 2
        while stream_id <= frames.MAX_STREAM_ID:
            if data.startswith(stream_id.to_bytes(4, "big").join(pieces), position):
                stop = position + total_bytes
                if stop > end or len(streams) >= most_streams:
                    break
                message = data[position + front_bytes : stop]
                position = stop
                self.last_id = stream_id
                self._receive_window -= received_bytes
                if self._receive_window < self._low_window:
                    self._grant_connection()
                if fast_path is None or not fast_path.take(
                    self, pattern, stream_id, window, message
                ):
                    self._accept_whole(stream_id, window, pattern.head, message)
                    if self._ended():
                        break
                    if self.turn_over():
                        self.interrupted = True
                        break
                stream_id += 2
            elif data.startswith(_CONNECTION_WINDOW, position):
                start = position + HEADER_BYTES
                if start + 4 > end:
                    break
                position = start + 4
                self.on_window_update(0, int.from_bytes(data[start:position], "big"))
            else:
                break
        return position

    def _ended(self) -> bool:
        """Whether the connection is closed by now."""
        return self.closed

    def _accept_whole(self, stream_id: int, window: int, head: RequestHead, message: bytes) -> None:
        stream = ServerStream(stream_id, window)
        stream.remote_closed = True
        self.streams[stream_id] = stream
        self._accept(self, stream, head, message)

    def _whole_call(self, stream_id: int, data: bytes | memoryview, position: int, end: int) -> int:
        """A small call that has arrived completely, with nothing unusual about it."""
        start = position + HEADER_BYTES
        stop = start + (data[position + 1] << 8 | data[position + 2])
        increment = message = size = 0
        try:
            if data[stop + 3] == WINDOW_UPDATE:
                (
                    high, low, _, _, window_id, increment,
                    data_high, data_low, kind, flags, data_id, compressed, size,
                ) = _unpack_window_and_message(data, stop)  # fmt: skip
                if (
                    high
                    or low != 4
                    or window_id != stream_id
                    or not 0 < increment < frames.MAX_WINDOW >> 1
                ):
                    return 0
                message = stop + _WINDOW_BYTES + _MESSAGE_BYTES
            else:
                data_high, data_low, kind, flags, data_id, compressed, size = _unpack_message(
                    data, stop
                )
                message = stop + _MESSAGE_BYTES
        except (struct.error, IndexError):  # incomplete
            return 0
        length = data_high << 8 | data_low
        if (
            kind != DATA
            or flags != END_STREAM
            or data_id != stream_id
            or compressed
            or size != length - PREFIX_BYTES
            or message + size > end
            or size > SMALL_BYTES
            or length > self._max_frame_bytes
        ):
            return 0
        block = bytes(data[start:stop])
        head = self._decoder.cached.get(block)
        window: int = self.sender.initial_window + increment
        if (
            head is None
            or head.refusal is not None
            or head.content_length not in (None, length)
            or window > frames.MAX_WINDOW
            or self.drained_at is not None
            or len(self.streams) >= self._limits.max_concurrent_streams
            or self.sender.queued_bytes > self._limits.max_queued_bytes
        ):
            return 0
        self.last_id = stream_id
        self._receive_window -= length
        if self._receive_window < self._low_window:
            self._grant_connection()
        self._accept_whole(stream_id, window, head, bytes(data[message : message + size]))
        fast_path = None if self._find_fast_path is None else self._find_fast_path(head, size)
        front = bytes(data[position:message])
        pattern = CallPattern(front, block, head, increment, size, fast_path)
        others = [other for other in self._patterns if other.pieces != pattern.pieces]
        self._patterns = [pattern, *others[: _MOST_PATTERNS - 1]]
        return int(message + size)
