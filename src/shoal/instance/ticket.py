"""A request in the hands of an executor that answers requests itself.

Whoever sends, from whichever thread, the client gets exactly one final response.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from shoal.core.request import Request, State
from shoal.core.response import ParameterValue, Response
from shoal.core.tensor import Tensor
from shoal.errors import Internal, ShoalError
from shoal.statistics.model import FailureReason, ModelStatistics


class RequestTicket:
    """One request being executed; see `shoal.backends.base.Ticket`."""

    __slots__ = ("_closed", "_failed", "_lock", "_model_name", "_statistics", "_version", "request")

    def __init__(
        self, request: Request, model_name: str, version: int, statistics: ModelStatistics
    ) -> None:
        self.request = request
        self._model_name = model_name
        self._version = version
        self._statistics = statistics
        self._lock = threading.Lock()  # guards _closed and the order of responses
        self._closed = False
        self._failed = False

    @property
    def closed(self) -> bool:
        """Whether the final response has been sent."""
        return self._closed

    @property
    def failed(self) -> bool:
        """Whether the final response was an error."""
        return self._failed

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
            if self._closed:
                raise Internal(
                    f"a response for model '{self._model_name}' was sent after the final one"
                )
            if final:
                self._closed = True
                self._failed = error is not None
                request.state = State.DONE
                if error is not None:
                    now_ns = time.monotonic_ns()
                    self._statistics.failed(request, FailureReason.of(error), now_ns)
            request.reply.send(response)
