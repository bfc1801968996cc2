"""How one text is to be generated."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


class FinishReason(enum.Enum):
    """Why a text ended, in the words that clients know."""

    STOP = "stop"  # the model said so, with one of its stop tokens
    LENGTH = "length"  # it has as many tokens as were asked for


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """What one request asks for. The values are known to be right."""

    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    num_beams: int = 1  # 1: the most likely token at each step, or a drawn one
    length_penalty: float = 1.0  # beams: above 0 favours longer texts
    early_stopping: bool = False  # beams: end with the first `num_beams` texts that are complete
    min_tokens: int = 0  # until then no stop token is chosen
    temperature: float = 0.0  # 0: always the most likely token
    top_k: int = 0  # draw among the so many most likely ones; 0: among all
    top_p: float = 1.0  # draw among the most likely ones that have this much probability together
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """A text that is complete: its tokens without the prompt, the stop token included."""

    token_ids: Sequence[int]
    reason: FinishReason
    score: float | None = None  # of a beam: its log-probability, by the length penalty


def without(logits: np.ndarray, token_ids: frozenset[int]) -> np.ndarray:
    """A copy of `logits` in which some tokens cannot be chosen."""
    changed: np.ndarray = logits.copy()
    changed[..., list(token_ids)] = -np.inf
    return changed
