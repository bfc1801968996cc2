"""A gRPC client that sends what no library would: frames as the test makes them, windows of 0."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass, field
from urllib.parse import unquote

import hpack

from tests.support.fakes import WAIT_SECS

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_BYTES = 16_384


def frame(kind, flags, stream_id, payload=b""):
    """One HTTP/2 frame."""
    return (
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload
    )


@dataclass
class RawAnswer:
    """What arrived on a stream so far."""

    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self):
        return int(self.headers["grpc-status"])

    @property
    def text(self):
        return unquote(self.headers.get("grpc-message", ""))

    @property
    def messages(self):
        found, position = [], 0
        while position < len(self.content):
            (size,) = struct.unpack_from(">I", self.content, position + 1)
            found.append(self.content[position + 5 : position + 5 + size])
            position += 5 + size
        return found


class RawGrpc:
    """One connection. `settings` are sent in the preface."""

    def __init__(self, port, settings=None, window=1 << 30):
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_SECS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers: dict[int, RawAnswer] = {}
        self.closed = False  # GOAWAY with an error, or the end
        self.goaway = b""
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._next_id = 1
        self._buffer = bytearray()
        self._send_window = 65_535
        self._initial_window = 65_535
        self._windows: dict[int, int] = {}
        pairs = {INITIAL_WINDOW: 1 << 30} if settings is None else settings
        body = b"".join(struct.pack(">HI", *pair) for pair in pairs.items())
        update = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", window)) if window else b""
        self.socket.sendall(_PREFACE + frame(SETTINGS, 0, 0, body) + update)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def headers(self, path, encoding=None, end=False):
        """The bytes that open a stream, and its id."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        if encoding:
            fields.append(("grpc-encoding", encoding))
        stream_id, self._next_id = self._next_id, self._next_id + 2
        self.answers[stream_id] = RawAnswer()
        flags = END_HEADERS | (END_STREAM if end else 0)
        return stream_id, frame(HEADERS, flags, stream_id, self._encoder.encode(fields))

    def open(self, path, encoding=None):
        """Open a stream; returns its id."""
        stream_id, opening = self.headers(path, encoding)
        self.socket.sendall(opening)
        return stream_id

    def data(self, stream_id, content, end=False):
        """Send `content` as the windows allow."""
        position = 0
        while position < len(content):
            window = self._windows.get(stream_id, 0) + self._initial_window
            size = min(_FRAME_BYTES, len(content) - position, window, self._send_window)
            if size <= 0:
                if not self._read():
                    return
                continue
            last = position + size == len(content)
            piece = content[position : position + size]
            flags = END_STREAM if end and last else 0
            try:
                self.socket.sendall(frame(DATA, flags, stream_id, piece))
            except (BrokenPipeError, ConnectionResetError):
                self.closed = True
                return
            self._windows[stream_id] = self._windows.get(stream_id, 0) - size
            self._send_window -= size
            position += size
            if self.answers[stream_id].ended:
                return

    def start(self, path, message, encoding=None):
        """Send a unary call; returns its id."""
        stream_id = self.open(path, encoding)
        prefix = struct.pack(">BI", encoding is not None, len(message))
        self.data(stream_id, prefix + message, end=True)
        return stream_id

    def finish(self, stream_id):
        """The response, once it is complete."""
        answer = self.answers[stream_id]
        while not answer.ended and self._read():
            pass
        return answer

    def call(self, path, message, encoding=None):
        """A unary call and its response."""
        return self.finish(self.start(path, message, encoding))

    def open_window(self, stream_id, increment):
        """Let the server send so many bytes more."""
        self.socket.sendall(frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", increment)))

    def ping(self, after_secs=0.0):
        """Wait until the server has read everything before; false if the connection has ended."""
        time.sleep(after_secs)
        self._ponged = False
        try:
            self.socket.sendall(frame(PING, 0, 0, b"finished"))
        except (BrokenPipeError, ConnectionResetError):
            return False
        while not self._ponged:
            if not self._read():
                return False
        return True

    def wait_closed(self):
        """Wait until the server closes the connection."""
        while self._read():
            pass

    def _read(self):
        """Read more, and take the frames in it; false at the end of the connection."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
            return False
        self._buffer += data
        position = 0
        while len(self._buffer) - position >= 9:
            size = int.from_bytes(self._buffer[position : position + 3], "big")
            if len(self._buffer) - position - 9 < size:
                break
            kind, flags, stream_id = struct.unpack_from(">BBI", self._buffer, position + 3)
            self._take(
                kind, flags, stream_id, bytes(self._buffer[position + 9 : position + 9 + size])
            )
            position += 9 + size
        del self._buffer[:position]
        return True

    def _take(self, kind, flags, stream_id, payload):
        answer = self.answers.get(stream_id)
        if kind == SETTINGS and not flags & ACK:
            for position in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, position)
                if name == INITIAL_WINDOW:
                    self._initial_window = value
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == WINDOW_UPDATE:
            (increment,) = struct.unpack(">I", payload)
            if stream_id:
                self._windows[stream_id] = self._windows.get(stream_id, 0) + increment
            else:
                self._send_window += increment
        elif kind == PING:
            if flags & ACK:
                self._ponged = True
            else:
                self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self.goaway = payload[8:]
        elif kind == HEADERS:
            fields = dict(self._decoder.decode(payload))
            if answer is not None:
                answer.headers |= fields
                answer.ended |= bool(flags & END_STREAM)
        elif answer is not None and kind == DATA:
            answer.content += payload
            answer.ended |= bool(flags & END_STREAM)
        elif answer is not None and kind == RST_STREAM and not answer.ended:
            answer.ended, answer.reset = True, int.from_bytes(payload, "big")
