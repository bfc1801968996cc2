"""Pooling: reduces the model's vectors of tokens to one vector for each text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

POOLINGS = ("mean", "cls", "max", "none")
_LEAST = 1e-12  # avoids a division by zero


def pooled(states: Array, lengths: Sequence[int], pooling: str) -> Array:
    """One row for each text: `states` is [texts, tokens, size], or [texts, size] with "none".

    Padding tokens do not count.
    """
    states = np.asarray(states, np.float32)
    if pooling == "none":
        return states
    if pooling == "cls":
        return states[:, 0]
    real = np.arange(states.shape[1])[None] < np.asarray(lengths)[:, None]
    if pooling == "max":
        return np.asarray(np.where(real[..., None], states, -np.inf).max(axis=1))
    total = np.einsum("nts,nt->ns", states, real.astype(np.float32))
    return np.asarray(total / np.asarray(lengths, np.float32)[:, None])


def finished(vectors: Array, dimensions: int, *, normalise: bool) -> Array:
    """The first `dimensions` numbers of each row, normalised to length one on request."""
    vectors = vectors[:, :dimensions]
    if normalise:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.maximum(lengths, _LEAST)
    return np.ascontiguousarray(vectors, np.float32)
