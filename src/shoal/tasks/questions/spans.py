"""Spans: finds the words that answer a question in the logits of each window's tokens.

    logits of starts and ends  -->  spans, best first, none overlapping another  -->  offsets

The model returns for each token the logits of being the answer's first and last one. It is trained
to select the first token, [CLS], in a window without an answer. The margin of a span is the
difference between its logits and those of [CLS]: it makes spans of different windows comparable,
and a calibration converts it to the probability that the span is an answer.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from shoal.tasks.questions.windows import TextWindow

_MARKS = frozenset(("Mn", "Mc", "Me"))  # accents and the like: part of the character before
_JOINER = "\u200d"

Logits = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Logistic regression from a span's margin and its window's fill to a probability.

    The fill matters because windows that are not full have other logits at [CLS].
    """

    margin: float
    fill: float
    fill_squared: float
    bias: float

    def probability(self, margin: float, fill: float) -> float:
        """The probability that such a span is the answer, from 0 to 1."""
        value = self.margin * margin + self.fill * fill + self.fill_squared * fill**2 + self.bias
        return 1 / (1 + math.exp(-value)) if value > -700 else 0.0  # below that, exp overflows


@dataclass(frozen=True, slots=True)
class Span:
    """Some tokens of the text, both ends included, with their score."""

    first: int
    last: int
    margin: float
    fill: float
    score: float


def find(
    window: TextWindow,
    start: Logits,
    end: Logits,
    *,
    longest: int,
    count: int,
    max_length: int,
    calibration: Calibration | None = None,
) -> list[Span]:
    """The `count` best spans of a window that do not overlap, best first.

    `start` and `end` are the window's rows of logits, padding or not. Without a calibration the
    score is the share of the span among all spans of the window and [CLS].
    """
    here = slice(window.lead, window.lead + window.end - window.begin)
    starts, ends = start[here].astype(np.float64), end[here].astype(np.float64)
    beyond = np.full(longest - 1, -np.inf)
    # sums[i, k]: of the span that begins with token i and has k tokens more
    sums = starts[:, None] + sliding_window_view(np.concatenate((ends, beyond)), longest)
    null = float(start[0]) + float(end[0])
    total = 0.0 if calibration is not None else _log_total(sums, null)
    fill = min(1.0, len(window) / max_length)
    spans: list[Span] = []
    while len(spans) < count:
        first, more = divmod(int(sums.argmax()), longest)
        best = float(sums[first, more])
        if not math.isfinite(best):  # no span is left, or the logits are not finite
            break
        margin = best - null
        score = (
            math.exp(best - total) if calibration is None else calibration.probability(margin, fill)
        )
        spans.append(Span(window.begin + first, window.begin + first + more, margin, fill, score))
        if len(spans) < count:
            sums[first : first + more + 1] = -np.inf  # spans that begin within it …
            for before in range(max(0, first - longest + 1), first):  # … or reach into it
                sums[before, first - before :] = -np.inf
    return spans


def best(
    spans: Sequence[Span], offsets: Sequence[tuple[int, int]], text: str, count: int
) -> list[int]:
    """The numbers of the `count` spans to keep, best first.

    `offsets` are their positions in the text, in the same order: no two may overlap, and only the
    best one may consist of punctuation.
    """
    by_score = sorted(
        range(len(spans)), key=lambda number: (-spans[number].score, -spans[number].margin)
    )
    kept: list[int] = []
    for number in by_score:
        begin, end = offsets[number]
        if kept and all(unicodedata.category(letter)[0] in "PZ" for letter in text[begin:end]):
            continue
        if all(end <= offsets[other][0] or begin >= offsets[other][1] for other in kept):
            kept.append(number)
            if len(kept) == count:
                break
    return kept


def whole_characters(text: str, end: int) -> int:
    """The end of a piece of `text`, extended by the accents of its last character."""
    while end < len(text) and (text[end] == _JOINER or unicodedata.category(text[end]) in _MARKS):
        end += 1
    return end


def _log_total(sums: NDArray[np.float64], null: float) -> float:
    highest = max(float(sums.max()), null)
    return highest + math.log(float(np.exp(sums - highest).sum()) + math.exp(null - highest))
