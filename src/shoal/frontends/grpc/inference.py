"""From a message to a request: what ModelInfer and ModelStreamInfer share.

message --decode--> InferMessage --request--> Request --> Engine.infer
"""

from __future__ import annotations

import contextlib

from shoal.core.inbox import LoopInbox
from shoal.core.model_loading import ModelLoading
from shoal.core.reply import Reply
from shoal.core.request import Request
from shoal.core.response import ParameterValue
from shoal.core.tensor import Buffer
from shoal.engine import Engine
from shoal.errors import LimitExceeded, ShoalError
from shoal.frontends.forwarding import HeaderForwarding
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.status import MetadataValue
from shoal.frontends.requests import build_request, parse_version
from shoal.wire.grpc_request import InferDecoder, InferMessage, peek
from shoal.wire.regions import Regions


class GrpcInference:
    """What inference needs of the server. Its methods belong to the loop."""

    def __init__(
        self,
        engine: Engine,
        inbox: LoopInbox,
        forwarding: HeaderForwarding | None = None,
        *,
        plans: bool = True,
        regions: Regions | None = None,
        max_typed_bytes: int = 64 << 20,
    ) -> None:
        """`regions` is the shared memory that requests may name; `max_typed_bytes` bounds what they
        have besides raw tensors."""
        self.engine = engine
        self.inbox = inbox
        self._regions = regions
        self._forwarding = forwarding
        self._decoder = InferDecoder(caches=plans, max_typed_bytes=max_typed_bytes)

    def decode(self, message: Buffer, call: Call) -> InferMessage:
        """Read a request. Raises a ShoalError: first for a model that the caller's key does not
        permit, then for an unknown one, then for all other mistakes."""
        caller = call.caller
        try:
            decoded = self._decoder.decode(message, self._regions)
        except LimitExceeded:
            raise
        except ShoalError:
            name, version, _ = peek(message)
            if name:
                if caller is not None:
                    caller.check_model(name)
                with contextlib.suppress(ModelLoading):  # it exists, but is not loaded for this
                    self.engine.is_decoupled(name, parse_version(version))
            raise
        if caller is not None and not caller.may_use(decoded.head.model_name):
            decoded.release()
            caller.check_model(decoded.head.model_name)
        return decoded

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
            sequence_id=message.sequence_id,
            outputs=head.output_names,
            parameters=parameters,
        )


def _as_bytes(value: MetadataValue) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
