"""Batches of images as requests: one after the other, several at once, or on one stream.

    files --batches--> [0 1 2] [3 4 0] --ImageSender--> BatchResult, BatchResult

Images are read when their request is made, so a folder may be larger than the memory. Answers come
in the order of the requests, whichever way they went.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core import dtypes
from shoal.errors import Internal
from shoal.image.classifier import Classifier

if TYPE_CHECKING:
    from shoal.client import Client, Result

AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Batch:
    """The images of one request; `number` counts requests from 1 and is the request's id."""

    number: int
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A request and what came back."""

    batch: Batch
    result: Result


def batches(files: Sequence[Path], size: int) -> Iterator[Batch]:
    """Requests of `size` images each; the last is filled with the first images once more."""
    for number, start in enumerate(range(0, len(files), size), 1):
        members = (files[place % len(files)] for place in range(start, start + size))
        yield Batch(number, tuple(members))


class ImageSender:
    """Sends batches to one model. `read` makes the array of one image."""

    def __init__(
        self,
        client: Client,
        model: Classifier,
        read: Callable[[Path], np.ndarray],
        *,
        version: str = "",
        classes: int = 1,
    ) -> None:
        self._client = client
        self._model = model
        self._read = read
        self._version = version
        self._classes = classes

    def in_turn(self, todo: Iterator[Batch]) -> Iterator[BatchResult]:
        """Each request after the answer to the one before. Raises what client and `read` raise."""
        for batch in todo:
            yield self._ask(batch)

    def at_once(self, todo: Iterator[Batch]) -> Iterator[BatchResult]:
        """Up to AT_ONCE requests under way at a time, their images read side by side, too."""
        waiting: deque[Future[BatchResult]] = deque()
        with ThreadPoolExecutor(AT_ONCE, "shoal-image") as threads:
            try:
                for batch in todo:
                    waiting.append(threads.submit(self._ask, batch))
                    if len(waiting) >= AT_ONCE:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def streamed(self, todo: Iterator[Batch]) -> Iterator[BatchResult]:
        """All requests on one gRPC stream, up to AT_ONCE of them unanswered."""
        sent: deque[Batch] = deque()
        come: dict[str, Result] = {}
        with self._client.stream(self._model.model, version=self._version) as stream:
            for batch in todo:
                stream.send(self._inputs(batch), **self._terms(batch))
                sent.append(batch)
                if len(sent) >= AT_ONCE:
                    yield _next_answer(sent, come, stream.receive)
            while sent:
                yield _next_answer(sent, come, stream.receive)

    def _ask(self, batch: Batch) -> BatchResult:
        result = self._client.infer(
            self._model.model, self._inputs(batch), version=self._version, **self._terms(batch)
        )
        return BatchResult(batch, result)

    def _terms(self, batch: Batch) -> dict[str, Any]:
        output = self._model.output
        return {
            "id": str(batch.number),
            "outputs": [output],
            "classes": {output: self._classes},
        }

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        read = dict.fromkeys(batch.files)  # an image that fills up is read once
        images = {file: self._read(file) for file in read}
        if self._model.batch_dim:
            array = np.stack([images[file] for file in batch.files])
        else:
            array = images[batch.files[0]]
        if self._model.datatype is dtypes.BF16:
            from shoal.client import Input

            return {self._model.input: Input(array, "BF16")}
        return {self._model.input: array}


def _next_answer(
    sent: deque[Batch], come: dict[str, Result], receive: Callable[[], Result | None]
) -> BatchResult:
    """The answer to the oldest request; those to younger ones are kept in `come`."""
    batch = sent.popleft()
    key = str(batch.number)
    while key not in come:
        result = receive()
        if result is None:
            raise Internal(f"the server ended the stream before it answered request {key}")
        come[result.id] = result
    return BatchResult(batch, come.pop(key))
