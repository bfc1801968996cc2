"""gzip and deflate bodies: reading them within a bound, writing them, choosing between them.

The format is detected when reading, because clients confuse the two names. `deflate` is the zlib
format both ways.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache

from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument

IDENTITY = "identity"
WINDOW_BITS = {"gzip": 31, "deflate": 15}

_EITHER_FORMAT = 47
_FED_BYTES = 64 * 1024
_GROWTH_BYTES = 1 << 20
# The lowest level: tensors compress badly, and the next levels cost thrice the time for little.
_LEVEL = 1


@lru_cache(64)
def coding(content_encoding: bytes | None) -> str | None:
    """The coding named by the `Content-Encoding` of a body; None for an unsupported one."""
    name = (content_encoding or b"").decode("latin-1").strip().lower()
    if name in ("", IDENTITY):
        return IDENTITY
    return name if name in WINDOW_BITS else None


def decompress(body: Buffer, *, most_bytes: int) -> Buffer:
    """Undo gzip or deflate. Raises InvalidArgument for a body that is damaged, cut short or would
    grow beyond `most_bytes`; never more than that is allocated."""
    if not len(body):
        raise InvalidArgument("nothing to be decompressed: the request body is empty")
    reader = zlib.decompressobj(_EITHER_FORMAT)
    # In pieces: at once, zlib takes twice the memory and keeps some of it.
    plain = bytearray()
    view = memoryview(body).cast("B")
    fed = 0
    try:
        while fed < len(view) and len(plain) <= most_bytes and not reader.eof:
            piece: Buffer = view[fed : fed + _FED_BYTES]
            fed += len(piece)
            full = True
            while full and len(plain) <= most_bytes:
                room = min(_GROWTH_BYTES, most_bytes + 1 - len(plain))
                made = reader.decompress(piece, room)
                plain += made
                piece = reader.unconsumed_tail
                full = len(made) == room and not reader.eof
    except zlib.error as error:
        raise InvalidArgument(f"failed to decompress the request body: {error}") from None
    if len(plain) > most_bytes:
        raise InvalidArgument(
            f"Decompressed data size exceeds the maximum allowed value of {most_bytes} bytes. Use "
            f"--http-max-input-size to increase the limit."
        )
    if not reader.eof:
        raise InvalidArgument("failed to decompress the request body: it is cut short")
    surplus = len(reader.unused_data) + len(view) - fed
    if surplus:
        raise InvalidArgument(
            f"failed to decompress the request body: {surplus} bytes follow the end of the "
            f"compressed data"
        )
    return plain


def decompress_small(body: Buffer, *, most_bytes: int) -> bytes | None:
    """What `decompress` returns, if it is at most `most_bytes`; None otherwise, at little cost."""
    if most_bytes < 1:  # which zlib takes for no limit
        return None
    reader = zlib.decompressobj(_EITHER_FORMAT)
    try:
        plain = reader.decompress(body, most_bytes)
    except zlib.error:
        return None
    return plain if reader.eof and not reader.unused_data else None


def compress(parts: Iterable[Buffer], coding: str) -> list[bytes]:
    """The parts as one body in `coding`, which is 'gzip' or 'deflate'."""
    writer = zlib.compressobj(_LEVEL, zlib.DEFLATED, WINDOW_BITS[coding])
    packed = [writer.compress(part) for part in parts]
    packed.append(writer.flush())
    return [part for part in packed if part]


@lru_cache(64)
def negotiate(accept_encoding: bytes | None) -> str:
    """The coding a client likes best: of gzip, deflate and identity the one with the highest q.

    The first named wins a tie; codings we do not write and entries we cannot read are passed over.
    """
    best, highest = IDENTITY, 0.0
    for entry in (accept_encoding or b"").decode("latin-1").lower().split(","):
        name, _, rest = entry.partition(";")
        name = name.strip()
        if name != IDENTITY and name not in WINDOW_BITS:
            continue
        weight = _weight(rest)
        if weight > highest:
            best, highest = name, weight
    return best


def _weight(parameters: str) -> float:
    """The q of one entry; 1 where there is none, 0 where it is not a number."""
    key, _, value = parameters.strip().partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        weight = float(value)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
