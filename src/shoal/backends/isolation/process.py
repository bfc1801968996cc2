"""The server's side of a process that runs a model's executor: see `backends.model_process`."""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.backends.base import Backend, LoadContext, PendingRequest, Placement
from shoal.backends.isolation.metrics import MetricCalls
from shoal.backends.model_process import ModelProcess
from shoal.core.concurrency import ExpectedConcurrency
from shoal.core.interface import FunctionInterface
from shoal.core.request import Request
from shoal.core.tensor import Buffer
from shoal.errors import ProcessEnded, ShoalError, Unavailable
from shoal.link import failure
from shoal.link.channel import ChannelClosed
from shoal.link.process import ChildProcess
from shoal.link.supervisor import Supervisor

if TYPE_CHECKING:
    from shoal.tasks.images.plan import PhotoPlan

CHILD = "shoal.backends.isolation.child"


class IsolatedProcess(ModelProcess):
    """A process that has loaded a model, and may have instances of it."""

    def __init__(self, backend: Backend, context: LoadContext, placement: Placement) -> None:
        """Start the process and load the model there; it gets its share of the cores.

        Raises what the backend raises, or Internal if the process ends.
        """
        own = replace(
            context,
            placements=[placement],
            cores=max(1, context.cores // max(1, len(context.placements))),
            models=None,
            metrics=None,
            concurrency=ExpectedConcurrency(),
        )
        content = pickle.dumps((backend, own))
        self.supervisor: Supervisor[IsolatedProcess] | None = None  # once it has an instance
        self.placement = placement
        self.axis_names: Mapping[str, Sequence[str | None]]
        self.reentrant: bool
        self.takes_requests = False
        self.answers_later = False
        self.counters: Mapping[str, Any] = {}  # as the model reported them last
        self._model_name = context.config.name
        self._killed_because = ""
        self._metric_calls = None if context.metrics is None else MetricCalls(context.metrics)
        policy = context.config.model_transaction_policy
        super().__init__(
            ChildProcess(CHILD, f"model '{self._model_name}'"),
            placement.name or self._model_name,
            lambda _, ending: self._report_end(ending),
            always_watch=policy is not None and policy.decoupled,
        )
        counts = self._metric_calls is not None
        level = logging.getLogger("shoal").getEffectiveLevel()
        self._tell("load", sys.path, content, counts, level)
        self.axis_names, self.reentrant, plain = self._wait_started(failure.unpack)
        self.interface = None if plain is None else FunctionInterface.from_plain(plain)

    def _make_handlers(self) -> dict[str, Callable[..., None]]:
        return {
            **super()._make_handlers(),
            "counters": self._on_counters,
            "log": self._on_log,
            **({} if self._metric_calls is None else self._metric_calls.handlers()),
        }

    def _watch(self, key: int, request: Request) -> None:
        """See `ModelProcess`. An application waits for slow clients, too."""
        super()._watch(key, request)
        if self.interface is not None and self.interface.is_application:

            def read(count: int) -> None:
                with contextlib.suppress(ChannelClosed):
                    self._link.send("read", key, count)

            request.on_read = read

    def classify_photos(self, plan: PhotoPlan) -> bool:
        """Have its instances classify photos; see `LoadedModel`. Before the first of them."""
        self._tell("classify_photos", pickle.dumps(plan))
        (classifies,) = self._wait_started(failure.unpack)
        return bool(classifies)

    def make_instance(self) -> None:
        """Create an instance. Raises what the backend raises, or Internal if the process ends."""
        self._tell("instance", pickle.dumps(self.placement))
        self.takes_requests, self.answers_later = self._wait_started(failure.unpack)

    def close_instance(self) -> None:
        """Close one of several instances, which has no batch."""
        self._tell("close_instance")

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        """Run a batch; see `Executor.run`. The arrays are in shared memory."""
        if self._gone:
            raise self._lost()
        packed = self._link.pack_arrays(inputs.values())
        return self._ask("run", list(inputs), packed, list(outputs))

    def classify(
        self, photos: Sequence[Buffer], frames: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Classify photos; see `PhotoExecutor`."""
        if self._gone:
            raise self._lost()
        packed = self._link.pack_buffers(photos)
        indexes, scores = self._ask("classify", packed, frames.tobytes())
        return indexes, scores

    def _ask(self, kind: str, *body: Any) -> list[np.ndarray]:
        """Have it run a batch, and wait for the results."""
        number = next(self._numbers)
        try:  # noqa: SIM105 - quicker
            self._link.send(kind, number, *body)
        except ChannelClosed:
            pass  # then there is no answer
        outcome = self._wait_for(number)
        if outcome is None:
            raise self._lost()
        results, error = outcome
        if error is not None:
            raise failure.unpack(error)
        return self._link.unpack_arrays(results)

    def _tell(self, kind: str, *body: Any) -> None:
        """Send a message. If the process has ended, its answer is missing."""
        with contextlib.suppress(ChannelClosed):
            self._link.send(kind, *body)

    def _settle(
        self, keyed: Sequence[tuple[int, PendingRequest]], outcome: Sequence[Any]
    ) -> int | None:
        unanswered, again, error, ns = outcome
        for key, pending in keyed:
            if key in again:
                self._reschedule(key, pending)
            elif key in unanswered:
                self._remove(key, pending)
        self._defer_rest(keyed)
        if error is not None:
            raise failure.unpack(error)
        return int(ns)

    def _respond(
        self, pending: PendingRequest, error: Any, parameters: Any, packed: Any, *, final: bool
    ) -> None:
        pending.send(
            self._link.unpack(packed),
            error=None if error is None else failure.unpack(error),
            parameters=parameters,
            final=final,
        )

    def kill_because(self, reason: str) -> None:
        """End the process at once; `reason` completes "its process was ended: …"."""
        self._killed_because = reason
        self.kill()

    def _on_counters(self, counters: dict[str, Any]) -> None:
        self.counters = counters

    @staticmethod
    def _on_log(record: dict[str, Any]) -> None:
        made = logging.makeLogRecord(record)
        target = logging.getLogger(made.name)
        if target.isEnabledFor(made.levelno):
            target.handle(made)

    def _lost(self) -> ShoalError:
        if self._stopping:
            return Unavailable(f"model '{self._model_name}' was unloaded before it responded")
        how = self._killed_because or self._ending
        return ProcessEnded(
            f"model '{self._model_name}' did not finish the request, its process ended: {how}. The "
            "process is restarted: send the request again. If this happens again, see the log of "
            "the server"
        )

    def _report_end(self, ending: str) -> None:
        if self.supervisor is not None:
            self.supervisor.ended(self, self._killed_because or ending)

    def _release(self) -> None:
        if self._metric_calls is not None:
            self._metric_calls.close()
