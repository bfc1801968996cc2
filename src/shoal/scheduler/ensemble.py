"""Running ensembles: each response of a step starts the steps that waited for it.

    client --enqueue--> run --infer--> the first models' queues
                         ▲                    │ responses, from whichever thread has them
                         └────────────────────┘ ... --> the client's reply

It has no thread of its own. A step is an ordinary request in its model's queue, so it is batched
with other requests. Tensors are passed on as they are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from shoal.core.planned import PlannedRequest, RequestTemplate
from shoal.core.reply import DISCARD
from shoal.core.request import Request, State, StepRequest
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.errors import Cancelled, Internal, InvalidArgument, ShoalError
from shoal.scheduler.base import BatcherClosed
from shoal.scheduler.batch import PlannedOutputs
from shoal.scheduler.ensemble_graph import EnsembleGraph
from shoal.scheduler.ensemble_group import JoinedRequest
from shoal.scheduler.ensemble_limit import StepLimit
from shoal.scheduler.ensemble_progress import EnsembleProgress, ReadyStep
from shoal.scheduler.ensemble_tensors import (
    SequenceInfo,
    TensorValue,
    ensemble_outputs,
    request_values,
    response_values,
    step_inputs,
    step_position,
)
from shoal.statistics.model import FailureReason, ModelStatistics, Moments

logger = logging.getLogger(__name__)

_MOST_TEMPLATES = 64  # whose outputs are cached

# Takes a request over for the model it names, or raises a ShoalError.
Infer: TypeAlias = Callable[[Request], None]


class EnsembleScheduler:
    """One version of an ensemble: its requests, from `enqueue` to the last response."""

    def __init__(
        self,
        graph: EnsembleGraph,
        signature: Signature,
        version: int,
        infer: Infer,
        statistics: ModelStatistics,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.graph = graph
        self.signature = signature
        self.version = version
        self.infer = infer
        self.statistics = statistics
        self.clock = clock
        self.limits = [StepLimit(graph.max_inflight) for _ in graph.steps if graph.max_inflight]
        self._changed = threading.Condition()  # guards _running and _closed
        self._running = 0
        self._closed = False
        self._planned_outputs: dict[RequestTemplate, PlannedOutputs] = {}

    def enqueue(self, request: Request) -> None:
        """Take over a valid `request`. If this raises, it is still the caller's to answer."""
        with self._changed:
            if self._closed:
                raise BatcherClosed(request.log_prefix() + "ensemble is unloading")
            self._running += 1
        EnsembleRun(self, request).start()

    def enqueue_joined(
        self, requests: Sequence[PlannedRequest], template: RequestTemplate, size: int
    ) -> bool:
        """Take over valid requests that were made from `template`, and run up to `size` of them as
        one; false, with nothing done, where it is being unloaded."""
        with self._changed:
            if self._closed:
                return False
            self._running += len(requests)
        outputs = self._planned_outputs.get(template)
        if outputs is None:
            outputs = PlannedOutputs(template, self.signature, self.version)
            self._planned_outputs[template] = outputs
            for oldest in list(self._planned_outputs)[:-_MOST_TEMPLATES]:
                self._planned_outputs.pop(oldest, None)
        for start in range(0, len(requests), size):
            part = requests[start : start + size]
            if len(part) == 1:
                EnsembleRun(self, part[0]).start()
            else:
                joined = JoinedRequest(part, template, self.signature, outputs, self._run_again)
                EnsembleRun(self, joined).start()
        return True

    def _run_again(self, requests: Sequence[Request]) -> None:
        with self._changed:
            self._running += len(requests)  # the joined request that failed ends afterwards
        for request in requests:
            EnsembleRun(self, request).start()

    def in_flight(self) -> int:
        """Requests taken over whose final response has not been sent."""
        return self._running

    def waiting(self) -> int:
        """How many executions of steps wait for `max_inflight_requests`. All others are in the
        queues of their models, or run."""
        return sum([limit.waiting for limit in self.limits])

    def run_ended(self, request: Request) -> None:
        """The final response to a request was sent."""
        with self._changed:
            self._running -= request.members
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse new requests and wait until all others are answered."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._running)


class EnsembleRun:
    """One request for an ensemble. Any thread may deliver a step's response to it."""

    __slots__ = (
        "_calls",
        "_compute_ns",
        "_ended",
        "_ensemble",
        "_error",
        "_lock",
        "_outbox",
        "_plan",
        "_progress",
        "_sending",
        "_start_ns",
        "request",
    )

    def __init__(self, ensemble: EnsembleScheduler, request: Request) -> None:
        self._ensemble = ensemble
        self.request = request
        self._plan = ensemble.graph.plan(request.requested_outputs)
        self._lock = threading.Lock()  # guards everything below; never held while others are called
        self._progress = EnsembleProgress(ensemble.graph, self._plan)
        self._calls: set[StepCall] = set()  # those that may still respond
        self._error: ShoalError | None = None  # the first one; from then on nothing new starts
        self._outbox: deque[Response] = deque()
        self._sending = False  # a thread is in `_send`
        self._ended = False  # the final response is, or was, in the outbox
        self._compute_ns = [0, 0, 0]  # input, infer and output, over all steps
        self._start_ns = ensemble.clock()

    # ---- events

    def start(self) -> None:
        """Run the steps that need only the request's own inputs."""
        request = self.request
        request.state = State.EXECUTING
        request.queued_ns = self._start_ns
        values = request_values(self._ensemble.graph, self._ensemble.signature, request)
        with self._lock:
            calls = self._call(self._progress.begin(values))
            self._settle()
        request.on_cancel = self.cancel
        self._dispatch(calls)
        if request.cancelled:  # before `on_cancel` was set
            self.cancel()
        self._send()

    def responded(self, call: StepCall, response: Response) -> None:
        """Take a response of a step: start steps that are ready, and send complete responses."""
        calls: list[StepCall] = []
        over: Iterable[StepCall] = ()
        with self._lock:
            if call not in self._calls:
                return  # it has sent its final response before
            if response.final:
                self._forget(call)
                self._count(call.request)
            if response.error is not None:
                over = self._fail(response.error)
            elif self._error is None and not call.only_ends(response):
                try:
                    calls = self._advance(call, response)
                except ShoalError as error:
                    over = self._fail(error)
                except Exception as error:  # a bug of ours must not leave the client waiting
                    logger.exception("ensemble '%s' failed", self._ensemble.graph.name)
                    over = self._fail(Internal(f"{type(error).__name__}: {error}"))
            self._settle()
        if response.final:
            self._release(call)
        self._cancel_calls(over)
        self._dispatch(calls)
        self._send()
        if not response.final:  # a decoupled step: it must not run ahead of the steps after it
            self._hold_back(calls)

    def cancel(self) -> None:
        """The client cancelled the request: no further step is started."""
        error = Cancelled(self.request.log_prefix() + "Request cancelled")
        with self._lock:
            over = [] if self._ended else self._fail(error)
        self._cancel_calls(over)
        self._send()

    def may_start(self, call: StepCall) -> bool:
        """Whether a step is still needed when it could start; if not, it has ended now."""
        if self._error is None:
            return True
        with self._lock:
            self._drop(call)
        self._release(call)
        self._send()
        return False

    # ---- decisions, made with the lock held

    def _advance(self, call: StepCall, response: Response) -> list[StepCall]:
        step = self._ensemble.graph.steps[call.step]
        requested = self._plan.step_outputs[call.step]
        values = response_values(step, requested, response, call.position)
        ready, rows = self._progress.advance(call.step, call.iteration, values)
        self._outbox.extend(self._response(row) for row in rows)
        return self._call(ready)

    def _call(self, ready: Sequence[ReadyStep]) -> list[StepCall]:
        """Make the requests for steps that are ready; they count as in flight from now on."""
        calls = [StepCall(self, entry) for entry in ready]
        self._calls.update(calls)
        return calls

    def _fail(self, error: ShoalError) -> list[StepCall]:
        """Record the first error; returns the calls that need not continue."""
        if self._error is None:
            self._error = error.prefixed(f"in ensemble '{self._ensemble.graph.name}', ")
        return list(self._calls)

    def _drop(self, call: StepCall) -> None:
        """A call ends without having been started."""
        self._forget(call)
        self._settle()

    def _forget(self, call: StepCall) -> None:
        self._calls.discard(call)
        call.request.reply = DISCARD  # breaks the reference cycle, which would keep tensors

    def _settle(self) -> None:
        """When no step is left that could respond, the next response is the final one."""
        if self._calls or self._ended:
            return
        self._ended = True
        graph = self._ensemble.graph
        if self._error is not None:
            self._outbox.append(self._answer(error=self._error))
        elif self._outbox:
            self._outbox[-1].final = True
        elif graph.decoupled:
            self._outbox.append(self._answer())
        else:
            self._error = InvalidArgument(
                f"in ensemble '{graph.name}', {self.request.log_prefix()}unexpected deadlock, at "
                "least one output is not set while no more ensemble steps can be made"
            )
            self._outbox.append(self._answer(error=self._error))

    def _response(self, row: Mapping[str, TensorValue]) -> Response:
        outputs, parameters = ensemble_outputs(self._ensemble.signature, row)
        response = self._answer()
        response.outputs, response.parameters, response.final = outputs, parameters, False
        return response

    def _answer(self, error: ShoalError | None = None) -> Response:
        ensemble = self._ensemble
        return Response(ensemble.graph.name, ensemble.version, self.request.id, error=error)

    def _count(self, request: Request) -> None:
        """Add the times of a step to those of the ensemble."""
        moments = request.moments
        if moments is None:
            return  # it never ran
        start_ns, input_end_ns, output_start_ns, end_ns = moments
        if not end_ns:  # it responded while it was still executing
            output_start_ns = end_ns = max(self._ensemble.clock(), input_end_ns)
        compute_ns = self._compute_ns
        compute_ns[0] += input_end_ns - start_ns
        compute_ns[1] += output_start_ns - input_end_ns
        compute_ns[2] += end_ns - output_start_ns

    # ---- actions, without the lock

    def _dispatch(self, calls: Iterable[StepCall]) -> None:
        limits = self._ensemble.limits
        for call in calls:
            if limits:
                limits[call.step].submit(call)
            else:
                call.start()

    def _release(self, call: StepCall) -> None:
        if self._ensemble.limits:
            self._ensemble.limits[call.step].release()

    def _hold_back(self, calls: Iterable[StepCall]) -> None:
        if self._ensemble.limits:
            for call in calls:
                self._ensemble.limits[call.step].wait(call)

    def _cancel_calls(self, calls: Iterable[StepCall]) -> None:
        """Cancel steps that are no longer needed; those that were not started end at once."""
        limits = self._ensemble.limits
        for call in calls:
            if limits and limits[call.step].discard(call):
                with self._lock:
                    self._drop(call)
            else:
                call.request.cancel()

    def _send(self) -> None:
        """Send what is in the outbox, in order, whichever thread put it there."""
        if not self._outbox:  # the code that fills it calls this afterwards
            return
        with self._lock:
            # A model that is not decoupled responds once, at the end.
            if self._sending or not (self._ended or self._ensemble.graph.decoupled):
                return
            self._sending = True
        while True:
            with self._lock:
                if not self._outbox:
                    self._sending = False
                    return
                response = self._outbox.popleft()
            if response.final:
                self._end()
            self.request.reply.send(response)
            if response.final:
                self._ensemble.run_ended(self.request)

    def _end(self) -> None:
        """Count the request, just before its final response."""
        ensemble, request = self._ensemble, self.request
        now_ns = ensemble.clock()
        request.state = State.DONE
        request.on_cancel = None
        if self._error is not None:
            # Why it failed is counted for the step. Triton counts all of these as OTHER.
            ensemble.statistics.failed(request, FailureReason.OTHER, now_ns)
            return
        input_ns, infer_ns, output_ns = self._compute_ns
        input_end_ns = self._start_ns + input_ns
        output_start_ns = input_end_ns + infer_ns
        moments = Moments(
            self._start_ns, input_end_ns, output_start_ns, output_start_ns + output_ns
        )
        request.moments = moments  # for an ensemble that this one is a step of
        if isinstance(request, JoinedRequest):
            ensemble.statistics.executed_one_by_one(request.requests, [moments] * request.members)
        else:
            ensemble.statistics.executed([request], request.rows, moments, end_ns=now_ns)


class StepCall:
    """One execution of a step, and the reply of its request."""

    __slots__ = ("_run", "iteration", "position", "request", "step")

    def __init__(self, run: EnsembleRun, ready: ReadyStep) -> None:
        self._run = run
        self.step = ready.step
        self.iteration = ready.iteration
        step = run._ensemble.graph.steps[ready.step]
        client = run.request
        self.position: SequenceInfo = step_position(step, ready.values, client)
        kept = run._plan.device_outputs.get(ready.step)
        self.request = (Request if kept is None else StepRequest)(
            step.model.name,
            step_inputs(step, ready.values),
            self,
            model_version=step.model.version,
            id=client.id,
            requested_outputs=run._plan.step_outputs[ready.step],
            parameters=client.parameters,
            priority=client.priority,
            timeout_us=client.timeout_us,
            correlation_id=self.position.correlation_id,
            flags=self.position.flags,
        )
        self.request.admitted = True  # with the client's request
        if client.members > 1:
            self.request.members = client.members
        if isinstance(self.request, StepRequest) and kept is not None:
            self.request.device_outputs = kept

    def start(self) -> None:
        """Submit the request to its model. Errors, too, become responses of the step."""
        run, request = self._run, self.request
        if not run.may_start(self):
            return
        trace = run.request.trace
        if trace is not None:
            trace.attach(request)
        try:
            run._ensemble.infer(request)
        except ShoalError as error:
            request.fail(error)
        except Exception as error:  # must not reach the step before, whose response this is
            logger.exception("a step of ensemble '%s' failed", run._ensemble.graph.name)
            request.fail(Internal(f"{type(error).__name__}: {error}"))

    def send(self, response: Response) -> None:
        """Take a response from whichever thread made it."""
        self._run.responded(self, response)

    def only_ends(self, response: Response) -> bool:
        """Whether a response of a decoupled step has no content and only ends the step."""
        decoupled = self._run._ensemble.graph.steps[self.step].model.decoupled
        return decoupled and response.final and not response.outputs
