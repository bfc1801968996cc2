"""Testing a task without a server: a model made of a function, and calls as people make them.

    with TaskRunner(Doubling, folder, lambda inputs: {"y": inputs["x"] * 2}) as task:
        assert task.ask(number=21) == {"answer": 42}

The folder is a model's, with config.pbtxt, task.json and whatever else the task reads. The task is
made as a server makes it, and its stages run on threads; what is left out is the model's backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from shoal.config.model import ModelConfig
from shoal.config.normalise import normalise
from shoal.config.pbtxt import parse_pbtxt
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure, ShoalError
from shoal.models.spec import build_signature
from shoal.tasks.base import Task
from shoal.tasks.endpoint import TaskEndpoint
from shoal.tasks.request import File, TaskRequest
from shoal.tasks.workers import Workers

Compute = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


class ComputedModel:
    """Answers each request at once with what a function makes of its inputs."""

    def __init__(self, config: ModelConfig, signature: Signature, compute: Compute) -> None:
        self.name = config.name
        self.version = 1
        self.config = config
        self.signature = signature
        self.requests: list[Request] = []  # those that came, for tests to look at
        self._compute = compute

    def accept(self, request: Request) -> None:
        """Answer the request; what the function raises is the answer, too."""
        self.requests.append(request)
        try:
            inputs = {name: tensor.array for name, tensor in request.inputs.items()}
            outputs = self._compute(inputs)
        except Exception as error:  # noqa: BLE001 - the answer
            failure = error if isinstance(error, ShoalError) else BackendFailure(str(error))
            request.reply.send(Response(self.name, 1, error=failure))
            return
        tensors = [Tensor.from_array(name, array) for name, array in outputs.items()]
        request.reply.send(Response(self.name, 1, outputs=tensors))

    def offer_photos(self, plan: object) -> bool:
        """A function takes tensors only."""
        del plan
        return False

    def accept_photos(self, requests: Sequence[Request]) -> None:
        """Never called: no photos were offered."""
        raise AssertionError(f"{len(requests)} photos for a function that takes tensors only")


class TaskRunner:
    """The task of one model, in the hands of a test."""

    def __init__(
        self, kind: type[Task], folder: Path, compute: Compute, *, threads: int = 2
    ) -> None:
        """Make the task of that class for the folder. Raises ConfigError as a server would."""
        path = folder / "config.pbtxt"
        config = parse_pbtxt(path.read_text(encoding="utf-8"), str(path))
        config = normalise(config, directory_name=folder.name, file=str(path))
        self.model = ComputedModel(config, build_signature(config, folder), compute)
        self._workers = Workers(threads)
        self.endpoint = TaskEndpoint(kind.name, self.model, folder, self._workers, kind)

    def ask(self, *files: File | bytes, **values: Any) -> Any:
        """One call with these files and values; its answer. Raises what the task raises."""
        sent = [file if isinstance(file, File) else File(file) for file in files]
        return asyncio.run(self._perform(TaskRequest(sent, values)))

    def stream(self, *files: File | bytes, **values: Any) -> list[Any]:
        """One call that is answered in pieces: all of them."""
        sent = [file if isinstance(file, File) else File(file) for file in files]
        return asyncio.run(self._collect(TaskRequest(sent, values)))

    async def _perform(self, request: TaskRequest) -> Any:
        call = self.endpoint.enter()
        try:
            return await call.perform(request)
        finally:
            call.leave()

    async def _collect(self, request: TaskRequest) -> list[Any]:
        call = self.endpoint.enter()
        try:
            return [piece async for piece in call.stream(request)]
        finally:
            call.leave()

    def close(self) -> None:
        """Let the task go, and its threads."""
        self.endpoint.finish()
        self._workers.close()

    def __enter__(self) -> TaskRunner:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
