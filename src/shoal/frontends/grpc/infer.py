"""ModelInfer, the slow path: every call whose message matches no template.

call --decode--> Request --engine.infer--> ... --LoopInbox--> deliver --encode--> call.reply
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, cast

from shoal.core.model_loading import ModelLoading
from shoal.core.planned import PlannedRequest
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer
from shoal.errors import Internal, ShoalError, Unsupported
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.errors import fail
from shoal.frontends.grpc.inference import GrpcInference
from shoal.frontends.grpc.traced import TracedCall, begin
from shoal.frontends.requests import is_slow, parse_version, submit
from shoal.frontends.threads import without_frames
from shoal.frontends.waiting import when_loaded
from shoal.statistics.trace import Trace
from shoal.wire.grpc_request import InferHead, InferMessage
from shoal.wire.grpc_response import encode_infer, encodes_slowly

if TYPE_CHECKING:
    from shoal.frontends.grpc.fast_path import GrpcFastPath

DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


class InferMethod:
    """Serves ModelInfer."""

    def __init__(self, inference: GrpcInference) -> None:
        self.inference = inference
        self.fast_path: GrpcFastPath | None = None  # set by itself

    def start(self, call: Call) -> None:
        """Answer `call` when its message has arrived."""
        GrpcInferCall(self, call)


class GrpcInferCall:
    """One inference: keeps what the response needs to know of the request, whose reply it is."""

    __slots__ = ("_call", "_message", "_method", "_only", "_signature", "_source")

    def __init__(
        self, method: InferMethod, call: Call, message: InferMessage | None = None
    ) -> None:
        """`message` is given where the request has been submitted already."""
        self._method = method
        self._call = call
        self._message = message
        self._source: Buffer = b""
        self._signature: Signature | None = None
        self._only: OnlyResponse | None = None
        call.on_message = self._arrived

    @property
    def call(self) -> Call:
        """The call that it answers."""
        return self._call

    def _arrived(self, source: Buffer) -> None:
        inference = self._method.inference
        fast_path = self._method.fast_path
        trace: Trace | None = None
        try:
            if fast_path is not None:
                planned = fast_path.request(source, self)
                if planned is not None:
                    self._message = planned_message(planned)
                    self._call.on_cancel = planned.cancel
                    fast_path.submit_large()
                    return
            tracer = inference.engine.tracer
            arrived_ns = time.monotonic_ns() if tracer.active else 0
            self._source = source
            message = self._message = inference.decode(source, self._call)
            if arrived_ns:
                trace = begin(tracer, self._call, message.head.model_name, arrived_ns)
                if trace is not None:
                    self._call = cast("Call", TracedCall(self._call, trace))
            self._submit(message, trace)
        except ModelLoading as pending:
            self._wait(pending, trace)
        except Exception as error:  # noqa: BLE001 - becomes the response
            self._release()
            fail(self._call, error, self._model)

    def _wait(self, pending: ModelLoading, trace: Trace | None) -> None:
        """Continue when the model has been loaded."""
        timeout_us = 0 if self._message is None else self._message.head.timeout_us
        take_back = when_loaded(pending, lambda error: self._resume(trace, error), timeout_us)

        def left() -> None:
            take_back()
            self._release()

        self._call.on_cancel = left

    def _resume(self, trace: Trace | None, error: ShoalError | None) -> None:
        self._call.on_cancel = None
        try:
            if error is not None:
                raise error
            assert self._message is not None
            self._submit(self._message, trace)
        except ModelLoading as still:  # it has been evicted again
            self._wait(still, trace)
        except Exception as failure:  # noqa: BLE001 - becomes the response
            self._release()
            fail(self._call, failure, self._model)

    def _submit(self, message: InferMessage, trace: Trace | None) -> None:
        """Submit the request. If this raises, the engine has not taken it."""
        inference, call, head = self._method.inference, self._call, message.head
        engine = inference.engine
        name, version = head.model_name, parse_version(head.model_version)
        if engine.is_decoupled(name, version):
            raise Unsupported(DECOUPLED)
        if head.classifies:
            self._signature = engine.signature(name, version)
        request = inference.request(message, version, call, self)
        call.on_cancel = request.cancel
        if call.deadline_ns is not None:
            request.answer_by_ns = call.deadline_ns
        if trace is not None:
            trace.attach(request)
        if is_slow(message.inputs, message.leases):
            self._source = b""
            work = without_frames(partial(submit, engine, request, message.leases))
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, work).add_done_callback(partial(self._submitted, trace))
            return
        engine.infer(request)
        source, self._source = self._source, b""
        fast_path = self._method.fast_path
        if fast_path is not None:
            fast_path.learn(source, message, request)

    def _submitted(self, trace: Trace | None, outcome: asyncio.Future[None]) -> None:
        """A thread has submitted the request, or could not."""
        failure = asyncio.CancelledError() if outcome.cancelled() else outcome.exception()
        if isinstance(failure, ModelLoading):
            self._wait(failure, trace)
        elif failure is not None:
            self._release()
            fail(self._call, failure, self._model)

    def send(self, response: Response) -> None:
        """Take the engine's response from whichever thread made it."""
        self._method.inference.inbox.post(self.deliver, response)

    def deliver(self, response: Response) -> None:
        """Answer, on the loop. Never raises: other responses wait behind it."""
        try:
            if not response.final or self._only is not None:
                if self._only is None:
                    self._only = OnlyResponse()
                whole = self._only.take(response)
                if whole is None:
                    return
                response = whole
            if response.error is not None:
                self._release()
                fail(self._call, response.error, self._model)
                return
            message = self._message
            assert message is not None
            if encodes_slowly(response, message.slices):
                work = without_frames(partial(self._encode, message, response))
                loop = asyncio.get_running_loop()
                loop.run_in_executor(None, work).add_done_callback(self._encoded)
                return
            parts = self._encode(message, response)
            self._release()
            self._call.reply(parts)
        except Exception as error:  # noqa: BLE001 - becomes the response
            self._release()
            fail(self._call, error, self._model)

    def _encode(self, message: InferMessage, response: Response) -> list[Buffer]:
        message.check()
        return encode_infer(response, message.head.outputs, self._signature, message.slices)

    def _encoded(self, outcome: asyncio.Future[list[Buffer]]) -> None:
        """A thread has encoded the response, or could not."""
        self._release()
        try:
            self._call.reply(outcome.result())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
            fail(self._call, error, self._model)

    @property
    def id(self) -> int:
        """The stream of the call; 0 if it has ended."""
        return self._call.stream_id

    def finish_with(self, response: bytes, total: int) -> bool:
        """See `Call.finish_with`."""
        return self._call.finish_with(response, total)

    @property
    def _model(self) -> str:
        return "" if self._message is None else self._message.head.model_name

    def _release(self) -> None:
        """Give back shared memory that the request used."""
        if self._message is not None and self._message.leases:
            self._message.release()


def planned_message(request: PlannedRequest) -> InferMessage:
    """What the response to a planned request needs to know of its message."""
    return InferMessage(InferHead(request.model_name, ""), request.id, {})


class OnlyResponse:
    """The response of a request that may have only one, whose end may come separately."""

    __slots__ = ("_kept", "_responses")

    def __init__(self) -> None:
        self._kept: Response | None = None
        self._responses = 0

    def take(self, response: Response) -> Response | None:
        """The response to send, once `response` is the final one."""
        if not response.is_end_only:
            self._responses += 1
            self._kept = response
        if not response.final:
            return None
        if self._responses > 1:
            response.error = Internal(f"expected a single response, got {self._responses}")
            return response
        whole = self._kept or response
        whole.final = True
        return whole
