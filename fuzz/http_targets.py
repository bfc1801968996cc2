"""HTTP/1.1: request heads, requests in pieces, forms, paths and compressed bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fuzz.outcomes import outcome, pieces
from shoal.core import buffers
from shoal.errors import InvalidArgument
from shoal.frontends.clouds.sagemaker import SageMakerApplication, SageMakerSettings
from shoal.frontends.clouds.vertex_ai import VertexAiApplication, VertexAiSettings
from shoal.frontends.http.head import HeadCache, check_partial_head, parse_head
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import CHUNKED, HttpFault
from shoal.frontends.http.reader import RequestReader
from shoal.frontends.http.routes import resolve
from shoal.frontends.memory_budget import MemoryBudget
from shoal.statistics import trace_context
from shoal.wire import compression, multipart

_NOTHING: Any = None  # what rewriting does not use
_PLATFORMS = (
    SageMakerApplication(_NOTHING, _NOTHING, SageMakerSettings("m")),
    VertexAiApplication(_NOTHING, VertexAiSettings("/predict", "/health", "m")),
)
_LIMITS = HttpLimits(max_body_bytes=1 << 16)
_MOST_BYTES = 1 << 16


def http_head(data: bytes) -> None:
    """A head is refused, or is whole; no prefix of one that is accepted is refused."""
    head_bytes = data + b"\r\n\r\n"
    kind, head = outcome(lambda: parse_head(head_bytes, _LIMITS), HttpFault)
    assert outcome(lambda: HeadCache().parse(head_bytes, _LIMITS), HttpFault)[0] == kind
    if kind != "returned":
        return
    assert head.body_length == CHUNKED or 0 <= head.body_length <= _MOST_BYTES
    if head_bytes.find(b"\r\n\r\n") == len(data):
        for end in range(1, len(data)):
            check_partial_head(head_bytes[:end], 0, _LIMITS)
    resolve(head.path)
    for platform in _PLATFORMS:
        rewritten = platform.rewrite(head)
        if rewritten is not None:
            assert rewritten.raw == head.raw
            assert resolve(rewritten.path) is not None
    trace_context.read(head.target, head.query)
    compression.negotiate(head.fields.get(b"accept-encoding"))
    compression.coding(head.fields.get(b"content-encoding"))


def http_requests(data: bytes) -> None:
    """The requests do not depend on how the stream is cut."""
    whole = _read([data[1:]])
    assert _read(pieces(data)) == whole


def _read(stream: Iterable[bytes]) -> tuple[list[tuple[str, str, bytes]], bool]:
    """Every request of a stream, and whether an error ended it."""
    reader = RequestReader(
        parse_head, _LIMITS, MemoryBudget(_MOST_BYTES * 4, buffers.pool), lambda: 0
    )
    found = []
    try:
        for piece in stream:
            rest = piece
            while rest:
                target = reader.target
                if target is None:
                    reader.feed(rest)
                    rest = b""
                else:
                    count = min(len(target), len(rest))
                    target[:count] = rest[:count]
                    rest = rest[count:]
                    if not reader.fill(count):
                        continue
                while (request := reader.take()) is not None:
                    found.append((request.head.method, request.head.target, bytes(request.body)))
    except HttpFault:
        return found, True
    return found, False


def multipart_form(data: bytes) -> None:
    """The fields of a form are parts of its body."""
    line, _, body = data.partition(b"\n")
    kind, boundary = outcome(lambda: multipart.boundary_of(line.decode("latin-1")), InvalidArgument)
    if kind != "returned":
        return
    kind, found = outcome(lambda: list(multipart.parts(body, boundary)), InvalidArgument)
    if kind == "returned":
        assert len(found) <= multipart.MOST_PARTS
        assert sum(len(part.content) for part in found) <= len(body)


def compressed_body(data: bytes) -> None:
    """What is inflated stays within its limit, and both functions agree."""
    kind, plain = outcome(
        lambda: bytes(compression.decompress(data, most_bytes=_MOST_BYTES)), InvalidArgument
    )
    quick = compression.decompress_small(data, most_bytes=_MOST_BYTES)
    if kind == "returned":
        assert len(plain) <= _MOST_BYTES
    assert quick is None or quick == plain
