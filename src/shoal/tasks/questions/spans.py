"""Spans: which words of a text answer a question, by what the model says of each window's tokens.

    logits of starts and ends  -->  spans, best first, none overlapping another  -->  offsets

The model gives each token a logit for being the answer's first and its last one. Every window was
also trained to point at its first token, [CLS], where it holds no answer. How far a span's logits
lie above those of [CLS] is its margin: it compares spans of different windows, and with a
calibration it says how likely the span is to be an answer at all.
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

_MARKS = frozenset(("Mn", "Mc", "Me"))  # accents and the like: they belong to what is before them
_JOINER = "\u200d"

Logits = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Calibration:
    """From a span's margin and how full its window is to a probability, by logistic regression.

    Windows that are not full carry other logits at [CLS] than full ones, hence the fill.
    """

    margin: float
    fill: float
    fill_squared: float
    bias: float

    def probability(self, margin: float, fill: float) -> float:
        """How likely such a span is to be the answer, from 0 to 1."""
        value = self.margin * margin + self.fill * fill + self.fill_squared * fill**2 + self.bias
        return 1 / (1 + math.exp(-value)) if value > -700 else 0.0  # below that, exp overflows


@dataclass(frozen=True, slots=True)
class Span:
    """Some tokens of the text, both ends included, and how sure the model is of them."""

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
        if not math.isfinite(best):  # no span is left, or the model gave no numbers
            break
        margin = best - null
        score = (
            math.exp(best - total) if calibration is None else calibration.probability(margin, fill)
        )
        spans.append(Span(window.begin + first, window.begin + first + more, margin, fill, score))
        if len(spans) < count:
            sums[first : first + more + 1] = -np.inf  # those that begin within it …
            for before in range(max(0, first - longest + 1), first):  # … or reach into it
                sums[before, first - before :] = -np.inf
    return spans


def best(
    spans: Sequence[Span], places: Sequence[tuple[int, int]], text: str, count: int
) -> list[int]:
    """Which `count` spans to keep, by number, best first.

    `places` are where they are in the text, in the same order: no two may overlap, and only the
    best one may be a mere punctuation mark.
    """
    by_score = sorted(
        range(len(spans)), key=lambda number: (-spans[number].score, -spans[number].margin)
    )
    kept: list[int] = []
    for number in by_score:
        begin, end = places[number]
        if kept and all(unicodedata.category(letter)[0] in "PZ" for letter in text[begin:end]):
            continue
        if all(end <= places[other][0] or begin >= places[other][1] for other in kept):
            kept.append(number)
            if len(kept) == count:
                break
    return kept


def whole_characters(text: str, end: int) -> int:
    """Where a piece of `text` ends that must not lose the accents of its last character."""
    while end < len(text) and (text[end] == _JOINER or unicodedata.category(text[end]) in _MARKS):
        end += 1
    return end


def _log_total(sums: NDArray[np.float64], null: float) -> float:
    highest = max(float(sums.max()), null)
    return highest + math.log(float(np.exp(sums - highest).sum()) + math.exp(null - highest))
