"""The decoder as generation sees it: tokens and past states in, logits and new states out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Shape:
    """What a decoder keeps for each token and what it is given for each text."""

    states: int  # keys and values of all layers
    heads: int
    head_size: int
    max_length: int  # tokens, prompt included
    vocabulary: int
    # The tensors that a text is about, such as an encoded photo, without a batch dimension.
    context: tuple[tuple[int, ...], ...] = ()

    @property
    def bytes_per_token(self) -> int:
        """What one more token of one row takes."""
        return 4 * self.states * self.heads * self.head_size


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

        `token_ids` is [rows, new]. Row r goes on after `lengths[r]` tokens, whose states are the
        first of `past`, each [rows, heads, most, head size]; what lies behind them has no meaning.
        `context` has a row for each text, and each text as many rows of tokens, one after the
        other. Returns logits [rows, vocabulary] and states [states, rows, heads, new, head size].
        """
