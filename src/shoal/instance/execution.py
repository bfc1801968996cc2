"""Running one batch: compute, count, answer.

    batch ─▶ bound run, if there is one      (bound_runs)
          ─▶ the executor answers itself     (request_execution)
          ─▶ computed, then answered here    (computation)

Every request handed in is answered exactly once, whatever happens. When a batch of several fails,
its requests run again one by one, so that only the one that caused it fails; not when the model's
process has ended, because that would end it again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from shoal.backends.base import Executor, RequestExecutor, RowsRefused
from shoal.core.named_frame import named_frame
from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.request import DONE, Request
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer
from shoal.errors import ProcessEnded, ShoalError
from shoal.instance.bound_runs import BoundRuns
from shoal.instance.computation import BatchComputation
from shoal.instance.failures import ExecutionAbandoned, error_of
from shoal.instance.own_time import ComputeTime
from shoal.instance.pending_request import InstancePendingRequest
from shoal.instance.request_execution import RequestExecution
from shoal.scheduler.assembly import Assembly
from shoal.scheduler.sequence_turn import one_by_one, without_fillers
from shoal.statistics.model import CountedRequest, ModelStatistics, Moments


class Execution:
    """What an instance needs to know of its model in order to run a batch."""

    # Together in memory, because each execution reads them; everything else is in the dictionary.
    __slots__ = ("__dict__", "_bound_runs", "_computation", "_statistics")

    def __init__(
        self,
        signature: Signature,
        version: int,
        statistics: ModelStatistics,
        *,
        decoupled: bool = False,
        assembly: Assembly | None = None,
        takes_device_tensors: bool = False,
    ) -> None:
        """`decoupled` models may respond after `execute` has returned, any number of times.

        `assembly` joins and splits batches that are not plain rows. Executors of a model that
        `takes_device_tensors` may be DeviceExecutors.
        """
        self._model_name = name = signature.model_name
        self._version = version
        self._statistics = statistics
        # If native code crashes, the traceback has a line with the model's name.
        running = f"model '{name}' version {version} was running"
        self._bound_runs = BoundRuns(statistics, running)
        self._computation = BatchComputation(
            signature,
            version,
            self._bound_runs,
            assembly=assembly,
            takes_device_tensors=takes_device_tensors,
        )
        self._request_execution = RequestExecution(name, version, statistics, decoupled=decoupled)
        self.run = named_frame(Execution.run, running).__get__(self)  # type: ignore[method-assign]
        self.run_unbound = named_frame(Execution.run_unbound, running).__get__(self)  # type: ignore[method-assign]
        self.run_one_by_one = named_frame(Execution.run_one_by_one, running).__get__(self)  # type: ignore[method-assign]
        self.run_block = named_frame(Execution.run_block, running).__get__(self)  # type: ignore[method-assign]
        self.run_several = named_frame(Execution.run_several, running).__get__(self)  # type: ignore[method-assign]

    def run(self, executor: Executor | RequestExecutor, batch: Sequence[Request]) -> ComputeTime:
        """Execute `batch` and answer every request in it; returns what computing took.

        Never raises, except for ExecutionAbandoned. There is a copy for each model: it is short, so
        that the code of many models does not fill the processor's caches.
        """
        return self._run(executor, batch)

    def run_alone(
        self, executor: Executor | RequestExecutor, request: Request, start_ns: int
    ) -> ComputeTime:
        """As `run`, for a batch of one request that begins at `start_ns`. The same code for all
        models: what it calls has their names."""
        took = self._bound_runs.run_alone(executor, request, start_ns)
        return self.run_unbound(executor, (request,), start_ns) if took is None else took

    def run_unbound(
        self, executor: Executor | RequestExecutor, batch: Sequence[Request], start_ns: int
    ) -> ComputeTime:
        """As `run`, for a batch that begins at `start_ns` and for which nothing is bound."""
        return self._run_unbound(executor, batch, start_ns)

    def _run(self, executor: Executor | RequestExecutor, batch: Sequence[Request]) -> ComputeTime:
        start_ns = time.monotonic_ns()
        bound_runs = self._bound_runs
        if bound_runs.known:
            took = bound_runs.run(executor, batch, start_ns)
            if took is not None:
                return took
        return self._run_unbound(executor, batch, start_ns)

    def _run_unbound(
        self, executor: Executor | RequestExecutor, batch: Sequence[Request], start_ns: int
    ) -> ComputeTime:
        if isinstance(executor, RequestExecutor):
            return self._request_execution.run(executor, batch, start_ns)
        try:
            responses, moments, model_ns = self._computation.compute(executor, batch, start_ns)
        except ExecutionAbandoned:
            raise
        except BaseException as failure:  # noqa: BLE001 - a model's sys.exit() is an error, too
            self._recover(executor, batch, start_ns, failure)
            elapsed_ns = time.monotonic_ns() - start_ns
            return sum(request.rows for request in batch), elapsed_ns, elapsed_ns
        rows = sum([request.rows for request in batch])
        served = without_fillers(batch)
        if len(responses) == 1 and isinstance(responses[0][1], PlannedResponses):
            self._statistics.executed(served, rows, moments)
        else:
            self._statistics.executed(_counted(served), rows, moments)
        for requests, response in responses:
            if isinstance(response, PlannedResponses):
                for request in requests:
                    request.state = DONE
                    request.moments = moments
                planned = cast("Sequence[PlannedRequest]", requests)
                template = planned[0].template
                assert template is not None
                template.replies.send_all(response, planned)
            else:
                for request, outputs in zip(requests, response, strict=True):
                    request.state = DONE
                    request.moments = moments
                    request.reply.send(
                        Response(self._model_name, self._version, request.id, outputs)
                    )
        return rows, model_ns, moments.output_start_ns - moments.input_end_ns

    def run_one_by_one(
        self, executor: Executor | RequestExecutor, requests: Sequence[Request]
    ) -> tuple[int, ComputeTime]:
        """Execute the first of `requests`, each alone, and answer them as `run` does; returns how
        many, at least one, and the times of the longest execution."""
        ran = self._bound_runs.run_one_by_one(executor, requests)
        return (1, self.run(executor, requests[:1])) if ran is None else ran

    def run_block(
        self,
        executor: Executor,
        template: RequestTemplate,
        columns: Sequence[Buffer],
        started: list[int],
        queued_ns: int,
    ) -> tuple[PlannedResponses, ComputeTime] | None:
        """Execute requests of one template for which there are no objects: `columns` are the bytes
        of each input, those of all requests, which began at `started`, in rising order.

        None, with nothing counted, where they have to be executed as a batch of requests.
        """
        count = len(started)
        computed = self._computation.compute_block(executor, template, columns, count)
        if computed is None:
            return None
        responses, moments, model_ns = computed
        rows = template.rows * count
        self._statistics.executed_block(started, queued_ns, template.rows, rows, moments)
        return responses, (rows, model_ns, moments.output_start_ns - moments.input_end_ns)

    def run_several(self, executor: RequestExecutor, batches: Sequence[Sequence[Request]]) -> None:
        """Execute batches one after the other and answer every request in them; raises as `run`."""
        self._request_execution.run_several(executor, batches)

    def give_up(
        self,
        batch: Sequence[Request],
        pending: Sequence[InstancePendingRequest],
        start_ns: int,
        error: ShoalError,
        *,
        later: bool = False,
    ) -> None:
        """Answer what is left of a batch whose execution took too long, and count it.

        `pending` are its requests where the executor answers them itself; with `later` they count
        themselves. The moments of requests stay as they are: when it ends is not known.
        """
        now_ns = time.monotonic_ns()
        moments = Moments(start_ns, start_ns, now_ns, now_ns)
        if pending:
            self._request_execution.give_up(pending, moments, error, later=later)
            return
        rest = [request for request in without_fillers(batch) if request.state is not DONE]
        self._statistics.batch_failed(rest, sum(request.rows for request in rest), moments)
        for request in rest:
            request.state = DONE
            request.fail(error, self._version)

    def close(self, executor: Executor | RequestExecutor) -> None:
        """Close an executor, which has no batch, and what was bound to it."""
        self._bound_runs.forget(executor)
        executor.close()

    def _recover(
        self,
        executor: Executor,
        batch: Sequence[Request],
        start_ns: int,
        failure: BaseException,
    ) -> None:
        """Answer the requests of a batch that has failed: run those again that may succeed."""
        pending = without_fillers(batch)
        plain = self._computation.joins_plain_rows
        if isinstance(failure, RowsRefused) and plain and len(pending) == len(batch) > 1:
            self._run_without(failure.rows, executor, batch, start_ns)
        elif len(pending) > 1 and not isinstance(failure, ProcessEnded):
            for alone in one_by_one(batch):
                self.run(executor, alone)
        else:
            self._fail(pending, start_ns, failure)

    def _run_without(
        self,
        rows: Mapping[int, ShoalError],
        executor: Executor,
        batch: Sequence[Request],
        start_ns: int,
    ) -> None:
        """Fail the requests that have one of `rows`, and run the others."""
        valid: list[Request] = []
        first = 0
        for request in batch:
            numbers = range(first, first + request.rows)
            first = numbers.stop
            error = next((rows[number] for number in numbers if number in rows), None)
            if error is None:
                valid.append(request)
            else:
                self._fail([request], start_ns, error)
        for requests in [valid] if len(valid) < len(batch) else one_by_one(batch):
            if requests:
                self.run(executor, requests)

    def _fail(self, batch: Sequence[Request], start_ns: int, failure: BaseException) -> None:
        end_ns = time.monotonic_ns()
        moments = Moments(start_ns, start_ns, end_ns, end_ns)
        self._statistics.batch_failed(batch, sum(request.rows for request in batch), moments)
        error = error_of(failure, self._model_name, self._version, batch)
        for request in batch:
            request.state = DONE
            request.moments = moments
            request.fail(error, self._version)


class _Member(NamedTuple):
    """One of the requests that a request of an ensemble stands for, as statistics count it."""

    start_ns: int
    queued_ns: int
    rows: int


def _counted(batch: Sequence[Request]) -> Sequence[CountedRequest]:
    """The requests as statistics count them: each as often as it has members."""
    if all([request.members == 1 for request in batch]):  # noqa: C419 - faster
        return batch
    counted: list[CountedRequest] = []
    for request in batch:
        count = request.members
        rows = request.rows // count
        counted += [_Member(request.start_ns, request.queued_ns, rows)] * count
    return counted
