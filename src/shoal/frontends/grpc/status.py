"""How a call ends on the wire: status codes, the percent-encoded message, header blocks.

Blocks use the static table and literals without indexing only, so that any of them can be sent at
any time: there is no encoder state, and what never changes is encoded once, at import.
"""

from __future__ import annotations

import base64
import enum
import re
from collections.abc import Iterable
from typing import TypeAlias

from shoal.wire.http2_frames import literal

MetadataValue: TypeAlias = str | bytes
Metadata: TypeAlias = Iterable[tuple[str, MetadataValue]]

# Clients refuse header lists beyond 8 or 16 KiB, and with them the status they carry.
MAX_MESSAGE_BYTES = 4_096

RETRY_PUSHBACK = "grpc-retry-pushback-ms"  # the metadata of gRPC's that a service may send

_KEY = re.compile(r"[0-9a-z_.\-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
_PLAIN = re.compile(r"[\x20-\x24\x26-\x7e]*")  # what grpc-message carries as it is: no %


class StatusCode(enum.IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def percent_encoded(message: str) -> bytes:
    """`message` for grpc-message, cut at a character where it is longer than clients take."""
    if len(message) <= MAX_MESSAGE_BYTES and _PLAIN.fullmatch(message):
        return message.encode()
    encoded = bytearray()
    for character in message:
        if _PLAIN.fullmatch(character):
            piece = character.encode()
        else:
            piece = b"".join(b"%%%02X" % byte for byte in character.encode("utf-8", "replace"))
        if len(encoded) + len(piece) > MAX_MESSAGE_BYTES:
            encoded += b"..."
            break
        encoded += piece
    return bytes(encoded)


def metadata_block(metadata: Metadata) -> bytes:
    """The fields of `metadata`; values of keys in '-bin' are bytes, all others printable ASCII.

    Raises ValueError for what gRPC cannot carry.
    """
    block = []
    for key, value in metadata:
        if not _KEY.fullmatch(key) or (key.startswith("grpc-") and key != RETRY_PUSHBACK):
            raise ValueError(f"metadata key {key!r} is not one a gRPC service may send")
        if key.endswith("-bin"):
            data = value if isinstance(value, bytes) else value.encode()
            block.append(literal(key.encode(), base64.b64encode(data).rstrip(b"=")))
            continue
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        if not _VALUE.fullmatch(text):
            raise ValueError(
                f"metadata value of {key!r} is not printable ASCII; use a key that ends in -bin"
            )
        block.append(literal(key.encode(), text.strip().encode()))
    return b"".join(block)


def status_block(code: int, message: str = "", metadata: Metadata = ()) -> bytes:
    """Trailers: the status, and what the service adds."""
    block = _STATUS[code] if code in _STATUS else literal(b"grpc-status", str(int(code)).encode())
    if message:
        block += literal(b"grpc-message", percent_encoded(message))
    return block + metadata_block(metadata) if metadata else block


def trailers_only(code: int, message: str, metadata: Metadata = ()) -> bytes:
    """A whole response in one block, for calls that end before any message."""
    return RESPONSE_HEADERS + status_block(code, message, metadata)


def http_refusal(http_status: int, code: int, message: str) -> bytes:
    """The response to a request that is not gRPC: an HTTP status."""
    return (
        b"\x08\x03%d" % http_status + CONTENT_TYPE + literal(b"content-length", b"0")
    ) + status_block(code, message)


# Static names: :status is 8 (with 200 as entry 8 itself), content-type is 31.
CONTENT_TYPE = b"\x0f\x10\x10application/grpc"
RESPONSE_HEADERS = b"\x88" + CONTENT_TYPE
ACCEPTED_ENCODINGS = literal(b"grpc-accept-encoding", b"identity,deflate,gzip")
TABLE_SIZE_ZERO = b"\x20"  # "my dynamic table is empty": acknowledges a smaller table
_STATUS = {int(code): literal(b"grpc-status", str(int(code)).encode()) for code in StatusCode}
OK_TRAILERS = _STATUS[0]


def encoded_response_headers(encoding: str) -> bytes:
    """Response headers that announce compressed messages."""
    return RESPONSE_HEADERS + literal(b"grpc-encoding", encoding.encode())
