"""One sampled request: what happened to it and when, from its first byte to its last.

    frontend --event--> Trace <--stamps-- TracedRequest (one per model it led to) --> FinishedTrace
                          '-- CallSpan (of a task or of OpenAI's API) --> TracedRequest, ...

A request stamps its moments whether it is traced or not. All that tracing adds is to keep it, to
stand between it and its reply so that its end is seen, and to read the moments when all is over.
"""

from __future__ import annotations

import enum
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.core.dtypes import DataType
from shoal.core.reply import DISCARD, Reply
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.errors import ShoalError
from shoal.statistics import trace_context
from shoal.statistics.trace_context import SpanContext

_logger = logging.getLogger(__name__)

Event = tuple[str, int]  # a name and a moment in monotonic nanoseconds

_ids = itertools.count(1)
_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


class TraceLevel(enum.IntFlag):
    """What is kept of a request."""

    OFF = 0
    TIMESTAMPS = 1
    TENSORS = 2

    def names(self) -> list[str]:
        """The words for it, as the trace settings give them."""
        return [level.name or "" for level in (self.TIMESTAMPS, self.TENSORS) if level & self] or [
            "OFF"
        ]


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """A tensor as it was when it passed by. Its bytes are a copy."""

    activity: str
    name: str
    datatype: DataType
    shape: tuple[int, ...]
    raw: bytes


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One model's part in a trace."""

    id: int
    parent_id: int  # 0: the client's own request
    model_name: str
    model_version: int
    request_id: str
    events: tuple[Event, ...]  # rising
    compute: tuple[Event, ...]  # rising; none where nothing ran
    tensors: tuple[TracedTensor, ...]
    span_id: str
    error: str


@dataclass(frozen=True, slots=True)
class FinishedTrace:
    """All that is known about one sampled request."""

    id: int
    events: tuple[Event, ...]  # of the frontend, rising
    requests: tuple[RequestRecord, ...]  # the client's first
    wall_offset_ns: int  # what to add to a moment to have it since the epoch
    context: SpanContext | None  # the caller's span, where traces have one
    span_id: str
    error: str


class Trace:
    """A trace while its request is served. Any thread may call any method."""

    def __init__(
        self,
        level: TraceLevel,
        emit: Callable[[FinishedTrace], None],
        context: SpanContext | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`emit` gets the finished trace, exactly once. `context` is for traces made of spans."""
        self.id = next(_ids)
        self.span_id = trace_context.new_span_id() if context is not None else ""
        self.context = context
        self.clock = clock
        self.keeps_times = bool(level & TraceLevel.TIMESTAMPS)
        self.keeps_tensors = bool(level & TraceLevel.TENSORS)
        self._emit = emit
        self._lock = threading.Lock()  # guards everything below
        self._events: list[Event] = []
        self._requests: list[TracedRequest | CallSpan] = []
        self._error = ""
        self.left = False  # no client waits: the last of the requests ends the trace
        self._finished = False

    def event(self, name: str, at_ns: int = 0) -> None:
        """Record an event of the frontend, now or at `at_ns`."""
        if self.keeps_times:
            self._events.append((name, at_ns or self.clock()))

    def start_call(self, model_name: str, model_version: int) -> CallSpan:
        """Trace a call that is no request itself, but leads to requests. It begins now."""
        call = CallSpan(self, model_name, model_version)
        with self._lock:
            self._requests.append(call)
        return call

    def attach(self, request: Request, parent: TracedRequest | CallSpan | None = None) -> None:
        """Trace `request`; call it before it is accepted. Without a parent it is the client's."""
        traced = TracedRequest(self, request, parent)
        request.trace = traced
        request.reply = traced
        with self._lock:
            if not self._finished:
                self._requests.append(traced)

    def failed(self, text: str) -> None:
        """The client is answered with an error."""
        self._error = text

    def finish(self) -> None:
        """The response has been sent: the trace is complete."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            requests, self._requests = self._requests, []
        records = tuple([traced.record() for traced in requests])
        events = tuple(sorted(self._events, key=_moment))
        offset_ns = time.time_ns() - time.monotonic_ns()
        error = self._error or next((record.error for record in records if record.error), "")
        self._emit(
            FinishedTrace(self.id, events, records, offset_ns, self.context, self.span_id, error)
        )

    def leave(self) -> None:
        """The client disconnected: the trace is complete when the request has ended, maybe now."""
        with self._lock:
            self.left = True
            running = any(not traced.ended_ns for traced in self._requests if traced.is_first)
        if not running:
            self.finish()

    def ended(self) -> None:
        """For the request: it has had its final response."""
        if self.left:
            self.finish()


class CallSpan:
    """A call of a task or of OpenAI's API: the parent of the requests it sends to the model."""

    __slots__ = (
        "_model_name",
        "_model_version",
        "_trace",
        "ended_ns",
        "error",
        "id",
        "is_first",
        "span_id",
        "start_ns",
    )

    def __init__(self, trace: Trace, model_name: str, model_version: int) -> None:
        self._trace = trace
        self._model_name = model_name
        self._model_version = model_version
        self.error = ""
        self.start_ns = trace.clock()
        self.ended_ns = 0  # 0: not yet
        self.id = trace.id
        self.is_first = True
        self.span_id = trace_context.new_span_id() if trace.context is not None else ""

    def attach(self, request: Request) -> None:
        """Trace `request` as one that this call sends. Call it before the model accepts it."""
        self._trace.attach(request, self)

    def end(self, error: str = "") -> None:
        """The call has its result, or has failed."""
        self.error = error
        self.ended_ns = self._trace.clock()
        self._trace.event("INFER_RESPONSE_COMPLETE", self.ended_ns)
        self._trace.ended()

    def record(self) -> RequestRecord:
        """The call as part of the finished trace."""
        events: list[Event] = []
        if self._trace.keeps_times:
            events = [("REQUEST_START", self.start_ns)]
            if self.ended_ns:
                events.append(("REQUEST_END", self.ended_ns))
        return RequestRecord(
            self.id,
            0,
            self._model_name,
            self._model_version,
            "",
            tuple(events),
            (),
            (),
            self.span_id,
            self.error,
        )


class TracedRequest:
    """One request of a trace; it passes the responses on to the reply that the request had."""

    __slots__ = (
        "_error",
        "_model_version",
        "_reply",
        "_request",
        "_tensors",
        "_trace",
        "ended_ns",
        "id",
        "is_first",
        "parent_id",
        "span_id",
    )

    def __init__(
        self, trace: Trace, request: Request, parent: TracedRequest | CallSpan | None
    ) -> None:
        self._trace = trace
        self._request = request
        self._reply: Reply = request.reply
        self._model_version = request.model_version
        self._error = ""
        self._tensors: list[TracedTensor] = []
        self.is_first = parent is None
        self.id = trace.id if parent is None else next(_ids)
        self.parent_id = 0 if parent is None else parent.id
        self.span_id = trace_context.new_span_id() if trace.context is not None else ""
        self.ended_ns = 0  # 0: not yet
        if trace.keeps_tensors:
            self._keep("TENSOR_QUEUE_INPUT", list(request.inputs.values()))

    def attach(self, request: Request) -> None:
        """Trace `request` too, as one that this request led to."""
        self._trace.attach(request, self)

    def context(self) -> str | None:
        """This request's span as W3C headers in a JSON object; None where traces have no spans."""
        context = self._trace.context
        if context is None:
            return None
        here = SpanContext(context.trace_id, self.span_id)
        headers = {"traceparent": here.traceparent()}
        if context.state:
            headers["tracestate"] = context.state
        return json.dumps(headers, separators=(",", ":"))

    def send(self, response: Response) -> None:
        """Note a response and pass it on."""
        trace, reply = self._trace, self._reply
        if response.outputs and trace.keeps_tensors:
            self._keep("TENSOR_BACKEND_OUTPUT", response.outputs)
        if response.final:
            self._model_version = response.model_version
            if response.error is not None:
                self._error = response.error.message
            self.ended_ns = trace.clock()
            self._reply = DISCARD  # it may refer to the request, which refers to us
        if self.is_first:
            trace.event("INFER_RESPONSE_COMPLETE", self.ended_ns)
        reply.send(response)
        if response.final and self.is_first:
            trace.ended()

    def record(self) -> RequestRecord:
        """The record of the request, once."""
        request, ended_ns = self._request, self.ended_ns
        del self._request  # it refers to us: without this its tensors would wait for the collector
        served_by = request.served_by
        compute: tuple[Event, ...] = ()
        events: list[Event] = []
        if self._trace.keeps_times:
            events = [("REQUEST_START", request.start_ns)]
            if request.queued_ns:
                events.append(("QUEUE_START", request.queued_ns))
            if ended_ns:
                events.append(("REQUEST_END", ended_ns))
            if request.moments is not None and not _runs_others(served_by):
                compute = _compute_events(request.moments, ended_ns or self._trace.clock())
        version = self._model_version
        if version < 0 and served_by is not None:
            version = served_by.version
        return RequestRecord(
            self.id,
            self.parent_id,
            request.model_name,
            version,
            request.id,
            tuple(events),
            compute,
            tuple(self._tensors),
            self.span_id,
            self._error,
        )

    def _keep(self, activity: str, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            try:
                raw = bytes(tensor.raw)
            except (ShoalError, TypeError, ValueError) as error:  # it will be refused, too
                _logger.warning("tensor '%s' cannot be traced: %s", tensor.name, error)
                continue
            self._tensors.append(
                TracedTensor(activity, tensor.name, tensor.datatype, tuple(tensor.shape), raw)
            )


def _compute_events(moments: tuple[int, int, int, int], ended_ns: int) -> tuple[Event, ...]:
    """The four moments; a request answered while it ran had its outputs when it ended."""
    start_ns, input_end_ns, output_start_ns, end_ns = moments
    if not end_ns:
        output_start_ns = end_ns = max(ended_ns, input_end_ns)
    return tuple(zip(_COMPUTE, (start_ns, input_end_ns, output_start_ns, end_ns), strict=True))


def _runs_others(model: object) -> bool:
    """Whether a model only has others compute: an ensemble. Its steps have traces of their own."""
    config = getattr(model, "config", None)
    return getattr(config, "ensemble_scheduling", None) is not None


def _moment(event: Event) -> int:
    return event[1]
