"""The options of one generated text."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


class FinishReason(enum.Enum):
    """Why a text ended, by the names of OpenAI's API."""

    STOP = "stop"  # the model chose a stop token
    LENGTH = "length"  # it has `max_tokens` tokens


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """The options of one request. The values are valid."""

    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    num_beams: int = 1  # 1: the likeliest token at each step, or a sampled one
    length_penalty: float = 1.0  # beams: above 0 favours longer texts
    early_stopping: bool = False  # beams: end with the first `num_beams` texts that are complete
    min_tokens: int = 0  # until then no stop token is chosen
    temperature: float = 0.0  # 0: always the most likely token
    top_k: int = 0  # sample from the `top_k` likeliest tokens; 0: from all
    top_p: float = 1.0  # sample from the likeliest tokens with this total probability
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """A text that is complete: its tokens without the prompt, the stop token included."""

    token_ids: Sequence[int]
    reason: FinishReason
    score: float | None = None  # of a beam: log-probability with the length penalty


def without(logits: np.ndarray, token_ids: frozenset[int]) -> np.ndarray:
    """A copy of `logits` that excludes some tokens."""
    changed: np.ndarray = logits.copy()
    changed[..., list(token_ids)] = -np.inf
    return changed
