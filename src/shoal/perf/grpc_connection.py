"""gRPC under load: a few calls at a time on one HTTP/2 connection; responses are only checked.

    GrpcSlot.start --> HEADERS + DATA --> … --> DATA, trailers --> SlotOwner.finished

HTTP/2 itself is the client library's (`client.http2`). With a stream the call stays open and each
message on it is a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import hpack

from shoal.client.errors import ProtocolError
from shoal.client.http2 import Http2Connection
from shoal.client.http2_stream import Ended, Http2Stream
from shoal.core.tensor import Buffer
from shoal.perf.connection import ConnectionSetup, Endpoint, LoadConnection, LoadError
from shoal.perf.requests import Replay, SequencePosition
from shoal.perf.sequences import RunningSequence
from shoal.wire.proto import messages

SLOTS_PER_CONNECTION = 6  # as many as NVIDIA's client puts on one
UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"

_FINAL = b"triton_final_response\x12\x02\x08\x01"  # a parameter, and the bool it holds


@dataclass(frozen=True, slots=True)
class CallHeaders:
    """The headers of every call."""

    path: str
    authority: str
    encrypted: bool
    more: tuple[tuple[str, str], ...] = ()
    compression: str = ""

    def block(self, encoder: hpack.Encoder) -> bytes:
        """Encoded with HPACK; the second block of an encoder is short."""
        fields = [
            (":method", "POST"),
            (":scheme", "https" if self.encrypted else "http"),
            (":path", self.path),
            (":authority", self.authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "shoal-perf"),
        ]
        if self.compression:
            fields.append(("grpc-encoding", self.compression))
        fields += [(name.lower(), value) for name, value in self.more]
        made: bytes = encoder.encode(fields)
        return made


class GrpcSlot(Http2Stream):
    """One call at a time, or one stream, on a shared connection."""

    __slots__ = (
        "_link",
        "answered_ns",
        "decoupled",
        "first_ns",
        "moments",
        "position",
        "sequence",
        "start_ns",
        "streaming",
    )

    def __init__(self, link: GrpcConnection, streaming: bool, decoupled: bool) -> None:
        super().__init__(link.http2)
        self.start_ns = 0
        self.position: SequencePosition | None = None
        self.sequence: RunningSequence | None = None
        self.streaming = streaming
        self.decoupled = decoupled
        self.first_ns = 0  # when the response began to arrive
        self.answered_ns = 0  # when the first response was complete
        self.moments: list[int] = []  # of all responses, where a request has several
        self._link = link

    def start(self, replay: Replay, position: SequencePosition | None) -> None:
        """Send a request. Raises LoadError."""
        data = replay.filled(position)
        self.position = position
        self.first_ns = self.answered_ns = 0
        if self.decoupled:
            self.moments = []
        link = self._link
        http2 = link.http2
        start_ns = self.start_ns = perf_counter_ns()
        if not self.streaming or not self.id:
            http2.attach(self, link.block)
            link.block = link.short_block
        http2.send_framed(self, [data], len(data), not self.streaming)
        link.write(b"".join(http2.take()[0]))
        link.owner.send_ns += perf_counter_ns() - start_ns

    def _data(self, piece: Buffer) -> None:
        self.first_ns = self.first_ns or self._link.begun_ns
        if self.streaming:
            super()._data(piece)
            while self.messages:
                self._response(bytes(self.messages.popleft()))

    def _response(self, message: bytes) -> None:
        """One ModelStreamInferResponse."""
        if message[:1] == b"\x0a":
            reason = messages.ModelStreamInferResponse.FromString(message).error_message
            raise LoadError(f"the server refused a request: {reason}")
        now_ns = perf_counter_ns()
        if not self.decoupled:
            self._link.finished(self, now_ns)
            return
        final = _FINAL in message
        if not (final and len(message) < 256 and _is_empty(message)):
            self.answered_ns = self.answered_ns or now_ns
            self.moments.append(now_ns)
        if final:
            self._link.finished(self, self.answered_ns or now_ns)

    def _trailers(self, fields: dict[str, str]) -> None:
        if self.streaming or fields.get("grpc-status") != "0":
            super()._trailers(fields)
        self.first_ns = self.first_ns or self._link.begun_ns
        self._link.finished(self, perf_counter_ns())

    def _end(self, ended: Ended) -> None:
        status = ended.headers.get(":status", "200")
        if status != "200":
            raise LoadError(
                f"{self._link.shown} responded to gRPC with HTTP status {status}; "
                f"is that its gRPC port?"
            )
        if ended.code == 0:
            raise LoadError("the server ended the stream")
        raise LoadError(
            f"the server refused a request with gRPC status {ended.code}: {ended.message}"
        )


class GrpcConnection(LoadConnection):
    """One HTTP/2 connection and the calls on it."""

    def __init__(self, setup: ConnectionSetup, headers: CallHeaders) -> None:
        self.slots = 0
        self.http2 = Http2Connection()
        self.shown = setup.endpoint.shown
        self.begun_ns = 0  # when what is being processed was received
        encoder = hpack.Encoder()
        self.block = headers.block(encoder)  # of the next call; the first fills the HPACK table
        self.short_block = headers.block(encoder)
        super().__init__(setup)

    def open(self) -> None:
        """Connect and send the preface. Raises LoadError."""
        super().open()
        self.write(b"".join(self.http2.take()[0]))

    def finished(self, slot: GrpcSlot, end_ns: int) -> None:
        """The slot's request was answered."""
        if not slot.decoupled:
            self.owner.receive_ns += end_ns - slot.first_ns
        self.owner.finished(slot, end_ns)

    def on_readable(self) -> None:
        """Process what arrived. Raises LoadError."""
        self.begun_ns = perf_counter_ns()
        http2 = self.http2
        try:
            http2.receive(self._read())
        except ProtocolError as error:
            raise LoadError(f"{self.shown}: {error.message}") from None
        if http2.closing:
            raise LoadError(f"the server closes the connection ({http2.closing_reason})")
        if http2.pending:
            self.write(b"".join(http2.take()[0]))


def _is_empty(message: bytes) -> bool:
    """Whether a response that marks the end carries no outputs."""
    response = messages.ModelStreamInferResponse.FromString(message)
    return not response.infer_response.outputs


def call_headers(
    endpoint: Endpoint,
    *,
    streaming: bool,
    more: Sequence[tuple[str, str]] = (),
    compression: str = "",
) -> CallHeaders:
    """The headers of inference calls."""
    path = STREAM if streaming else UNARY
    return CallHeaders(path, endpoint.authority, endpoint.encrypted, tuple(more), compression)
