"""One HTTP/2 connection, server side, without I/O: bytes in, calls and bytes out (RFC 9113).

    transport --receive--> frames --> streams --> receivers (calls)
    transport <---out----- Sender <---------------'

`receive` takes what has arrived and returns how much of it was used; the rest is passed again with
more behind it. Inside a large DATA frame `direct` is where the next bytes belong, so that the
socket can write them there itself. Faults of one stream reset that stream; faults of the
connection end in GOAWAY and `closed`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from shoal.frontends.grpc.control import SharedByConnections
from shoal.frontends.grpc.flow import ServerStream
from shoal.frontends.grpc.headers import (
    HeaderBlock,
    MalformedHeaders,
)
from shoal.frontends.grpc.message import SMALL_BYTES
from shoal.frontends.grpc.settings import GrpcSettings
from shoal.frontends.grpc.whole_calls import Accept, FindFastPath, WholeCalls
from shoal.wire import http2_frames as frames
from shoal.wire.http2_frames import (
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
    H2Error,
    StreamFault,
)

_ID_MASK = 0x7FFFFFFF  # the first bit of a stream id is reserved: ignored
_MOST_GAPS = 64
_HTTP1 = re.compile(rb"(?!PRI )[A-Z]{3,8} ")
_HTTP1_BEGINNING = re.compile(rb"[A-Z]{1,8}")
_HTTP1_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 71\r\n"
    b"connection: close\r\n\r\n"
    b"This port speaks gRPC (HTTP/2). Plain HTTP is served on the HTTP port.\n"
)

_unpack_header = frames.HEADER.unpack_from


class Connection(WholeCalls):
    """The state of one connection. `accept` starts a call on a new stream, with its only message if
    it arrived in one piece."""

    def __init__(
        self,
        settings: GrpcSettings,
        accept: Accept,
        wake: Callable[[], None],
        clock: Callable[[], int],
        shared: SharedByConnections,
        find_fast_path: FindFastPath | None = None,
    ) -> None:
        """`find_fast_path` finds the fast path for a kind of call, if there is one."""
        super().__init__(settings, accept, wake, clock, shared, find_fast_path)
        self._gaps: deque[range] = deque(maxlen=_MOST_GAPS)  # ids that were skipped

    # What arrives.

    def receive(self, data: bytes | memoryview) -> int:
        """Work through `data`; returns how many of its bytes are done with. Never raises.

        Where that takes long, the rest is left for later, and `interrupted` is true.
        """
        self.interrupted = False
        if self.closed:
            return len(data)
        try:
            if not self.greeted:
                return self._greet(data)
            return self._frames(data, 0)
        except ConnectionFault as fault:
            self.fail(fault.code, fault.message)
            return len(data)
        finally:
            self.end_reading()

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
        raise ConnectionFault(H2Error.PROTOCOL_ERROR, "this is no HTTP/2 connection preface")

    def _frames(self, data: bytes | memoryview, position: int) -> int:
        """Whole frames, and the beginning of a DATA frame."""
        end = len(data)
        while self._left and position < end:
            position = self._more_payload(data, position, end)
        if not self._left:
            position = self._matching(data, position, end)
        self.in_run = in_run = False
        while end - position >= HEADER_BYTES and not self.closed and not self._interrupt():
            high, low, kind, flags, stream_id = _unpack_header(data, position)
            length = high << 8 | low
            stream_id &= _ID_MASK
            start = position + HEADER_BYTES
            stop = start + length
            if self._block is not None or not self.settled or length > self._max_frame_bytes:
                self._check_order(kind, flags, length, stream_id)
            try:
                if kind <= HEADERS and stop <= end:
                    used = self._at_once(kind, flags, stream_id, data, position, end)
                    if used:
                        position = used
                        in_run = kind == DATA
                        continue
                if kind == DATA:
                    if stop > end and (
                        # The rest follows, and is read together with the next frames; or the
                        # length of its padding is.
                        (in_run and length <= SMALL_BYTES) or (flags & PADDED and start >= end)
                    ):
                        break
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

    def _interrupt(self) -> bool:
        """Whether to leave the next frames for later."""
        self.interrupted = self.interrupted or self.turn_over()
        return self.interrupted

    def _at_once(
        self,
        kind: int,
        flags: int,
        stream_id: int,
        data: bytes | memoryview,
        position: int,
        end: int,
    ) -> int:
        """Several frames together, beginning with a whole DATA or HEADERS frame at `position`, if
        they are of the two kinds that are seen most. Returns where they end; 0, with nothing done,
        if they are not."""
        if kind == DATA:
            return 0 if flags else self._data_run(stream_id, data, position, end)
        if flags == END_HEADERS and stream_id == self.last_id + 2:
            used = self._matching(data, position, end)
            if used > position:
                return used
            position = self._whole_call(stream_id, data, position, end)
            return self._matching(data, position, end) if position else 0
        return 0

    def _check_order(self, kind: int, flags: int, length: int, stream_id: int) -> None:
        """The rules that hold for frames of every type."""
        if not self.settled and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(
                H2Error.PROTOCOL_ERROR, "the preface must be followed by SETTINGS"
            )
        block = self._block
        if block is not None and (kind != CONTINUATION or stream_id != block.stream_id):
            raise ConnectionFault(
                H2Error.PROTOCOL_ERROR, "a header block was interrupted by another frame"
            )
        if length > self._max_frame_bytes:
            raise ConnectionFault(
                H2Error.FRAME_SIZE_ERROR,
                f"a frame of {length} bytes is larger than {self._max_frame_bytes}",
            )

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
                start += 5  # stream priorities, which RFC 9113 has removed
            if start > stop:
                raise ConnectionFault(
                    H2Error.FRAME_SIZE_ERROR, "HEADERS too short for its priority"
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
            raise ConnectionFault(H2Error.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
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
            raise ConnectionFault(H2Error.PROTOCOL_ERROR, "stream ids must grow")
        else:
            raise ConnectionFault(H2Error.STREAM_CLOSED, "HEADERS on a closed stream")

    def _open(self, stream_id: int, ends: bool, block: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(H2Error.PROTOCOL_ERROR, "clients open streams with odd ids")
        if stream_id > self.last_id + 2:
            self._gaps.append(range(self.last_id + 1, stream_id))
        self.last_id = stream_id
        limits = self._limits
        if self.drained_at is not None:  # as announced in GOAWAY
            self._decoder.skip(block)
            self._remember_reset(stream_id)
            return
        if (
            len(self.streams) >= limits.max_concurrent_streams
            or self.sender.queued_bytes > limits.max_queued_bytes
        ):
            self._decoder.skip(block)
            raise StreamFault(stream_id, H2Error.REFUSED_STREAM, "too many streams are open")
        try:
            head = self._decoder.request(block)
        except MalformedHeaders as error:
            raise StreamFault(stream_id, H2Error.PROTOCOL_ERROR, str(error)) from None
        stream = ServerStream(stream_id, self.sender.initial_window)
        stream.receive_window = limits.stream_window_bytes
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

    def _on_trailers(self, stream: ServerStream, ends: bool, block: bytes) -> None:
        if stream.remote_closed or not ends:
            self._decoder.skip(block)
            code = H2Error.STREAM_CLOSED if stream.remote_closed else H2Error.PROTOCOL_ERROR
            raise StreamFault(stream.id, code, "HEADERS where no headers belong")
        try:
            self._decoder.trailers(block)
        except MalformedHeaders as error:
            raise StreamFault(stream.id, H2Error.PROTOCOL_ERROR, str(error)) from None
        if self._end_remote(stream):
            self._receiver(stream).ended()
