"""Keys over gRPC: who calls, what it may do, and what its calls count for.

    Method --guard--> Method whose calls are KeyedCall: metadata --> Caller --> message --> method

A unary call is one request; each message of ModelStreamInfer is one, too, which `stream` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from shoal.access.access import AUTHORIZATION, Access
from shoal.access.caller import Caller
from shoal.core.tensor import Buffer
from shoal.errors import ShoalError
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.errors import fail
from shoal.frontends.grpc.message import PREFIX_BYTES
from shoal.frontends.grpc.method import Kind, Method
from shoal.frontends.grpc.status import Metadata, MetadataValue
from shoal.wire.grpc_request import parse
from shoal.wire.proto import messages

_INFERENCE = "inference"

Check = Callable[[Caller, Buffer], None]  # of what the message of a unary call asks for


class KeyedCall(Call):
    """A call of a client with a key: its end ends the request."""

    __slots__ = ("caller", "holds_request")

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.caller: Caller | None = None
        self.holds_request = False

    def reply(self, parts: Sequence[Buffer], trailing_metadata: Metadata = ()) -> None:
        """Answer with one message; see `Call`."""
        was_open = self._open
        super().reply(parts, trailing_metadata)
        if was_open and not self._headers_sent:  # else it was counted by `send`
            self._count(parts)

    def finish_with(self, response: bytes, total: int) -> bool:
        """End with a response that is ready to be sent; see `Call`."""
        was_open = self._open
        if not super().finish_with(response, total):
            return False
        if was_open and self.caller is not None:
            self.caller.sent(total - PREFIX_BYTES)
        return True

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message of a stream; see `Call`."""
        if self._open:
            self._count(parts)
        super().send(parts)

    def _count(self, parts: Sequence[Buffer]) -> None:
        if self.caller is not None:
            self.caller.sent(sum(memoryview(part).nbytes for part in parts))

    def _leave_wire(self) -> None:
        super()._leave_wire()
        if self.holds_request and self.caller is not None:
            self.holds_request = False
            self.caller.end()


class GrpcKeys:
    """Finds and checks the keys of calls."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._header = access.header

    def caller(self, metadata: Sequence[tuple[str, MetadataValue]]) -> Caller:
        """Who sends this metadata. Raises Unauthenticated."""
        return self.access.identify(*self._credentials(metadata))

    def known_caller(self, metadata: Sequence[tuple[str, MetadataValue]]) -> Caller | None:
        """The same for the fast path; see `Access.known`."""
        return self.access.known(*self._credentials(metadata))

    def _credentials(
        self, metadata: Sequence[tuple[str, MetadataValue]]
    ) -> tuple[bytes | None, bytes | None]:
        own = authorization = None
        for name, value in metadata:
            if name == AUTHORIZATION:
                authorization = _bytes(value)
            if name == self._header:
                own = _bytes(value)
        return own, authorization

    def guard(self, method: Method, api: str, check: Check | None) -> Method:
        """The same method for clients whose key permits calls of kind `api`.

        `check` is for the message of a unary call. A method without one names no model, and so
        needs no key where its kind is open.
        """
        if check is None and self.access.is_open(api, ""):
            return method

        def start(call: Call) -> None:
            try:
                caller = self.caller(call.metadata)
                cast("KeyedCall", call).caller = caller
                caller.check(api)
            except ShoalError as error:
                fail(call, error)
                return
            method.start(call)
            if method.kind is Kind.UNARY or api != _INFERENCE:
                call.on_message = _counted(call, caller, check, method.kind)

        return replace(method, start=start, call_type=KeyedCall)


def names_model(request_type: Any, field: str) -> Check:
    """The check of a message whose `field` is the name of a model, or empty."""

    def check(caller: Caller, message: Buffer) -> None:
        model = getattr(parse(request_type, message), field)
        if model:
            caller.check_model(model)

    return check


def check_trace(caller: Caller, message: Buffer) -> None:
    """The check of TraceSetting: settings of all models are changed by keys for all models."""
    request = parse(messages.TraceSettingRequest, message)
    if request.model_name:
        caller.check_model(request.model_name)
    elif request.settings:
        caller.check_all_models()


def _counted(
    call: Call, caller: Caller, check: Check | None, kind: Kind
) -> Callable[[Buffer], None]:
    """What messages are passed to: the method's callback, if they are admitted. A stream is not a
    request in flight: it may stay open for ever."""
    inner = call.on_message

    def on_message(message: Buffer) -> None:
        try:
            caller.begin(len(message))
            if kind is Kind.UNARY:
                cast("KeyedCall", call).holds_request = True
            else:
                caller.end()
            if check is not None:
                check(caller, message)
        except ShoalError as error:
            fail(call, error)
            return
        if inner is not None:
            inner(message)

    return on_message


def _bytes(value: MetadataValue) -> bytes:
    return value if isinstance(value, bytes) else value.encode(errors="replace")
