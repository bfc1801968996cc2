"""Scores to classes and probabilities, with no library involved."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.tabular.boosted import BoostedTrees
from shoal.backends.tabular.fil import FilPredictor


class Scores(BoostedTrees):
    """Its rows are its scores."""

    def __init__(self, classes, targets=1, threshold=None):
        super().__init__(4, classes, targets, threshold)

    def scores(self, rows):
        return rows


BINARY = np.array([0.2, 0.4, 0.9], np.float32)
MULTI = np.array([[0.1, 0.7, 0.2], [0.8, 0.1, 0.1]], np.float32)


def test_two_classes():
    labels, probabilities = Scores(2).predict(BINARY, ["predict", "predict_proba"])
    assert labels.tolist() == [0, 0, 1]
    assert np.allclose(probabilities, [[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])


def test_a_threshold():
    assert Scores(2, threshold=0.3).predict(BINARY, ["predict"])[0].tolist() == [0, 1, 1]


def test_several_classes():
    labels, probabilities = Scores(3).predict(MULTI, ["predict", "predict_proba"])
    assert labels.tolist() == [1, 0]
    assert probabilities is not None
    assert np.array_equal(probabilities, MULTI)


def test_a_model_that_decides_itself():
    assert Scores(3).labels(np.array([2.0, 0.0])).tolist() == [2, 0]


def test_a_regression():
    trees = Scores(0, targets=2)
    assert list(trees.outputs) == ["predict"]
    assert trees.outputs["predict"].width == 2
    assert np.array_equal(trees.predict(MULTI, ["predict"])[0], MULTI)


@pytest.mark.parametrize(
    ("classes", "scores", "options", "width", "expected"),
    [
        (2, BINARY, {"classifies": True}, 1, [0, 0, 1]),
        (2, BINARY, {"classifies": False}, 1, BINARY.tolist()),
        (2, BINARY, {"probabilities": True}, 2, [[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]]),
        (2, BINARY, {"probabilities": True, "width": 1}, 1, [[0.2], [0.4], [0.9]]),
        (3, MULTI, {"classifies": True}, 1, [1, 0]),
        (3, MULTI, {"probabilities": True}, 3, MULTI.tolist()),
        (0, BINARY, {}, 1, BINARY.tolist()),
        (0, BINARY, {"classifies": True}, 1, BINARY.tolist()),  # there are no classes
    ],
)
def test_the_one_output_of_fil(classes, scores, options, width, expected):
    chosen = {"probabilities": False, "classifies": False, "width": 0, **options}
    forest = FilPredictor(Scores(classes), **chosen)
    assert forest.outputs["output__0"].width == width
    (result,) = forest.predict(scores, ["output__0"])
    assert np.allclose(result, expected)
