"""ModelInfer: from a call's message to the engine, and from its response to the answer.

    call --decode--> Request --engine.infer--> … --LoopInbox--> deliver --encode--> call.reply

This is the path every unary inference takes, so it is short and makes one object of its own.
"""

from __future__ import annotations

import time
from typing import cast

from shoal.core.model_loading import ModelLoading
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer
from shoal.errors import Internal, ShoalError, Unsupported
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.door import InferDoor
from shoal.frontends.grpc.errors import fail
from shoal.frontends.grpc.traced import TracedCall, begin
from shoal.frontends.requests import parse_version
from shoal.frontends.waiting import when_loaded
from shoal.statistics.trace import Trace
from shoal.wire.grpc_request import InferMessage
from shoal.wire.grpc_response import encode_infer


class InferMethod:
    """Serves ModelInfer."""

    def __init__(self, door: InferDoor) -> None:
        self._door = door

    def start(self, call: Call) -> None:
        """Answer `call` when its message has come."""
        InferCall(self._door, call)


class InferCall:
    """One inference: remembers between request and response what the answer needs.

    It is the reply of its own request.
    """

    __slots__ = ("_asked", "_call", "_door", "_only", "_signature")

    def __init__(self, door: InferDoor, call: Call, asked: InferMessage | None = None) -> None:
        """`asked`: what the call's message was, where it has been handed over already."""
        self._door = door
        self._call = call
        self._asked = asked
        self._signature: Signature | None = None
        self._only: OnlyResponse | None = None
        call.on_message = self._message

    def _message(self, message: Buffer) -> None:
        door = self._door
        trace: Trace | None = None
        try:
            tracer = door.engine.tracer
            arrived_ns = time.monotonic_ns() if tracer.active else 0
            asked = self._asked = door.decode(message)
            if arrived_ns:
                trace = begin(tracer, self._call, asked.head.model_name, arrived_ns)
                if trace is not None:
                    self._call = cast("Call", TracedCall(self._call, trace))
            elif not asked.head.classifies and door.infer_plain(asked, self._call, self):
                return
            self._submit(asked, trace)
        except ModelLoading as pending:
            self._wait(pending, trace)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._release()
            fail(self._call, error, self._model)

    def _wait(self, pending: ModelLoading, trace: Trace | None) -> None:
        """Go on when the model has been loaded."""
        take_back = when_loaded(pending, lambda error: self._resume(trace, error))

        def left() -> None:
            take_back()
            self._release()

        self._call.on_cancel = left

    def _resume(self, trace: Trace | None, error: ShoalError | None) -> None:
        self._call.on_cancel = None
        try:
            if error is not None:
                raise error
            assert self._asked is not None
            self._submit(self._asked, trace)
        except ModelLoading as still:  # it has been evicted again
            self._wait(still, trace)
        except Exception as failure:  # noqa: BLE001 - becomes the answer
            self._release()
            fail(self._call, failure, self._model)

    def _submit(self, message: InferMessage, trace: Trace | None) -> None:
        """Hand the request over. If this raises, the engine has not taken it."""
        door, call, head = self._door, self._call, message.head
        name, version = head.model_name, parse_version(head.model_version)
        if door.engine.is_decoupled(name, version):
            raise Unsupported(
                "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        if head.classifies:
            self._signature = door.engine.signature(name, version)
        request = door.request(message, version, call, self)
        call.on_cancel = request.cancel
        if trace is not None:
            trace.attach(request)
        door.infer(message, request)

    def send(self, response: Response) -> None:
        """Take the engine's response from whichever thread made it."""
        self._door.inbox.post(self.deliver, response)

    def deliver(self, response: Response) -> None:
        """Answer, on the loop. Never raises: others wait behind it."""
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
            asked = self._asked
            assert asked is not None
            parts = encode_infer(response, asked.head.outputs, self._signature, asked.slices)
            self._release()
            self._call.reply(parts)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._release()
            fail(self._call, error, self._model)

    @property
    def _model(self) -> str:
        return "" if self._asked is None else self._asked.head.model_name

    def _release(self) -> None:
        """Give back shared memory that the request used."""
        if self._asked is not None and self._asked.leases:
            self._asked.release()


class OnlyResponse:
    """The response of a request that may have only one, where the end is told apart from it."""

    __slots__ = ("_kept", "_responses")

    def __init__(self) -> None:
        self._kept: Response | None = None
        self._responses = 0

    def take(self, response: Response) -> Response | None:
        """The response to answer with, once `response` is the final one."""
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
