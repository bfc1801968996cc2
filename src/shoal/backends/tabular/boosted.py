"""What boosted trees have in common: scores in, a class or a number out.

    scores [rows] or [rows, classes] --> predict, predict_proba

The files of XGBoost and LightGBM number classes 0, 1, 2 …; `label_filename` in the config names
them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from shoal.backends.tabular.predictor import Predictor, PredictorOutput

THRESHOLD = 0.5  # the probability above which the class is 1

_REAL = np.dtype(np.float32)
_CLASS = np.dtype(np.int64)


class BoostedTrees(Predictor):
    """A predictor whose library returns scores. `classes` is 0 for a regression."""

    def __init__(self, features: int, classes: int, targets: int, threshold: float | None) -> None:
        self.features = features
        self.classes = classes
        self.threshold = THRESHOLD if threshold is None else threshold
        if classes:
            self.outputs = {
                "predict": PredictorOutput(_CLASS),
                "predict_proba": PredictorOutput(_REAL, classes),
            }
        else:
            self.outputs = {"predict": PredictorOutput(_REAL, targets)}

    @abstractmethod
    def scores(self, rows: np.ndarray) -> np.ndarray:
        """What the library computes: for two classes the probability of the second."""

    def predict(self, rows: np.ndarray, wanted: Sequence[str]) -> Sequence[np.ndarray]:
        """Compute the scores once for all outputs."""
        scores = np.asarray(self.scores(rows))
        return [self.answer(name, scores) for name in wanted]

    def answer(self, name: str, scores: np.ndarray) -> np.ndarray:
        """One answer from scores."""
        if name == "predict_proba":
            return self.probabilities(scores)
        return self.labels(scores) if self.classes else scores

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """One column for each class."""
        if self.classes == 2 and scores.ndim == 1:
            return np.stack([1 - scores, scores], axis=1)
        return scores

    def labels(self, scores: np.ndarray) -> np.ndarray:
        """The number of the class."""
        if self.classes == 2 and scores.ndim == 1:
            above: np.ndarray = scores > self.threshold
            return above.astype(np.int64)
        if scores.ndim == 1:  # the model has decided itself
            return scores.astype(np.int64)
        best: np.ndarray = scores.argmax(axis=1)
        return best
