"""The contract of a task: a class to implement, and the `TaskContext` that it gets.

    TaskRequest --perform--> [ prepare: threads ] --> model --> [ finish: threads ] --> JSON

A task is created and closed with its model. `perform` runs on the event loop and must not block it:
slow work runs in a `stage`, on worker threads, and `infer` sends requests to the model. Both are
awaited, so they are cancelled when the client disconnects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from shoal.errors import Unsupported
from shoal.tasks.context import TaskContext
from shoal.tasks.request import TaskRequest

__all__ = ["Task", "TaskContext"]


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
