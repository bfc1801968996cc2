"""HTTP/1.1 responses, parsed from bytes. No sockets.

    feed(bytes) … until the response is complete --> status, headers, body

Heads repeat, so parsed heads are cached by their bytes. The body is placed in memory such that
binary tensors, which follow a JSON header, are aligned for numpy.
"""

from __future__ import annotations

from shoal.client.errors import ProtocolError

LENGTH_HEADER = "inference-header-content-length"
MOST_HEAD_BYTES = 1 << 20
_ALIGNMENT = 16
_CACHED_HEADS = 256
_END = b"\r\n\r\n"


class Http1Head:
    """The status line and headers. Immutable, so equal heads share one object."""

    __slots__ = ("chunked", "headers", "keep_alive", "length", "pad", "status")

    def __init__(self, raw: bytes) -> None:
        """Raises ProtocolError when `raw` is not an HTTP/1 response."""
        first, *lines = raw.split(b"\r\n")
        version, _, rest = first.partition(b" ")
        code = rest[:3]
        if not version.startswith(b"HTTP/1.") or not code.isdigit():
            raise ProtocolError(f"this is not an HTTP response: {first[:60]!r}")
        self.status = int(code)
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise ProtocolError(f"this is not an HTTP header: {line[:60]!r}")
            key, text = name.decode("latin-1").lower(), value.strip().decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        self.headers = headers
        connection = headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (
            version != b"HTTP/1.0" or "keep-alive" in connection
        )
        self.chunked = headers.get("transfer-encoding", "").lower().endswith("chunked")
        self.length = self._number("content-length")
        self.pad = 0
        header_length = self._number(LENGTH_HEADER)
        if header_length:
            self.pad = -header_length % _ALIGNMENT
        if self.status in {204, 304} or self.status < 200:
            self.length, self.chunked = 0, False
        elif self.length is None and not self.chunked:
            self.keep_alive = False  # the body ends with the connection

    def _number(self, name: str) -> int | None:
        text = self.headers.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()):
            raise ProtocolError(f"the server sent {name}: {text!r}, which is not a number")
        return int(text)


_heads: dict[bytes, Http1Head] = {}


def _head(raw: bytes) -> Http1Head:
    head = _heads.get(raw)
    if head is None:
        head = Http1Head(raw)
        if len(_heads) >= _CACHED_HEADS:
            _heads.clear()
        _heads[raw] = head
    return head


class Http1Response:
    """One response while it is received."""

    __slots__ = ("_buffer", "_chunks", "_filled", "_pending", "body", "done", "head")

    def __init__(self) -> None:
        self.head: Http1Head | None = None
        self.body: bytearray | memoryview = bytearray()
        self.done = False
        self._pending = b""
        self._chunks: _Chunks | None = None
        self._buffer: memoryview | None = None  # the memory of the body, if its length is known
        self._filled = 0

    @property
    def begun(self) -> bool:
        """Whether any byte was received."""
        return self.head is not None or bool(self._pending)

    def feed(self, data: bytes) -> bool:
        """Process received bytes; returns whether the response is complete.

        Raises ProtocolError for invalid or excess data.
        """
        head = self.head
        if head is None:
            if self._pending:
                data = self._pending + data
            end = data.find(_END)
            if end < 0:
                if len(data) > MOST_HEAD_BYTES or not data.startswith(b"HTTP/"[: len(data)]):
                    raise ProtocolError(f"this is not an HTTP response: {data[:60]!r}")
                self._pending = data
                return False
            self._pending = b""
            head = _head(data[:end])
            data = data[end + 4 :]
            if head.status < 200:  # "continue": the final response follows
                return self.feed(data) if data else False
            self.head = head
            if head.chunked:
                self._chunks = _Chunks()
            elif head.length is not None:
                self._buffer = memoryview(bytearray(head.pad + head.length))[head.pad :]
                self.body = self._buffer
        return self._take(head, data)

    def _take(self, head: Http1Head, data: bytes) -> bool:
        if self._chunks is not None:
            assert isinstance(self.body, bytearray)
            self.done = self._chunks.feed(data, self.body)
        elif self._buffer is not None:
            assert head.length is not None
            end = self._filled + len(data)
            if end > head.length:
                raise ProtocolError("the server sent more than its Content-Length")
            self._buffer[self._filled : end] = data
            self._filled = end
            self.done = end == head.length
        else:
            assert isinstance(self.body, bytearray)
            self.body += data
        return self.done

    def room(self) -> memoryview | None:
        """Memory for the rest of the body; report the received bytes with `received`."""
        return None if self._buffer is None else self._buffer[self._filled :]

    def received(self, count: int) -> bool:
        """`count` bytes were written to `room`; returns whether the response is complete."""
        assert self._buffer is not None
        self._filled += count
        self.done = self._filled == len(self._buffer)
        return self.done

    def end(self) -> bool:
        """The connection was closed; returns whether that ends the response."""
        if self.head is not None and self._chunks is None and self._buffer is None:
            self.done = True
        return self.done

    def drain(self) -> bytes:
        """Remove and return the received part of a body without a length."""
        assert isinstance(self.body, bytearray)
        piece = bytes(self.body)
        self.body.clear()
        return piece


class _Chunks:
    """A chunked body while it is received."""

    __slots__ = ("_left", "_pending", "_trailers")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._left = 0  # of the current chunk, including its line end
        self._trailers = False

    def feed(self, data: bytes, body: bytearray) -> bool:
        """Append the content of `data` to `body`; returns whether it is complete."""
        pending = self._pending
        pending += data
        position = 0
        try:
            while True:
                if self._left:
                    piece = pending[position : position + self._left]
                    # The line end of a chunk is not part of the body.
                    body += piece[: max(0, self._left - 2)]
                    self._left -= len(piece)
                    position += len(piece)
                    if self._left:
                        return False
                end = pending.find(b"\r\n", position)
                if end < 0:
                    return False
                line = bytes(pending[position:end])
                position = end + 2
                if self._trailers:
                    if not line:
                        return True
                    continue
                try:
                    size = int(line.partition(b";")[0], 16)
                except ValueError:
                    raise ProtocolError(f"this is not an HTTP chunk: {line[:60]!r}") from None
                if size:
                    self._left = size + 2
                else:
                    self._trailers = True
        finally:
            del pending[:position]
