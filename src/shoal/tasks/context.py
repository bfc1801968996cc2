"""The model as its task sees it: its files and settings, worker threads, and inference.

Task --stage--> worker threads          Task --infer--> the model's own queue
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from shoal.config.model import ModelConfig
from shoal.core.inbox import LoopInbox, LoopReply
from shoal.core.planned import PlannedRequest
from shoal.core.request import Request
from shoal.core.response import ParameterValue, Response
from shoal.core.signature import Signature
from shoal.core.tensor import Tensor
from shoal.errors import Internal
from shoal.statistics.task import PREPROCESS, TaskStatistics
from shoal.statistics.trace import CallSpan
from shoal.tasks.settings import TaskSettings
from shoal.tasks.workers import ThreadStage, Work, Workers

if TYPE_CHECKING:
    from shoal.tasks.images.plan import PhotoPlan

Item = TypeVar("Item")
Result = TypeVar("Result")

# The call that the current coroutine serves, if that is traced. The coroutines that it starts
# inherit it, so that every request to the model is found in the trace.
traced_call: ContextVar[CallSpan | None] = ContextVar("traced_call", default=None)
# Whether its first request to the model was admitted: then later ones are not refused half-way.
was_admitted: ContextVar[bool] = ContextVar("was_admitted", default=False)


class TaskModel(Protocol):
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
        """Accept a request, or raise."""

    def offer_photos(self, plan: PhotoPlan) -> bool:
        """Whether its instances classify photos themselves, by `plan`. Asked before it serves."""

    def accept_photos(self, requests: Sequence[PlannedRequest]) -> None:
        """Accept or answer requests of a photo template, if it classifies photos itself; or raise,
        with none of them accepted."""


class TaskContext:
    """The model of a task, and what the task may use. For the loop's thread, once it runs."""

    def __init__(
        self, model: TaskModel, folder: Path, workers: Workers, statistics: TaskStatistics
    ) -> None:
        self.model_name = model.name
        self.model_version = model.version
        self.folder = folder  # the model's: config.pbtxt, labels, tokenizer and task.json are in it
        self.config = model.config  # completed
        self.signature = model.signature  # the model's tensors, with the labels of outputs
        self.settings = TaskSettings.of(folder)  # of task.json, if the folder has one
        self._accept = model.accept
        self.offer_photos = model.offer_photos
        self.accept_photos = model.accept_photos
        self._workers = workers
        self._statistics = statistics
        self._inbox: LoopInbox | None = None
        self._before: list[ThreadStage[Any, Any]] = []  # stages before the model

    def waiting(self) -> int:
        """How many inputs wait for a thread, before the model has them."""
        return sum([stage.waiting for stage in self._before])

    def time_to_drain_ns(self) -> float:
        """How long these take, by what inputs have taken so far."""
        return self.waiting() * self._statistics.mean_ns(PREPROCESS) / self._workers.threads

    def stage(
        self, kind: str, work: Work[Item, Result], *, most: int = 1
    ) -> ThreadStage[Item, Result]:
        """A function to await that runs `work` on threads; `kind` is "preprocess" or "postprocess".

        `work` gets up to `most` items that wait at the same time and returns the result or the
        error of each. An exception that it raises fails all of them.
        """
        made = ThreadStage(self._workers, work, self._statistics.stage(kind), most=most)
        if kind == PREPROCESS:
            self._before.append(made)
        return made

    async def infer(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str] = (),
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> dict[str, np.ndarray]:
        """Send a request to the model, with the batch dimension; returns its outputs by name.

        Raises the model's error. Cancelling this cancels the request.
        """
        responses = self._responses(inputs, outputs, parameters, one_answer=True)
        received = [response async for response in responses]
        if len(received) != 1:
            raise Internal(
                f"model '{self.model_name}' gave {len(received)} responses where one was expected"
            )
        return received[0]

    def infer_stream(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str] = (),
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> AsyncIterator[dict[str, np.ndarray]]:
        """As `infer`, for models with any number of responses: each as it arrives."""
        return self._responses(inputs, outputs, parameters, one_answer=False)

    async def _responses(
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
        traced = traced_call.get()
        if traced is not None:
            traced.attach(request)
        request.admitted = was_admitted.get()
        self._accept(request)
        was_admitted.set(True)
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
