"""Running batches in executors that answer the requests themselves, such as Python models.

Such an executor may answer a request with any number of responses, and may do so after `execute`
has returned. What it leaves unanswered is answered here, unless the model is decoupled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from shoal.backends.base import RequestExecutor
from shoal.core.request import Request
from shoal.errors import Internal, ShoalError
from shoal.instance.failures import ExecutionAbandoned, error_of
from shoal.instance.own_time import ComputeTime, own_ns, thread_cpu_ns
from shoal.instance.pending_request import InstancePendingRequest
from shoal.scheduler.sequence_turn import is_filler
from shoal.statistics.model import ModelStatistics, Moments


class RequestExecution:
    """Runs the batches of one model version in its RequestExecutors, and counts them."""

    def __init__(
        self, model_name: str, version: int, statistics: ModelStatistics, *, decoupled: bool
    ) -> None:
        """`decoupled` models may respond any number of times, and not at all."""
        self._model_name = model_name
        self._version = version
        self._statistics = statistics
        self._decoupled = decoupled

    def run(
        self, executor: RequestExecutor, batch: Sequence[Request], start_ns: int
    ) -> ComputeTime:
        """Execute a batch and answer every request in it; returns what that took.

        Never raises, except for ExecutionAbandoned.
        """
        cpu_ns = thread_cpu_ns()
        later = executor.answers_later
        pending = self._pending(batch, start_ns, later)
        failure: ShoalError | None = None
        try:
            executor.execute(pending)
        except ExecutionAbandoned:
            raise
        except BaseException as raised:  # noqa: BLE001 - a model's sys.exit() is an error, too
            unanswered = [one.request for one in pending if not one.closed]
            failure = error_of(raised, self._model_name, self._version, unanswered)
        end_ns = time.monotonic_ns()
        model_ns = own_ns(end_ns - start_ns, cpu_ns)
        self._settle(pending, batch, Moments(start_ns, start_ns, end_ns, end_ns), failure, later)
        return sum([request.rows for request in batch]), model_ns, end_ns - start_ns

    def run_several(self, executor: RequestExecutor, batches: Sequence[Sequence[Request]]) -> None:
        """Execute batches one after the other and answer every request in them; raises as `run`."""
        start_ns = time.monotonic_ns()
        later = executor.answers_later
        pending = [self._pending(batch, start_ns, later) for batch in batches]
        failure: ShoalError | None = None
        took_ns: Sequence[int] = ()
        try:
            took_ns = executor.execute_several(pending)
        except ExecutionAbandoned:
            raise
        except BaseException as raised:  # noqa: BLE001 - as above
            failure = error_of(raised, self._model_name, self._version)
        if failure is not None or len(took_ns) != len(batches):
            took_ns = [(time.monotonic_ns() - start_ns) // len(batches)] * len(batches)
        for own, batch, ns in zip(pending, batches, took_ns, strict=True):
            moments = Moments(start_ns, start_ns, start_ns + ns, start_ns + ns)
            self._settle(own, batch, moments, failure, later)
            start_ns += ns

    def give_up(
        self,
        pending: Sequence[InstancePendingRequest],
        moments: Moments,
        error: ShoalError,
        *,
        later: bool,
    ) -> None:
        """Answer what is left of a batch whose execution took too long, and count it, unless its
        requests count themselves `later`."""
        self._answer_rest(pending, error)
        if not later:
            self._count(pending, moments, error)

    def _pending(
        self, batch: Sequence[Request], start_ns: int, later: bool
    ) -> list[InstancePendingRequest]:
        begun = Moments(start_ns, start_ns, 0, 0)  # a response may come before the end is known
        for request in batch:
            request.moments = begun
        return [
            InstancePendingRequest(
                request, self._model_name, self._version, self._statistics, counts_itself=later
            )
            for request in batch
        ]

    def _settle(
        self,
        pending: Sequence[InstancePendingRequest],
        batch: Sequence[Request],
        moments: Moments,
        failure: ShoalError | None,
        later: bool,
    ) -> None:
        """Count an execution, unless that happens `later`, and answer the rest."""
        if not later:
            for request in batch:
                request.moments = moments
            self._count(pending, moments, failure)
        self._answer_rest(pending, failure)

    def _count(
        self,
        pending: Sequence[InstancePendingRequest],
        moments: Moments,
        failure: ShoalError | None,
    ) -> None:
        """Count an execution of requests that were answered, or will be."""
        done = [one for one in pending if not one.failed and not one.rescheduled]
        if failure is not None:
            done = [one for one in done if one.closed]
        served = [one.request for one in done if not is_filler(one.request)]
        rows = sum([one.request.rows for one in pending])
        self._statistics.executed(served, rows, moments, answered_before=True)

    def _answer_rest(
        self, pending: Sequence[InstancePendingRequest], failure: ShoalError | None
    ) -> None:
        for one in pending:
            if one.closed or one.deferred:
                continue
            if failure is not None or not self._decoupled:
                name = self._model_name
                error = failure or Internal(f"model '{name}' did not answer the request")
                with contextlib.suppress(Internal):  # it was answered this very moment
                    one.send(error=error)
