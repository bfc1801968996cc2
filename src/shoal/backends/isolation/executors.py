"""Instances of models in other processes, as the server's workers call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shoal.backends.base import Executor, PendingRequest, PhotoExecutor, RequestExecutor
from shoal.backends.isolation.process import IsolatedProcess
from shoal.core.tensor import Buffer
from shoal.errors import Unavailable
from shoal.link.supervisor import Supervisor

_KILL_SECS = 10.0
_LAST_ANSWERS_SECS = 30.0  # for outstanding responses when a model is unloaded


class _Instance:
    """What both kinds have: the process, and those that replace it."""

    warm_up: Callable[[Executor | RequestExecutor], None] | None

    def __init__(
        self,
        model_name: str,
        supervisor: Supervisor[IsolatedProcess],
        release: Callable[[Supervisor[IsolatedProcess]], bool],
        shares: Callable[[], bool],
    ) -> None:
        """`release` is called at the end; it returns whether no other instance has the process.
        `shares` tells whether others have it now."""
        self._model_name = model_name
        self._supervisor = supervisor
        self._release = release
        self._shares = shares
        self._in_use: IsolatedProcess | None = None  # while an execution runs

    def _running(self) -> IsolatedProcess:
        """The process, or one that stands in for it. Unavailable if there is none."""
        process = self._supervisor.running()
        if process is None:
            raise Unavailable(
                f"model '{self._model_name}' has no process now: the last one ended: "
                f"{self._supervisor.last_ending}. It is restarted after a pause; send the request "
                "again later"
            )
        return process

    def prepare(self) -> None:
        """Wait while the process is being restarted."""
        self._supervisor.running()

    def end_execution(self, reason: str) -> bool:
        """Kill the process that runs the execution of now; the supervisor restarts it. False if
        other instances run in the same process."""
        process = self._in_use
        if process is None or process.reentrant or self._shares():
            return False
        process.kill_because(reason)
        process.wait_gone(_KILL_SECS)  # the next batch must not go to it
        return True

    def close(self) -> None:
        """Wait for outstanding responses, close the model and end the process."""
        if self._release(self._supervisor):
            process = self._supervisor.close()
            if process is not None:
                process.stop(_LAST_ANSWERS_SECS)
            return
        process = self._supervisor.process
        if process is not None and not process.reentrant:
            process.close_instance()


class IsolatedExecutor(_Instance, Executor):
    """An instance that takes tensors."""

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Run the batch in the process; ProcessEnded if that ends meanwhile."""
        self._in_use = process = self._running()
        try:
            return process.run(inputs, outputs)
        finally:
            self._in_use = None


class IsolatedPhotoExecutor(IsolatedExecutor, PhotoExecutor):
    """An instance that takes tensors and photos."""

    def classify(
        self, photos: Sequence[Buffer], frames: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Classify the batch in the process; ProcessEnded if that ends meanwhile."""
        self._in_use = process = self._running()
        try:
            return process.classify(photos, frames)
        finally:
            self._in_use = None


class IsolatedRequestExecutor(_Instance, RequestExecutor):
    """An instance that takes requests."""

    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Run the batch in the process; requests fail with ProcessEnded if that ends meanwhile."""
        self._in_use = process = self._running()
        try:
            process.execute([batch])
        finally:
            self._in_use = None


class DirectTensorExecutor(Executor):
    """Runs batches on one process, also before it is used for others: to warm it up."""

    def __init__(self, process: IsolatedProcess) -> None:
        self._process = process

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Run the batch in the process."""
        return self._process.run(inputs, outputs)
