"""The fast path of ModelInfer where calls need a key: quotas are counted, nothing is looked up.

The calls of a pattern have the same header block, and with it the same key. So whose key it is is
found once for each pattern and template; a call costs one `Caller.admit`. What is refused takes the
slow path, which responds.
"""

from __future__ import annotations

from typing import Any

from shoal.access.caller import Caller
from shoal.core.planned import PlannedRequest
from shoal.core.tensor import Buffer
from shoal.frontends.grpc.call_pattern import CallPattern
from shoal.frontends.grpc.control import ControlFrames
from shoal.frontends.grpc.dispatch import Dispatcher
from shoal.frontends.grpc.fast_path import GrpcFastPath, GrpcFastPathCall
from shoal.frontends.grpc.infer import GrpcInferCall, InferMethod
from shoal.frontends.grpc.keys import GrpcKeys
from shoal.frontends.grpc.message import PREFIX_BYTES

_API = "inference"


class KeyedGrpcFastPathCall(GrpcFastPathCall):
    """A call that ends a request of its caller, once."""

    __slots__ = ("caller",)

    caller: Caller | None

    def finish_with(self, response: bytes, total: int) -> bool:
        """See `GrpcFastPathCall`."""
        if not GrpcFastPathCall.finish_with(self, response, total):
            return False
        caller, self.caller = self.caller, None
        if caller is not None:
            caller.finish(total - PREFIX_BYTES)
        return True

    def closed(self) -> None:
        """Everything was sent."""
        self._end()
        super().closed()

    def reset(self) -> None:
        """The client has cancelled the call, or its connection is gone."""
        self._end()
        super().reset()

    def _new_call(self) -> Any:
        """The call that responds instead of this one takes the request over."""
        call: Any = super()._new_call()
        caller, self.caller = self.caller, None
        if caller is not None:
            call.caller = caller
            call.holds_request = True
        return call

    def _end(self) -> None:
        caller, self.caller = self.caller, None
        if caller is not None:
            caller.end()


class KeyedGrpcFastPath(GrpcFastPath):
    """The templates of one listener, for clients with keys."""

    def __init__(
        self, method: InferMethod, keys: GrpcKeys, dispatcher: Dispatcher, max_send_bytes: int
    ) -> None:
        super().__init__(method, dispatcher, max_send_bytes, KeyedGrpcFastPathCall)
        self._keys = keys

    def take(
        self,
        connection: ControlFrames,
        pattern: CallPattern,
        stream_id: int,
        window: int,
        message: bytes,
    ) -> bool:
        """As `GrpcFastPath.take`; false, too, if the key does not permit it or its quota is used
        up."""
        if not GrpcFastPath.take(self, connection, pattern, stream_id, window, message):
            return False
        request = self.requests[-1]
        call: Any = request.reply
        caller = pattern.caller
        if pattern.permitted is not self.template:
            caller = self._find_caller(pattern, request.model_name)
        if caller is not None and caller.admit(len(message), self.now_ns):
            call.caller = caller
            return True
        self.requests.pop()
        del connection.streams[stream_id]
        call.request = None
        if caller is not None and self.now_ns >= caller.ends_ns:  # its entry has changed
            pattern.permitted = None
        return False

    def request(self, message: Buffer, reply: GrpcInferCall) -> PlannedRequest | None:
        """As `GrpcFastPath.request`; None, too, if the key does not permit the model."""
        planned = super().request(message, reply)
        caller = reply.call.caller
        if planned is not None and caller is not None and not caller.may_use(planned.model_name):
            self.requests.pop()
            return None
        return planned

    def _find_caller(self, pattern: CallPattern, model: str) -> Caller | None:
        """Find whose key the pattern has; None if it does not permit calls with this template."""
        pattern.permitted = None
        caller = self._keys.known_caller(pattern.head.metadata)
        if caller is None or not caller.permits(_API, model):
            return None  # the slow path responds
        pattern.caller, pattern.permitted = caller, self.template
        return caller
