"""Texts whose states are arrays in the CPU's memory, for decoders that are functions of arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.errors import BackendFailure
from shoal.generation.beams import BeamStep
from shoal.generation.choice import TokenSampler
from shoal.generation.decoder import Decoder, Search
from shoal.generation.states import States


class ArrayRows:
    """See `shoal.generation.decoder.DecoderRows`."""

    def __init__(self, decoder: Decoder, width: int) -> None:
        self.width = width
        self._decoder = decoder
        self._states = States(decoder.shape, width)
        self._next = np.zeros(width, np.int64)  # by row: the token the next step starts with

    @property
    def rows(self) -> int:
        """Rows in use."""
        return self._states.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self._states.nbytes

    def join(self, contexts: Sequence[Sequence[np.ndarray]], tokens: Sequence[int]) -> int:
        """Add texts in the next slots; returns the first of these."""
        first = self._states.texts
        for context, token in zip(contexts, tokens, strict=True):
            slot = self._states.join(context)
            if len(self._next) < self.rows:
                self._next = np.resize(self._next, 2 * self.rows)
            self._next[self._rows(slot)] = token
        return first

    def begin(self, first: int, prompts: Sequence[Sequence[int]]) -> None:
        """Compute the first states of texts."""
        shape, count = self._decoder.shape, len(prompts)
        tokens = np.zeros((count, max(map(len, prompts))), np.int64)  # padding is never read
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
        nothing = np.zeros((count, shape.heads, 1, shape.head_size), np.float32)
        _, states = self._decoder.run(
            tokens,
            np.zeros(count, np.int64),
            [nothing] * shape.states,
            self._states.context(first, first + count),
        )
        for row, prompt in enumerate(prompts):
            self._states.begin(first + row, states[:, row], len(prompt))

    def step(self, first: int, searches: Sequence[Search]) -> ArrayResults:
        """Run the decoder once. Raises BackendFailure for logits that are not numbers."""
        states, last = self._states, first + len(searches)
        rows = slice(first * self.width, last * self.width)
        states.make_room(int(states.lengths[rows].max()) + 1)
        logits, new = self._decoder.run(
            self._next[rows, None],
            states.lengths[rows],
            states.past(first, last),
            states.context(first, last),
        )
        results = ArrayResults(logits, self.width)
        states.append(new, first)
        return results

    def follow(self, slot: int, chosen: int | BeamStep) -> None:
        """Continue a text with what was chosen for it."""
        if isinstance(chosen, BeamStep):
            self._states.reorder(slot, chosen.parents)
            self._next[self._rows(slot)] = chosen.tokens
        else:
            self._next[slot] = chosen

    def leave(self, slot: int) -> None:
        """Remove a text; the last one moves into its slot."""
        last = self._states.texts - 1
        self._states.leave(slot)
        self._next[self._rows(slot)] = self._next[self._rows(last)]

    def _rows(self, slot: int) -> slice:
        return slice(slot * self.width, (slot + 1) * self.width)


class ArrayResults:
    """See `shoal.generation.decoder.StepResults`."""

    def __init__(self, logits: np.ndarray, width: int) -> None:
        self._logits = logits
        self._width = width
        self._most_likely = logits.argmax(axis=1)
        sane = np.isfinite(logits[np.arange(len(logits)), self._most_likely])
        if not sane.all():
            raise BackendFailure("the decoder computed logits that are not numbers")

    def advance(self, index: int, search: Search) -> int | BeamStep:
        """Let a text take its next token, or its beams theirs."""
        if isinstance(search, TokenSampler):
            return search.advance(self._logits[index], int(self._most_likely[index]))
        return search.advance(self._logits[index * self._width : (index + 1) * self._width])
