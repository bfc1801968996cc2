"""Sampled requests over gRPC: when their message arrived and when their responses were sent.

GRPC_WAITREAD_START, _END --> handler --> GRPC_SEND_START, _END --> trace complete
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.access.caller import Caller
from shoal.core.tensor import Buffer
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.status import Metadata, MetadataValue, StatusCode
from shoal.statistics.trace import Trace
from shoal.statistics.tracer import RequestTracer


def begin(tracer: RequestTracer, call: Call, model: str, arrived_ns: int) -> Trace | None:
    """The trace of a request of `call`, if it is sampled."""

    def header(name: str) -> str | None:
        for key, value in call.metadata:
            if key == name and isinstance(value, str):
                return value
        return None

    trace = tracer.start(model, header)
    if trace is not None:
        trace.event("GRPC_WAITREAD_START", arrived_ns)
        trace.event("GRPC_WAITREAD_END")
    return trace


class TracedCall:
    """A unary call whose response or cancellation completes a trace."""

    __slots__ = ("_callback", "_inner", "trace")

    def __init__(self, inner: Call, trace: Trace) -> None:
        self._inner = inner
        self._callback: Callable[[], None] | None = None
        self.trace = trace
        inner.on_cancel = self._cancelled

    @property
    def path(self) -> str:
        """What the client called."""
        return self._inner.path

    @property
    def caller(self) -> Caller | None:
        """Whose key the call has."""
        return self._inner.caller

    @property
    def deadline_ns(self) -> int | None:
        """When its client gives up."""
        return self._inner.deadline_ns

    @property
    def metadata(self) -> list[tuple[str, MetadataValue]]:
        """The client's metadata."""
        return self._inner.metadata

    @property
    def on_cancel(self) -> Callable[[], None] | None:
        """What is called when the client takes the call back."""
        return self._callback

    @on_cancel.setter
    def on_cancel(self, callback: Callable[[], None] | None) -> None:
        self._callback = callback

    def _cancelled(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
        self.trace.leave()

    def reply(self, parts: Sequence[Buffer], trailing_metadata: Metadata = ()) -> None:
        """Answer with one message."""
        self._callback = None  # what it belongs to refers to this call
        self.trace.event("GRPC_SEND_START")
        self._inner.reply(parts, trailing_metadata)
        self.trace.event("GRPC_SEND_END")
        self.trace.finish()

    def finish(
        self, code: int = StatusCode.OK, message: str = "", trailing_metadata: Metadata = ()
    ) -> None:
        """End the call with a status."""
        self._callback = None
        if code != StatusCode.OK:
            self.trace.failed(message)
        self.trace.event("GRPC_SEND_START")
        self._inner.finish(code, message, trailing_metadata)
        self.trace.event("GRPC_SEND_END")
        self.trace.finish()
