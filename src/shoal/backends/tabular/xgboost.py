"""XGBoost models (model.ubj, model.json), as `save_model` stores them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import xgboost

from shoal.backends.base import LoadContext
from shoal.backends.files import short_name, what_else
from shoal.backends.tabular import ubjson
from shoal.backends.tabular.backend import TabularBackend
from shoal.backends.tabular.boosted import BoostedTrees
from shoal.backends.tabular.predictor import Predictor
from shoal.config.backends import BACKENDS
from shoal.errors import InvalidArgument

# The source location before an error's message, and the stack after it.
_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")
_REMEDY = "store the model anew with save_model('model.ubj')"
_TWO_CLASSES = ("binary:logistic", "binary:hinge")


class XgboostBackend(TabularBackend):
    """Serves boosters: a number for a regression, class and probabilities for a classifier."""

    name = "xgboost"
    filenames = BACKENDS["xgboost"].filenames
    what = "XGBoost model"

    def open(self, model_file: Path, context: LoadContext, threads: int) -> Predictor:
        """Load the booster."""
        threshold = context.parameters(self.name).number("threshold")
        return XgboostPredictor(model_file, threads, threshold)


class XgboostPredictor(BoostedTrees):
    """A booster."""

    def __init__(self, model_file: Path, threads: int, threshold: float | None) -> None:
        """Raises InvalidArgument when the file cannot be loaded."""
        try:
            if model_file.suffix == ".ubj":
                ubjson.check(model_file.read_bytes())
            booster = xgboost.Booster({"nthread": threads})
            booster.load_model(str(model_file))
            booster.set_param({"nthread": threads})
            learner = json.loads(booster.save_config())["learner"]
        except (xgboost.core.XGBoostError, ValueError, KeyError, TypeError, OSError) as error:
            raise InvalidArgument(_why(model_file, error)) from None
        shape = learner["learner_model_param"]
        self.objective = learner["objective"]["name"]
        classes = int(shape["num_class"])
        if self.objective in _TWO_CLASSES:
            classes = 2
        super().__init__(
            int(shape["num_feature"]), classes, max(1, int(shape.get("num_target", 1))), threshold
        )
        if self.objective in ("multi:softmax", "binary:hinge"):  # it gives the class alone
            self.outputs = {"predict": self.outputs["predict"]}
        self._booster = booster
        self._in_place = learner["gradient_booster"]["name"] != "gblinear"
        # Early stopping stores the last iteration to use, as XGBoost's own classes do.
        best = booster.attr("best_iteration")
        self._trees = (0, int(best) + 1) if best is not None else (0, 0)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """What the booster predicts; it reads the rows where they are."""
        if self._in_place:
            result: np.ndarray = self._booster.inplace_predict(
                rows, iteration_range=self._trees, validate_features=False
            )
        else:
            matrix = xgboost.DMatrix(rows)
            result = self._booster.predict(
                matrix, iteration_range=self._trees, validate_features=False
            )
        return result


def _why(model_file: Path, error: Exception) -> str:
    name = short_name(model_file)
    text = _PLACE.sub("", str(error).partition("Stack trace:")[0].strip())
    text = " ".join(text.split()).rstrip(".")
    if isinstance(error, (ubjson.TruncatedFile, OSError)) or model_file.stat().st_size < 64:
        return f"'{name}' is not an XGBoost model: {what_else(model_file, _REMEDY)}"
    return (
        f"XGBoost {xgboost.__version__} cannot load '{name}': {text}. If it was stored by another "
        f"version, {_REMEDY} there"
    )
