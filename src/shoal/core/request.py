"""An inference request: its inputs and options, its reply, its state and its timestamps.

    NEW --engine-> QUEUED --scheduler--> EXECUTING --instance--> DONE

A request has one owner at a time: the frontend until the engine accepts it, then the scheduler,
then the instance that runs it. Only the owner moves its state and only the owner answers it.
Any thread may `cancel`: that sets a flag, which the owner checks before it starts executing.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Any, Protocol

from shoal.core.reply import Reply
from shoal.core.response import ParameterValue, Response
from shoal.core.tensor import Tensor
from shoal.errors import ShoalError


class State(enum.Enum):
    """Where a request is in its life."""

    NEW = "new"
    QUEUED = "queued"
    EXECUTING = "executing"
    DONE = "done"


# Module constants, because on Python 3.11 access to an enum member runs Python code: 0.2 µs, four
# times for each request.
NEW = State.NEW
QUEUED = State.QUEUED
EXECUTING = State.EXECUTING
DONE = State.DONE


class RequestTrace(Protocol):
    """The place of one request in a trace. Any thread may call any method."""

    def attach(self, request: Request) -> None:
        """Trace `request` too, as one that this request led to. Call it before it is accepted."""

    def context(self) -> str | None:
        """This request's place as W3C headers in a JSON object; None where traces have none."""


class Request:
    """One request for one model. `rows` and `batch_key` are set by validation."""

    SEQUENCE_START = 1
    SEQUENCE_END = 2

    __slots__ = (
        "__dict__",
        "batch_key",
        "id",
        "inputs",
        "model_name",
        "model_version",
        "moments",
        "parameters",
        "priority",
        "queued_ns",
        "reply",
        "requested_outputs",
        "rows",
        "served_by",
        "start_ns",
        "state",
        "timeout_us",
    )

    # Most requests never change these, so that they cost a constructor nothing.
    cancelled = False
    on_cancel: Callable[[], None] | None = None  # the owner's wake-up call
    on_read: Callable[[int], None] | None = None  # for an owner that waits for slow clients
    one_answer = False  # whether the caller accepts one response only
    turn: Any = None  # its place in a sequence, once an instance has it
    trace: RequestTrace | None = None  # only a request that was sampled has one
    deadline_ns: int | None = None  # from the queue policy
    answer_by_ns: int | None = None  # when its client gives up, if that is known
    admitted = False  # whether it is a part of one that was admitted: it is not refused half-way
    # How many requests of clients it stands for, with as many rows each. If it fails, it was only
    # an attempt: they run again one by one.
    members = 1
    correlation_id: int | str = 0
    flags = 0

    def __init__(
        self,
        model_name: str,
        inputs: dict[str, Tensor],
        reply: Reply,
        *,
        model_version: int = -1,
        id: str = "",
        requested_outputs: tuple[str, ...] = (),
        parameters: dict[str, ParameterValue] | None = None,
        priority: int = 0,
        timeout_us: int = 0,
        correlation_id: int | str = 0,
        flags: int = 0,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version  # -1: the newest that is ready
        self.id = id
        self.inputs = inputs
        self.requested_outputs = requested_outputs  # empty: all of them
        self.parameters = parameters or {}
        self.priority = priority
        self.timeout_us = timeout_us
        if correlation_id or flags:
            self.correlation_id = correlation_id
            self.flags = flags
        self.reply = reply
        self.rows = 1  # the batch dimension; 1 where the model has none
        self.batch_key: Any = ()  # only requests with equal keys may share a batch
        self.served_by: Any = None  # the model version that accepted it
        self.start_ns = time.monotonic_ns()
        self._begin()

    def _begin(self) -> None:
        """Set what changes during the life of every request."""
        self.state = NEW
        self.queued_ns = 0
        # Compute start, input end, output start and compute end, once it runs; the last is 0 until
        # that is known.
        self.moments: tuple[int, int, int, int] | None = None

    def cancel(self) -> None:
        """Cancel the request. It is still answered once (with Cancelled), unless it ran."""
        self.cancelled = True
        wake = self.on_cancel
        if wake is not None:
            wake()

    def client_has_read(self, count: int) -> None:
        """The client has read this number of bytes of a streamed response."""
        if self.on_read is not None:
            self.on_read(count)

    def log_prefix(self) -> str:
        """The prefix that core errors carry: `[request id: x] `."""
        return f"[request id: {self.id or '<id_unknown>'}] "

    def fail(self, error: ShoalError, model_version: int = -1) -> None:
        """Answer with an error. The caller owns the request and has moved its state."""
        self.reply.send(Response(self.model_name, model_version, self.id, error=error, final=True))


class StepRequest(Request):
    """A request that an ensemble makes for a step whose outputs may stay on a device."""

    device_outputs: frozenset[str]  # those that all their readers can take there
