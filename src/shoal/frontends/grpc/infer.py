"""ModelInfer: from a call's message to the engine, and from its response to the answer.

    call --decode--> Request --engine.infer--> … --LoopInbox--> deliver --encode--> call.reply

This is the path every unary inference takes, so it is short and makes one object of its own.
"""

from __future__ import annotations

from shoal.core.inbox import LoopInbox, LoopReply
from shoal.core.reply import Reply
from shoal.core.request import Request
from shoal.core.response import ParameterValue, Response
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer
from shoal.engine import Engine
from shoal.errors import Internal, ShoalError, Unavailable, Unsupported
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.errors import SHUTTING_DOWN, fail
from shoal.frontends.grpc.status import MetadataValue
from shoal.frontends.http.forwarding import HeaderForwarding
from shoal.frontends.requests import build_request, parse_version
from shoal.wire.grpc_request import InferHead, InferMessage, decode_infer, peek
from shoal.wire.grpc_response import encode_infer


class InferDoor:
    """What ModelInfer and ModelStreamInfer share: the way from a message to the engine."""

    def __init__(
        self, engine: Engine, inbox: LoopInbox, forwarding: HeaderForwarding | None = None
    ) -> None:
        self.engine = engine
        self.inbox = inbox
        self.accepting = True  # False: the server is on its way out
        self._forwarding = forwarding

    def decode(self, message: Buffer) -> InferMessage:
        """Read a request. Raises a ShoalError; an unknown model comes before all other mistakes."""
        if not self.accepting:
            raise Unavailable(SHUTTING_DOWN)
        try:
            return decode_infer(message)
        except ShoalError:
            name, version, _ = peek(message)
            if name:
                self.engine.is_decoupled(name, parse_version(version))
            raise

    def request(self, message: InferMessage, version: int, call: Call, reply: Reply) -> Request:
        """The request in the core's terms. InvalidArgument where metadata may not be forwarded."""
        head = message.head
        parameters: dict[str, ParameterValue] = dict(head.parameters)
        if self._forwarding is not None:
            headers = [(key.encode(), _as_bytes(value)) for key, value in call.metadata]
            self._forwarding.forward(headers, parameters)
        return build_request(
            (head.model_name, version),
            head,
            message.inputs,
            reply,
            id=message.id,
            outputs=head.output_names,
            parameters=parameters,
        )


class InferMethod:
    """Serves ModelInfer."""

    def __init__(self, door: InferDoor) -> None:
        self._door = door

    def start(self, call: Call) -> None:
        """Answer `call` when its message has come."""
        _InferCall(self._door, call)


class _InferCall:
    """One inference: remembers between request and response what the answer needs."""

    __slots__ = ("_call", "_door", "_head", "_only", "_signature")

    def __init__(self, door: InferDoor, call: Call) -> None:
        self._door = door
        self._call = call
        self._head: InferHead | None = None
        self._signature: Signature | None = None
        self._only: OnlyResponse | None = None
        call.on_message = self._message

    def _message(self, message: Buffer) -> None:
        try:
            self._submit(self._door.decode(message))
        except Exception as error:  # noqa: BLE001 - becomes the answer
            fail(self._call, error)

    def _submit(self, message: InferMessage) -> None:
        """Hand the request over. If this raises, the engine has not taken it."""
        door, call = self._door, self._call
        self._head = head = message.head
        engine, name, version = door.engine, head.model_name, parse_version(head.model_version)
        if engine.is_decoupled(name, version):
            raise Unsupported(
                "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        if head.classifies:
            self._signature = engine.signature(name, version)
        reply = LoopReply(door.inbox, self._deliver)
        request = door.request(message, version, call, reply)
        call.on_cancel = request.cancel
        engine.infer(request)

    def _deliver(self, response: Response) -> None:
        """Take the engine's response, on the loop. Never raises: others wait behind it."""
        try:
            if not response.final or self._only is not None:
                if self._only is None:
                    self._only = OnlyResponse()
                whole = self._only.take(response)
                if whole is None:
                    return
                response = whole
            if response.error is not None:
                raise response.error
            assert self._head is not None
            self._call.reply(encode_infer(response, self._head.outputs, self._signature))
        except Exception as error:  # noqa: BLE001 - becomes the answer
            fail(self._call, error)


class OnlyResponse:
    """The response of a request that may have only one, where the end is told apart from it."""

    __slots__ = ("_kept", "_responses")

    def __init__(self) -> None:
        self._kept: Response | None = None
        self._responses = 0

    def take(self, response: Response) -> Response | None:
        """The response to answer with, once `response` is the final one."""
        if not is_flag_only(response):
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


def is_flag_only(response: Response) -> bool:
    """Whether it says nothing but that the request is complete."""
    return (
        response.final
        and response.error is None
        and not response.outputs
        and not response.parameters
    )


def _as_bytes(value: MetadataValue) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
