"""Traces of requests that come in over a link: sampled and kept by the engine.

    front end                                       engine
    LinkedTracer.start --trace, its headers-------> Tracer: is it sampled?
    LinkedTrace.attach --in the request-----------> Trace.attach
    LinkedTrace.finish --events of the frontend---> Trace.finish --> file or collector

A front end does not know which of its requests are sampled, only whether any may be. All clocks are
the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal.core.request import Request
from shoal.statistics.trace import CallSpan, FinishedTrace, Trace, TracedRequest, TraceLevel
from shoal.statistics.tracer import Header, Tracer

if TYPE_CHECKING:
    from shoal.engine.linked.connection import EngineConnection

Reference = tuple[int, "int | None"]  # the number of a trace, and that of the call in it
Tell = Callable[..., None]

# ---- in a front end


class LinkedTracer:
    """Has the engine sample requests."""

    def __init__(self) -> None:
        self.active = False  # the engine says whether any request may be sampled
        self.connection: EngineConnection | None = None

    def start(self, model: str, header: Header) -> Trace | None:
        """The trace of a request that the engine may sample."""
        connection = self.connection
        if connection is None:
            return None
        number = connection.next_number()
        connection.tell("trace", number, model, header("traceparent"), header("tracestate"))
        return LinkedTrace(number, connection.tell)


class LinkedTrace(Trace):
    """The front end's part of a trace. The engine completes it, or drops it if it did not sample
    the request."""

    def __init__(self, number: int, tell: Tell) -> None:
        super().__init__(TraceLevel.TIMESTAMPS, self._tell_end)
        self._number = number
        self._tell = tell
        self._calls: list[CallSpan] = []

    def start_call(self, model_name: str, model_version: int) -> CallSpan:
        """See `Trace`."""
        call = super().start_call(model_name, model_version)
        self._calls.append(call)
        self._tell("trace_call", self._number, model_name, model_version, call.start_ns)
        return call

    def attach(self, request: Request, parent: TracedRequest | CallSpan | None = None) -> None:
        """Have the engine attach it."""
        call = self._calls.index(parent) if isinstance(parent, CallSpan) else None
        request.trace = _LinkedRequestTrace((self._number, call))

    def _tell_end(self, trace: FinishedTrace) -> None:
        calls = [(call.ended_ns, call.error) for call in self._calls]
        self._tell("trace_end", self._number, trace.events, calls, trace.error, self.left)


class _LinkedRequestTrace:
    """The place of a request in a trace of the engine."""

    __slots__ = ("reference",)

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    def attach(self, request: Request) -> None:
        """A request in a front end leads to no others."""

    def context(self) -> str | None:
        """See `RequestTrace`: only models ask, and those are in the engine."""


def reference_of(request: Request) -> Reference | None:
    """What the engine needs to attach a request to its trace; None if it cannot be sampled."""
    trace = request.trace
    return trace.reference if isinstance(trace, _LinkedRequestTrace) else None


# ---- in the engine


class FrontendTraces:
    """The traces of one front end that are not complete. For the loop's thread."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._traces: dict[int, tuple[Trace, list[CallSpan]]] = {}

    def start(self, number: int, model: str, parent: str | None, state: str | None) -> None:
        """A request has come in."""
        trace = self._tracer.start(model, {"traceparent": parent, "tracestate": state}.get)
        if trace is not None:
            self._traces[number] = (trace, [])

    def start_call(self, number: int, model: str, version: int, start_ns: int) -> None:
        """It is a call that leads to requests."""
        if number in self._traces:
            trace, calls = self._traces[number]
            call = trace.start_call(model, version)
            call.start_ns = start_ns
            calls.append(call)

    def attach(self, request: Request, reference: Reference | None) -> None:
        """Trace `request` if what it belongs to was sampled."""
        found = None if reference is None else self._traces.get(reference[0])
        if found is not None and reference is not None:
            trace, calls = found
            trace.attach(request, None if reference[1] is None else calls[reference[1]])

    def end(
        self,
        number: int,
        events: Sequence[tuple[str, int]],
        ends: Sequence[tuple[int, str]],
        error: str,
        left: bool,
    ) -> None:
        """It was answered, or its client has `left`."""
        found = self._traces.pop(number, None)
        if found is None:
            return
        trace, calls = found
        for name, at_ns in events:
            trace.event(name, at_ns)
        for call, (ended_ns, problem) in zip(calls, ends, strict=True):
            call.ended_ns, call.error = ended_ns, problem
        if error:
            trace.failed(error)
        if left:
            trace.leave()
        else:
            trace.finish()

    def close(self) -> None:
        """The front end has ended, and with it the connections of its clients."""
        traces, self._traces = self._traces, {}
        for trace, _ in traces.values():
            trace.leave()
