"""The way from a message to the engine, which ModelInfer and ModelStreamInfer share.

    message --decode--> InferMessage --request--> Request --infer--> engine

Requests whose heads are equal differ in their id and their data alone. Once the engine has taken
one of them, the next needs no validation but of its size: that is its plan.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from shoal.core.dtypes import BYTES
from shoal.core.inbox import LoopInbox
from shoal.core.reply import Reply
from shoal.core.request import Request
from shoal.core.response import ParameterValue
from shoal.core.tensor import Buffer, Tensor
from shoal.engine import Engine
from shoal.errors import ShoalError, Unavailable
from shoal.frontends.forwarding import HeaderForwarding
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.errors import SHUTTING_DOWN
from shoal.frontends.grpc.status import MetadataValue
from shoal.frontends.requests import build_request, parse_version
from shoal.wire.grpc_request import InferHead, InferMessage, decode_infer, peek
from shoal.wire.plan import PlanCache
from shoal.wire.regions import Regions


@dataclass(slots=True)
class _Plan:
    """What validation found out about all requests with one head."""

    model: weakref.ref[Any]  # who validated: a plan must not keep an unloaded model
    sizes: tuple[int, ...]  # of the inputs, in bytes
    rows: int
    batch_key: Any


class InferDoor:
    """What inference needs of the server. Its methods belong to the loop."""

    def __init__(
        self,
        engine: Engine,
        inbox: LoopInbox,
        forwarding: HeaderForwarding | None = None,
        *,
        plans: bool = True,
        regions: Regions | None = None,
    ) -> None:
        """`regions` is the shared memory that requests may name."""
        self.engine = engine
        self._regions = regions
        self.inbox = inbox
        self.accepting = True  # False: the server is on its way out
        self._forwarding = forwarding
        self._plans: PlanCache[_Plan] | None = PlanCache() if plans else None

    def decode(self, message: Buffer) -> InferMessage:
        """Read a request. Raises a ShoalError; an unknown model comes before all other mistakes."""
        if not self.accepting:
            raise Unavailable(SHUTTING_DOWN)
        try:
            return decode_infer(message, self._regions)
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

    def infer(self, head: InferHead, request: Request) -> None:
        """Hand the request over. If this raises, the engine has not taken it."""
        plans = self._plans
        if plans is None:
            self.engine.infer(request)
            return
        plan = plans.get(head)
        if plan is not None and self._follow(plan, request):
            return
        inputs = request.inputs
        self.engine.infer(request)
        if head.remembered:
            self._learn(plans, head, inputs, request)

    def _follow(self, plan: _Plan, request: Request) -> bool:
        """Take the short way; false, with nothing changed, when it does not lead there."""
        model = plan.model()
        if model is None or _sizes(request.inputs) != plan.sizes:
            return False
        request.rows = plan.rows
        request.batch_key = plan.batch_key
        return self.engine.infer_planned(request, model)

    def _learn(
        self,
        plans: PlanCache[_Plan],
        head: InferHead,
        inputs: dict[str, Tensor],
        accepted: Request,
    ) -> None:
        """Make a plan of a request that the engine has accepted."""
        model = accepted.served_by
        if model is None or accepted.inputs is not inputs:  # these were given another shape
            return
        if any(tensor.datatype is BYTES for tensor in inputs.values()):
            return  # their elements have to be checked every time
        plan = _Plan(weakref.ref(model), _sizes(inputs), accepted.rows, accepted.batch_key)
        plans.put(head, plan, 0)


def _sizes(inputs: dict[str, Tensor]) -> tuple[int, ...]:
    return tuple([tensor.nbytes for tensor in inputs.values()])


def _as_bytes(value: MetadataValue) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
