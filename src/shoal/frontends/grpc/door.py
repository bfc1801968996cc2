"""The way from a message to the engine, which ModelInfer and ModelStreamInfer share.

    message --decode--> InferMessage --request--> Request --infer--> engine

Requests whose heads are equal differ in their id and their data alone. Once the engine has taken
one of them, the next needs no validation but of its size: that is its plan.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass
from typing import Any

from shoal.core.dtypes import BYTES
from shoal.core.inbox import LoopInbox
from shoal.core.model_loading import ModelLoading
from shoal.core.planned import BatchReplies, RequestTemplate
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
from shoal.wire.grpc_layout import Pattern
from shoal.wire.grpc_request import InferDecoder, InferHead, InferMessage, peek
from shoal.wire.regions import Regions
from shoal.wire.template import TemplateCache


@dataclass(slots=True)
class Plan:
    """What validation found out about all requests with one head."""

    model: weakref.ref[Any]  # who validated: a plan must not keep an unloaded model
    sizes: tuple[int, ...]  # of the inputs, in bytes
    rows: int
    batch_key: Any
    version: int  # the one that was asked for
    plain: bool  # neither of a sequence nor for a decoupled model
    alone: bool = False  # whether such requests have to be handed over one by one
    shared: RequestTemplate | None = None  # the same for the core, once it is needed


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
        self._decoder = InferDecoder(remembers=plans)
        self._plans: TemplateCache[Plan] | None = TemplateCache() if plans else None

    def decode(self, message: Buffer) -> InferMessage:
        """Read a request. Raises a ShoalError; an unknown model comes before all other mistakes."""
        if not self.accepting:
            raise Unavailable(SHUTTING_DOWN)
        try:
            return self._decoder.decode(message, self._regions)
        except ShoalError:
            name, version, _ = peek(message)
            if name:
                with contextlib.suppress(ModelLoading):  # known, and not worth loading for this
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
            sequence_id=message.sequence_id,
            outputs=head.output_names,
            parameters=parameters,
        )

    def infer_plain(self, message: InferMessage, call: Call, reply: Reply) -> bool:
        """Take the shortest way, with a request like a plain one that was served before; false,
        with nothing changed, when there is no such way. Raises as `infer`."""
        if self._plans is None or self._forwarding is not None:
            return False
        head = message.head
        plan = self._plans.get(head)
        if plan is None or not plan.plain or message.sizes != plan.sizes:
            return False
        model = plan.model()
        if model is None:
            return False
        request = Request(
            head.model_name,
            message.inputs,
            reply,
            model_version=plan.version,
            id=message.id,
            requested_outputs=head.output_names,
            parameters=dict(head.parameters) if head.parameters else None,
            priority=head.priority,
            timeout_us=head.timeout_us,
        )
        request.rows = plan.rows
        request.batch_key = plan.batch_key
        call.on_cancel = request.cancel
        return self.engine.infer_planned(request, model)

    def pattern(self, message: bytes) -> tuple[Pattern[InferHead], Plan] | None:
        """What to expect of requests like `message`, and their plan, if they may go the shortest
        way together."""
        if self._forwarding is not None or self._plans is None:
            return None
        pattern = self._decoder.pattern(message)
        if pattern is None or pattern.read.classifies:
            return None
        plan = self._plans.get(pattern.read)
        if plan is None or not plan.plain or plan.alone or plan.sizes != pattern.sizes:
            return None
        model = plan.model()
        if model is None or not model.takes_groups:
            return None
        return pattern, plan

    def shared_template(
        self, head: InferHead, plan: Plan, replies: BatchReplies
    ) -> RequestTemplate:
        """What requests with that plan have in common, in the core's terms."""
        if plan.shared is None or plan.shared.replies is not replies:
            plan.shared = RequestTemplate(
                head.model_name,
                plan.version,
                tuple(head.inputs),
                head.output_names,
                head.parameters,
                head.priority,
                head.timeout_us,
                plan.rows,
                plan.batch_key,
                replies,
            )
        return plan.shared

    def holds(self, head: InferHead, plan: Plan) -> bool:
        """Whether a plan that was found for `head` may still be followed, and without a trace."""
        return (
            self.accepting
            and not self.engine.tracer.active
            and not plan.alone
            and self._plans is not None
            and self._plans.get(head) is plan
        )

    def infer(self, message: InferMessage, request: Request) -> None:
        """Hand the request over. If this raises, the engine has not taken it."""
        plans = self._plans
        if plans is None:
            self.engine.infer(request)
            return
        plan = plans.get(message.head)
        if plan is not None and self._follow(plan, message, request):
            return
        inputs = request.inputs
        self.engine.infer(request)
        if message.head.remembered:
            self._learn(plans, message, inputs, request)

    def _follow(self, plan: Plan, message: InferMessage, request: Request) -> bool:
        """Take the short way; false, with nothing changed, when it does not lead there."""
        model = plan.model()
        if model is None or message.sizes != plan.sizes:
            return False
        request.rows = plan.rows
        request.batch_key = plan.batch_key
        return self.engine.infer_planned(request, model)

    def _learn(
        self,
        plans: TemplateCache[Plan],
        message: InferMessage,
        inputs: dict[str, Tensor],
        accepted: Request,
    ) -> None:
        """Make a plan of a request that the engine has accepted."""
        model = accepted.served_by
        if model is None or accepted.inputs is not inputs:  # these were given another shape
            return
        if message.sizes is None:  # typed, or in shared memory
            return
        if any(tensor.datatype is BYTES for tensor in inputs.values()):
            return  # their elements have to be checked every time
        plan = Plan(
            weakref.ref(model),
            message.sizes,
            accepted.rows,
            accepted.batch_key,
            accepted.model_version,
            plain=not (accepted.correlation_id or accepted.flags or model.decoupled),
        )
        plans.put(message.head, plan, 0)


def _as_bytes(value: MetadataValue) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
