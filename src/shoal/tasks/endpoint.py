"""The entry point to a model's task: counts the running calls, and is the model the task sees.

    frontend --perform--> TaskEndpoint --> Task --infer--> the model's own queue

Each loaded version with a task has one. A version that is replaced still serves the calls that have
begun: `finish` waits for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shoal.config.model import ModelConfig
from shoal.core.planned import PlannedRequest
from shoal.core.request import Request
from shoal.core.signature import Signature
from shoal.errors import ConfigError, Unavailable
from shoal.statistics.task import TaskStatistics
from shoal.statistics.trace import CallSpan, Trace
from shoal.tasks import registry
from shoal.tasks.base import Task
from shoal.tasks.context import TaskContext, TaskModel, traced_call, was_admitted
from shoal.tasks.request import TaskRequest
from shoal.tasks.workers import Workers

Item = TypeVar("Item")
Result = TypeVar("Result")

PARAMETER = "task"  # in the parameters of config.pbtxt


def task_of(config: ModelConfig) -> str:
    """The task that a config names; empty where it names none."""
    parameter = config.parameters.get(PARAMETER)
    return "" if parameter is None else parameter.string_value


class EndpointClosed(Unavailable):
    """The version is being unloaded; another one may serve its name by now."""


class TaskEndpoint:
    """One model's task."""

    def __init__(
        self,
        name: str,
        model: TaskModel,
        folder: Path,
        workers: Workers,
        kind: type[Task] | None = None,
        statistics: TaskStatistics | None = None,
    ) -> None:
        """Create the task `name` for `model`; `kind` is its class where that is not installed.

        Raises ConfigError, and then holds no resources.
        """
        self.name = name
        self.statistics = statistics or TaskStatistics(name)
        self.context = TaskContext(model, folder, workers, self.statistics)
        self.task: Task = (kind or registry.get(name))(self.context)
        try:
            self.context.settings.check_all_read()
        except ConfigError:
            self.task.close()
            raise
        self._changed = threading.Condition()  # guards _calls and _closed
        self._calls = 0
        self._closed = False
        # Blocks until calls have ended that front-end processes have begun, where there are any.
        self.finish_elsewhere: Callable[[], None] = lambda: None

    @property
    def operation(self) -> str:
        """The last part of its path."""
        return self.task.operation

    @property
    def calls(self) -> int:
        """The number of calls that have begun and not ended."""
        return self._calls

    def enter(self) -> TaskCall:
        """Begin a call, whose `leave` must be called in any case. Raises EndpointClosed."""
        with self._changed:
            if self._closed:
                raise EndpointClosed("the model is being unloaded; try again in a moment")
            self._calls += 1
        return TaskCall(self)

    def left(self) -> None:
        """For a call: it has ended."""
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def finish(self) -> None:
        """Accept no more calls, wait until those that have begun have ended, close the task.

        Blocks; not for the event loop's thread, which serves them.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._calls == 0)
        self.finish_elsewhere()
        self.task.close()


class TaskCall:
    """One call of a task, from entering to leaving. For the event loop's thread only."""

    def __init__(self, endpoint: TaskEndpoint) -> None:
        self.task = endpoint.task
        self._endpoint = endpoint
        self._over = False
        self._traced: CallSpan | None = None

    def trace(self, trace: Trace) -> None:
        """Make the call, with the requests it sends to the model, part of `trace`."""
        context = self.task.context
        self._traced = trace.start_call(context.model_name, context.model_version)

    async def perform(self, request: TaskRequest) -> Any:
        """The result; see `Task.perform`."""
        with self._counted():
            return await self.task.perform(request)

    async def stream(self, request: TaskRequest) -> AsyncGenerator[Any, None]:
        """The result piece by piece; see `Task.stream`."""
        with self._counted():
            async for piece in self.task.stream(request):
                yield piece

    def leave(self) -> None:
        """The call has ended, with or without a result. A second time does nothing."""
        if not self._over:
            self._over = True
            self._endpoint.left()
            if self._traced is not None and not self._traced.ended_ns:  # it never ran
                self._traced.end("cancelled")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        start_ns = time.monotonic_ns()
        success, error = False, ""
        was_admitted.set(False)
        if self._traced is not None:
            traced_call.set(self._traced)  # the coroutine serves only this call
        try:
            yield
            success = True
        except BaseException as raised:
            error = str(raised) or "cancelled"
            raise
        finally:
            self._endpoint.statistics.call(success, time.monotonic_ns() - start_ns)
            if self._traced is not None:
                self._traced.end(error)


def open_endpoint(
    model: TaskModel,
    folder: Path,
    workers: Callable[[], Workers] | None,
    make_statistics: Callable[[str], TaskStatistics] = TaskStatistics,
) -> TaskEndpoint | None:
    """The endpoint of a model's task, where its config names one. Raises ConfigError."""
    name = task_of(model.config)
    if not name:
        return None
    if workers is None:
        raise ConfigError(
            "a task runs only in a server",
            file="config.pbtxt",
            field="parameters['task']",
        )
    return TaskEndpoint(name, model, folder, workers(), statistics=make_statistics(name))


def check_task(config: ModelConfig, signature: Signature, folder: Path) -> None:
    """Check the task of a config and its task.json, without a model. Raises ConfigError."""
    name = task_of(config)
    if name:
        workers = Workers(1)  # starts no thread before the first work, of which there is none
        TaskEndpoint(name, _Unserved(config.name, 1, config, signature), folder, workers).finish()
        workers.close()


@dataclass(frozen=True, slots=True)
class _Unserved:
    """A model that is only checked."""

    name: str
    version: int
    config: ModelConfig
    signature: Signature

    def accept(self, request: Request) -> None:
        """Refuse every request."""
        del request
        raise Unavailable("models do not serve requests while they are only checked")

    def offer_photos(self, plan: object) -> bool:
        """It classifies nothing."""
        del plan
        return False

    def accept_photos(self, requests: Sequence[PlannedRequest]) -> None:
        """Refuse every request."""
        self.accept(requests[0])
