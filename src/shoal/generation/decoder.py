"""The decoder as generation sees it: tokens and past states in, logits and new states out.

Decoder      a function of arrays
DecoderRows  keeps the past states of texts, wherever that is, and runs a decoder on them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shoal.generation.beams import BeamSearch, BeamStep
from shoal.generation.choice import TokenSampler

Search = TokenSampler | BeamSearch


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder's states and inputs."""

    states: int  # keys and values of all layers
    heads: int
    head_size: int
    max_length: int  # tokens, prompt included
    vocabulary: int
    # Further inputs for each text, such as an encoded photo, without a batch dimension.
    context: tuple[tuple[int, ...], ...] = ()


class Decoder(Protocol):
    """A decoder with past states. Called from one thread at a time."""

    shape: Shape

    def run(
        self,
        token_ids: np.ndarray,
        lengths: np.ndarray,
        past: Sequence[np.ndarray],
        context: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits after the last of `token_ids`, and the states of all of them.

        `token_ids` is [rows, new]. Row r continues after `lengths[r]` tokens, whose states are the
        first of `past`, each [rows, heads, most, head size]; the rest is undefined.
        `context` has a row for each text; all texts have the same number of token rows, in
        order. Returns logits [rows, vocabulary] and states [states, rows, heads, new, head size].
        """


class StepResults(Protocol):
    """What a step has computed for each text."""

    def advance(self, index: int, search: Search) -> int | BeamStep:
        """Let the text number `index` of the step take its next token, or its beams theirs.

        Raises what is wrong with this text.
        """


class DecoderRows(Protocol):
    """The states of texts that have the same number of rows, one for each beam."""

    width: int  # rows of a text

    @property
    def rows(self) -> int:
        """Rows in use."""

    @property
    def nbytes(self) -> int:
        """Bytes of the states."""

    def join(self, contexts: Sequence[Any], tokens: Sequence[int]) -> int:
        """Add texts, each with its further inputs and the token it starts with, in the next slots;
        returns the first of these."""

    def begin(self, first: int, prompts: Sequence[Sequence[int]]) -> None:
        """Compute the states of the tokens before those that texts have joined with, for as many
        texts as there are prompts, from slot `first` on. If this raises, no text has changed."""

    def step(self, first: int, searches: Sequence[Search]) -> StepResults:
        """Run the decoder once for as many texts as there are searches, from slot `first` on.

        If this raises, no text has changed.
        """

    def follow(self, slot: int, chosen: int | BeamStep) -> None:
        """Continue a text with what was chosen for it."""

    def leave(self, slot: int) -> None:
        """Remove a text. The last one gets its slot."""


# Makes rows without texts, for texts with a number of beams. At most one of each width is in use.
RowsFactory = Callable[[int], DecoderRows]
