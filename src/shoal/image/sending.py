"""Sends batches of images: one after the other, concurrently, or on one stream.

    files --batches--> [0 1 2] [3 4 0] --ImageSender--> BatchResult, BatchResult

Images are read when their request is created, so a folder may be larger than the memory. Results
are returned in the order of the requests.
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
    """A batch and its result."""

    batch: Batch
    result: Result


def batches(files: Sequence[Path], size: int) -> Iterator[Batch]:
    """Batches of `size` images; the last one is filled up with the first images."""
    for number, start in enumerate(range(0, len(files), size), 1):
        members = (files[index % len(files)] for index in range(start, start + size))
        yield Batch(number, tuple(members))


class ImageSender:
    """Sends batches to one model. `read` returns the array of one image."""

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

    def one_by_one(self, todo: Iterator[Batch]) -> Iterator[BatchResult]:
        """One request after the other. Raises what client and `read` raise."""
        for batch in todo:
            yield self._send(batch)

    def at_once(self, todo: Iterator[Batch]) -> Iterator[BatchResult]:
        """Up to AT_ONCE requests in flight; their images are read concurrently, too."""
        waiting: deque[Future[BatchResult]] = deque()
        with ThreadPoolExecutor(AT_ONCE, "shoal-image") as threads:
            try:
                for batch in todo:
                    waiting.append(threads.submit(self._send, batch))
                    if len(waiting) >= AT_ONCE:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def streamed(self, todo: Iterator[Batch]) -> Iterator[BatchResult]:
        """All requests on one gRPC stream, up to AT_ONCE of them in flight."""
        sent: deque[Batch] = deque()
        arrived: dict[str, Result] = {}
        with self._client.stream(self._model.model, version=self._version) as stream:
            for batch in todo:
                stream.send(self._inputs(batch), **self._arguments(batch))
                sent.append(batch)
                if len(sent) >= AT_ONCE:
                    yield _next_result(sent, arrived, stream.receive)
            while sent:
                yield _next_result(sent, arrived, stream.receive)

    def _send(self, batch: Batch) -> BatchResult:
        result = self._client.infer(
            self._model.model, self._inputs(batch), version=self._version, **self._arguments(batch)
        )
        return BatchResult(batch, result)

    def _arguments(self, batch: Batch) -> dict[str, Any]:
        output = self._model.output
        return {
            "id": str(batch.number),
            "outputs": [output],
            "classes": {output: self._classes},
        }

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        read = dict.fromkeys(batch.files)  # read repeated images once
        images = {file: self._read(file) for file in read}
        if self._model.batch_dim:
            array = np.stack([images[file] for file in batch.files])
        else:
            array = images[batch.files[0]]
        if self._model.datatype is dtypes.BF16:
            from shoal.client import Input

            return {self._model.input: Input(array, "BF16")}
        return {self._model.input: array}


def _next_result(
    sent: deque[Batch], arrived: dict[str, Result], receive: Callable[[], Result | None]
) -> BatchResult:
    """The result of the oldest request; later ones are kept in `arrived`."""
    batch = sent.popleft()
    key = str(batch.number)
    while key not in arrived:
        result = receive()
        if result is None:
            raise Internal(f"the server ended the stream before the response to request {key}")
        arrived[result.id] = result
    return BatchResult(batch, arrived.pop(key))
