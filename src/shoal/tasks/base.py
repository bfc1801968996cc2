"""The contract of a task, in one file.

    TaskRequest --perform--> [ prepare: threads ] --> model --> [ finish: threads ] --> JSON

A task is made with its model and lives as long. `perform` runs on the event loop and must never
block it: what takes time goes through a `stage`, which runs on threads beside the model, and the
model is request through `infer`. Both are awaited, so a person who goes away cancels what waits.
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
        """Have the item worked on; raises what the work raised for this item."""


class TaskContext(Protocol):
    """The model that a task serves, and what the task may use. Loop thread only, once it runs."""

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
        """The model's tensors, labels of outputs included."""

    @property
    def settings(self) -> TaskSettings:
        """What task.json says, if the folder has one."""

    def stage(
        self,
        kind: str,
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        *,
        most: int = 1,
    ) -> Stage[Item, Result]:
        """A place to work on items off the loop; `kind` is "preprocess" or "postprocess".

        `work` gets up to `most` items that wait at the same time and returns for each its result
        or what went wrong with it. What it raises itself fails all of them.
        """

    async def infer(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str] = (),
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> dict[str, np.ndarray]:
        """Ask the model, batch dimension included; its one response by output name.

        Raises what the model was refused or failed with. Cancelling this cancels the request.
        """

    def infer_stream(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str] = (),
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> AsyncIterator[dict[str, np.ndarray]]:
        """As `infer`, for models with any number of responses: each as it comes."""


class Task(ABC):
    """One task of one loaded model."""

    name: ClassVar[str]  # what the config says: "image-classification"
    operation: ClassVar[str]  # the last part of its path: "classify"
    streams: ClassVar[bool] = False  # whether `stream` does anything

    def __init__(self, context: TaskContext) -> None:
        """Read the settings and check them against the model.

        Raises ConfigError, with file, field and fix; then the model is not loaded.
        """
        self.context = context

    @abstractmethod
    async def perform(self, request: TaskRequest) -> Any:
        """Answer one call with something that JSON can hold.

        Raises InvalidArgument for what the person must change, or another ShoalError.
        """

    def stream(self, request: TaskRequest) -> AsyncIterator[Any]:  # noqa: ARG002 - others read it
        """Answer piece by piece, the whole answer last. What is wrong is raised at the first one.

        Raises Unsupported where answers come in one piece.
        """
        raise Unsupported(
            f"the task '{self.name}' answers in one piece; leave 'stream' out to get it"
        )

    def close(self) -> None:
        """Give back what the task holds. Called once, after the last call has been answered."""
        return
