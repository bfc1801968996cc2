"""One HTTP/2 connection from the client's side, carrying gRPC calls: bytes in, bytes out.

    open, Http2Stream.send --> take(): bytes to send
    receive(bytes) --> Http2Stream.messages, Http2Stream.ended

It has no socket, so blocking sockets, event loops and `shoal perf` share it. Many calls may be in
progress. The windows for received data are as large as possible, so only sending has to wait.
"""

from __future__ import annotations

import hpack

from shoal.client.errors import ProtocolError
from shoal.client.http2_stream import NO_HEADERS, TOP_UP_BYTES, Ended, Http2Stream
from shoal.core.tensor import Buffer
from shoal.wire import http2_frames as frames
from shoal.wire.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    H2Error,
    Setting,
)

OUR_FRAME_BYTES = 1 << 20  # the maximum size of received frames
MOST_STREAMS = 1_000  # concurrent streams, if the server sets no limit
_LONGEST_BLOCK = 1 << 20
_CACHED_BLOCKS = 64
_pack = frames.HEADER.pack
_COPIED_BYTES = 4_096  # up to this, slicing bytes is cheaper than slicing a view
_PLAIN_HEADERS = END_HEADERS | PADDED | frames.HAS_PRIORITY
_PREFACE = (
    frames.PREFACE
    + frames.settings(
        (
            (Setting.ENABLE_PUSH, 0),
            (Setting.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW),
            (Setting.MAX_FRAME_SIZE, OUR_FRAME_BYTES),
        )
    )
    + frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
)


class Http2Connection:
    """One connection. Not thread-safe."""

    def __init__(self) -> None:
        self.streams: dict[int, Http2Stream] = {}
        self.closing = False  # no more calls can be made on this connection
        self.closing_reason = ""  # the server's GOAWAY message
        self.max_streams = MOST_STREAMS
        self._out: list[Buffer] = [_PREFACE]
        self._out_size = len(_PREFACE)
        self._next_id = 1
        self._window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._blocked: set[Http2Stream] = set()  # those that wait for flow control
        self._received = 0
        self._partial = b""  # an incomplete frame
        self._data_stream: Http2Stream | None = None  # whose DATA frame is being received
        self._data_left = 0
        self._data_end = 0  # set if that frame ends its stream
        self._block: tuple[int, int, bytes] | None = None  # stream, flags and bytes so far
        self._decoder = hpack.Decoder(max_header_list_size=_LONGEST_BLOCK)
        self._known: dict[bytes, dict[str, str]] = {}  # fields by block; see _decoded

    # ---- calls

    def open(self, block: bytes) -> Http2Stream:
        """Begin a call with these headers."""
        stream = Http2Stream(self)
        self.attach(stream, block)
        return stream

    def attach(self, stream: Http2Stream, block: bytes) -> None:
        """Begin a call with these headers on a stream object of the caller's."""
        stream.id = stream_id = self._next_id
        self._next_id = stream_id + 2
        if self._next_id > frames.MAX_STREAM_ID:
            self.closing = True
        stream.window = self._stream_window
        stream.headers = NO_HEADERS
        stream._received = 0
        self.streams[stream_id] = stream
        size = len(block)
        if size <= self._frame_bytes:
            self._out += (_pack(size >> 8, size & 0xFF, HEADERS, END_HEADERS, stream_id), block)
            self._out_size += frames.HEADER_BYTES + size
            return
        self.put(
            frames.header_block(
                stream_id, block, end_stream=False, max_frame_bytes=self._frame_bytes
            )
        )

    def take(self) -> tuple[list[Buffer], int]:
        """The queued bytes and their size; the queue is empty afterwards."""
        out, size = self._out, self._out_size
        self._out, self._out_size = [], 0
        return out, size

    @property
    def pending(self) -> bool:
        """Whether bytes are queued."""
        return bool(self._out)

    def lost(self) -> None:
        """The connection was closed; calls in progress end."""
        self.closing = True
        for stream in list(self.streams.values()):
            self._end(stream, Ended(-1, "", stream.headers, untouched=not stream.headers))

    def put(self, data: Buffer) -> None:
        """Queue bytes to be sent."""
        self._out.append(data)
        self._out_size += len(data)

    def send_framed(self, stream: Http2Stream, parts: list[Buffer], size: int, end: bool) -> None:
        """Send a message that begins with gRPC's prefix; see `Http2Stream.send`."""
        if (
            size <= stream.window
            and size <= self._window
            and size <= self._frame_bytes
            and not stream._unsent
        ):  # the common case: one frame
            flags = END_STREAM if end else 0
            self._out.append(_pack(size >> 8, size & 0xFF, DATA, flags, stream.id))
            self._out += parts
            self._out_size += frames.HEADER_BYTES + size
            self._window -= size
            stream.window -= size
            return
        stream._unsent.extend(memoryview(part).cast("B") for part in parts if len(part))
        stream._unsent_end = end
        self._flush(stream)
        if stream._unsent:
            self._blocked.add(stream)

    def _flush(self, stream: Http2Stream) -> None:
        """Send as much as flow control allows."""
        unsent = stream._unsent
        while unsent:
            room = min(self._frame_bytes, self._window, stream.window)
            if room <= 0:
                return
            pieces: list[memoryview] = []
            taken = 0
            while unsent and taken < room:
                piece = unsent[0]
                left = room - taken
                if len(piece) > left:
                    unsent[0] = piece[left:]
                    piece = piece[:left]
                else:
                    unsent.popleft()
                pieces.append(piece)
                taken += len(piece)
            last = stream._unsent_end and not unsent
            flags = END_STREAM if last else 0
            self.put(frames.header(taken, DATA, flags, stream.id))
            self._out.extend(pieces)
            self._out_size += taken
            self._window -= taken
            stream.window -= taken
            if last:
                stream._unsent_end = False
        if stream._unsent_end and stream.ended is None:
            stream._unsent_end = False
            self.put(frames.header(0, DATA, END_STREAM, stream.id))

    def _cancel(self, stream: Http2Stream) -> None:
        self.put(frames.rst_stream(stream.id, H2Error.CANCEL))
        self.streams.pop(stream.id, None)
        self._blocked.discard(stream)
        stream.news = None
        stream._end(Ended(1, "cancelled", stream.headers))

    def _end(self, stream: Http2Stream, ended: Ended) -> None:
        self.streams.pop(stream.id, None)
        self._blocked.discard(stream)
        if stream.ended is None:
            stream._end(ended)

    # ---- received data

    def receive(self, data: Buffer) -> None:
        """Process received bytes. Raises ProtocolError, after which the connection is unusable."""
        if self._partial:
            data = self._partial + bytes(data)
            self._partial = b""
        size = len(data)
        if size > _COPIED_BYTES:
            data = memoryview(data)
        position = 0
        if self._data_left:
            position = min(self._data_left, size)
            self._data(data[:position])
        unpack = frames.HEADER.unpack_from
        while position < size:
            if size - position < frames.HEADER_BYTES:
                self._partial = bytes(data[position:])
                return
            high, low, kind, flags, stream_id = unpack(data, position)
            length = high << 8 | low
            if length > OUR_FRAME_BYTES:
                raise ProtocolError("this is not an HTTP/2 frame")
            start = position + frames.HEADER_BYTES
            position = start + length
            if kind == DATA and not flags & PADDED:
                # None: the call was cancelled.
                self._data_stream = self.streams.get(stream_id & frames.MAX_STREAM_ID)
                self._data_left = length
                self._data_end = flags & END_STREAM
                self._data(data[start:position])  # as much of it as has arrived
            elif position > size:
                self._partial = bytes(data[start - frames.HEADER_BYTES :])
                return
            elif kind == HEADERS and flags & _PLAIN_HEADERS == END_HEADERS:
                block = bytes(data[start:position])
                self._headers(flags, stream_id & frames.MAX_STREAM_ID, block)
            else:
                payload = bytes(data[start:position])
                self._frame(kind, flags, stream_id & frames.MAX_STREAM_ID, payload)

    def _data(self, piece: Buffer) -> None:
        """Process a DATA frame, or a piece of it."""
        count = len(piece)
        self._data_left -= count
        self._received += count
        if self._received >= TOP_UP_BYTES:
            self.put(frames.window_update(0, self._received))
            self._received = 0
        stream = self._data_stream
        if stream is None:
            return
        if count:
            stream._data(piece)
        if self._data_end and not self._data_left:
            self._end(stream, Ended(2, "the call ended without a status", stream.headers))

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == HEADERS:
            start, end = 0, len(payload)
            if flags & PADDED:
                start, end = 1, end - payload[0]
            if flags & frames.HAS_PRIORITY:
                start += 5
            self._headers(flags, stream_id, payload[start:end])
        elif kind == frames.CONTINUATION:
            if self._block is None:
                raise ProtocolError("unexpected CONTINUATION frame")
            first_id, first_flags, so_far = self._block
            if len(so_far) > _LONGEST_BLOCK:
                raise ProtocolError("a header block is too long")
            self._block = None
            self._headers(flags | first_flags, first_id, so_far + payload)
        elif kind == DATA:  # padded
            padding = payload[0] if payload else 0
            content = payload[1 : len(payload) - padding]
            self._data_stream = self.streams.get(stream_id)
            self._data_left = len(content)
            self._data_end = flags & END_STREAM
            self._data(content)
            self._received += len(payload) - len(content)
        elif kind == frames.SETTINGS:
            if not flags & frames.ACK:
                self._settings(payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, int.from_bytes(payload, "big") & frames.MAX_WINDOW)
        elif kind == frames.PING:
            if not flags & frames.ACK:
                self.put(frames.ping(payload, ack=True))
        elif kind == frames.RST_STREAM:
            self._reset(stream_id, int.from_bytes(payload, "big"))
        elif kind == frames.GOAWAY:
            self._go_away(payload)

    def _headers(self, flags: int, stream_id: int, block: bytes) -> None:
        if not flags & END_HEADERS:
            self._block = (stream_id, flags & END_STREAM, block)
            return
        fields = self._known.get(block) or self._decoded(block)
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        if flags & END_STREAM:
            del self.streams[stream_id]
            if self._blocked:
                self._blocked.discard(stream)
            stream._trailers(fields)
        elif (
            fields.get(":status") == "200"
            or stream.headers
            or not fields.get(":status", "").startswith("1")
        ):
            stream.headers = fields

    def _decoded(self, block: bytes) -> dict[str, str]:
        """The fields of a block. They are cached until HPACK's dynamic table changes."""
        entries = self._decoder.header_table.dynamic_entries
        newest = entries[0] if entries else None
        try:
            fields = {
                _text(name): _text(value) for name, value in self._decoder.decode(block, raw=True)
            }
        except (hpack.HPACKError, IndexError, ValueError) as error:
            raise ProtocolError(f"a header block cannot be read: {error}") from None
        changed = (entries[0] if entries else None) is not newest
        if changed or (block[:1] >= b"\x20" and block[0] & 0xE0 == 0x20):
            self._known.clear()
        elif len(block) < 256:
            if len(self._known) >= _CACHED_BLOCKS:
                self._known.clear()
            self._known[block] = fields
        return fields

    def _settings(self, payload: bytes) -> None:
        for name, value in frames.parse_settings(payload[: len(payload) // 6 * 6]):
            if name == Setting.INITIAL_WINDOW_SIZE:
                change = value - self._stream_window
                self._stream_window = value
                for stream in self.streams.values():
                    stream.window += change
            elif name == Setting.MAX_FRAME_SIZE:
                self._frame_bytes = value
            elif name == Setting.MAX_CONCURRENT_STREAMS:
                self.max_streams = min(value, MOST_STREAMS)
        self.put(frames.SETTINGS_ACK)
        self._flush_all()

    def _window_update(self, stream_id: int, increment: int) -> None:
        if not stream_id:
            self._window += increment
            if self._blocked:
                self._flush_all()
            return
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.window += increment
            self._resume(stream)

    def _flush_all(self) -> None:
        for stream in list(self._blocked):
            self._resume(stream)

    def _resume(self, stream: Http2Stream) -> None:
        """Continue sending after flow control."""
        if stream._unsent:
            self._flush(stream)
        if not stream._unsent and stream in self._blocked:
            self._blocked.discard(stream)
            if stream.news is not None:
                stream.news()

    def _reset(self, stream_id: int, code: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        if code == H2Error.REFUSED_STREAM:
            text = "the server refused the stream"
            self._end(stream, Ended(14, text, stream.headers, untouched=True))
            return
        text = f"the server reset the call: {_error_name(code)}"
        self._end(stream, Ended(1 if code == H2Error.CANCEL else 13, text, stream.headers))

    def _go_away(self, payload: bytes) -> None:
        self.closing = True
        last = int.from_bytes(payload[:4], "big") & frames.MAX_STREAM_ID
        text = payload[8:].decode("utf-8", "replace") or "the server is going away"
        self.closing_reason = f"{_error_name(int.from_bytes(payload[4:8], 'big'))}: {text}"
        for stream in [each for each in self.streams.values() if each.id > last]:
            self._end(stream, Ended(14, text, stream.headers, untouched=True))


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")


def _error_name(code: int) -> str:
    return H2Error(code).name if code in H2Error._value2member_map_ else str(code)
