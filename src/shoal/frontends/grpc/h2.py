"""One HTTP/2 connection, server side, without I/O: bytes in, calls and bytes out (RFC 9113).

    transport --receive--> frames --> streams --> receivers (calls)
    transport <---out----- Sender <---------------'

`receive` takes what has arrived and returns how much of it was used; the rest comes again with
more behind it. Inside a large DATA frame `direct` is where the next bytes belong, so that the
socket can write them there itself. Faults of one stream reset that stream; faults of the
connection end in GOAWAY and `closed`.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from shoal.frontends.grpc import frames
from shoal.frontends.grpc.control import ControlFrames
from shoal.frontends.grpc.flow import Receiver, Stream
from shoal.frontends.grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEADER_BYTES,
    HEADERS,
    PADDED,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFault,
    ErrorCode,
    StreamFault,
)
from shoal.frontends.grpc.headers import (
    HeaderBlock,
    HeaderDecoder,
    MalformedHeaders,
    RequestHead,
)
from shoal.frontends.grpc.message import PREFIX_BYTES, SMALL_BYTES
from shoal.frontends.grpc.settings import GrpcSettings

Accept: TypeAlias = Callable[["Connection", Stream, RequestHead, bytes | None], None]

_ID_MASK = 0x7FFFFFFF  # the first bit of a stream id is reserved: ignored
_REMEMBERED_GAPS = 64
_HTTP1 = re.compile(rb"(?!PRI )[A-Z]{3,8} ")
_HTTP1_BEGINNING = re.compile(rb"[A-Z]{1,8}")
_HTTP1_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 71\r\n"
    b"connection: close\r\n\r\n"
    b"This port speaks gRPC (HTTP/2). Plain HTTP is served on the HTTP port.\n"
)

_unpack_header = frames.HEADER.unpack_from
# What may follow the HEADERS of a small unary call: a DATA frame that begins with its message, or
# WINDOW_UPDATE for the answer (the C++ library's habit) and then that.
_unpack_message = struct.Struct(">HBBBIBI").unpack_from
_MESSAGE_BYTES = HEADER_BYTES + PREFIX_BYTES
_unpack_window_and_message = struct.Struct(">HBBBIIHBBBIBI").unpack_from
_WINDOW_BYTES = HEADER_BYTES + 4


class Connection(ControlFrames):
    """The state of one connection. `accept` starts a call on a new stream; where it is here whole,
    it gets its only message, too."""

    def __init__(
        self,
        settings: GrpcSettings,
        accept: Accept,
        wake: Callable[[], None],
        clock: Callable[[], int],
    ) -> None:
        super().__init__(settings, wake, clock)
        limits = settings.limits
        self.direct: memoryview | None = None
        self._accept = accept
        self._decoder = HeaderDecoder(limits.max_header_list_bytes, limits.max_header_block_bytes)
        self._block: HeaderBlock | None = None
        self._gaps: deque[range] = deque(maxlen=_REMEMBERED_GAPS)  # ids that were left out
        self._receive_window = limits.connection_window_bytes
        self._low_window = limits.connection_window_bytes // 2
        # The DATA frame of which a part has arrived.
        self._left = 0  # bytes of its payload, or of what is to be skipped
        self._padding_left = 0
        self._sink: Stream | None = None  # None: nobody wants these bytes
        self._sink_ends = False

    # What arrives.

    def receive(self, data: bytes | memoryview) -> int:
        """Work through `data`; returns how many of its bytes are done with. Never raises."""
        if self.closed:
            return len(data)
        try:
            if not self.greeted:
                return self._greet(data)
            return self._frames(data, 0)
        except ConnectionFault as fault:
            self.fail(fault.code, fault.message)
            return len(data)

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

    def _greet(self, data: bytes | memoryview) -> int:
        """The client's preface; ours follows it."""
        start = bytes(data[: len(PREFACE)])
        if start == PREFACE:
            self.greet()
            return self._frames(data, len(PREFACE))
        if PREFACE.startswith(start) or _HTTP1_BEGINNING.fullmatch(start):
            return 0
        if _HTTP1.match(start):
            self.sender.control(_HTTP1_ANSWER)
            self.close()
            return len(data)
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2 connection preface")

    def _frames(self, data: bytes | memoryview, position: int) -> int:
        """Whole frames, and the beginning of a DATA frame."""
        end = len(data)
        while self._left and position < end:
            position = self._more_payload(data, position, end)
        while end - position >= HEADER_BYTES and not self.closed:
            high, low, kind, flags, stream_id = _unpack_header(data, position)
            length = high << 8 | low
            stream_id &= _ID_MASK
            start = position + HEADER_BYTES
            stop = start + length
            if self._block is not None or not self.settled or length > self._max_frame_bytes:
                self._check_order(kind, flags, length, stream_id)
            try:
                if kind == DATA:
                    if flags & PADDED and start >= end and length:
                        break  # the length of the padding is still to come
                    position = min(stop, end)
                    self._on_data(stream_id, flags, length, data, start, end)
                    continue
                if stop <= end:
                    position = stop
                elif self.skippable(kind, length):
                    position = end
                    self._left = stop - end
                else:
                    self.check_size(kind, flags, length, stream_id)
                    break
                if kind == HEADERS:
                    if flags == END_HEADERS and stream_id == self.last_id + 2:
                        used = self._whole_call(stream_id, data, start, stop, end)
                        if used:
                            position = used
                            continue
                    self._on_headers(stream_id, flags, bytes(data[start:stop]))
                elif kind == WINDOW_UPDATE and length == 4:
                    self.on_window_update(stream_id, int.from_bytes(data[start:stop], "big"))
                elif kind == CONTINUATION:
                    self._on_continuation(flags, bytes(data[start:stop]))
                else:
                    self.check_size(kind, flags, length, stream_id)
                    self.on_control(kind, flags, stream_id, bytes(data[start:stop]))
            except StreamFault as fault:
                self._reset(fault.stream_id, fault.code)
        return position

    def _whole_call(
        self, stream_id: int, data: bytes | memoryview, start: int, stop: int, end: int
    ) -> int:
        """A call that is here from its HEADERS, at `start`, to its end, small and in no way
        unusual: nearly all calls are. Returns where it ends; 0, with nothing done, for any other.
        """
        increment = message = size = 0
        try:
            if data[stop + 3] == WINDOW_UPDATE:
                (
                    high, low, _, _, window_id, increment,
                    data_high, data_low, kind, flags, data_id, compressed, size,
                ) = _unpack_window_and_message(data, stop)  # fmt: skip
                if high or low != 4 or window_id != stream_id or not 0 < increment < _ID_MASK >> 1:
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
        head = self._decoder.remembered.get(bytes(data[start:stop]))
        window: int = self.sender.initial_window + increment
        if (
            head is None
            or head.refusal is not None
            or head.content_length is not None
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
        stream = Stream(stream_id, window, self._limits.stream_window_bytes)
        stream.remote_closed = True
        self.streams[stream_id] = stream
        self._accept(self, stream, head, bytes(data[message : message + size]))
        return int(message + size)

    def _check_order(self, kind: int, flags: int, length: int, stream_id: int) -> None:
        """The rules that hold for frames of every type."""
        if not self.settled and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "the preface must be followed by SETTINGS"
            )
        block = self._block
        if block is not None and (kind != CONTINUATION or stream_id != block.stream_id):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "a header block was interrupted by another frame"
            )
        if length > self._max_frame_bytes:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR,
                f"a frame of {length} bytes is larger than {self._max_frame_bytes}",
            )

    # DATA.

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
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
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

    def _unpadded(self, length: int, padding: int) -> tuple[int, int]:
        """How much of a padded payload is data, and how much padding follows it."""
        if not length:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without its padding")
        if padding >= length:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
        return length - 1 - padding, padding

    def _data_stream(self, stream_id: int, length: int) -> Stream | None:
        """Who gets a DATA frame; None when it is to be dropped."""
        stream = self.streams.get(stream_id)
        if stream is None:
            if self.is_idle(stream_id):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on an idle stream")
            if stream_id not in self._reset_ids:
                self._reset(stream_id, ErrorCode.STREAM_CLOSED)
            return None
        stream.receive_window -= length
        if stream.remote_closed:
            self._reset(stream_id, ErrorCode.STREAM_CLOSED)
        elif stream.receive_window < 0:
            self._reset(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
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

    def _receiver(self, stream: Stream) -> Receiver:
        receiver = stream.receiver
        assert receiver is not None
        return receiver

    def _payload_done(self) -> None:
        """Nobody is waiting for the rest of this frame; its padding is skipped."""
        self._left = self._padding_left
        self._padding_left = 0
        self._sink = None
        self._sink_ends = False

    def _aim(self, stream: Stream) -> None:
        """Point `direct` at the memory the rest of this frame belongs to, if it is worth it."""
        self.direct = self._receiver(stream).room(self._left)

    def _end_remote(self, stream: Stream) -> bool:
        """The client has sent everything; False if that is not what it announced."""
        stream.remote_closed = True
        announced = stream.content_length
        if announced is not None and announced != stream.received_bytes:
            self._reset(stream.id, ErrorCode.PROTOCOL_ERROR)
            return False
        return True

    def paid_for(self, stream: Stream) -> int:
        """What is still to come of the frame that is arriving, if it belongs to `stream`."""
        return self._left if self._sink is stream else 0

    def _drop(self, stream: Stream) -> None:
        if self._sink is stream:  # the rest of its frame is skipped
            self._sink = None
            self._sink_ends = False
            self.direct = None
        super()._drop(stream)

    def _grant_connection(self) -> None:
        if self._receive_window < 0:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window allows"
            )
        target = self._limits.connection_window_bytes
        self.sender.control(frames.window_update(0, target - self._receive_window))
        self._receive_window = target

    # HEADERS and CONTINUATION.

    def _on_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if not stream_id or len(payload) > self._limits.max_header_block_bytes:
            self.check_size(HEADERS, flags, len(payload), stream_id)
        if flags & (PADDED | HAS_PRIORITY):
            start = 0
            stop = len(payload)
            if flags & PADDED:
                stop = 1 + self._unpadded(stop, payload[0] if payload else 0)[0]
                start = 1
            if flags & HAS_PRIORITY:
                start += 5  # who depends on whom: RFC 9113 has done away with it
            if start > stop:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority"
                )
            payload = payload[start:stop]
        ends = flags & END_STREAM != 0
        if flags & END_HEADERS:
            self._on_block(stream_id, ends, payload)
        else:
            self._block = HeaderBlock(stream_id, ends, payload)

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        block.add(payload, self._limits.max_header_block_bytes)
        if flags & END_HEADERS:
            self._block = None
            self._on_block(block.stream_id, block.end_stream, block.whole())

    def _on_block(self, stream_id: int, ends: bool, block: bytes) -> None:
        """A complete header block: a new stream, or the trailers of an open one."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._on_trailers(stream, ends, block)
        elif stream_id > self.last_id:
            self._open(stream_id, ends, block)
        elif stream_id in self._reset_ids:  # sent before the client knew
            self._decoder.skip(block)
            self.idle_frame()
        elif any(stream_id in gap for gap in self._gaps):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "stream ids must grow")
        else:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")

    def _open(self, stream_id: int, ends: bool, block: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients open streams with odd ids")
        if stream_id > self.last_id + 2:
            self._gaps.append(range(self.last_id + 1, stream_id))
        self.last_id = stream_id
        limits = self._limits
        if self.drained_at is not None:  # GOAWAY said that it would be ignored
            self._decoder.skip(block)
            self._remember_reset(stream_id)
            return
        if (
            len(self.streams) >= limits.max_concurrent_streams
            or self.sender.queued_bytes > limits.max_queued_bytes
        ):
            self._decoder.skip(block)
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, "too many streams are open")
        try:
            head = self._decoder.request(block)
        except MalformedHeaders as error:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from None
        stream = Stream(stream_id, self.sender.initial_window, limits.stream_window_bytes)
        stream.content_length = head.content_length
        self.streams[stream_id] = stream
        if ends and not self._end_remote(stream):
            return
        if head.refusal is not None:
            self.sender.end(stream, head.refusal)
            return
        self._accept(self, stream, head, None)
        if ends and stream.receiver is not None:
            stream.receiver.ended()

    def _on_trailers(self, stream: Stream, ends: bool, block: bytes) -> None:
        if stream.remote_closed or not ends:
            self._decoder.skip(block)
            code = ErrorCode.STREAM_CLOSED if stream.remote_closed else ErrorCode.PROTOCOL_ERROR
            raise StreamFault(stream.id, code, "HEADERS where no headers belong")
        try:
            self._decoder.trailers(block)
        except MalformedHeaders as error:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, str(error)) from None
        if self._end_remote(stream):
            self._receiver(stream).ended()
