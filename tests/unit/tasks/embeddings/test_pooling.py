"""From the vectors of tokens to the vector of a text."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.tasks.embeddings.pooling import finished, pooled

STATES = np.array(
    [[[1, 2], [3, 6], [99, 99]], [[-1, -4], [-3, -2], [-5, -9]]], np.float32
)  # the first text has two tokens, the second three


@pytest.mark.parametrize(
    ("pooling", "rows"),
    [
        ("mean", [[2, 4], [-3, -5]]),
        ("cls", [[1, 2], [-1, -4]]),
        ("max", [[3, 6], [-1, -2]]),
    ],
)
def test_fillers_do_not_count(pooling, rows):
    assert np.allclose(pooled(STATES, [2, 3], pooling), rows)


def test_what_the_model_pooled_stays():
    vectors = np.array([[1, 2]], np.float16)
    found = pooled(vectors, [7], "none")
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 2]]


def test_vectors_of_length_one():
    made = finished(np.array([[3, 4, 12], [0, 0, 0]], np.float32), 3, normalise=True)
    assert np.allclose(np.linalg.norm(made[0]), 1)
    assert made[1].tolist() == [0, 0, 0]  # nothing to divide by


def test_fewer_dimensions_are_normalised_again():
    made = finished(np.array([[3, 4, 12]], np.float32), 2, normalise=True)
    assert np.allclose(made, [[0.6, 0.8]])
    assert np.allclose(finished(np.array([[3, 4, 12]]), 2, normalise=False), [[3, 4]])
