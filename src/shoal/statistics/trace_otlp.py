"""Traces as OpenTelemetry spans, sent to a collector as OTLP over HTTP, in JSON.

    InferRequest                from the first byte of the request to the last of its response
    └── <model>                 from its acceptance to its final response
        ├── compute             while it ran
        └── <model of a step>   for ensembles and models that ask other models

Traces wait in a bounded queue; a thread of its own makes spans of them and sends many at a time. A
collector that is away costs spans, never requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import shoal
from shoal.config.options.trace import OtlpOptions
from shoal.statistics.trace import Event, FinishedTrace, RequestRecord
from shoal.statistics.trace_context import new_span_id
from shoal.wire import json_text

_logger = logging.getLogger(__name__)

Span = dict[str, Any]
Post = Callable[[str, bytes, Mapping[str, str]], None]  # raises; what has a `code` was answered

_SERVER_KIND = 2  # the numbers of OTLP's enums
_STATUS_ERROR = 2
_ROOT = "InferRequest"
_SCOPE = {"name": "shoal", "version": shoal.__version__}
_POST_SECS = 10.0
_CLOSE_SECS = 5.0
_RETRY_SECS = (0.5, 2.0)  # between the attempts to send one batch
_WORTH_RETRYING = frozenset((408, 429, 502, 503, 504))
_COMPLAIN_SECS = 60.0  # at most one line about lost spans in this time


class OtlpExporter:
    """Sends the spans of finished traces. Nothing happens before the first one."""

    def __init__(self, options: OtlpOptions, post: Post | None = None) -> None:
        self._options = options
        self._post = post or _post
        url = options.url
        self._url = url if "://" in url else f"http://{url}"
        self._resource = {"attributes": _attributes(options.resource)}
        self._changed = threading.Condition()  # guards everything below
        self._queue: list[FinishedTrace] = []
        self._waiting = 0  # spans that are not sent yet, whether they are made or not
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lost = 0
        self._complained = 0.0

    def take(self, trace: FinishedTrace, *, last: bool) -> None:  # noqa: ARG002 - as Collector has it
        """Queue a trace. If the queue is full, it is dropped as a whole, with a warning."""
        count = 1 + sum([1 + bool(request.compute) for request in trace.requests])
        with self._changed:
            if self._closed:
                return
            if self._waiting >= self._options.max_queue_size:
                self._lose(count, "they come faster than they are sent")
                return
            self._queue.append(trace)
            self._waiting += count
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="shoal-trace-export", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def retire(self) -> None:
        """Nothing to do: spans are sent whatever the settings are by then."""

    def close(self) -> None:
        """Send what is queued, within reason, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECS)

    def _work(self) -> None:
        most = self._options.max_export_batch_size
        made: list[Span] = []
        while True:
            with self._changed:
                self._changed.wait_for(self._due, self._options.schedule_delay_ms / 1e3)
                if not self._waiting:
                    if self._closed:
                        return
                    # Idle: no timer runs until there is something to send again.
                    self._changed.wait_for(lambda: self._closed or self._waiting)
                    continue
                traces, self._queue = self._queue, []
            made += [span for trace in traces for span in spans(trace)]
            batch, made = made[:most], made[most:]
            self._send(batch)
            with self._changed:
                self._waiting -= len(batch)

    def _due(self) -> bool:
        return self._closed or self._waiting >= self._options.max_export_batch_size

    def _send(self, batch: Sequence[Span]) -> None:
        """Send one batch; retry while the collector is busy."""
        scope_spans = [{"scope": _SCOPE, "spans": batch}]
        body = json_text.dumps(
            {"resourceSpans": [{"resource": self._resource, "scopeSpans": scope_spans}]}
        )
        headers = {"Content-Type": "application/json", **self._options.headers}
        problem = ""
        for pause_secs in (*_RETRY_SECS, None):
            try:
                self._post(self._url, body, headers)
            except Exception as error:  # noqa: BLE001 - whatever the network does, it costs spans only
                code = getattr(error, "code", 0)
                problem = f"{code} {error}" if code else str(getattr(error, "reason", error))
                if code and code not in _WORTH_RETRYING:
                    break
            else:
                return
            if pause_secs is None or self._pause(pause_secs):
                break
        with self._changed:
            self._lose(len(batch), f"{self._url} does not take them: {problem}")

    def _pause(self, secs: float) -> bool:
        """Wait before another attempt; true when there is no time for one any more."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, secs)

    def _lose(self, count: int, why: str) -> None:
        """Count lost spans, and say so now and then. The lock is held."""
        self._lost += count
        now = time.monotonic()
        if not self._complained or now - self._complained >= _COMPLAIN_SECS:
            _logger.warning("%d spans of traces were lost: %s", self._lost, why)
            self._complained, self._lost = now, 0


def spans(trace: FinishedTrace) -> Iterator[Span]:
    """The spans of one trace, as OTLP's JSON has them."""
    context = trace.context
    assert context is not None
    offset_ns = trace.wall_offset_ns
    moments = [
        moment_ns
        for events in (trace.events, *(request.events for request in trace.requests))
        for _, moment_ns in events
    ]
    bounds = (min(moments, default=0), max(moments, default=0))

    def span(name: str, span_id: str, parent: str, events: Sequence[Event], **more: Any) -> Span:
        first_ns, last_ns = (events[0][1], events[-1][1]) if events else bounds
        made: Span = {
            "traceId": context.trace_id,
            "spanId": span_id,
            "parentSpanId": parent,
            "name": name,
            "kind": _SERVER_KIND,
            "startTimeUnixNano": str(first_ns + offset_ns),
            "endTimeUnixNano": str(last_ns + offset_ns),
            "events": [
                {"name": event, "timeUnixNano": str(moment_ns + offset_ns)}
                for event, moment_ns in events
            ],
            **more,
        }
        if context.state:
            made["traceState"] = context.state
        return made

    whole = span(_ROOT, trace.span_id, context.span_id, trace.events, **_status(trace.error))
    if trace.events:  # a model may have continued after its client disconnected
        whole["startTimeUnixNano"] = str(bounds[0] + offset_ns)
        whole["endTimeUnixNano"] = str(bounds[1] + offset_ns)
    yield whole
    by_id = {request.id: request.span_id for request in trace.requests}
    for request in trace.requests:
        parent = by_id.get(request.parent_id, trace.span_id)
        named = _request_attributes(request)
        model = span(request.model_name, request.span_id, parent, request.events, **named)
        if request.events and request.events[-1][0] != "REQUEST_END":
            model["endTimeUnixNano"] = str(bounds[1] + offset_ns)
        yield model
        if request.compute:
            yield span("compute", new_span_id(), request.span_id, request.compute)


def _request_attributes(request: RequestRecord) -> dict[str, Any]:
    attributes: dict[str, str | int] = {
        "triton.model_name": request.model_name,
        "triton.model_version": request.model_version,
        "triton.trace_id": request.id,
        "triton.trace_parent_id": request.parent_id,
    }
    if request.request_id:
        attributes["triton.request_id"] = request.request_id
    return {"attributes": _attributes(attributes), **_status(request.error)}


def _status(error: str) -> dict[str, Any]:
    return {"status": {"code": _STATUS_ERROR, "message": error}} if error else {}


def _attributes(pairs: Mapping[str, str | int]) -> list[dict[str, Any]]:
    """OTLP writes 64-bit numbers as texts."""
    return [
        {
            "key": key,
            "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)},
        }
        for key, value in pairs.items()
    ]


def _post(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    from urllib.request import Request, urlopen  # takes its time to import, and most never trace

    # The operator names the collector, so whatever URL that is, it is meant.
    request = Request(url, body, dict(headers), method="POST")  # noqa: S310
    with urlopen(request, timeout=_POST_SECS) as response:  # noqa: S310
        response.read()
