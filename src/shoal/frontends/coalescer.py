"""Requests of one plan that arrive in the same turn of the loop: handed over and answered together.

    Form.take / InferLane.take --requests--> hand_over, once per turn --> engine
    one write per call <-- write_all, once per batch <-- send_all <-------'

What a request looks like and how its answer is written is each protocol's own; a lane of HTTP and
one of gRPC inherit the rest.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from shoal.core.inbox import LoopInbox
from shoal.core.planned import PlannedRequest, PlannedResponses
from shoal.core.response import Response
from shoal.errors import ShoalError


class GatheredPlan(Protocol):
    """A protocol's plan, as far as it matters here."""

    alone: bool  # whether such requests have to be handed over one by one


class GatheredCall(Protocol):
    """The reply of a request that was gathered."""

    @property
    def gone(self) -> bool:
        """Whether it was answered, or its client has left."""

    def deliver(self, response: Response) -> None:
        """Answer the usual way, on the loop."""

    def begin_again(self) -> None:
        """Start anew, as a request that nobody knows."""


class Together(Protocol):
    """The engine, as far as it matters here."""

    def infer_group(self, requests: Sequence[PlannedRequest], model: Any) -> bool:
        """Take over all of `requests`, or none."""


class Coalescer(ABC):
    """What was taken since the last `hand_over`: requests of one plan, for one model.

    Its methods belong to the loop, but for `send_all`.
    """

    def __init__(
        self,
        engine: Together,
        inbox: LoopInbox,
        call_type: type,
        as_error: Callable[[BaseException], ShoalError],
    ) -> None:
        """`call_type` is the GatheredCall of the requests; `as_error` says, and puts into the log,
        what clients are told of a fault of ours."""
        self.inbox = inbox
        self.reply_type = call_type
        self.requests: list[PlannedRequest] = []
        self.plan: GatheredPlan | None = None  # of all of them
        self.model: Any = None
        self.now_ns = 0  # when they arrived
        self._engine = engine
        self._as_error = as_error
        self._deferred = False

    # ---- in

    def begin(self, plan: GatheredPlan, model: Any) -> None:
        """The next requests follow `plan`; what was taken before has been handed over."""
        self.plan = plan
        self.model = model
        self.now_ns = time.monotonic_ns()

    def hand_over_later(self) -> None:
        """Hand over at the end of this turn of the loop, once other connections have been read."""
        if not self._deferred:
            self._deferred = True
            self.inbox.after_reading(self._turn_ended)

    def _turn_ended(self) -> None:
        self._deferred = False
        self.hand_over()

    def hand_over(self) -> None:
        """Hand over what was taken; what is not taken over together goes the usual way."""
        plan, self.plan = self.plan, None
        model, self.model = self.model, None
        if plan is None or not self.requests:
            return
        requests, self.requests = self.requests, []
        if self._engine.infer_group(requests, model):
            return
        plan.alone = True
        for request in requests:
            if not request.cancelled:
                cast("GatheredCall", request.reply).begin_again()

    # ---- out

    def send_all(self, answer: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """Answer the requests of a batch, from whichever thread ran it."""
        self.inbox.post(self._answer_all, (answer, requests))

    def _answer_all(self, batch: tuple[PlannedResponses, Sequence[PlannedRequest]]) -> None:
        """Answer, on the loop. Never raises: others wait behind it."""
        answer, requests = batch
        try:
            self.write_all(answer, requests)
        except Exception as failure:  # noqa: BLE001 - becomes the answer of those who have none
            error = self._as_error(failure)
            name, version = answer.layout.model_name, answer.layout.model_version
            for request in requests:
                call = cast("GatheredCall", request.reply)
                if not call.gone:
                    call.deliver(Response(name, version, request.id, error=error))

    @abstractmethod
    def write_all(self, answer: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """Write the answers. What it raises becomes the answer of those it has not answered."""

    def write_one_by_one(
        self, answer: PlannedResponses, requests: Sequence[PlannedRequest]
    ) -> None:
        """Have each of them answered the usual way."""
        for index, request in enumerate(requests):
            cast("GatheredCall", request.reply).deliver(answer.response(index, request.id))
