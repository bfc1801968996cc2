"""The output: the classes of each image, and how often each class came first.

Request 1, batch size 2
Image 'mug.jpg': 504 (COFFEE MUG) = 0.777365
Prediction totals:
    cnt=1   (504) COFFEE MUG
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import Internal
from shoal.image.sending import BatchResult

if TYPE_CHECKING:
    from typing import TextIO

    from shoal.client import Label


class ImageReport:
    """Formats results and counts classes.

    With `softmax`, all classes were requested: scores are converted to probabilities, and the
    best `classes` are shown.
    """

    def __init__(self, output: str, classes: int, *, softmax: bool = False) -> None:
        self._output = output
        self._classes = classes
        self._softmax = softmax
        self._totals: Counter[tuple[int, str]] = Counter()

    def lines(self, answer: BatchResult) -> Iterator[str]:
        """The lines of one request. Raises Internal unless there is a row for each image."""
        files = answer.batch.files
        values = answer.result.outputs[self._output].shape
        count = math.prod(values) if self._softmax else self._classes
        rows = answer.result.top_k(self._output, max(1, count), labels=())
        if len(rows) != len(files):
            raise Internal(f"expected {len(files)} results, got {len(rows)}")
        yield f"Request {answer.batch.number}, batch size {len(files)}"
        for file, row in zip(files, rows, strict=True):
            yield from self._image(file, _probabilities(row) if self._softmax else row)

    def totals(self) -> Iterator[str]:
        """How often each class came first, the most frequent first."""
        yield "Prediction totals:"
        for (index, name), count in self._totals.most_common():
            yield f"\tcnt={count}\t({index}) {name}".rstrip()

    def _image(self, file: Path, row: Sequence[Label]) -> Iterator[str]:
        best = row[: self._classes]
        self._totals.update((label.index, label.name) for label in best[:1])
        if len(best) == 1:
            yield f"Image '{file}': {_described(best[0])}"
            return
        yield f"Image '{file}':"
        for label in best:
            yield f"    {_described(label)}"


class ImageProgress:
    """A progress bar on a terminal; hide it while printing other lines."""

    _WIDTH = 30

    def __init__(self, total: int, terminal: TextIO | None) -> None:
        """Without a `terminal`, no bar is drawn."""
        self._total = total
        self._done = 0
        self._terminal = terminal

    def step(self, count: int) -> None:
        """`count` more images are done."""
        self._done = min(self._total, self._done + count)
        self._draw()

    def hide(self) -> None:
        """Clear the line; `step` shows the bar again."""
        if self._terminal is not None:
            self._terminal.write("\r\x1b[K")
            self._terminal.flush()

    def _draw(self) -> None:
        if self._terminal is None:
            return
        filled = self._WIDTH * self._done // self._total
        bar = "#" * filled + "." * (self._WIDTH - filled)
        self._terminal.write(f"\r[{bar}] {self._done}/{self._total}")
        self._terminal.flush()


def _described(label: Label) -> str:
    name = f" ({label.name})" if label.name else ""
    return f"{label.index}{name} = {label.score:.6f}"


def _probabilities(row: Sequence[Label]) -> list[Label]:
    highest = max(label.score for label in row)
    weights = [math.exp(label.score - highest) for label in row]
    total = sum(weights)
    return [
        label._replace(score=weight / total) for label, weight in zip(row, weights, strict=True)
    ]
