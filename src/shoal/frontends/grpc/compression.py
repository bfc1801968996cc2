"""gzip and deflate messages: reading them within a bound, writing them, choosing between them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from shoal.core.tensor import Buffer
from shoal.frontends.grpc.settings import CompressionLevel

IDENTITY = "identity"
# gRPC's deflate is the zlib format (RFC 1950), as it is HTTP's.
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
_ZLIB_LEVELS = {
    CompressionLevel.LOW: 1,
    CompressionLevel.MEDIUM: 6,
    CompressionLevel.HIGH: 9,
}
_QUICK_BYTES = 64 << 10  # before and after decompression; about 0.1 ms
# Below this the frame of the compressed format eats up what it saves.
_LEAST_BYTES = 128


class CompressionError(Exception):
    """The message cannot be read, for the reason in the text."""


class TooLarge(CompressionError):
    """The message would be larger than allowed once decompressed."""


def supports(encoding: str) -> bool:
    """Whether messages in `encoding` can be read."""
    return encoding in _WINDOW_BITS


def decompress_quickly(data: memoryview, encoding: str, max_bytes: int) -> bytes | None:
    """Undo `encoding` where that takes little time; None, also for what is damaged, where
    `decompress` has to do it."""
    if len(data) > _QUICK_BYTES:
        return None
    reader = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        plain = reader.decompress(data, _QUICK_BYTES)
    except zlib.error:
        return None
    return plain if reader.eof and not reader.unused_data and len(plain) <= max_bytes else None


def decompress(data: Buffer, encoding: str, max_bytes: int) -> bytes:
    """Undo `encoding`. Never allocates much more than `max_bytes`."""
    reader = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        plain = reader.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise CompressionError(f"the {encoding} message is damaged: {error}") from None
    if len(plain) > max_bytes:
        raise TooLarge(f"the message is larger than {max_bytes} bytes when decompressed")
    if not reader.eof:
        raise CompressionError(f"the {encoding} message is cut short")
    if reader.unused_data:
        raise CompressionError(
            f"{len(reader.unused_data)} bytes follow the end of the {encoding} message"
        )
    return plain


def choose(level: CompressionLevel, accepted: Sequence[str]) -> str | None:
    """The encoding for responses to a client that accepts `accepted`; None to leave them alone."""
    if level is CompressionLevel.NONE:
        return None
    return next((encoding for encoding in _WINDOW_BITS if encoding in accepted), None)


def compress(
    parts: Iterable[Buffer], size: int, encoding: str, level: CompressionLevel
) -> bytes | None:
    """The message of `size` bytes in `encoding`; None where that would not make it smaller."""
    if size < _LEAST_BYTES:
        return None
    writer = zlib.compressobj(_ZLIB_LEVELS[level], zlib.DEFLATED, _WINDOW_BITS[encoding])
    packed = b"".join([*(writer.compress(part) for part in parts), writer.flush()])
    return packed if len(packed) < size else None
