"""A model of the engine process, as a front end knows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shoal.config.model import ModelConfig
from shoal.core.interface import FunctionInterface
from shoal.core.planned import PlannedRequest
from shoal.core.request import Request
from shoal.core.signature import Signature
from shoal.engine.linked.messages import ModelDescription
from shoal.models.version import Model
from shoal.statistics.task import TaskStatistics
from shoal.tasks.endpoint import TaskEndpoint, open_endpoint, task_of
from shoal.tasks.files import written
from shoal.tasks.workers import Workers

CountTask = Callable[[int, str, int, int], None]  # the model's key, what, how many, how long in ns


class LinkedModel:
    """One version that serves. Templates of its requests hold while it exists."""

    def __init__(
        self,
        description: ModelDescription,
        infer: Callable[[Request, LinkedModel], None],
        infer_photos: Callable[[Sequence[PlannedRequest], int], None],
        workers: Callable[[], Workers],
        count_task: CountTask,
        task_files: Callable[[int], Mapping[str, bytes]],
    ) -> None:
        """`task_files` asks the engine for those of a key. Blocks while its task reads them.
        ConfigError if the task cannot be used here."""
        self.key = description.key
        self.name = description.name
        self.version = description.version
        self.decoupled = description.decoupled
        self.loaded_ms = description.loaded_ms
        self.versions = description.versions
        self.refuses = False  # whether the last request that the engine answered found no room
        self.plan = description.plan  # how to load a replica, if this front end is to run it
        self.has_replica_begun = False
        self.is_dropped = False  # no request uses it any more
        self.replica: Model | None = None  # runs its requests, once it is loaded
        self.folders: tuple[Path, ...] = description.read_folders()
        self.config: ModelConfig = description.read_config()
        self.signature: Signature = description.read_signature(self.config.max_batch_size)
        self.interface: FunctionInterface | None = description.read_interface()
        self._closing = threading.Lock()  # the one that closes it waits for the end of its calls
        self._closed = False
        self._infer = infer
        self._infer_photos = infer_photos
        self.classifies_photos = description.classifies_photos
        self.task: TaskEndpoint | None = None
        if task_of(self.config):
            with written(task_files(self.key)) as folder:
                self.task = open_endpoint(
                    self,
                    folder,
                    workers,
                    lambda name: _ForwardedCounts(name, self.key, count_task),
                )
            assert self.task is not None
            self.task.task.context.folder = self.folders[0]

    def accept(self, request: Request) -> None:
        """Take over a request of its task, even if another version has replaced this one."""
        self._infer(request, self)

    def offer_photos(self, plan: object) -> bool:
        """Whether the model classifies photos itself: the engine has made the same plan."""
        del plan
        return self.classifies_photos

    def accept_photos(self, requests: Sequence[PlannedRequest]) -> None:
        """Take over photos of its task, even if another version has replaced this one."""
        self._infer_photos(requests, self.key)

    def close(self) -> None:
        """Serve the calls of its task that have begun, then end that. Blocks."""
        with self._closing:
            if self.task is not None and not self._closed:
                self.task.finish()
            self._closed = True


class _ForwardedCounts(TaskStatistics):
    """Counts in the engine process: there is one truth about a model's task."""

    def __init__(self, task: str, model: int, count_task: CountTask) -> None:
        super().__init__(task)
        self._model = model
        self._count_task = count_task

    def add(self, kind: str, count: int, elapsed_ns: int) -> None:
        """Send them to the engine."""
        self._count_task(self._model, kind, count, elapsed_ns)
