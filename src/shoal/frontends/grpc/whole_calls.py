"""Small calls that are here whole: their frames together, instead of one after the other.

    HEADERS [WINDOW_UPDATE] DATA --> a call, if it is in no way unusual
    ... like the last one        --> a lane, if the service has one; see `familiar`

What is unusual, or not all here, is left to `h2.Connection`, which looks at every frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeAlias

from shoal.frontends.grpc.control import ControlFrames
from shoal.frontends.grpc.data import DataFrames
from shoal.frontends.grpc.familiar import Form, Lane
from shoal.frontends.grpc.flow import Stream
from shoal.frontends.grpc.headers import HeaderBlock, HeaderDecoder, RequestHead
from shoal.frontends.grpc.message import PREFIX_BYTES, SMALL_BYTES
from shoal.frontends.grpc.settings import GrpcSettings
from shoal.wire import http2_frames as frames
from shoal.wire.http2_frames import DATA, END_STREAM, HEADER_BYTES, WINDOW_UPDATE

Accept: TypeAlias = Callable[[ControlFrames, Stream, RequestHead, bytes | None], None]
FindLane: TypeAlias = Callable[[RequestHead, int], Lane | None]

# What may follow the HEADERS of a small unary call: a DATA frame that begins with its message, or
# WINDOW_UPDATE for the answer (the C++ library's habit) and then that.
_unpack_message = struct.Struct(">HBBBIBI").unpack_from
_MESSAGE_BYTES = HEADER_BYTES + PREFIX_BYTES
_unpack_window_and_message = struct.Struct(">HBBBIIHBBBIBI").unpack_from
_WINDOW_BYTES = HEADER_BYTES + 4
_MOST_FORMS = 4  # of one connection
_CONNECTION_WINDOW = frames.header(4, WINDOW_UPDATE, 0, 0)


class WholeCalls(DataFrames):
    """The short ways in; `h2.Connection` tells it where a call may begin."""

    def __init__(
        self,
        settings: GrpcSettings,
        accept: Accept,
        wake: Callable[[], None],
        clock: Callable[[], int],
        find_lane: FindLane | None,
    ) -> None:
        super().__init__(settings, wake, clock)
        limits = settings.limits
        self._accept = accept
        self._find_lane = find_lane
        self._decoder = HeaderDecoder(limits.max_header_list_bytes, limits.max_header_block_bytes)
        self._block: HeaderBlock | None = None  # one that goes on in the next frame
        # Of the last calls that came whole, the latest first: clients that number their requests
        # send ids of two or three lengths at a time.
        self._forms: list[Form] = []

    def begins_familiar(self, data: memoryview) -> bool:
        """Whether what has arrived begins like one of the last calls: then it is many small ones,
        which are read quicker as bytes."""
        next_id = (self.last_id + 2).to_bytes(4, "big")
        return any(data[: form.front_bytes] == next_id.join(form.pieces) for form in self._forms)

    def _familiar(self, data: bytes | memoryview, position: int, end: int) -> int:
        """As many calls like the last ones as follow each other, and the WINDOW_UPDATE frames
        between them. Returns where they end.

        With the lane of ModelInfer, a small inference takes 3.2 µs up to its place in the queue;
        frame by frame and object by object it took 9.6.
        """
        forms = self._forms
        if not forms or not isinstance(data, bytes):
            return position
        position = self._run_of(forms[0], data, position, end)
        while position < end and len(forms) > 1:
            next_id = (self.last_id + 2).to_bytes(4, "big")
            for form in forms[1:]:
                if data.startswith(next_id.join(form.pieces), position):
                    break
            else:
                break
            forms.remove(form)
            forms.insert(0, form)
            start, position = position, self._run_of(form, data, position, end)
            if position == start:
                break
        return position

    def _run_of(self, form: Form, data: bytes, position: int, end: int) -> int:
        """Calls of one form, as `_familiar`."""
        if (
            self._block is not None
            or self.closed
            or self.drained_at is not None
            or self.sender.queued_bytes > self._limits.max_queued_bytes
            or self._decoder.remembered.get(form.block) is not form.head
        ):
            return position
        window = self.sender.initial_window + form.increment
        if window > frames.MAX_WINDOW:
            return position
        pieces, front_bytes, total_bytes = form.pieces, form.front_bytes, form.total_bytes
        received_bytes = form.message_bytes + PREFIX_BYTES
        streams, most_streams = self.streams, self._limits.max_concurrent_streams
        lane = form.lane
        stream_id = self.last_id + 2
        try:
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
                    if lane is None or not lane.take(self, form, stream_id, window, message):
                        self._accept_whole(stream_id, window, form.head, message)
                        if self._ended():
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
        finally:
            if lane is not None:
                lane.read_ended()
        return position

    def _ended(self) -> bool:
        """Whether the connection is closed by now."""
        return self.closed

    def _accept_whole(self, stream_id: int, window: int, head: RequestHead, message: bytes) -> None:
        stream = Stream(stream_id, window, self._limits.stream_window_bytes)
        stream.remote_closed = True
        self.streams[stream_id] = stream
        self._accept(self, stream, head, message)

    def _whole_call(self, stream_id: int, data: bytes | memoryview, position: int, end: int) -> int:
        """A call that is here from its HEADERS to its end, small and in no way unusual."""
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
        except (struct.error, IndexError):  # not all here
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
        head = self._decoder.remembered.get(block)
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
        form = Form(bytes(data[position:message]), block, head, increment, size)
        if self._find_lane is not None:
            form.lane = self._find_lane(head, size)
        others = [other for other in self._forms if other.pieces != form.pieces]
        self._forms = [form, *others[: _MOST_FORMS - 1]]
        return int(message + size)
