"""Beam search: continue the likeliest texts, and return the best complete one.

    beams x logits --advance--> the parent and the token of each beam

The rules are those of transformers' `generate(num_beams=…)`, including when the search stops, so
that a model returns the texts that its authors saw.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoal.generation.options import FinishReason, Generated, GenerationOptions, without

_NEVER = np.float32(-1e9)  # the score of excluded tokens


def candidate_count(width: int, stop_tokens: int) -> int:
    """How many continuations of `width` beams to examine: at least `width` of these do not end the
    text, unless by its length."""
    return max(2, 1 + stop_tokens) * width


class BeamStep(NamedTuple):
    """How beams continue: each from the states of its parent, with its token."""

    parents: np.ndarray
    tokens: np.ndarray


class BeamSearch:
    """The beams of one text."""

    def __init__(self, options: GenerationOptions) -> None:
        self.width = options.num_beams
        self._options = options
        self._stop_ids = np.array(sorted(options.stop_ids), np.int64)
        width = self.width
        self.candidates = candidate_count(width, len(self._stop_ids))
        self._length = 0
        self._tokens = np.zeros((width, options.max_tokens), np.int64)
        self._scores = np.full(width, _NEVER, np.float32)
        self._scores[0] = 0  # all are equal at first: continue only the first
        self._complete: list[tuple[np.float32, np.ndarray]] = []  # the best first
        self._done = False

    @property
    def excludes_stop(self) -> bool:
        """Whether the next tokens may not be stop tokens: the texts are too short."""
        return self._length < self._options.min_tokens and bool(self._options.stop_ids)

    def advance(self, logits: np.ndarray) -> BeamStep:
        """Take one step; `logits` has a row for each beam."""
        if self.excludes_stop:
            logits = without(logits, self._options.stop_ids)
        vocabulary = logits.shape[1]
        count = min(self.candidates, vocabulary)
        # Within a beam the order of logits is that of probabilities: few need to be examined.
        tokens = np.argpartition(logits, vocabulary - count, axis=1)[:, vocabulary - count :]
        largest = logits.max(axis=1, keepdims=True)
        normaliser = largest + np.log(np.exp(logits - largest).sum(axis=1, keepdims=True))
        return self.choose(tokens, np.take_along_axis(logits, tokens, axis=1) - normaliser)

    def choose(self, candidates: np.ndarray, chances: np.ndarray) -> BeamStep:
        """Take one step; `candidates` has each beam's likeliest tokens in any order, `chances` the
        logarithms of their probabilities."""
        options, width = self._options, self.width
        parents, tokens, scores = self._best(candidates, chances)
        self._length += 1
        stops = np.isin(tokens, self._stop_ids)
        if self._length >= options.max_tokens:
            stops[:] = True
        self._keep_complete(parents, tokens, scores, stops)
        running = np.where(stops, scores + _NEVER, scores)
        chosen = np.argsort(-running, kind="stable")[:width]
        step = BeamStep(parents[chosen], tokens[chosen])
        self._tokens = self._tokens[step.parents]
        self._tokens[:, self._length - 1] = step.tokens
        self._scores = running[chosen]
        self._done = bool(stops.all()) or self._cannot_improve()
        return step

    def result(self) -> Generated | None:
        """The best text, as soon as no other can be better."""
        if not self._done:
            return None
        score, tokens = self._complete[0]
        stopped = int(tokens[-1]) in self._options.stop_ids
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Generated(tokens.tolist(), reason, float(score))

    def _best(
        self, candidates: np.ndarray, chances: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The best continuations of all beams, best first: beam, token and score."""
        ascending = np.argsort(candidates, axis=1)  # the lower token first among equals
        tokens = np.take_along_axis(candidates, ascending, axis=1).reshape(-1)
        chances = np.take_along_axis(chances, ascending, axis=1)
        scores = (chances + self._scores[:, None]).reshape(-1)
        order = np.argsort(-scores, kind="stable")[: self.candidates]
        return order // candidates.shape[1], tokens[order], scores[order]

    def _keep_complete(
        self, parents: np.ndarray, tokens: np.ndarray, scores: np.ndarray, stops: np.ndarray
    ) -> None:
        """Keep texts that have just ended, if they are among the best `width` ones."""
        options, width, length = self._options, self.width, self._length
        if options.early_stopping and len(self._complete) == width:
            return
        for index in np.flatnonzero(stops[:width]):
            text = self._tokens[parents[index], :length].copy()
            text[-1] = tokens[index]
            score = scores[index] / np.float32(length**options.length_penalty)
            self._complete.append((score, text))
        self._complete.sort(key=lambda entry: -entry[0])  # stable
        del self._complete[width:]

    def _cannot_improve(self) -> bool:
        """Whether no text in progress can beat the complete ones."""
        if len(self._complete) < self.width:
            return False
        if self._options.early_stopping:
            return True
        hoped = self._scores[0] / np.float32(self._length**self._options.length_penalty)
        return bool(hoped <= self._complete[-1][0])
