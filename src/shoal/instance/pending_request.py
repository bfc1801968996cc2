"""A request that a `RequestExecutor` answers itself.

Whichever thread sends responses, the client gets exactly one final response.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from shoal.core.request import DONE, Request
from shoal.core.response import ParameterValue, Response
from shoal.core.tensor import Tensor
from shoal.errors import Internal, InvalidArgument, ShoalError
from shoal.scheduler.sequence_turn import SequenceTurn, is_filler
from shoal.statistics.model import FailureReason, ModelStatistics, Moments


class InstancePendingRequest:
    """One request being executed; see `shoal.backends.base.PendingRequest`."""

    __slots__ = (
        "_counts_itself",
        "_lock",
        "_model_name",
        "_responded",
        "_statistics",
        "_version",
        "closed",
        "deferred",
        "failed",
        "request",
        "rescheduled",
    )

    def __init__(
        self,
        request: Request,
        model_name: str,
        version: int,
        statistics: ModelStatistics,
        *,
        counts_itself: bool = False,
    ) -> None:
        """With `counts_itself`, the final response ends and counts the execution, too."""
        self.request = request
        self._model_name = model_name
        self._version = version
        self._statistics = statistics
        self._lock = threading.Lock()  # guards `closed` and the order of responses
        self.closed = False  # the final response has been sent
        self.failed = False  # it was an error
        self.rescheduled = False  # the model asked for the request to run again
        self.deferred = False  # the response comes after the execution
        self._responded = False
        self._counts_itself = counts_itself

    def defer(self) -> None:
        """Announce a response that comes after `execute` has returned."""
        self.deferred = True

    def send(
        self,
        outputs: Sequence[Tensor] = (),
        *,
        error: ShoalError | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        final: bool = True,
    ) -> None:
        """Send one response; Internal when the final one has been sent already."""
        request = self.request
        turn: SequenceTurn | None = request.turn
        if turn is not None and turn.states is not None and error is None:
            if self.closed:  # an execution that took too long must not change the sequence
                raise self._too_late()
            outputs = turn.keep_states(outputs)
        wanted = request.requested_outputs
        if wanted:
            by_name = {tensor.name: tensor for tensor in outputs}
            outputs = [by_name[name] for name in wanted if name in by_name]
        response = Response(
            self._model_name,
            self._version,
            request.id,
            list(outputs),
            dict(parameters or {}),
            error,
            final,
        )
        with self._lock:
            if self.closed:
                raise self._too_late()
            if final:
                self.closed = True
                self.failed = error is not None
                request.state = DONE
                if error is not None and not is_filler(request):
                    now_ns = time.monotonic_ns()
                    self._statistics.failed(request, FailureReason.of(error), now_ns)
            if not self._responded:
                self._responded = True
                if not is_filler(request):
                    self._statistics.first_response(request)
            if final and error is None and self._counts_itself:
                self._count_execution()
            request.reply.send(response)
        if final and turn is not None and turn.on_answer is not None:
            turn.on_answer(request)

    def _too_late(self) -> Internal:
        return Internal(f"a response for model '{self._model_name}' was sent after the final one")

    def _count_execution(self) -> None:
        request = self.request
        end_ns = time.monotonic_ns()
        start_ns = end_ns if request.moments is None else request.moments[0]
        request.moments = moments = Moments(start_ns, start_ns, end_ns, end_ns)
        self._statistics.executed([request], request.rows, moments, answered_before=True)

    def reschedule(self) -> None:
        """Have the request run again, as the next of its sequence; nothing more is sent from here.

        Raises InvalidArgument where sequences are not iterative, and Internal after the final
        response.
        """
        turn: SequenceTurn | None = self.request.turn
        with self._lock:
            if self.closed:
                raise Internal(
                    f"a request of model '{self._model_name}' was rescheduled after its final "
                    "response"
                )
            if turn is None or not turn.may_repeat(self.request):
                raise InvalidArgument(
                    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the "
                    "model is not configured to handle such a flag. Set "
                    "sequence_batching.iterative_sequence"
                )
            self.closed = self.rescheduled = turn.again = True
