"""Large compressed contents, made in the time that a small part of them takes."""

from __future__ import annotations

import struct
import zlib

_PIECE_BYTES = 1 << 20
_HEAD = b"\x1f\x8b\x08" + bytes(6) + b"\xff"  # of gzip, without a name and a time


def gzip_repeated(before, unit, count, after=b""):
    """What gzip makes of `before + unit * count + after`.

    After a full flush equal pieces are equal when compressed, so one of them is copied.
    """
    per_piece = max(1, _PIECE_BYTES // len(unit))
    pieces, rest = divmod(count, per_piece)
    piece = unit * per_piece
    writer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)

    def packed(content):
        return writer.compress(content) + writer.flush(zlib.Z_FULL_FLUSH)

    body = [packed(before), packed(piece) * pieces, packed(unit * rest + after), writer.flush()]
    check = zlib.crc32(before)
    for _ in range(pieces):
        check = zlib.crc32(piece, check)
    check = zlib.crc32(unit * rest + after, check)
    size = len(before) + len(unit) * count + len(after)
    return b"".join([_HEAD, *body, struct.pack("<II", check, size & 0xFFFFFFFF)])
