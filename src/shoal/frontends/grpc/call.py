"""One RPC as a service sees it, and the seam between transport and service.

    Service.method(path) --> Method.start(call)
    call.on_message, on_half_close, on_cancel, on_drain   what the client does
    call.reply | send ... finish                          what the service responds

No HTTP/2 above this line: any transport that can make such a call can carry the service. All of
it happens on the event loop's thread, in callbacks; no call has a task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.core.tensor import Buffer
from shoal.frontends.access_log import AccessLog
from shoal.frontends.grpc import compression, status
from shoal.frontends.grpc.access import CallRecord
from shoal.frontends.grpc.control import ControlFrames
from shoal.frontends.grpc.deadlines import Deadlines
from shoal.frontends.grpc.flow import Receiver, ServerStream
from shoal.frontends.grpc.headers import RequestHead
from shoal.frontends.grpc.message import (
    PREFIX_BYTES,
    SMALL_BYTES,
    Arrived,
    MessageFault,
    MessageReader,
    Packed,
    no_room,
    pack_prefix,
    unpack_prefix,
)
from shoal.frontends.grpc.method import Kind, Method, Service
from shoal.frontends.grpc.settings import CompressionLevel, GrpcSettings
from shoal.frontends.grpc.status import Metadata, MetadataValue, StatusCode
from shoal.frontends.memory_budget import MemoryBudget
from shoal.statistics.recent_errors import recent_errors
from shoal.wire.http2_frames import H2Error

if TYPE_CHECKING:
    from shoal.access.caller import Caller
    from shoal.frontends.grpc.fast_path import GrpcFastPath

__all__ = ["Call", "CallResources", "Kind", "Method", "Route", "Service"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallResources:
    """What all calls of a listener share."""

    settings: GrpcSettings
    memory: MemoryBudget
    deadlines: Deadlines
    clock: Callable[[], int]
    access_log: AccessLog | None = None


class Route:
    """A method as one listener offers it: with the limits of both."""

    __slots__ = (
        "call_type",
        "check_inflated",
        "compresses",
        "fast_path",
        "max_inflated_bytes",
        "max_receive_bytes",
        "max_send_bytes",
        "start",
        "unary",
    )

    def __init__(self, method: Method, settings: GrpcSettings) -> None:
        limits = settings.limits
        self.start = method.start
        self.call_type = method.call_type or Call
        self.unary = method.kind is Kind.UNARY
        self.compresses = method.compress and settings.compression is not CompressionLevel.NONE
        self.max_receive_bytes = _least(limits.max_receive_message_bytes, method.max_receive_bytes)
        self.max_inflated_bytes = min(limits.max_inflated_bytes, self.max_receive_bytes)
        self.check_inflated = method.check_inflated
        self.max_send_bytes = _least(limits.max_send_message_bytes, method.max_send_bytes)
        self.fast_path: GrpcFastPath | None = None  # set by the dispatcher


class Call(Receiver):
    """One RPC. Every method may be called at any time on the loop; after the end they do nothing.

    A unary call gets `on_message` once, when the request is complete, then `on_half_close`.
    Exceptions that leave a callback end the call with INTERNAL.
    """

    # Whose key the call has, where keys are required; `KeyedCall` has its own.
    caller: Caller | None = None
    holds_request = False  # whether its end ends a request of the caller

    __slots__ = (
        "_connection",
        "_encoding",
        "_ends_behind",
        "_head",
        "_headers_sent",
        "_message",
        "_open",
        "_paused",
        "_reader",
        "_record",
        "_resources",
        "_route",
        "_stream",
        "_waiting",
        "cancelled",
        "deadline_ns",
        "deadline_pending",
        "on_cancel",
        "on_drain",
        "on_half_close",
        "on_message",
    )

    def __init__(
        self,
        resources: CallResources,
        connection: ControlFrames,
        stream: ServerStream,
        head: RequestHead,
        route: Route,
    ) -> None:
        self._resources = resources
        self._connection = connection
        self._stream: ServerStream | None = stream  # None: the stream has ended
        self._head = head
        self._route = route
        log = resources.access_log
        self._record = None if log is None else CallRecord(log)
        self._open = True  # the service may still respond
        self._headers_sent = False
        self._reader: MessageReader | None = None
        self._message: Buffer | None = None  # of a unary call that is not half-closed yet
        self._encoding: str | None = None  # of our messages
        self._paused = False  # whether the service wants no more messages for now
        # What arrives behind a message that is being decompressed, or in a long turn; None
        # while there is neither.
        self._waiting: list[bytes] | None = None
        self._ends_behind = False  # whether the end of the request waits there too
        self.cancelled = False
        self.deadline_ns: int | None = None  # by the clock of `resources`: time.monotonic_ns
        self.deadline_pending = False
        self.on_message: Callable[[Buffer], None] | None = None
        self.on_half_close: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None

    # The request.

    @property
    def path(self) -> str:
        """'/package.Service/Method', as the client sent it."""
        return self._head.path

    @property
    def metadata(self) -> list[tuple[str, MetadataValue]]:
        """The client's metadata in order; keys are lower case, values of '-bin' keys bytes."""
        return list(self._head.metadata)

    @property
    def peer(self) -> str:
        """The client's address, such as 'ipv4:127.0.0.1:50123'."""
        return self._connection.peer

    @property
    def stream_id(self) -> int:
        """The HTTP/2 stream; 0 once it has ended."""
        return 0 if self._stream is None else self._stream.id

    # The response.

    def reply(self, parts: Sequence[Buffer], trailing_metadata: Metadata = ()) -> None:
        """Answer with one message, the parts joined, and OK. The parts must not change afterwards.

        Raises ValueError, and sends nothing, if the metadata cannot be sent.
        """
        stream = self._stream
        if stream is None or not self._open:
            return
        size = _size(parts)
        if (
            trailing_metadata
            or self._encoding is not None
            or self._headers_sent
            or size > self._route.max_send_bytes
        ):
            trailers = status.status_block(0, "", trailing_metadata)
            self.send(parts)
            if self._open:  # the message was not too large
                if self._record is not None:
                    self._record.ended(StatusCode.OK)
                self._end(trailers)
            return
        if self._record is not None:
            self._record.sent(size)
            self._record.ended(StatusCode.OK)
        self._close()
        self._connection.sender.unary(stream, parts, size)

    def finish_with(self, response: bytes, total: int) -> bool:
        """End with a response that is ready to be sent, from headers to trailers, with `total`
        bytes of data; false, with nothing done, if it cannot be sent like this. Without effect
        after the end."""
        stream = self._stream
        if stream is None or not self._open:
            return True
        if self._encoding is not None or self._headers_sent:
            return False
        connection = self._connection
        if not connection.sender.whole(stream, response, total):
            return False
        if self._record is not None:
            self._record.sent(total)
            self._record.ended(StatusCode.OK)
        self._close()
        connection.sender.ended(stream)
        return True

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message of a stream, the parts joined; they must not change afterwards.

        It is queued while the client reads slowly, without limit: check `writable` first.
        """
        stream = self._stream
        if stream is None or not self._open:
            return
        size = _size(parts)
        if size > self._route.max_send_bytes:
            self.finish(
                StatusCode.RESOURCE_EXHAUSTED,
                f"Sent message larger than max ({size} vs. {self._route.max_send_bytes})",
            )
            return
        if self._record is not None:
            self._record.sent(size)
        sender = self._connection.sender
        if not self._headers_sent:
            self._headers_sent = True
            encoding = self._encoding
            sender.headers(
                stream,
                status.encoded_response_headers(encoding) if encoding else status.RESPONSE_HEADERS,
            )
        packed: bytes | None = None
        if self._encoding is not None:
            level = self._resources.settings.compression
            packed = compression.compress(parts, size, self._encoding, level)
        if packed is None:
            sent = sender.message(stream, parts, size)
        else:
            sent = sender.message(stream, (packed,), len(packed), compressed=True)
        if not sent:
            self._refuse(no_room(self._resources.memory))
        elif stream.queued_bytes > self._resources.settings.limits.send_high_bytes:
            stream.waits_for_drain = True

    @property
    def writable(self) -> bool:
        """Whether the client keeps up. When it does again, `on_drain` is called."""
        stream = self._stream
        return stream is not None and self._open and not stream.waits_for_drain

    def finish(
        self, code: int = StatusCode.OK, message: str = "", trailing_metadata: Metadata = ()
    ) -> None:
        """End the call with a status, after what was sent before.

        Raises ValueError, and sends nothing, if the metadata cannot be sent.
        """
        if self._stream is None or not self._open:
            return
        if self._record is not None:
            self._record.ended(code, message)
        self._end(status.status_block(code, message, trailing_metadata))

    def pause_receiving(self) -> None:
        """Let the client send no more than one window of messages until `resume_receiving`."""
        self._paused = True
        if self._stream is not None:
            self._stream.receive_paused = True

    def resume_receiving(self) -> None:
        """Let the client send again."""
        self._paused = False
        self._receive_again()

    # What the connection calls (flow.Receiver).

    def start(self) -> None:
        """Begin: the service sets its callbacks."""
        stream = self._stream
        assert stream is not None
        stream.receiver = self
        route = self._route
        stream.must_end = route.unary
        head = self._head
        resources = self._resources
        if head.timeout_ns is not None:
            self.deadline_ns = resources.clock() + head.timeout_ns
            self.deadline_pending = True
            resources.deadlines.add(self.deadline_ns, self)
        if route.compresses:
            self._encoding = compression.choose(
                resources.settings.compression, head.accepted_encodings
            )
        self._notify(route.start, self)

    def whole(self, message: bytes) -> None:
        """The request's only message, and its end."""
        if not self._open:
            return
        if len(message) > self._route.max_receive_bytes or not self._route.unary:
            prefixed = pack_prefix(False, len(message)) + message
            self.data(prefixed, 0, len(prefixed), True)
            return
        if self._record is not None:
            self._record.received(message)
        self._notify(self.on_message, message)
        if self.on_half_close is not None:
            self._notify(self.on_half_close)

    def data(self, data: bytes | memoryview, start: int, stop: int, ended: bool) -> None:
        """Bytes of the request."""
        if not self._open:  # answered, but not all of the response was sent
            return
        if self._waiting is not None:
            self._wait(data, start, stop, ended)
            return
        if self._reader is None:
            if stop - start >= PREFIX_BYTES:
                compressed, length = unpack_prefix(data, start)
                if (
                    not compressed
                    and length == stop - start - PREFIX_BYTES
                    and length <= SMALL_BYTES
                    and length <= self._route.max_receive_bytes
                ):  # by far the most common: one small message fills the frame
                    self._arrived(bytes(data[start + PREFIX_BYTES : stop]))
                    if ended:
                        self.ended()
                    return
            elif (
                start == stop
            ):  # an empty frame, mostly the half-close of a client that sends it apart
                if ended:
                    self.ended()
                return
            self._reader = MessageReader(
                self._resources.memory,
                self._route.max_receive_bytes,
                self._route.max_inflated_bytes,
                self._head.encoding,
                self._expect,
            )
        reader = self._reader
        try:
            for message in reader.feed(data, start, stop):
                self._arrived(message)
                if self._reader is not reader:  # that was the end of the call
                    return
                if self._blocks():
                    self._wait(data, reader.position, stop, ended)
                    return
        except MessageFault as fault:
            self._refuse(fault)
            return
        if ended:
            self.ended()

    def room(self, limit: int) -> memoryview | None:
        """Where the rest of a large message goes."""
        if self._reader is None or not self._open:
            return None
        try:
            return self._reader.room(limit)
        except MessageFault as fault:
            self._refuse(fault)
            return None

    def rest(self) -> memoryview | None:
        """Where the missing rest of the message goes."""
        return self._reader.rest() if self._reader is not None and self._open else None

    def filled(self, count: int) -> None:
        """The rest of a large message has arrived, or some of it."""
        if self._reader is None:
            return
        try:
            message = self._reader.filled(count)
        except MessageFault as fault:
            self._refuse(fault)
            return
        if message is not None:
            self._arrived(message)

    def ended(self) -> None:
        """The client has half-closed."""
        if not self._open:
            return
        if self._waiting is not None:
            self._ends_behind = True
            return
        if self._reader is not None and self._reader.inside:
            self._break_off(StatusCode.INTERNAL, "the request ended inside a message")
            return
        if self._route.unary:
            message, self._message = self._message, None
            if message is None:
                self._break_off(
                    StatusCode.INTERNAL, "a unary call without a message; send exactly one"
                )
                return
            self._notify(self.on_message, message)
        self._notify(self.on_half_close)

    def drained(self) -> None:
        """The client has caught up."""
        self._notify(self.on_drain)

    def closed(self) -> None:
        """Everything was sent."""
        self._leave_wire()

    def reset(self) -> None:
        """The client has cancelled the call, or its connection is lost."""
        on_cancel = self._cancel()
        self._leave_wire()
        self._notify(on_cancel)

    def stalled(self) -> None:
        """A unary request has stopped arriving."""
        self._break_off(StatusCode.DEADLINE_EXCEEDED, "the request message did not arrive in time")

    def give_up(self, message: str) -> None:
        """Respond with UNAVAILABLE instead of the service, and notify it."""
        self._break_off(StatusCode.UNAVAILABLE, message)

    def expire(self) -> None:
        """The deadline has passed: respond instead of the service, and notify it."""
        stream = self._stream
        self.deadline_pending = False
        if stream is None:
            return
        if stream.queued_bytes:  # the client reads too slowly even for what there is
            self._connection.give_up(stream, H2Error.CANCEL)
            self.reset()
        else:
            self._break_off(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    # Inside.

    def _arrived(self, message: Arrived) -> None:
        if not self._open:
            return
        if isinstance(message, Packed):
            if self._message is None:
                self._inflate(message)
                return
            message = b""  # which is refused below
        if self._record is not None:
            self._record.received(message)
        if not self._route.unary:
            self._notify(self.on_message, message)
        elif self._message is None:
            self._message = message
        else:
            self._break_off(
                StatusCode.INTERNAL, "a unary call with a second message; send exactly one"
            )

    def _inflate(self, packed: Packed) -> None:
        """Decompress a message on a thread; what is behind it waits."""
        check = self._route.check_inflated

        def work() -> memoryview:
            plain = packed.inflate()
            if check is not None:
                check(plain)
            return plain

        self._block()
        self._connection.turns.on_thread(self._connection, work, self._inflated)

    def _inflated(self, outcome: Future[memoryview]) -> None:
        if not self._open:
            return
        memory = self._resources.memory
        try:
            message = outcome.result()
            if not memory.has_room(message.nbytes):
                raise no_room(memory)
        except MessageFault as fault:
            self._refuse(fault)
            return
        except MemoryError:
            self._refuse(no_room(memory))
            return
        memory.hold(message)
        self._arrived(message)
        self._unblock()

    def _blocks(self) -> bool:
        """Whether what is behind the last message has to wait."""
        if self._waiting is None and not self._route.unary and self._connection.turn_over():
            self._block()
            self._connection.put_off(self._unblock)
        return self._waiting is not None

    def _block(self) -> None:
        """Let what arrives wait; the client is kept from sending more than one window of it."""
        self._waiting = []
        if self._stream is not None:
            self._stream.receive_paused = True

    def _wait(self, data: bytes | memoryview, start: int, stop: int, ended: bool) -> None:
        assert self._waiting is not None
        self._ends_behind = self._ends_behind or ended
        if start < stop:
            self._waiting.append(bytes(data[start:stop]))
            self._resources.memory.unfinished_bytes += stop - start

    def _unblock(self) -> None:
        """Go on with what has waited."""
        ends = self._ends_behind
        data = self._end_waiting()
        if not self._open:
            return
        if data:
            self.data(data, 0, len(data), ends)
        elif ends:
            self.ended()
        self._receive_again()

    def _end_waiting(self) -> bytes:
        """Returns what has waited, in one piece."""
        data = b"".join(self._waiting or ())
        self._waiting = None
        self._ends_behind = False
        self._resources.memory.unfinished_bytes -= len(data)
        return data

    def _receive_again(self) -> None:
        stream = self._stream
        if (
            stream is not None
            and stream.receive_paused
            and not self._paused
            and self._waiting is None
        ):
            self._connection.resume_receiving(stream)

    def _expect(self, length: int) -> None:
        if self._stream is not None:
            self._connection.expect(self._stream, length)

    def _end(self, trailers: bytes) -> None:
        stream = self._stream
        assert stream is not None
        self._close()
        if not self._headers_sent:
            trailers = status.RESPONSE_HEADERS + trailers
        self._connection.sender.end(stream, trailers)

    def _break_off(self, code: StatusCode, message: str, block: bytes = b"") -> None:
        """End the call without the service, and notify it afterwards."""
        if not self._open:
            return
        on_cancel = self._cancel()
        if self._record is not None:
            self._record.ended(code, message)
        self._end(status.status_block(code, message) + block)
        self._notify(on_cancel)

    def _refuse(self, fault: MessageFault) -> None:
        recent_errors.count("gRPC", fault.code.name)
        accepted = fault.code is StatusCode.UNIMPLEMENTED
        self._break_off(fault.code, fault.message, status.ACCEPTED_ENCODINGS if accepted else b"")

    def _cancel(self) -> Callable[[], None] | None:
        """Mark the call as cancelled if it is open; returns the callback to notify."""
        if not self._open:
            return None
        self.cancelled = True
        return self.on_cancel

    def _notify(self, callback: Callable[..., None] | None, *arguments: Any) -> None:
        """Call the service. Its failures must not affect the other streams."""
        if callback is None:
            return
        try:
            callback(*arguments)
        except Exception:  # noqa: BLE001 - this call ends, all others continue
            _log.exception("the gRPC service failed in %s", self.path)
            self.finish(StatusCode.INTERNAL, "the server failed to handle this call")

    def _close(self) -> None:
        """The service has responded. Its callbacks mostly hold this call and the request, which
        must be freed even if the client does not read the response."""
        self._open = False
        self.on_message = self.on_half_close = self.on_cancel = None

    def _leave_wire(self) -> None:
        """The stream is over: let go of everything that is not for the service to keep."""
        record, self._record = self._record, None
        if record is not None:
            name = "" if self.caller is None else self.caller.name
            record.finish(self.path, self.peer, name, self._head.metadata)
        self._close()
        self._stream = None
        self._message = None
        if self._waiting is not None:
            self._end_waiting()
        if self._reader is not None:
            self._reader.abandon()
            self._reader = None
        if self.deadline_pending:
            self.deadline_pending = False
            self._resources.deadlines.met()
        self.on_drain = None


def _least(limit: int, override: int | None) -> int:
    return limit if override is None else min(limit, override)


def _size(parts: Sequence[Buffer]) -> int:
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return len(parts[0])
    return sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)
