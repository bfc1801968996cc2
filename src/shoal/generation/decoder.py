"""The decoder as generation sees it: tokens and past states in, logits and new states out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


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
