"""The contract of a task, in one file.

    TaskRequest --perform--> [ prepare: threads ] --> model --> [ finish: threads ] --> JSON

A task is created and closed with its model. `perform` runs on the event loop and must not block it:
slow work runs in a `stage`, on worker threads, and `infer` sends requests to the model. Both are
awaited, so they are cancelled when the client disconnects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from shoal.config.model import ModelConfig
from shoal.core.response import ParameterValue
from shoal.core.signature import Signature
from shoal.errors import Unsupported
from shoal.tasks.request import TaskRequest
from shoal.tasks.settings import TaskSettings

Item = TypeVar("Item")
Result = TypeVar("Result")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class Stage(Protocol[Item_contra, Result_co]):
    """Work on threads, awaited from the event loop: `await stage(item)` is its result."""

    async def __call__(self, item: Item_contra) -> Result_co:
        """Process the item; raises the error for this item."""


class TaskContext(Protocol):
    """The model of a task, and what the task may use. For the loop's thread, once it runs."""

    @property
    def model_name(self) -> str:
        """The name of the model."""

    @property
    def model_version(self) -> int:
        """The version that this task belongs to."""

    @property
    def folder(self) -> Path:
        """The model's folder: config.pbtxt, labels, tokenizer and task.json are in it."""

    @property
    def config(self) -> ModelConfig:
        """The completed config."""

    @property
    def signature(self) -> Signature:
        """The model's tensors, with the labels of outputs."""

    @property
    def settings(self) -> TaskSettings:
        """The settings in task.json, if the folder has one."""

    def stage(
        self,
        kind: str,
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        *,
        most: int = 1,
    ) -> Stage[Item, Result]:
        """A function to await that runs `work` on threads; `kind` is "preprocess" or "postprocess".

        `work` gets up to `most` items that wait at the same time and returns the result or the
        error of each. An exception that it raises fails all of them.
        """

    async def infer(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str] = (),
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> dict[str, np.ndarray]:
        """Send a request to the model, with the batch dimension; returns its outputs by name.

        Raises the model's error. Cancelling this cancels the request.
        """

    def infer_stream(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str] = (),
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> AsyncIterator[dict[str, np.ndarray]]:
        """As `infer`, for models with any number of responses: each as it arrives."""


class Task(ABC):
    """One task of one loaded model."""

    name: ClassVar[str]  # as in the config: "image-classification"
    operation: ClassVar[str]  # the last part of its path: "classify"
    streams: ClassVar[bool] = False  # whether `stream` is implemented

    def __init__(self, context: TaskContext) -> None:
        """Read the settings and check them against the model.

        Raises ConfigError, with file, field and fix, and then the model is not loaded.
        """
        self.context = context

    @abstractmethod
    async def perform(self, request: TaskRequest) -> Any:
        """Process one call; the result must be serialisable as JSON.

        Raises InvalidArgument for an invalid request, or another ShoalError.
        """

    def stream(self, request: TaskRequest) -> AsyncIterator[Any]:  # noqa: ARG002 - part of the contract
        """Process one call piece by piece; the last piece is the whole result.

        An invalid request raises at the first piece. Raises Unsupported if there is no streaming.
        """
        raise Unsupported(f"the task '{self.name}' does not support streaming; leave 'stream' out")

    def close(self) -> None:
        """Release the task's resources. Called once, after the last call has ended."""
        return
