"""Request headers: from an HPACK block to a checked request head.

    block --hpack--> fields --checks--> RequestHead --> call

Clients repeat themselves: a block that does not change the dynamic table gives the same head every
time until some other block changes the table. Such heads are cached by their bytes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass

import hpack

from shoal.frontends.grpc import status
from shoal.frontends.grpc.compression import IDENTITY
from shoal.frontends.grpc.guard import MAX_CONTINUATIONS
from shoal.frontends.grpc.status import MetadataValue, StatusCode
from shoal.wire.http2_frames import ConnectionFault, H2Error

_REMEMBERED_HEADS = 64
_REMEMBERED_BLOCK_BYTES = 1_024

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z")
# gRPC lets metadata begin and end with spaces, which HTTP/2 would not.
_BAD_METADATA = re.compile(rb"[\x00\r\n]|\A\t|\t\Z")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_CONTENT_TYPE = re.compile(rb"application/grpc(?:[+;].*)?", re.IGNORECASE | re.DOTALL)
_UNIT_NS = {
    b"H": 3_600_000_000_000,
    b"M": 60_000_000_000,
    b"S": 1_000_000_000,
    b"m": 1_000_000,
    b"u": 1_000,
    b"n": 1,
}
_PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path"))
_CONNECTION_SPECIFIC = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
# Read by the transport itself, so no part of the metadata a service sees.
_RESERVED = frozenset(
    (
        b"content-length",
        b"content-type",
        b"grpc-accept-encoding",
        b"grpc-encoding",
        b"grpc-internal-encoding-request",
        b"grpc-message-type",
        b"grpc-timeout",
        b"te",
    )
)


class MalformedHeaders(Exception):
    """The block is no well-formed HTTP request or trailer section (RFC 9113, section 8)."""


class UnusableHeaders(Exception):
    """Well-formed HTTP/2 that is no call we can serve; `block` is the whole response."""

    def __init__(self, block: bytes) -> None:
        super().__init__()
        self.block = block


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The headers of a call. Immutable, so equal blocks share one."""

    path: str
    metadata: tuple[tuple[str, MetadataValue], ...] = ()
    timeout_ns: int | None = None
    encoding: str = IDENTITY
    accepted_encodings: tuple[str, ...] = ()
    content_length: int | None = None
    refusal: bytes | None = None  # a header block that is the whole response


class HeaderBlock:
    """A header block that continues in CONTINUATION frames."""

    __slots__ = ("_count", "_parts", "_size", "end_stream", "stream_id")

    def __init__(self, stream_id: int, end_stream: bool, first: bytes) -> None:
        self.stream_id = stream_id
        self.end_stream = end_stream
        self._parts = [first]
        self._size = len(first)
        self._count = 0

    def add(self, part: bytes, max_bytes: int) -> None:
        """Take the next frame's part. Raises ConnectionFault if there seems to be no end to it."""
        self._parts.append(part)
        self._size += len(part)
        self._count += 1
        if self._size > max_bytes or self._count > MAX_CONTINUATIONS:
            raise ConnectionFault(H2Error.ENHANCE_YOUR_CALM, "a header block without end")

    def whole(self) -> bytes:
        """All parts together."""
        return b"".join(self._parts)


class HeaderDecoder:
    """One connection's HPACK state and its cached heads."""

    def __init__(self, max_list_bytes: int, max_block_bytes: int) -> None:
        self._max_list_bytes = max_list_bytes
        self._decoder = hpack.Decoder(max_header_list_size=max_block_bytes)
        self.cached: dict[bytes, RequestHead] = {}  # of blocks that do not change the table

    def request(self, block: bytes) -> RequestHead:
        """The head in `block`.

        Raises MalformedHeaders, after which the connection may continue, or ConnectionFault, after
        which it cannot: the HPACK state is lost.
        """
        head = self.cached.get(block)
        if head is not None:
            return head
        fields, table_changed = self._decode(block)
        head = self._head(fields)
        if not table_changed and len(block) <= _REMEMBERED_BLOCK_BYTES:
            if len(self.cached) >= _REMEMBERED_HEADS:
                del self.cached[next(iter(self.cached))]
            self.cached[block] = head
        return head

    def trailers(self, block: bytes) -> None:
        """Read trailers, for the state of HPACK only. Raises as `request` does."""
        fields, _ = self._decode(block)
        for name, value in fields:
            if name.startswith(b":"):
                raise MalformedHeaders(f"pseudo-header {_shown(name)} in trailers")
            _check_field(name, value)

    def skip(self, block: bytes) -> None:
        """Keep the HPACK state right for a block whose content does not matter."""
        if block not in self.cached:
            self._decode(block)

    def _decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The fields of `block`, and whether it changed the dynamic table."""
        entries = self._decoder.header_table.dynamic_entries
        # An insertion puts a new tuple in front or, too large to keep, empties the table.
        newest = entries[0] if entries else None
        if _starts_with_size_update(block):
            _refuse_many_size_updates(block)
        try:
            fields = [(bytes(name), bytes(value)) for name, value in self._raw(block)]
        except hpack.OversizedHeaderListError:
            raise ConnectionFault(
                H2Error.ENHANCE_YOUR_CALM, "the header list is far beyond the limit"
            ) from None
        except (hpack.HPACKError, IndexError, ValueError) as error:
            raise ConnectionFault(
                H2Error.COMPRESSION_ERROR, f"a header block cannot be decoded: {error}"
            ) from None
        newest_now = entries[0] if entries else None
        changed = newest_now is not newest or _starts_with_size_update(block)
        if changed:
            self.cached.clear()
        return fields, changed

    def _raw(self, block: bytes) -> Iterable[tuple[bytes, bytes]]:
        return self._decoder.decode(block, raw=True)

    def _head(self, fields: list[tuple[bytes, bytes]]) -> RequestHead:
        pseudo, regular = _split(fields)
        try:
            if sum(len(name) + len(value) + 32 for name, value in fields) > self._max_list_bytes:
                raise UnusableHeaders(
                    status.trailers_only(
                        StatusCode.RESOURCE_EXHAUSTED,
                        f"the request's metadata is larger than {self._max_list_bytes} bytes; "
                        f"send less of it",
                    )
                )
            return _usable_head(pseudo, regular)
        except UnusableHeaders as unusable:
            return RequestHead(path="", refusal=unusable.block)


def _split(
    fields: list[tuple[bytes, bytes]],
) -> tuple[dict[bytes, bytes], list[tuple[bytes, bytes]]]:
    """Pseudo-header fields and the others, once both are well-formed."""
    pseudo: dict[bytes, bytes] = {}
    regular: list[tuple[bytes, bytes]] = []
    for name, value in fields:
        if not name.startswith(b":"):
            _check_field(name, value)
            regular.append((name, value))
            continue
        if regular:
            raise MalformedHeaders(f"pseudo-header {_shown(name)} after a regular header")
        if name not in _PSEUDO:
            raise MalformedHeaders(f"unknown pseudo-header {_shown(name)}")
        if name in pseudo:
            raise MalformedHeaders(f"pseudo-header {_shown(name)} twice")
        if _BAD_VALUE.search(value):
            raise MalformedHeaders(f"value of {_shown(name)} has characters it may not have")
        pseudo[name] = value
    for name in (b":method", b":scheme", b":path"):
        if not pseudo.get(name):
            raise MalformedHeaders(f"pseudo-header {_shown(name)} is missing or empty")
    return pseudo, regular


def _check_field(name: bytes, value: bytes) -> None:
    if not _NAME.fullmatch(name):
        raise MalformedHeaders(f"header name {_shown(name)} is not lower-case HTTP")
    if _BAD_METADATA.search(value):
        raise MalformedHeaders(f"value of {_shown(name)} has characters it may not have")
    if name in _CONNECTION_SPECIFIC or (name == b"te" and value.lower() != b"trailers"):
        raise MalformedHeaders(f"header {_shown(name)} has no place in HTTP/2")


def _usable_head(pseudo: dict[bytes, bytes], regular: list[tuple[bytes, bytes]]) -> RequestHead:
    known = {name: value for name, value in regular if name in _RESERVED}
    if pseudo[b":method"] != b"POST":
        raise UnusableHeaders(
            status.http_refusal(405, StatusCode.INTERNAL, "gRPC calls are POST requests")
        )
    if not _CONTENT_TYPE.fullmatch(known.get(b"content-type", b"")):
        raise UnusableHeaders(
            status.http_refusal(
                415,
                StatusCode.INTERNAL,
                "this port speaks gRPC: send content-type application/grpc",
            )
        )
    accepted = known.get(b"grpc-accept-encoding", b"").decode("latin-1")
    return RequestHead(
        path=pseudo[b":path"].decode("latin-1"),
        metadata=tuple(_metadata(regular)),
        timeout_ns=_timeout_ns(known.get(b"grpc-timeout")),
        encoding=known.get(b"grpc-encoding", b"identity").decode("latin-1"),
        accepted_encodings=tuple(name.strip() for name in accepted.split(",")),
        content_length=_content_length(regular),
    )


def _metadata(regular: list[tuple[bytes, bytes]]) -> Iterable[tuple[str, MetadataValue]]:
    for name, value in regular:
        if name in _RESERVED:
            continue
        key = name.decode("ascii")
        if not key.endswith("-bin"):
            yield key, _text(value)
            continue
        for item in value.split(b","):
            yield key, _binary(key, item.strip())


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _binary(key: str, value: bytes) -> bytes:
    """Base64 with or without its padding, as both are sent."""
    try:
        unpadded = value.rstrip(b"=")
        return base64.b64decode(unpadded + b"=" * (-len(unpadded) % 4), validate=True)
    except binascii.Error:
        raise UnusableHeaders(
            status.trailers_only(StatusCode.INTERNAL, f"metadata {key!r} is not valid base64")
        ) from None


def _timeout_ns(value: bytes | None) -> int | None:
    if value is None:
        return None
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise UnusableHeaders(
            status.trailers_only(
                StatusCode.INTERNAL,
                f"grpc-timeout {_shown(value)} is not up to 8 digits and one of H M S m u n",
            )
        )
    return int(match[1]) * _UNIT_NS[match[2]]


def _content_length(regular: list[tuple[bytes, bytes]]) -> int | None:
    values = {value for name, value in regular if name == b"content-length"}
    if not values:
        return None
    if len(values) > 1 or not all(value.isdigit() and len(value) < 19 for value in values):
        raise MalformedHeaders("content-length is not one number")
    return int(values.pop())


def _starts_with_size_update(block: bytes) -> bool:
    return block[:1] >= b"\x20" and block[0] & 0xE0 == 0x20


def _refuse_many_size_updates(block: bytes) -> None:
    """More than two size updates in a block have no purpose (RFC 7541, section 4.2)."""
    position = updates = 0
    while position < len(block) and block[position] & 0xE0 == 0x20:
        updates += 1
        if updates > 2:
            raise ConnectionFault(
                H2Error.COMPRESSION_ERROR,
                "a header block changes the table size over and over",
            )
        long_form = block[position] & 0x1F == 0x1F
        position += 1
        while long_form and position < len(block):
            long_form = block[position] & 0x80 != 0
            position += 1


def _shown(data: bytes) -> str:
    return repr(data[:64])[1:]
