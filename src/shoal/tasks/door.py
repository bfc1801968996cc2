"""The door to a model's task: counts the calls under way, and is the model as the task sees it.

    frontend --perform--> TaskDoor --> Task --infer--> the model's own queue

Each loaded version with a task has one. A version that is replaced stays open to the calls that
have begun: `finish` waits for them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from shoal.config.model import ModelConfig
from shoal.core.inbox import LoopInbox, LoopReply
from shoal.core.request import Request
from shoal.core.response import ParameterValue, Response
from shoal.core.signature import Signature
from shoal.core.tensor import Tensor
from shoal.errors import ConfigError, Internal, Unavailable
from shoal.statistics.task import TaskStatistics
from shoal.tasks import registry
from shoal.tasks.asked import Asked
from shoal.tasks.base import Stage, Task
from shoal.tasks.settings import TaskSettings
from shoal.tasks.workers import ThreadStage, Work, Workers

Item = TypeVar("Item")
Result = TypeVar("Result")

PARAMETER = "task"  # in the parameters of config.pbtxt


class ServedModel(Protocol):
    """A loaded version, as far as its task needs it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def version(self) -> int:
        """Which version it is."""

    @property
    def config(self) -> ModelConfig:
        """The completed config."""

    @property
    def signature(self) -> Signature:
        """Its tensors."""

    def accept(self, request: Request) -> None:
        """Take a request over, or raise."""


def task_of(config: ModelConfig) -> str:
    """The task that a config names; empty where it names none."""
    parameter = config.parameters.get(PARAMETER)
    return "" if parameter is None else parameter.string_value


class DoorClosed(Unavailable):
    """The version is going; another one may serve its name by now."""


class TaskDoor:
    """One model's task."""

    def __init__(
        self,
        name: str,
        model: ServedModel,
        folder: Path,
        workers: Workers,
        kind: type[Task] | None = None,
    ) -> None:
        """Make the task called `name` for `model`; `kind` is its class where that is not installed.

        Raises ConfigError, and nothing stays behind.
        """
        self.name = name
        self.statistics = TaskStatistics(name)
        context = _Context(model, folder, workers, self.statistics)
        self.task: Task = (kind or registry.get(name))(context)
        try:
            context.settings.check_all_read()
        except ConfigError:
            self.task.close()
            raise
        self._changed = threading.Condition()  # guards _calls and _closed
        self._calls = 0
        self._closed = False

    @property
    def operation(self) -> str:
        """The last part of its path."""
        return self.task.operation

    @property
    def calls(self) -> int:
        """How many have begun and are not yet answered."""
        return self._calls

    def enter(self) -> TaskCall:
        """Begin a call, whose `leave` must be called in any case. Raises DoorClosed."""
        with self._changed:
            if self._closed:
                raise DoorClosed("the model is being unloaded; try again in a moment")
            self._calls += 1
        return TaskCall(self)

    def left(self) -> None:
        """For a call: it is over."""
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def finish(self) -> None:
        """Let nobody in, wait until the calls that have begun are over, then close the task.

        Blocks; not for the event loop's thread, which answers them.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._calls == 0)
        self.task.close()


class TaskCall:
    """One call of a task, from entering to leaving. For the event loop's thread only."""

    def __init__(self, door: TaskDoor) -> None:
        self.task = door.task
        self._door = door
        self._over = False

    async def perform(self, asked: Asked) -> Any:
        """The answer; see `Task.perform`."""
        with self._counted():
            return await self.task.perform(asked)

    async def stream(self, asked: Asked) -> AsyncGenerator[Any, None]:
        """The answer piece by piece; see `Task.stream`."""
        with self._counted():
            async for piece in self.task.stream(asked):
                yield piece

    def leave(self) -> None:
        """The call is over, however it ended. A second time does nothing."""
        if not self._over:
            self._over = True
            self._door.left()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        start_ns = time.monotonic_ns()
        success = False
        try:
            yield
            success = True
        finally:
            self._door.statistics.call(success, time.monotonic_ns() - start_ns)


class _Context:
    """The model as its task sees it; see `TaskContext`."""

    def __init__(
        self, model: ServedModel, folder: Path, workers: Workers, statistics: TaskStatistics
    ) -> None:
        self.model_name = model.name
        self.model_version = model.version
        self.folder = folder
        self.config = model.config
        self.signature = model.signature
        self.settings = TaskSettings.of(folder)
        self._accept = model.accept
        self._workers = workers
        self._statistics = statistics
        self._inbox: LoopInbox | None = None

    def stage(self, kind: str, work: Work[Item, Result], *, most: int = 1) -> Stage[Item, Result]:
        count = self._statistics.stage(kind)
        return ThreadStage(self._workers, work, count, most=most)

    async def infer(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str] = (),
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> dict[str, np.ndarray]:
        asked = self._asked(inputs, outputs, parameters, one_answer=True)
        answers = [answer async for answer in asked]
        if len(answers) != 1:
            raise Internal(
                f"model '{self.model_name}' gave {len(answers)} responses where one was expected"
            )
        return answers[0]

    def infer_stream(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str] = (),
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> AsyncIterator[dict[str, np.ndarray]]:
        return self._asked(inputs, outputs, parameters, one_answer=False)

    async def _asked(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str],
        parameters: Mapping[str, ParameterValue] | None,
        *,
        one_answer: bool,
    ) -> AsyncIterator[dict[str, np.ndarray]]:
        loop = asyncio.get_running_loop()
        if self._inbox is None:
            self._inbox = LoopInbox(loop)
        arrived: asyncio.Queue[Response] = asyncio.Queue()
        request = Request(
            self.model_name,
            {name: self._tensor(name, array) for name, array in inputs.items()},
            LoopReply(self._inbox, arrived.put_nowait),
            model_version=self.model_version,
            requested_outputs=tuple(outputs),
            parameters=dict(parameters or {}),
        )
        request.one_answer = one_answer
        self._accept(request)
        final = False
        try:
            while not final:
                response = await arrived.get()
                final = response.final
                if response.error is not None:
                    raise response.error
                if not response.is_end_only:
                    yield {tensor.name: tensor.array for tensor in response.outputs}
        finally:
            if not final:
                request.cancel()

    def _tensor(self, name: str, array: np.ndarray) -> Tensor:
        spec = self.signature.inputs.get(name)
        return Tensor.from_array(name, array, spec.datatype if spec is not None else None)


def open_door(
    model: ServedModel, folder: Path, workers: Callable[[], Workers] | None
) -> TaskDoor | None:
    """The door to a model's task, where its config names one. Raises ConfigError."""
    name = task_of(model.config)
    if not name:
        return None
    if workers is None:
        raise ConfigError(
            "tasks need a server around their model",
            file="config.pbtxt",
            field="parameters['task']",
        )
    return TaskDoor(name, model, folder, workers())


def check_task(config: ModelConfig, signature: Signature, folder: Path) -> None:
    """Check what a config and task.json say about a task, without a model. Raises ConfigError."""
    name = task_of(config)
    if name:
        workers = Workers(1)  # its threads start with the first work, which never comes
        TaskDoor(name, _Unserved(config.name, 1, config, signature), folder, workers).finish()
        workers.close()


@dataclass(frozen=True, slots=True)
class _Unserved:
    """A model that is only looked at."""

    name: str
    version: int
    config: ModelConfig
    signature: Signature

    def accept(self, request: Request) -> None:
        """Nobody serves it."""
        del request
        raise Unavailable("no model answers while models are only checked")
