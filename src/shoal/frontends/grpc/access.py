"""gRPC calls as lines of the access log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from shoal.core.tensor import Buffer
from shoal.errors import ShoalError
from shoal.frontends.access_log import DISCONNECTED, AccessLog, AccessRecord
from shoal.frontends.grpc.status import MetadataValue, StatusCode
from shoal.statistics import trace_context
from shoal.wire import protobuf_wire

_HTTP_STATUS = {
    StatusCode.OK: 200,
    StatusCode.CANCELLED: DISCONNECTED,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.OUT_OF_RANGE: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.NOT_FOUND: 404,
    StatusCode.ABORTED: 409,
    StatusCode.ALREADY_EXISTS: 409,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}  # any other: 500

# What calls are about: their kind, whether they change something, and the number of the field
# with the name of the model or the region.
_METHODS = {
    "ModelInfer": ("inference", False, 1),
    "ModelStreamInfer": ("inference", False, 1),
    "ModelReady": ("health", False, 1),
    "ModelMetadata": ("metadata", False, 1),
    "ModelConfig": ("model-config", False, 1),
    "ModelStatistics": ("statistics", False, 1),
    "RepositoryModelLoad": ("model-repository", True, 2),
    "RepositoryModelUnload": ("model-repository", True, 2),
    "SystemSharedMemoryRegister": ("shared-memory", True, 1),
    "SystemSharedMemoryUnregister": ("shared-memory", True, 1),
    "CudaSharedMemoryRegister": ("shared-memory", True, 1),
    "CudaSharedMemoryUnregister": ("shared-memory", True, 1),
    "TraceSetting": ("trace", True, 2),
    "LogSettings": ("logging", True, 0),
}
RESTRICTED = "This protocol is restricted, expecting header"  # how a refusal begins
_MOST_FIELDS = 64
_TOLD_BYTES = 4096


class CallRecord:
    """What the log will say of one call."""

    __slots__ = ("_first", "_log", "_received_bytes", "_sent_bytes", "_started_ns", "code", "error")

    def __init__(self, log: AccessLog) -> None:
        self._log = log
        self._started_ns = time.monotonic_ns()
        self._first: bytes | None = None  # the beginning of the first message
        self._received_bytes = 0
        self._sent_bytes = 0
        self.code = StatusCode.CANCELLED
        self.error = ""

    def received(self, message: Buffer) -> None:
        """A message has arrived."""
        view = memoryview(message)
        if self._first is None:
            self._first = bytes(view[:_TOLD_BYTES])
        self._received_bytes += view.nbytes

    def sent(self, size: int) -> None:
        """A message was passed on to be sent."""
        self._sent_bytes += size

    def ended(self, code: int, error: str = "") -> None:
        """The call has its status."""
        self.code = StatusCode(code)
        self.error = error

    def finish(
        self, path: str, peer: str, key: str, metadata: Iterable[tuple[str, MetadataValue]]
    ) -> None:
        """Write the line."""
        self._log.record(
            call_record(
                path,
                peer,
                key,
                metadata,
                code=self.code,
                message=self._first or b"",
                received_bytes=self._received_bytes,
                sent_bytes=self._sent_bytes,
                started_ns=self._started_ns,
                error=self.error,
            )
        )


def call_record(
    path: str,
    peer: str,
    key: str,
    metadata: Iterable[tuple[str, MetadataValue]],
    *,
    code: StatusCode,
    message: Buffer,
    received_bytes: int,
    sent_bytes: int,
    started_ns: int,
    error: str = "",
) -> AccessRecord:
    """What the log says of a call whose first message begins with `message`."""
    api, changes, field = _METHODS.get(path.rpartition("/")[2], ("", False, 0))
    agent = trace_id = ""
    for name, value in metadata:
        if name == "user-agent":
            agent = str(value)
        elif name == "traceparent":
            span = trace_context.read(str(value), None)
            trace_id = span.trace_id if span is not None else ""
    return AccessRecord(
        protocol="grpc",
        client=peer.partition(":")[2] if peer.startswith(("ipv4:", "ipv6:")) else peer,
        method="POST",
        path=path,
        version="HTTP/2.0",
        status=_HTTP_STATUS.get(code, 500),
        received_bytes=received_bytes,
        sent_bytes=sent_bytes,
        seconds=(time.monotonic_ns() - started_ns) / 1e9,
        api=api,
        changes=changes and bool(message),
        key=key,
        model=_field(bytes(message), field) if field else "",
        grpc_status=code.name,
        error=error,
        trace_id=trace_id,
        user_agent=agent,
        refused=error.startswith(RESTRICTED),
    )


def _field(message: bytes, number: int) -> str:
    """A text field at the beginning of a message, which may be cut off; empty if it has none."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(ShoalError):  # the message was cut off, or is none
        protobuf_wire.take_out(message, {protobuf_wire.tag(number): found}, _MOST_FIELDS)
    return message[slice(*found[0])].decode("utf-8", "replace") if found else ""
