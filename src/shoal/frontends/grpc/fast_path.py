"""The fast path of ModelInfer: calls whose message matches a template.

    connection --take--> call, PlannedRequest --> Coalescer
    connection <--one piece per call-- write_all, once per batch

A call here is one object, where the slow path has four. What does not match takes the slow path
(`infer`), and so does a response that cannot be written with those of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.tensor import Buffer
from shoal.errors import QueueRejected
from shoal.frontends.coalescer import Coalescer
from shoal.frontends.grpc.access import call_record
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.call_pattern import CallPattern
from shoal.frontends.grpc.control import ControlFrames
from shoal.frontends.grpc.dispatch import Dispatcher
from shoal.frontends.grpc.errors import as_shoal_error, retry_metadata, status_of
from shoal.frontends.grpc.flow import Receiver, ServerStream, unary_pieces
from shoal.frontends.grpc.infer import DECOUPLED, GrpcInferCall, InferMethod, planned_message
from shoal.frontends.grpc.message import PREFIX_BYTES
from shoal.frontends.grpc.status import StatusCode, metadata_block, trailers_only
from shoal.statistics.recent_errors import recent_errors
from shoal.wire import http2_frames as frames
from shoal.wire.grpc_pattern import MessagePatterns
from shoal.wire.grpc_request import InferMessage
from shoal.wire.grpc_response import id_field, small_columns

_pieces = lru_cache(1024)(unary_pieces)


class GrpcFastPath(Coalescer):
    """The templates of one listener, and the calls that match them."""

    def __init__(
        self,
        method: InferMethod,
        dispatcher: Dispatcher,
        max_send_bytes: int,
        call_type: type[GrpcFastPathCall] | None = None,
    ) -> None:
        """`method` is the slow path; what it accepts becomes a template here."""
        inference = method.inference
        self.call_type = call_type or GrpcFastPathCall
        super().__init__(
            inference.engine,
            inference.inbox,
            (self.call_type, GrpcInferCall),
            as_shoal_error,
            DECOUPLED,
        )
        method.fast_path = self
        self.method = method
        self.dispatcher = dispatcher
        self.max_send_bytes = max_send_bytes
        self._patterns = MessagePatterns()

    # ---- in

    def take(
        self,
        connection: ControlFrames,
        pattern: CallPattern,
        stream_id: int,
        window: int,
        message: bytes,
    ) -> bool:
        """Begin a call with `message`; false, with nothing done, if it matches no template."""
        match = pattern.message
        if match is None or not match.matches(message):
            match = self._patterns.find(message)
            pattern.message = match
            if match is None:
                return False
        template = match.template
        if template is not self.template and not self.begin(template):
            pattern.message = None
            return False
        request_id = ""
        if match.id is not None:
            try:
                request_id = message[match.id].decode()
            except UnicodeDecodeError:
                return False
        call = self.call_type(stream_id, window)
        call.receiver = call
        call.connection = connection
        call.pattern = pattern
        call.request = request = PlannedRequest(
            template, message, match.contents, request_id, call, self.model, self.now_ns
        )
        connection.streams[stream_id] = call
        self.requests.append(request)
        return True

    def request(self, message: Buffer, reply: GrpcInferCall) -> PlannedRequest | None:
        """Submit a request for a call that was started on the slow path: it has a deadline, is
        large or did not arrive in one piece. None, with nothing done, if it matches no template."""
        match = self._patterns.find(message)
        if match is None:
            return None
        template = match.template
        if template is not self.template and not self.begin(template):
            return None
        try:
            request_id = "" if match.id is None else str(message[match.id], "utf-8")
        except UnicodeDecodeError:
            return None
        request = PlannedRequest(
            template, message, match.contents, request_id, reply, self.model, self.now_ns
        )
        if reply.call.deadline_ns is not None:
            request.answer_by_ns = reply.call.deadline_ns
        self.requests.append(request)
        return request

    def learn(self, source: Buffer, message: InferMessage, accepted: Request) -> None:
        """Make a template of a request that the engine has accepted, if others can match it."""
        if message.contents is None or message.head.classifies:
            return
        known = self._patterns.find(source)
        if known is not None and known.template.live_model() is accepted.served_by:
            return
        template = RequestTemplate.of(accepted, message.inputs, self)
        if template is not None:
            self._patterns.put(source, message.ids, message.contents, template)

    # ---- out

    def write_refusals(
        self, error: QueueRejected, requests: Sequence[PlannedRequest]
    ) -> Sequence[PlannedRequest]:
        """The trailers that `fail` would send; see `Coalescer`."""
        if self.dispatcher.access_log is not None:
            return requests
        left: list[PlannedRequest] = []
        code = status_of(error)
        metadata = metadata_block(retry_metadata(error))
        for request in requests:
            call: Any = request.reply  # of `reply_types`
            block = trailers_only(code, request.log_prefix() + error.reason) + metadata
            frame = frames.header_block(
                call.id, block, end_stream=True, max_frame_bytes=frames.DEFAULT_FRAME_BYTES
            )
            if type(call) is not GrpcFastPathCall or not call.finish_with(frame, 0):
                left.append(request)
        if len(left) < len(requests):
            count, model = len(requests) - len(left), requests[0].model_name
            recent_errors.note("gRPC", "ModelInfer", code.name, error.reason, model, count=count)
        return left

    def write_all(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """One piece per call; see `Coalescer`."""
        small = small_columns(responses)
        if small is None:
            self.write_individually(responses, requests)
            return
        columns, message_bytes = small
        log = self.dispatcher.access_log
        rows = zip(*columns, strict=False)  # columns that are the same for all have no end
        for index, (request, row) in enumerate(zip(requests, rows, strict=True)):
            call: Any = request.reply  # of `reply_types`; a `cast` takes 5 % of this loop
            # Calls of the slow path have their own record.
            logged = log is not None and isinstance(call, GrpcFastPathCall) and call.request
            field = id_field(request.id) if request.id else b""
            size = message_bytes + len(field)
            before, between, prefix, after, trailers = _pieces(size)
            message = b"".join((prefix, field, *row, after))
            whole = call.id.to_bytes(4, "big").join((before, between, message, trailers))
            if size > self.max_send_bytes or not call.finish_with(whole, size + PREFIX_BYTES):
                call.deliver(responses.response(index, request.id))
            elif logged:
                self._log(call, request, size)

    def _log(self, call: GrpcFastPathCall, request: PlannedRequest, sent_bytes: int) -> None:
        log = self.dispatcher.access_log
        assert log is not None
        head, caller = call.pattern.head, call.pattern.caller
        received = request.message
        log.record(
            call_record(
                head.path,
                call.connection.peer,
                "" if caller is None else caller.name,
                head.metadata,
                code=StatusCode.OK,
                message=received,
                received_bytes=len(received),
                sent_bytes=sent_bytes,
                started_ns=request.start_ns,
            )
        )


class GrpcFastPathCall(ServerStream, Receiver):
    """A unary call that arrived in one piece: its stream, the stream's receiver, and the reply of
    its request."""

    __slots__ = ("connection", "pattern", "request")

    connection: ControlFrames
    pattern: CallPattern
    request: PlannedRequest | None  # None: answered, or the client has cancelled it
    remote_closed = True
    must_end = True
    _infer: GrpcInferCall | None = None  # answers a response that is not written with its batch

    # ---- what the engine calls (Reply)

    def send(self, response: Response) -> None:
        """Take a response from the thread that made it."""
        fast_path = self.pattern.fast_path
        assert fast_path is not None
        fast_path.inbox.post(self.deliver, response)

    def deliver(self, response: Response) -> None:
        """Answer as the slow path does, on the loop. Never raises."""
        request = self.request
        if request is None:
            return
        infer = self._infer
        if infer is None:
            fast_path = self.pattern.fast_path
            assert fast_path is not None
            call = self._substitute()
            infer = self._infer = GrpcInferCall(fast_path.method, call, planned_message(request))
        if response.final:
            self.request = None  # which refers to this call: both are freed at once
        infer.deliver(response)

    def _substitute(self) -> Call:
        """Let a call of the slow path respond."""
        call = self._new_call()
        self.receiver = call
        call.on_cancel = self.reset
        return call

    def _new_call(self) -> Call:
        """The call that responds instead of this one."""
        fast_path = self.pattern.fast_path
        assert fast_path is not None
        return fast_path.dispatcher.call(self.connection, self, self.pattern.head)

    def finish_with(self, response: bytes, total: int) -> bool:
        """End with a response that is ready to be sent, with `total` bytes of data; false, with
        nothing done, if it has to wait. Without effect for a call that was cancelled."""
        if self.request is None:
            return True
        connection = self.connection
        if not connection.sender.whole(self, response, total):
            return False
        connection.answered(self)
        self.request = None
        return True

    # ---- what the connection calls (Receiver)

    def closed(self) -> None:
        """Everything was sent."""
        self.request = None

    def give_up(self, message: str) -> None:
        """Respond with UNAVAILABLE, and cancel the request."""
        self._substitute().give_up(message)

    def reset(self) -> None:
        """The client has cancelled the call, or its connection is gone."""
        request, self.request = self.request, None
        if request is not None:
            request.cancel()
