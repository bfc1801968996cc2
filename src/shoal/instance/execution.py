"""Running one batch: join, run, split, count, answer.

Every request handed in is answered exactly once, whatever happens. When a batch of several fails,
its requests run again one by one, so that only the one that caused it fails.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence

from shoal.backends.base import Executor, RequestExecutor
from shoal.core.request import Request, State
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure, Internal, ShoalError
from shoal.instance.ticket import RequestTicket
from shoal.scheduler.batch import join, split, wanted_outputs
from shoal.statistics.model import ModelStatistics, Moments

logger = logging.getLogger(__name__)


class Execution:
    """What an instance needs to know of its model in order to run a batch."""

    def __init__(
        self,
        signature: Signature,
        version: int,
        statistics: ModelStatistics,
        *,
        decoupled: bool = False,
    ) -> None:
        """`decoupled` models may answer after `execute` has returned, any number of times."""
        self._decoupled = decoupled
        self._signature = signature
        self._version = version
        self._statistics = statistics

    def run(self, executor: Executor | RequestExecutor, batch: Sequence[Request]) -> int:
        """Execute `batch` and answer every request in it; returns how many ns executing took.

        Never raises.
        """
        start_ns = time.monotonic_ns()
        if isinstance(executor, RequestExecutor):
            self._run_requests(executor, batch, start_ns)
            return time.monotonic_ns() - start_ns
        try:
            answers, moments = self._compute(executor, batch, start_ns)
        except Exception as failure:  # noqa: BLE001 - whatever a model raises is an answer, not our end
            if len(batch) > 1:
                for request in batch:
                    self.run(executor, [request])
            else:
                self._fail(batch, start_ns, failure)
            return time.monotonic_ns() - start_ns
        rows = sum([request.rows for request in batch])
        self._statistics.executed(batch, rows, moments)
        name = self._signature.model_name
        for request, outputs in zip(batch, answers, strict=True):
            request.state = State.DONE
            request.reply.send(Response(name, self._version, request.id, outputs))
        return moments.compute_end_ns - start_ns

    def _compute(
        self, executor: Executor, batch: Sequence[Request], start_ns: int
    ) -> tuple[list[list[Tensor]], Moments]:
        names = wanted_outputs(batch, self._signature)
        inputs = join(batch, self._signature)
        input_end_ns = time.monotonic_ns()
        arrays = executor.run(inputs, names)
        output_start_ns = time.monotonic_ns()
        answers = split(batch, names, arrays, self._signature)
        return answers, Moments(start_ns, input_end_ns, output_start_ns, time.monotonic_ns())

    def _run_requests(
        self, executor: RequestExecutor, batch: Sequence[Request], start_ns: int
    ) -> None:
        """Have the executor answer the requests; what it leaves open is answered here."""
        name = self._signature.model_name
        tickets = [
            RequestTicket(request, name, self._version, self._statistics) for request in batch
        ]
        failure: ShoalError | None = None
        try:
            executor.execute(tickets)
        except Exception as raised:  # noqa: BLE001 - whatever a model raises is an answer
            failure = self._as_error(raised)
        end_ns = time.monotonic_ns()
        served = [ticket.request for ticket in tickets if not ticket.failed]
        if failure is not None:
            served = [t.request for t in tickets if t.closed and not t.failed]
        rows = sum([request.rows for request in batch])
        self._statistics.executed(served, rows, Moments(start_ns, start_ns, end_ns, end_ns))
        for ticket in tickets:
            if not ticket.closed and (failure is not None or not self._decoupled):
                error = failure or Internal(f"model '{name}' did not answer the request")
                with contextlib.suppress(Internal):  # it was answered this very moment
                    ticket.send(error=error)

    def _fail(self, batch: Sequence[Request], start_ns: int, failure: Exception) -> None:
        end_ns = time.monotonic_ns()
        moments = Moments(start_ns, start_ns, end_ns, end_ns)
        self._statistics.batch_failed(batch, sum(request.rows for request in batch), moments)
        error = self._as_error(failure)
        for request in batch:
            request.state = State.DONE
            request.fail(error, self._version)

    def _as_error(self, failure: Exception) -> ShoalError:
        """What a client is told about an exception; the log gets the traceback."""
        if isinstance(failure, ShoalError):
            return failure
        logger.error(
            "model '%s' version %d failed: %s",
            self._signature.model_name,
            self._version,
            failure,
            exc_info=failure,
        )
        return BackendFailure(f"{type(failure).__name__}: {failure}")
