"""HTTP requests as lines of the access log."""

from __future__ import annotations

import contextlib
import json
import time

from shoal.frontends.access_log import AccessRecord
from shoal.frontends.http.message import Head
from shoal.frontends.http.routes import resolve
from shoal.statistics import trace_context

_READS = frozenset(("index",))  # routes of POST that change nothing


def access_record(
    head: Head | None,
    client: str,
    key: str,
    status: int,
    received_bytes: int,
    sent_bytes: int,
    started_ns: int,
    failure: bytes = b"",
    *,
    model: str = "",
) -> AccessRecord:
    """What the log says of one request. `head` is None if it could not be read; `failure` is the
    body of an error response; `model` is that of a function's own route."""
    record = AccessRecord(
        protocol="http",
        client=client,
        method="",
        path="",
        version="HTTP/1.1",
        status=status,
        received_bytes=received_bytes,
        sent_bytes=sent_bytes,
        seconds=(time.monotonic_ns() - started_ns) / 1e9 if started_ns else 0.0,
        key=key,
        error=_error(failure),
    )
    if head is None:
        return record
    record.method = head.sent_method
    record.path = head.target
    record.version = f"HTTP/{head.version}"
    record.user_agent = head.fields.get(b"user-agent", b"").decode("latin-1")
    parent = head.fields.get(b"traceparent")
    span = trace_context.read(parent.decode("latin-1"), None) if parent else None
    if span is not None:
        record.trace_id = span.trace_id
    target = resolve(head.path)
    if model:
        record.model, record.api = model, "inference"
        return record
    if target is None:
        return record
    record.model = target.model
    record.model_version = str(target.version) if target.version >= 0 else ""
    endpoint = target.route.endpoints.get(head.method)
    if endpoint is not None:
        record.api = endpoint.api
        record.changes = head.method == "POST" and endpoint.name not in _READS
    return record


def _error(failure: bytes) -> str:
    """The sentence of an error response, in either of its formats."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        error = json.loads(failure)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    return ""
