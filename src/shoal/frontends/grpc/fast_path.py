"""The short way of ModelInfer: calls like others before them, begun and answered many at a time.

    connection --take--> call, PlannedRequest --submit, once per loop iteration--> engine
    connection <--one piece per call-- send_all, once per batch <-----------------------'

A call on this way is one object where the usual way has four. Whatever is not plain about it (it
cannot be queued with the others, the model failed, the client does not read) sends it back to the
usual way, from its message or from its response, so that there is one place for each special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.response import Response
from shoal.frontends.coalescer import Coalescer
from shoal.frontends.grpc.control import ControlFrames
from shoal.frontends.grpc.door import InferDoor, Plan
from shoal.frontends.grpc.errors import as_shoal_error
from shoal.frontends.grpc.familiar import Form, UsualWay
from shoal.frontends.grpc.flow import Stream, unary_pieces
from shoal.frontends.grpc.headers import RequestHead
from shoal.frontends.grpc.infer import InferCall
from shoal.frontends.grpc.message import PREFIX_BYTES
from shoal.wire.grpc_layout import Pattern
from shoal.wire.grpc_request import InferHead, InferMessage
from shoal.wire.grpc_response import id_field, small_columns

_pieces = lru_cache(1024)(unary_pieces)


class _Known:
    """What the messages of a form are like, and where that leads."""

    __slots__ = ("lane", "pattern", "plan", "shared")

    def __init__(self, lane: GrpcFastPath, pattern: Pattern[InferHead], plan: Plan) -> None:
        self.lane = lane
        self.pattern = pattern
        self.plan = plan
        self.shared: RequestTemplate = lane.door.shared_template(pattern.read, plan, lane)


class GrpcFastPath(Coalescer):
    """The short way of one listener. Its methods belong to the loop, but for `send_all`."""

    def __init__(self, door: InferDoor, usual: UsualWay, max_send_bytes: int) -> None:
        super().__init__(door.engine, door.inbox, GrpcFastPathCall, as_shoal_error)
        self.door = door
        self.usual = usual
        self.max_send_bytes = max_send_bytes

    # ---- in

    def take(
        self, connection: ControlFrames, form: Form, stream_id: int, window: int, message: bytes
    ) -> bool:
        """Start a call with `message`; false, with nothing done, if it is not like the others."""
        known: _Known | None = form.known
        if known is None or not known.pattern.fits(message):
            self.hand_over()  # what came first is queued first
            known = form.known = self._recognise(message)
            if known is None:
                return False
        if known.plan is not self.plan and not self._turn_to(known):
            form.known = None
            return False
        pattern = known.pattern
        request_id = ""
        if pattern.id is not None:
            try:
                request_id = message[pattern.id].decode()
            except UnicodeDecodeError:
                self.hand_over()
                return False
        call = GrpcFastPathCall(stream_id, window, connection, form.head, known)
        call.request = request = PlannedRequest(
            known.shared, message, pattern.contents, request_id, call, self.model, self.now_ns
        )
        connection.streams[stream_id] = call
        self.requests.append(request)
        return True

    def read_ended(self) -> None:
        """Hand over what was taken, once other connections have been read as well."""
        if self.requests:
            self.hand_over_later()

    def _recognise(self, message: bytes) -> _Known | None:
        found = self.door.pattern(message)
        if found is None:
            return None
        pattern, plan = found
        return _Known(self, pattern, plan)

    def _turn_to(self, known: _Known) -> bool:
        """Have the next requests follow what is known, if that still holds."""
        self.hand_over()
        model = known.plan.model()
        if model is None or not self.door.holds(known.pattern.read, known.plan):
            return False
        self.begin(known.plan, model)
        return True

    # ---- out

    def write_all(self, answer: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """One piece per call; see `Coalescer`."""
        small = small_columns(answer)
        if small is None:
            self.write_one_by_one(answer, requests)
            return
        columns, message_bytes = small
        rows = zip(*columns, strict=False)  # what is the same in all of them has no end
        for index, (request, row) in enumerate(zip(requests, rows, strict=True)):
            call: Any = request.reply  # a GrpcFastPathCall; a `cast` takes 5 % of this loop
            if call.gone:  # the client has left
                continue
            field = id_field(request.id) if request.id else b""
            size = message_bytes + len(field)
            before, between, prefix, after, trailers = _pieces(size)
            message = b"".join((prefix, field, *row, after))
            whole = call.id.to_bytes(4, "big").join((before, between, message, trailers))
            if size > self.max_send_bytes or not call.finish_with(whole, size + PREFIX_BYTES):
                call.deliver(answer.response(index, request.id))


class GrpcFastPathCall(Stream):
    """A unary call that has come whole: its stream, who receives what becomes of that, and the
    reply of its request."""

    __slots__ = ("_head", "_infer", "_known", "connection", "gone", "request")

    def __init__(
        self,
        stream_id: int,
        window: int,
        connection: ControlFrames,
        head: RequestHead,
        known: _Known,
    ) -> None:
        # All that `Stream.__init__` sets; one call less is 2 % of such a request.
        self.id = stream_id
        self.send_window = window
        self.receive_window = 0
        self.receiver = self
        self.remote_closed = True
        self.local_closed = False
        self.receive_paused = False
        self.must_end = True
        self.content_length = None
        self.received_bytes = 0
        self.swept_bytes = 0
        self.idle_sweeps = 0
        self.queue = None
        self.queued_bytes = 0
        self.trailers = None
        self.scheduled = False
        self.waits_for_drain = False
        self.connection = connection
        self.gone = False  # from the wire
        self.request: PlannedRequest | None = None
        self._head = head
        self._known = known
        self._infer: InferCall | None = None  # once it has gone the usual way

    # ---- what the engine answers (Reply)

    def send(self, response: Response) -> None:
        """Take a response from whichever thread made it."""
        self._known.lane.door.inbox.post(self.deliver, response)

    def deliver(self, response: Response) -> None:
        """Answer, on the loop, the usual way. Never raises."""
        infer = self._infer
        if infer is None:
            lane = self._known.lane
            call = lane.usual.call(self.connection, self, self._head)
            if self.gone:
                call.closed()
            elif self.request is not None:
                self.receiver = call
                call.on_cancel = self.request.cancel
            head = self._known.pattern.read
            infer = self._infer = InferCall(lane.door, call, InferMessage(head, "", {}))
        infer.deliver(response)

    def finish_with(self, answer: bytes, total: int) -> bool:
        """End with an answer that is ready to be sent, with `total` bytes of data; false, with
        nothing done, if it has to wait."""
        connection = self.connection
        if not connection.sender.whole(self, answer, total):
            return False
        connection.answered(self)
        self.closed()
        return True

    def begin_again(self) -> None:
        """Start anew, as a call that nobody knows."""
        request, self.request = self.request, None
        assert request is not None
        self._known.lane.usual.accept(self.connection, self, self._head, request.message)

    # ---- what the connection tells (Receiver)

    def closed(self) -> None:
        """Everything was sent."""
        self.gone = True
        self.request = None

    def reset(self) -> None:
        """The client has taken the call back, or its connection is gone."""
        request = self.request
        self.closed()
        if request is not None:
            request.cancel()

    # Nothing more comes on a stream whose request is here, and nothing waits to leave it.

    def data(self, data: bytes | memoryview, start: int, stop: int, ended: bool) -> None:
        """Not called."""

    def room(self, limit: int) -> memoryview | None:  # noqa: ARG002
        """Not called."""
        return None

    def rest(self) -> memoryview | None:
        """Not called."""
        return None

    def filled(self, count: int) -> None:
        """Not called."""

    def ended(self) -> None:
        """Not called."""

    def stalled(self) -> None:
        """Not called."""

    def drained(self) -> None:
        """Not called."""
