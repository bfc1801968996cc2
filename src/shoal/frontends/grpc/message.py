"""From the bytes of a stream to messages: a flag, a length in four bytes, the message.

    DATA frames --feed--> [ prefix | body ] --> one buffer per message

Small messages are passed as bytes. Large ones get one aligned buffer at their full length
as soon as that is known, into which the socket may write by itself (`room`, `filled`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from shoal.core.tensor import Buffer
from shoal.frontends.grpc import compression
from shoal.frontends.grpc.compression import CompressionError, TooLarge
from shoal.frontends.grpc.status import StatusCode
from shoal.frontends.memory_budget import MemoryBudget

PREFIX_BYTES = 5
SMALL_BYTES = 32 << 10  # up to here a copy costs less than a separate buffer
_EAGER_BYTES = 64 << 20  # allocated before any of the announced bytes arrive
_GROWTH = 4  # how far memory may run ahead of a longer message

_ADVICE = "; send it uncompressed, or raise the limit with --grpc-max-request-bytes"

_PREFIX = struct.Struct(">BI")
pack_prefix = _PREFIX.pack
unpack_prefix = _PREFIX.unpack_from


class MessageFault(Exception):
    """The call cannot continue: end it with `code` and the text."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def no_room(memory: MemoryBudget) -> MessageFault:
    """What a client is told whose message has no room."""
    return MessageFault(StatusCode.RESOURCE_EXHAUSTED, memory.refusal)


class Packed:
    """A compressed message that takes a while to decompress."""

    __slots__ = ("_advice", "_body", "_encoding", "_max_bytes")

    def __init__(self, body: memoryview, encoding: str, max_bytes: int, advice: str) -> None:
        """`advice` is what a client is told, besides the limit, whose message is too large."""
        self._body = body
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._advice = advice

    def inflate(self) -> memoryview:
        """The message. Raises MessageFault. Any thread may call this."""
        try:
            plain = compression.decompress(self._body, self._encoding, self._max_bytes)
        except TooLarge as error:
            raise MessageFault(StatusCode.RESOURCE_EXHAUSTED, str(error) + self._advice) from None
        except CompressionError as error:
            raise MessageFault(StatusCode.INTERNAL, str(error)) from None
        return np.frombuffer(plain, np.uint8).data


Arrived: TypeAlias = Buffer | Packed


class MessageReader:
    """Cuts one stream into messages. `expect` is called with the missing size of a message."""

    __slots__ = (
        "_body",
        "_compressed",
        "_counted",
        "_encoding",
        "_expect",
        "_filled",
        "_length",
        "_max_bytes",
        "_max_inflated_bytes",
        "_memory",
        "_prefix",
        "position",
    )

    def __init__(
        self,
        memory: MemoryBudget,
        max_bytes: int,
        max_inflated_bytes: int,
        encoding: str,
        expect: Callable[[int], None],
    ) -> None:
        self.position = 0  # where the message ends that `feed` has returned last
        self._memory = memory
        self._max_bytes = max_bytes
        self._max_inflated_bytes = max_inflated_bytes
        self._encoding = encoding
        self._expect = expect
        self._prefix = b""
        self._body: memoryview | None = None  # None: between messages
        self._length = 0
        self._filled = 0
        self._compressed = 0
        self._counted = 0  # our part of `unfinished_bytes`

    @property
    def inside(self) -> bool:
        """Whether a message has begun that is not complete."""
        return self._body is not None or bool(self._prefix)

    def feed(self, data: bytes | memoryview, start: int, stop: int) -> Iterator[Arrived]:
        """Take `data[start:stop]`, message by message. Raises MessageFault where one is wrong,
        after those before it."""
        while start < stop:
            if self._body is None:
                missing = PREFIX_BYTES - len(self._prefix)
                self._prefix += bytes(data[start : min(start + missing, stop)])
                start += missing
                if len(self._prefix) == PREFIX_BYTES:
                    self._begin(stop - start)
            else:
                room = self._room()
                count = min(len(room), stop - start)
                room[:count] = data[start : start + count]
                start += count
                self._count(count)
            message = self.take()
            if message is not None:
                self.position = start
                yield message

    def room(self, limit: int) -> memoryview | None:
        """Where the rest of a large message goes, at most `limit` bytes of it; None if a read of
        its own would not pay."""
        if self._body is None:
            return None
        count = min(limit, self._length - self._filled)
        return self._room()[:count] if count >= SMALL_BYTES else None

    def rest(self) -> memoryview | None:
        """Where the missing rest of the message goes, as far as there is memory for it now."""
        return None if self._body is None else self._body[self._filled :]

    def filled(self, count: int) -> Arrived | None:
        """`count` bytes were written to `room` or `rest`; returns the message if it is complete."""
        self._count(count)
        return self.take()

    def abandon(self) -> None:
        """Drop a message that will not be completed."""
        self._memory.unfinished_bytes -= self._counted
        self._counted = 0
        self._body = None
        self._prefix = b""

    def take(self) -> Arrived | None:
        """The message, if it is complete."""
        body = self._body
        if body is None or self._filled < self._length:
            return None
        self.abandon()
        if self._length > SMALL_BYTES:
            if not self._memory.has_room(self._length):
                raise no_room(self._memory)
            self._memory.hold(body)
        if self._compressed:
            max_bytes = self._max_inflated_bytes
            plain = compression.decompress_quickly(body, self._encoding, max_bytes)
            if plain is not None:
                return plain
            advice = _ADVICE if max_bytes < self._max_bytes else ""
            return Packed(body, self._encoding, max_bytes, advice)
        return body if self._length > SMALL_BYTES else bytes(body)

    def _begin(self, available: int) -> None:
        """The prefix is complete; `available` bytes of the body are at hand."""
        compressed, length = unpack_prefix(self._prefix)
        self._prefix = b""
        if compressed > 1:
            raise MessageFault(
                StatusCode.INTERNAL, f"a message begins with flag {compressed}; it must be 0 or 1"
            )
        if compressed and not compression.supports(self._encoding):
            if self._encoding == compression.IDENTITY:
                raise MessageFault(
                    StatusCode.INTERNAL, "a compressed message in a call without grpc-encoding"
                )
            raise MessageFault(
                StatusCode.UNIMPLEMENTED,
                f"grpc-encoding {self._encoding!r} is not supported; use gzip, deflate or identity",
            )
        if length > self._max_bytes:
            raise MessageFault(
                StatusCode.RESOURCE_EXHAUSTED,
                f"Received message larger than max ({length} vs. {self._max_bytes})",
            )
        self._compressed = compressed
        self._length = length
        self._filled = 0
        if length <= SMALL_BYTES:
            self._body = memoryview(bytearray(length))
        else:
            self._body = self._memory_for(min(length, _EAGER_BYTES))
        if length > available:
            self._expect(length - available)

    def _room(self) -> memoryview:
        """The rest of the body, at least one byte of it; grows where it was not made at once."""
        body = self._body
        assert body is not None
        if self._filled == len(body):
            larger = self._memory_for(min(self._length, len(body) * _GROWTH))
            larger[: self._filled] = body
            self._body = body = larger
        return body[self._filled :]

    def _memory_for(self, size: int) -> memoryview:
        try:
            # The large tensor of a message is the last in it, and its size mostly is a multiple of
            # 64: where the message ends on a boundary, that tensor begins on one.
            return self._memory.pool.take(size, aligned_at=size)
        except MemoryError:
            raise MessageFault(
                StatusCode.RESOURCE_EXHAUSTED, f"no memory for a message of {self._length} bytes"
            ) from None

    def _count(self, count: int) -> None:
        self._filled += count
        if self._length <= SMALL_BYTES:
            return
        self._counted += count
        memory = self._memory
        memory.unfinished_bytes += count
        if not memory.has_room(0):
            raise no_room(memory)
