r"""JSON objects one after the other in a stream of bytes, separated by their own braces.

    b'{"a": 1}{"b"' , b': 2}\n'  -->  {"a": 1}, {"b": 2}

There is at most white space between them. Each byte is read once, however many pieces an object
arrives in; whether an object is valid JSON is checked by the parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.errors import InvalidArgument

_SPACE = re.compile(rb"[ \t\r\n]*")
_OUTSIDE = re.compile(rb'[^"{}]*')
# Within a string, as far as it goes at a stretch; unbounded repetition would cost memory.
_INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*){0,1000}', re.DOTALL)

_QUOTE, _BACKSLASH, _OPEN, _NEWLINE = b'"\\{\n'
_MOST_NESTED = 100
_SHOWN_BYTES = 20


@dataclass(eq=False, slots=True)
class Message:
    """One object as received. `line` becomes true when a newline follows it."""

    data: bytes
    line: bool = False


class StreamError(InvalidArgument):
    """These bytes are no object. After a `final` error, the rest of the stream cannot be read."""

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final


class JsonObjects:
    """Cuts one stream. After a final error it must not be used any more."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` is the largest object that is taken."""
        self._most_bytes = most_bytes
        self._buffer = bytearray()
        self._at = 0  # what is before has been read
        self._depth = 0
        self._in_string = False
        self._last: Message | None = None  # the one that the buffer follows

    @property
    def begun(self) -> bool:
        """Whether the buffer has part of an object, or a complete one that was not taken yet."""
        return bool(self._buffer)

    @property
    def buffered_bytes(self) -> int:
        """How much has been fed and not been taken."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Some more of the stream has arrived."""
        self._buffer += data
        self._skip_space()

    def take(self) -> Message | None:
        """The next object, or None as long as it is not complete. Raises StreamError."""
        buffer = self._buffer
        if not buffer:
            return None
        if buffer[0] != _OPEN:
            raise self._stray()
        end = self._scan()
        if (end or len(buffer)) > self._most_bytes:
            raise StreamError(
                f"an object has more than {self._most_bytes:,} bytes; send less", final=True
            )
        if not end:
            return None
        message = Message(bytes(memoryview(buffer)[:end]))
        del buffer[:end]
        self._last = message
        self._at = 0
        self._skip_space()
        return message

    def _scan(self) -> int:
        """Read to the end of the object, which is returned, or of the buffer: then 0."""
        buffer, at, end = self._buffer, self._at, 0
        while at < len(buffer):
            at = (_INSIDE if self._in_string else _OUTSIDE).match(buffer, at).end()  # type: ignore[union-attr]
            if at == len(buffer):
                break
            byte = buffer[at]
            if byte == _BACKSLASH and self._in_string:
                if at + 1 == len(buffer):  # the escaped character has not arrived
                    break
                continue
            at += 1
            if byte == _QUOTE:
                self._in_string = not self._in_string
            elif byte == _OPEN:
                self._depth += 1
                if self._depth > _MOST_NESTED:
                    raise StreamError(
                        f"objects are nested more than {_MOST_NESTED} deep", final=True
                    )
            else:
                self._depth -= 1
                if not self._depth:
                    end = at
                    break
        self._at = at
        return end

    def _skip_space(self) -> None:
        """Between objects: drop white space, and mark the last one if there was a newline in it."""
        if self._depth or not self._buffer:
            return
        end = _SPACE.match(self._buffer).end()  # type: ignore[union-attr]
        if self._last is not None and _NEWLINE in self._buffer[:end]:
            self._last.line = True
        del self._buffer[:end]

    def _stray(self) -> StreamError:
        """What stands instead of an object. The rest of its line is dropped, if there is one."""
        buffer = self._buffer
        newline = buffer.find(b"\n")
        end = newline if newline >= 0 else len(buffer)
        # A browser, on behalf of any web page: its question would follow after the head.
        is_http = buffer[:end].rstrip()[-9:-1] == b" HTTP/1."
        shown = bytes(buffer[: min(end, _SHOWN_BYTES)]).decode(errors="replace").strip()
        del buffer[: end + 1]
        self._last = None
        self._skip_space()
        return StreamError(f"expected a JSON object, found {shown!r}", final=newline < 0 or is_http)
