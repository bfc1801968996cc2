"""A sequence: requests that belong together, the first and the last marked as such.

with client.sequence("counter") as sequence:
    sequence.infer({"INPUT": one})
    sequence.infer({"INPUT": two}, end=True)
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from shoal.client import inference
from shoal.client.errors import ClientError, InvalidInput
from shoal.client.inputs import Input, InputTensor
from shoal.client.result import Result
from shoal.client.steps import ClientSession, Steps
from shoal.core import bytes_tensor


class SequenceSteps:
    """One sequence's requests, for both kinds of client."""

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
        """Tell the server that no more requests come, with inputs of zeros nobody looks at."""
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
    """A sequence of a `Client`. One thread at a time."""

    def __init__(self, steps: SequenceSteps, run: Callable[[Steps[Any]], Any]) -> None:
        self._steps = steps
        self._run = run

    @property
    def id(self) -> int | str:
        """What the server knows it by."""
        return self._steps.id

    def infer(self, inputs: Mapping[str, Any], *, end: bool = False, **arguments: Any) -> Result:
        """Ask the model; `end` marks the last request. `arguments` as with `Client.infer`."""
        result: Result = self._run(self._steps.infer(inputs, end=end, **arguments))
        return result

    def close(self) -> None:
        """End it where no request has: the server is sent zeros, so that its place is free."""
        self._run(self._steps.end())

    def __enter__(self) -> Sequence:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What went wrong in the block is what the caller should see.
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
        """What the server knows it by."""
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(*(() if kind is None else (ClientError,))):
            await self.close()
