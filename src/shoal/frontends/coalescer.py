"""Submits the template hits of one loop iteration as a group, and responds to them as a group.

    pattern match --PlannedRequest--> groups --submit, once per iteration--> Engine.infer_group
    one write per call <-- write_all, once per batch <-- send_all <------------------'

How a request is matched and how its response is written belongs to the protocol: `HttpFastPath`
and `GrpcFastPath` inherit everything else.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from shoal.core.inbox import LoopInbox
from shoal.core.model_loading import ModelLoading
from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.request import DONE
from shoal.engine import Engine
from shoal.errors import QueueRejected, ShoalError, Unsupported
from shoal.frontends.repoll import SocketRepoll

_MOST_HELD_NS = 1_000_000  # for which a response waits for others of the same iteration


class Coalescer(ABC):
    """Planned requests that wait to be submitted, those of each template as a group.

    `template`, `model` and `requests` are the group that the last request belongs to: most loop
    iterations have only one. Its methods belong to the loop, except `send_all`.
    """

    def __init__(
        self,
        engine: Engine,
        inbox: LoopInbox,
        reply_types: tuple[type, ...],
        as_error: Callable[[BaseException], ShoalError],
        decoupled_error: str,
    ) -> None:
        """`reply_types` are those of the requests' replies. `as_error` logs an unexpected failure
        and makes the error for clients; `decoupled_error` is the text for decoupled models."""
        self.inbox = inbox
        self.reply_types = reply_types
        self.template: RequestTemplate | None = None
        self.model: Any = None
        self.requests: list[PlannedRequest] = []
        self.now_ns = 0  # when they arrived
        self._groups: dict[RequestTemplate, tuple[Any, list[PlannedRequest]]] = {}
        self._engine = engine
        self._as_error = as_error
        self._decoupled_error = decoupled_error
        self._scheduled = False
        # What the loop's thread has computed while it submits groups, to be written together.
        self._held: list[tuple[PlannedResponses, Sequence[PlannedRequest]]] | None = None
        self._held_large: list[tuple[PlannedResponses, Sequence[PlannedRequest]]] = []
        self._held_until_ns = 0
        self._large_count = 0  # requests in this iteration
        self._several_large = False  # whether the last iteration with any had several
        self._repoll = SocketRepoll()

    # ---- in

    def begin(self, template: RequestTemplate) -> bool:
        """The next requests are made from `template`. False if it is expired, or if requests are
        traced, which takes the slow path."""
        group = self._groups.get(template)
        if group is None:
            model = template.live_model()
            if model is None or self._engine.tracer.active:
                return False
            group = self._groups[template] = (model, [])
            self.now_ns = time.monotonic_ns()
            if not self._scheduled:  # other connections are read first
                self._scheduled = True
                self.inbox.after_reading(self._iteration_ended)
        self.template = template
        self.model, self.requests = group
        return True

    def _iteration_ended(self) -> None:
        # Requests that a repoll brings join a batch if all have one template.
        waiting = len(self.requests) if len(self._groups) == 1 else 0
        if self._repoll.is_worthwhile(waiting):
            self.inbox.after_reading(self._iteration_ended)
            return
        self._repoll.observe(waiting)
        self._scheduled = False
        self.submit()

    def submit(self) -> None:
        """Submit what waits: before a request that takes the slow path, so that requests are queued
        in the order of their arrival."""
        groups, self._groups = self._groups, {}
        self.template = self.model = None
        self.requests = []  # so that nothing here keeps them
        if len(groups) <= 1:
            for template, (model, requests) in groups.items():
                if requests:
                    self._submit_group(template, model, requests)
        else:
            self._submit_groups(groups)

    def _submit_groups(
        self, groups: dict[RequestTemplate, tuple[Any, list[PlannedRequest]]]
    ) -> None:
        """Submit several groups, and write the responses of those that run at once together.

        A client that sleeps is woken by each write, which costs more than the write. So responses
        that are made one after the other are written to clients that are awake by then.
        """
        now_ns = time.monotonic_ns
        until_ns = now_ns() + _MOST_HELD_NS
        held: list[tuple[PlannedResponses, Sequence[PlannedRequest]]] = []
        self._held = held
        try:
            for template, (model, requests) in groups.items():
                if requests:
                    self._submit_group(template, model, requests)
                if now_ns() > until_ns:
                    self._write_held(held)
                    until_ns = now_ns() + _MOST_HELD_NS
        finally:
            self._held = None
            self._write_held(held)

    def _write_held(self, held: list[tuple[PlannedResponses, Sequence[PlannedRequest]]]) -> None:
        for batch in held:
            self._write_batch(batch)
        held.clear()

    def submit_large(self) -> None:
        """Submit the group of the last request, if such requests run one by one anyway: while its
        tensors are in the processor's cache, and with their memory free for the next one.

        Where several clients send such requests, the responses are held as in `_submit_groups`.
        """
        template = self.template
        if template is None or not template.large:
            return
        model, requests = self._groups.pop(template)
        self.template = self.model = None
        self.requests = []
        if not self._large_count:
            self.inbox.after_reading(self._large_ended)
        self._large_count += 1
        if not self._several_large and self._large_count == 1:
            self._submit_group(template, model, requests)
            return
        held = self._held_large
        if not held:
            self._held_until_ns = time.monotonic_ns() + _MOST_HELD_NS
        self._held = held
        try:
            self._submit_group(template, model, requests)
        finally:
            self._held = None
        for request in requests:
            if request.state is DONE:
                request.release_inputs()
        if time.monotonic_ns() > self._held_until_ns:
            self._write_held(held)

    def _large_ended(self) -> None:
        """All sockets of the iteration were read."""
        self._several_large = self._large_count > 1
        self._large_count = 0
        self._write_held(self._held_large)

    def _submit_group(
        self, template: RequestTemplate, model: Any, requests: Sequence[PlannedRequest]
    ) -> None:
        try:
            for request in self._engine.infer_group(requests, model):
                template.expired = True
                self._validate_again(request)
        except Exception as failure:  # noqa: BLE001 - becomes the response
            self._fail(requests, failure)

    def _validate_again(self, request: PlannedRequest) -> None:
        """Submit a request whose model was replaced after its template had matched."""
        try:
            with suppress(ModelLoading):  # the engine waits for it
                if self._engine.is_decoupled(request.model_name, request.model_version):
                    raise Unsupported(self._decoupled_error)
            request.leave_template()
            self._engine.infer(request)
        except Exception as failure:  # noqa: BLE001 - becomes the response
            self._fail((request,), failure)

    # ---- out

    def send_all(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """Answer the requests of a batch, from any thread."""
        held = self._held
        if held is not None and self.inbox.here():
            held.append((responses, requests))
        else:
            self.inbox.post(self._write_batch, (responses, requests))

    def _write_batch(self, batch: tuple[PlannedResponses, Sequence[PlannedRequest]]) -> None:
        """Answer, on the loop. Never raises: other responses wait behind it."""
        try:
            self.write_all(*batch)
        except Exception as failure:  # noqa: BLE001 - becomes the response
            self._fail(batch[1], failure)

    def refuse_all(self, error: QueueRejected, requests: Sequence[PlannedRequest]) -> None:
        """Answer requests that were not queued, on the loop."""
        for request in self.write_refusals(error, requests):
            prefix = request.log_prefix()
            request.fail(QueueRejected(error.reason, error.retry_secs, prefix=prefix))

    @abstractmethod
    def write_refusals(
        self, error: QueueRejected, requests: Sequence[PlannedRequest]
    ) -> Sequence[PlannedRequest]:
        """Answer each with the error in one piece; returns those that the slow path has to
        answer."""

    @abstractmethod
    def write_all(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """Write the responses. If it raises, requests without a response get the error."""

    def write_individually(
        self, responses: PlannedResponses, requests: Sequence[PlannedRequest]
    ) -> None:
        """Answer each request with a response of its own, as the slow path does."""
        for index, request in enumerate(requests):
            call: Any = request.reply
            call.deliver(responses.response(index, request.id))

    def _fail(self, requests: Sequence[PlannedRequest], failure: Exception) -> None:
        error = self._as_error(failure)
        for request in requests:
            request.fail(error)  # ignored by those that have a response
