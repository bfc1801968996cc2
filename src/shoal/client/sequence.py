"""A sequence of requests; the first and the last are marked.

with client.sequence("counter") as sequence:
    sequence.infer({"INPUT": one})
    sequence.infer({"INPUT": two}, end=True)
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from shoal.client import inference
from shoal.client.errors import ClientError, InvalidInput
from shoal.client.inputs import Input, InputTensor
from shoal.client.result import Result
from shoal.client.steps import ClientSession, Steps
from shoal.core import bytes_tensor


class SequenceSteps:
    """The requests of one sequence, for both clients."""

    def __init__(
        self, session: ClientSession, model: str, id: int | str | None, version: str
    ) -> None:
        chosen = random.randrange(1, 1 << 62) if id is None else id  # noqa: S311 - no secret
        if not chosen:
            raise InvalidInput("a sequence's id is a number other than 0, or text")
        self._session = session
        self.model = model
        self.id = chosen
        self._version = version
        self.started = False
        self.ended = False
        self._last: list[InputTensor] = []

    def infer(self, inputs: Mapping[str, Any], *, end: bool, **arguments: Any) -> Steps[Result]:
        """The next request of the sequence."""
        if self.ended:
            raise InvalidInput(f"the sequence {self.id!r} has ended; begin another one")
        prepared = yield from inference.prepare(
            self._session,
            self.model,
            inputs,
            version=self._version,
            sequence_id=self.id,
            sequence_start=not self.started,
            sequence_end=end,
            **arguments,
        )
        result = yield from inference.send(self._session, prepared)
        self.started = True
        self.ended = end
        self._last = prepared.infer_call.tensors
        return result

    def end(self) -> Steps[None]:
        """End the sequence with a request whose inputs are zeros."""
        if not self.started or self.ended:
            return
        inputs = {each.name: _zeros(each) for each in self._last}
        yield from self.infer(inputs, end=True)


def _zeros(given: InputTensor) -> Any:
    if given.placed is not None:
        return given.placed
    if given.datatype == "BYTES":
        count = int(np.prod(given.shape))
        return Input(bytes_tensor.encode([b""] * count), "BYTES", given.shape)
    return Input(bytes(given.nbytes), given.datatype, given.shape)


class Sequence:
    """A sequence of a `Client`. Not thread-safe."""

    def __init__(self, steps: SequenceSteps, run: Callable[[Steps[Any]], Any]) -> None:
        self._steps = steps
        self._run = run

    @property
    def id(self) -> int | str:
        """The sequence id."""
        return self._steps.id

    def infer(self, inputs: Mapping[str, Any], *, end: bool = False, **arguments: Any) -> Result:
        """Send a request; `end` marks the last one. `arguments` as with `Client.infer`."""
        result: Result = self._run(self._steps.infer(inputs, end=end, **arguments))
        return result

    def close(self) -> None:
        """End it if no request has, by sending zeros, so that the server frees its slot."""
        self._run(self._steps.end())

    def __enter__(self) -> Sequence:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # An error in the block takes precedence.
        with contextlib.suppress(*(() if kind is None else (ClientError,))):
            self.close()


class AsyncSequence:
    """A sequence of an `AsyncClient`. One task at a time."""

    def __init__(
        self, steps: SequenceSteps, run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]]
    ) -> None:
        self._steps = steps
        self._run = run

    @property
    def id(self) -> int | str:
        """The sequence id."""
        return self._steps.id

    async def infer(
        self, inputs: Mapping[str, Any], *, end: bool = False, **arguments: Any
    ) -> Result:
        """As `Sequence.infer`."""
        result: Result = await self._run(self._steps.infer(inputs, end=end, **arguments))
        return result

    async def close(self) -> None:
        """As `Sequence.close`."""
        await self._run(self._steps.end())

    async def __aenter__(self) -> AsyncSequence:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        with contextlib.suppress(*(() if kind is None else (ClientError,))):
            await self.close()
