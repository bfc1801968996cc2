r"""Chunked request bodies, decoded strictly: sizes in plain hex, every line ended by CR LF.

    b"5\r\nhello\r\n0\r\n\r\n" --feed--> b"hello"

Extensions are read over and trailers dropped. Both are bounded, and so is the number of chunks:
a client must not make us work for bytes that carry nothing.
"""

from __future__ import annotations

import enum
import re

from shoal.frontends.http.body import BodyBuffer
from shoal.frontends.http.head import body_too_large
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import HttpFault

_MAX_SIZE_LINE_BYTES = 1024
# At most 15 digits, so that no size overflows anything; extensions without control characters.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")


class _Next(enum.Enum):
    """What the decoder reads next."""

    SIZE = "a chunk's size line"
    DATA = "a chunk's bytes"
    DATA_END = "the line end after a chunk's bytes"
    TRAILER = "a trailer line, or the empty line that ends the body"


class ChunkedDecoder:
    """Decodes one body into `body`, however its bytes are cut up on the way."""

    def __init__(self, body: BodyBuffer, limits: HttpLimits) -> None:
        self.body = body
        self.rest = b""  # after the end: what follows the body
        self._limits = limits
        self._next = _Next.SIZE
        self._held = b""  # the beginning of a line whose end has not arrived
        self._left = 0  # of the current chunk
        self._chunks = 0
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> bool:
        """Take `data` in; true once the body is complete, and then `rest` holds the surplus.

        Raises HttpFault at the first byte that cannot be right; the decoder is then spent.
        """
        if self._held:
            data = self._held + data
            self._held = b""
        position = 0
        while True:
            if self._next is _Next.DATA:
                end = min(position + self._left, len(data))
                self.body.append(data[position:end])
                self._left -= end - position
                position = end
                if self._left:
                    return False
                self._next = _Next.DATA_END
            if self._next is _Next.DATA_END:
                if len(data) - position < 2:
                    self._held = data[position:]
                    if self._held not in (b"", b"\r"):
                        raise _bad_data_end()
                    return False
                if data[position : position + 2] != b"\r\n":
                    raise _bad_data_end()
                position += 2
                self._next = _Next.SIZE
            end = data.find(b"\n", position)
            if end < 0:
                self._held = data[position:]
                self._check_held()
                return False
            line = data[position:end]
            position = end + 1
            if not line.endswith(b"\r"):
                raise HttpFault(400, "a line of the chunked body ends in LF alone, not CR LF")
            if self._next is _Next.SIZE:
                self._begin_chunk(line[:-1])
            elif len(line) == 1:
                self.rest = data[position:]
                return True
            else:
                self._drop_trailer(len(line))

    def _begin_chunk(self, line: bytes) -> None:
        found = _SIZE_LINE.fullmatch(line) if len(line) <= _MAX_SIZE_LINE_BYTES else None
        if found is None:
            raise HttpFault(400, "the chunked body has a chunk size that is not plain hex")
        size = int(found[1], 16)
        if size == 0:
            self._next = _Next.TRAILER
            return
        self._chunks += 1
        if self._chunks > self._limits.max_chunks:
            raise HttpFault(
                400,
                f"Chunked request body exceeds maximum of {self._limits.max_chunks} non-empty "
                f"chunks. Send fewer or larger HTTP chunks.",
            )
        limit = self._limits.max_body_bytes
        if limit is not None and self.body.filled + size > limit:
            raise body_too_large(limit)
        self._left = size
        self._next = _Next.DATA

    def _drop_trailer(self, size: int) -> None:
        self._trailer_bytes += size
        if self._trailer_bytes > self._limits.max_head_bytes:
            raise HttpFault(
                431,
                f"the trailers are larger than the limit of {self._limits.max_head_bytes} bytes",
            )

    def _check_held(self) -> None:
        """Bound a line that does not end."""
        if self._next is _Next.TRAILER:
            if self._trailer_bytes + len(self._held) > self._limits.max_head_bytes:
                self._drop_trailer(len(self._held))
        elif len(self._held) > _MAX_SIZE_LINE_BYTES + len(b"\r"):
            raise HttpFault(400, "the chunked body has a chunk size line that does not end")


def _bad_data_end() -> HttpFault:
    return HttpFault(400, "a chunk of the body is longer than its size says")
