"""Watching executions: an executor whose calls may take only so long.

    Execution --run--> WatchedExecutor --run--> the backend's executor
                        '-- begins and ends each call of an ExecutionWatch --> on_timeout

A call that takes too long is given up: `on_timeout` is called once, from the timer's thread, and
answers its requests. When the call returns after all, its result is discarded, and the thread gets
ExecutionAbandoned. Each executor has at most one entry in the timer, so that a call costs a few
assignments, whatever the limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np

from shoal.backends.base import (
    ArrayForm,
    BoundRun,
    DeviceExecutor,
    Executor,
    PendingRequest,
    PhotoExecutor,
    RequestExecutor,
)
from shoal.core.device_tensor import DeviceTensor, OnDevice
from shoal.core.tensor import Buffer
from shoal.instance.failures import ExecutionAbandoned
from shoal.instance.pending_request import InstancePendingRequest
from shoal.scheduler.timer import Timer, shared_timer

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class ExecutionWatch:
    """Times the calls of one executor, one at a time."""

    def __init__(
        self,
        limit_ns: int,
        on_timeout: Callable[[], None],
        *,
        timer: Timer = shared_timer,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`on_timeout` is called by the timer, so it must be quick."""
        self._limit_ns = limit_ns
        self._timer = timer
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self._on_timeout: Callable[[], None] | None = on_timeout
        self._due_ns = 0  # 0: nothing runs
        self._in_timer = False
        self._given_up = False
        self._returned = threading.Event()  # the call that was given up
        self._on_return: Callable[[], None] | None = None
        self.began_ns = 0  # of the last call

    def call(
        self,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call a function. Raises ExecutionAbandoned if it was given up meanwhile."""
        return self.call_for(1, function, *args, **kwargs)

    def call_for(
        self,
        executions: int,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """As `call`, for a function with several executions, each of which may take the limit."""
        self._begin(executions)
        try:
            result = function(*args, **kwargs)
        except BaseException:
            self._end()
            raise
        self._end()
        return result

    def _begin(self, executions: int) -> None:
        now_ns = self._clock()
        with self._lock:
            self.began_ns = now_ns
            self._due_ns = now_ns + executions * self._limit_ns
            enters, self._in_timer = not self._in_timer, True
        if enters:
            self._timer.at(now_ns + self._limit_ns, self._check)

    def _end(self) -> None:
        with self._lock:
            if self._given_up:
                self._returned.set()
                raise ExecutionAbandoned(self._on_return)
            self._due_ns = 0

    def _check(self) -> None:
        """Called by the timer: give the call up if it is due, else check again when that may be."""
        now_ns = self._clock()
        on_timeout = None
        with self._lock:
            due_ns = self._due_ns
            if not due_ns or self._given_up:
                self._in_timer = False
                return
            if due_ns <= now_ns:
                self._given_up = True
                self._in_timer = False
                on_timeout = self._on_timeout
        if on_timeout is not None:
            on_timeout()
        elif due_ns > now_ns:
            # Not later than the limit from now: the call may end, and a short one follow.
            self._timer.at(min(due_ns, now_ns + self._limit_ns), self._check)

    def wait_for_return(self, timeout_secs: float) -> bool:
        """Wait until the call that was given up returns, and then watch others; whether it did."""
        if not self._returned.wait(timeout_secs):
            return False
        with self._lock:
            self._returned.clear()
            self._given_up = False
            self._due_ns = 0
        return True

    def abandon(self, on_return: Callable[[], None]) -> bool:
        """Leave the call that was given up alone: its thread calls `on_return` if it ever returns.

        False, with nothing done, if it has returned by now.
        """
        with self._lock:
            if self._returned.is_set():
                return False
            self._on_return = on_return
            return True

    def close(self) -> None:
        """Nothing is called any more; the timer may keep this object for a while."""
        with self._lock:
            self._on_timeout = None
            self._due_ns = 0


class WatchedExecutor(Executor):
    """An executor of tensors, watched."""

    answers_later = False
    pending: Sequence[Sequence[InstancePendingRequest]] = ()

    def __init__(self, executor: Executor, watch: ExecutionWatch) -> None:
        self._executor = executor
        self.watch = watch

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Run a batch within the limit."""
        self._executor.prepare()
        return self.watch.call(self._executor.run, inputs, outputs)

    def bind(self, inputs: Sequence[ArrayForm], outputs: Sequence[ArrayForm]) -> BoundRun | None:
        """As the executor's, within the limit."""
        run = self._executor.bind(inputs, outputs)
        if run is None:
            return None
        bound, call = run, self.watch.call
        return lambda contents: call(bound, contents)

    def prepare(self) -> None:
        """As the executor's."""
        self._executor.prepare()

    def end_execution(self, reason: str) -> bool:
        """As the executor's."""
        return self._executor.end_execution(reason)

    @property
    def blocked_ns(self) -> int:  # type: ignore[override]
        """The executor's."""
        return self._executor.blocked_ns

    def input_memory(self, size: int) -> memoryview:
        """The executor's."""
        return self._executor.input_memory(size)

    def close(self) -> None:
        """Close the executor."""
        self.watch.close()
        self._executor.close()


class WatchedDeviceExecutor(WatchedExecutor, DeviceExecutor):
    """An executor of tensors on a device, watched."""

    _executor: DeviceExecutor

    def run_on_device(
        self,
        inputs: Mapping[str, np.ndarray | Sequence[DeviceTensor]],
        outputs: Sequence[str],
        keep: Collection[str],
    ) -> Sequence[np.ndarray | OnDevice]:
        """Run a batch within the limit."""
        self._executor.prepare()
        return self.watch.call(self._executor.run_on_device, inputs, outputs, keep)


class WatchedPhotoExecutor(WatchedDeviceExecutor, PhotoExecutor):
    """An executor of photos, which need not be one of tensors on a device, watched."""

    _executor: Any

    def classify(
        self, photos: Sequence[Buffer], frames: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run a batch within the limit."""
        self._executor.prepare()
        classified: tuple[np.ndarray, np.ndarray] = self.watch.call(
            self._executor.classify, photos, frames
        )
        return classified


class WatchedRequestExecutor(RequestExecutor):
    """An executor of requests, watched."""

    def __init__(self, executor: RequestExecutor, watch: ExecutionWatch) -> None:
        self._executor = executor
        self.watch = watch
        self.answers_later = executor.answers_later
        self.pending: Sequence[Sequence[InstancePendingRequest]] = ()  # of the last call

    @property
    def ahead(self) -> int:  # type: ignore[override]
        """As the executor's, which may change."""
        return self._executor.ahead

    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Run a batch within the limit."""
        self._executor.prepare()
        self.pending = [cast("Sequence[InstancePendingRequest]", batch)]
        try:
            self.watch.call(self._executor.execute, batch)
        except ExecutionAbandoned:
            raise  # another thread uses `pending`
        except BaseException:
            self.pending = ()
            raise
        self.pending = ()

    def execute_several(self, batches: Sequence[Sequence[PendingRequest]]) -> Sequence[int]:
        """Run batches, all of them within as many times the limit."""
        self._executor.prepare()
        self.pending = cast("Sequence[Sequence[InstancePendingRequest]]", batches)
        try:
            took_ns = self.watch.call_for(len(batches), self._executor.execute_several, batches)
        except ExecutionAbandoned:
            raise
        except BaseException:
            self.pending = ()
            raise
        self.pending = ()
        return took_ns

    def prepare(self) -> None:
        """As the executor's."""
        self._executor.prepare()

    def end_execution(self, reason: str) -> bool:
        """As the executor's."""
        return self._executor.end_execution(reason)

    def close(self) -> None:
        """Close the executor."""
        self.watch.close()
        self._executor.close()


AnyWatched: TypeAlias = WatchedExecutor | WatchedRequestExecutor


def watched(executor: Executor | RequestExecutor, watch: ExecutionWatch) -> AnyWatched:
    """The executor with its calls watched."""
    if isinstance(executor, RequestExecutor):
        return WatchedRequestExecutor(executor, watch)
    if isinstance(executor, PhotoExecutor):
        return WatchedPhotoExecutor(executor, watch)
    if isinstance(executor, DeviceExecutor):
        return WatchedDeviceExecutor(executor, watch)
    return WatchedExecutor(executor, watch)
