"""Requests that follow a plan: what they share was read and checked once, with the first of them.

    message --plan--> PlannedRequest --batch--> PlannedAnswer --> BatchReplies, all at once

A batch whose requests follow one plan is joined and answered as a whole: nothing is made for a
single request that is the same for all of them, and its inputs become tensors only for those who
ask for tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from shoal.core.dtypes import DataType
from shoal.core.reply import Reply
from shoal.core.request import NEW, Request
from shoal.core.response import ParameterValue, Response
from shoal.core.tensor import Buffer, Tensor


class BatchReplies(Protocol):
    """Takes the answers of a batch at once. Callable from any thread; must not raise or block."""

    reply_type: type  # of the replies it answers to; another one stands in for it

    def send_all(self, answer: PlannedAnswer, requests: Sequence[PlannedRequest]) -> None:
        """Answer each of `requests`, in whose order `answer` is, with its only response."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestPlan:
    """What all requests that follow it have in common; compare with `is`."""

    model_name: str
    model_version: int
    inputs: tuple[tuple[str, DataType, tuple[int, ...]], ...]
    requested_outputs: tuple[str, ...]
    parameters: Mapping[str, ParameterValue]
    priority: int
    timeout_us: int
    rows: int
    batch_key: Any
    replies: BatchReplies


class PlannedRequest(Request):
    """A request that differs from others of its plan in its id and its tensors' bytes alone."""

    __slots__ = ("_inputs", "message", "places", "plan")

    def __init__(
        self,
        plan: RequestPlan,
        message: bytes,
        places: tuple[slice, ...],
        id: str,
        reply: Reply,
        model: Any,
        start_ns: int,
    ) -> None:
        """The plan's inputs are at `places` in `message`; `model` is about to accept it."""
        # Every attribute of a request, without the default arguments and the clock of its own
        # `__init__`: this is made for each of many thousand requests a second.
        self.plan: RequestPlan | None = plan  # None: somebody has given it other inputs
        self.message = message
        self.places = places
        self._inputs: dict[str, Tensor] | None = None
        self.model_name = plan.model_name
        self.model_version = plan.model_version
        self.id = id
        self.requested_outputs = plan.requested_outputs
        self.parameters = dict(plan.parameters) if plan.parameters else {}
        self.priority = plan.priority
        self.timeout_us = plan.timeout_us
        self.correlation_id = 0
        self.flags = 0
        self.reply = reply
        self.state = NEW
        self.cancelled = False
        self.on_cancel = None
        self.one_answer = False
        self.rows = plan.rows
        self.batch_key = plan.batch_key
        self.served_by = model
        self.turn = None
        self.trace = None
        self.start_ns = start_ns
        self.queued_ns = 0
        self.deadline_ns = None
        self.moments = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs as tensors, made when somebody asks for them."""
        if self._inputs is None:
            assert self.plan is not None
            message = self.message
            self._inputs = {
                name: Tensor(name, datatype, shape, raw=message[place])
                for (name, datatype, shape), place in zip(
                    self.plan.inputs, self.places, strict=True
                )
            }
        return self._inputs

    @inputs.setter
    def inputs(self, inputs: dict[str, Tensor]) -> None:
        self._inputs = inputs
        self.plan = None


class AnswerForm:
    """What the answers to requests of one plan look like; compare with `is`."""

    __slots__ = ("known", "model_name", "model_version", "outputs", "sizes", "total_bytes")

    def __init__(
        self,
        model_name: str,
        model_version: int,
        outputs: tuple[tuple[str, DataType, tuple[int, ...]], ...],
        sizes: tuple[int, ...],
    ) -> None:
        """`outputs` are name, datatype and shape of one answer's, `sizes` their bytes."""
        self.model_name = model_name
        self.model_version = model_version
        self.outputs = outputs
        self.sizes = sizes
        self.total_bytes = sum(sizes)
        self.known: Any = None  # what those who answer have made of it, for the next batch


class PlannedAnswer(NamedTuple):
    """The outputs of a batch whose requests follow one plan."""

    form: AnswerForm
    contents: Sequence[Buffer]  # of each output, those of all requests in their order

    def columns(self) -> list[list[bytes]]:
        """For each output the bytes of each request: copies, for small ones cheaper than views."""
        columns: list[list[bytes]] = []
        for content, size in zip(self.contents, self.form.sizes, strict=True):
            whole = bytes(content)
            if len(whole) == size:
                columns.append([whole])
            else:
                columns.append([whole[at : at + size] for at in range(0, len(whole), size)])
        return columns

    def response(self, index: int, request_id: str) -> Response:
        """What one request of the batch is answered."""
        form = self.form
        outputs = [
            Tensor(name, datatype, shape, raw=content[index * size : (index + 1) * size])
            for (name, datatype, shape), size, content in zip(
                form.outputs, form.sizes, self.contents, strict=True
            )
        ]
        return Response(form.model_name, form.model_version, request_id, outputs)


def shared_plan(requests: Sequence[Request]) -> RequestPlan | None:
    """The plan that all of `requests` follow, if they are to be answered together."""
    first = requests[0]
    if not isinstance(first, PlannedRequest) or first.turn is not None:
        return None
    plan = first.plan
    if plan is None:
        return None
    reply_type = plan.replies.reply_type
    for request in requests:
        if (
            not isinstance(request, PlannedRequest)
            or request.plan is not plan
            or type(request.reply) is not reply_type
        ):
            return None
    return plan
