"""LightGBM models (model.txt), as `Booster.save_model` stores them."""

from __future__ import annotations

import logging
from pathlib import Path

import lightgbm
import numpy as np

from shoal.backends.base import LoadContext
from shoal.backends.files import short_name, what_else
from shoal.backends.tabular.backend import TabularBackend
from shoal.backends.tabular.boosted import BoostedTrees
from shoal.backends.tabular.predictor import Predictor
from shoal.config.backends import BACKENDS
from shoal.errors import InvalidArgument

_REMEDY = "store the model anew with save_model('model.txt')"
_HEAD_BYTES = 1 << 16  # the objective is among the first lines


class LightgbmBackend(TabularBackend):
    """Serves boosters: a number for a regression, class and probabilities for a classifier."""

    name = "lightgbm"
    filenames = BACKENDS["lightgbm"].filenames
    what = "LightGBM model"

    def open(self, model_file: Path, context: LoadContext, threads: int) -> Predictor:
        """Load the booster."""
        threshold = context.parameters(self.name).number("threshold")
        return LightgbmPredictor(model_file, threads, threshold)


class LightgbmPredictor(BoostedTrees):
    """A booster."""

    def __init__(self, model_file: Path, threads: int, threshold: float | None) -> None:
        """Raises InvalidArgument when the file cannot be loaded."""
        lightgbm.register_logger(_SilentLogger())  # the library prints errors that it raises too
        try:
            text = model_file.read_text(encoding="utf-8")
            _check_whole(text)
            booster = lightgbm.Booster(model_str=text)
        except (lightgbm.basic.LightGBMError, ValueError, OSError) as error:
            name = short_name(model_file)
            why = what_else(model_file, _REMEDY)
            if isinstance(error, lightgbm.basic.LightGBMError):
                why = f"{error}. Copy it again, or {_REMEDY}"
            raise InvalidArgument(f"'{name}' is not a LightGBM model: {why}") from None
        self.objective = _objective(text)
        width = booster.num_model_per_iteration()
        classes = 0
        if self.objective == "binary":
            classes = 2
        elif self.objective.startswith("multiclass"):
            classes = width
        super().__init__(booster.num_feature(), classes, width, threshold)
        self._booster = booster
        self._threads = threads

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """What the booster predicts."""
        if rows.dtype not in (np.float32, np.float64):
            rows = rows.astype(np.float64)
        result: np.ndarray = self._booster.predict(rows, num_threads=self._threads)
        return result


class _SilentLogger:
    """Where the library's own messages go."""

    def info(self, message: str) -> None:
        """Nothing an operator needs."""
        logging.getLogger(__name__).debug(message)

    def warning(self, message: str) -> None:
        """Something an operator may need; what is fatal is raised as well."""
        logging.getLogger(__name__).debug(message)


def _check_whole(text: str) -> None:
    """Raise ValueError for a file that is no model, or a truncated one: the library would load
    the trees it finds without an error."""
    trees, _, rest = text.partition("\nend of trees")
    whole = trees.startswith("tree") and len(trees) < len(text)
    if not whole or ("\nparameters:" in rest and "\nend of parameters" not in rest):
        raise ValueError("not a whole model")


def _objective(text: str) -> str:
    """The first word of the model's objective; "" for a custom one."""
    for line in text[:_HEAD_BYTES].splitlines():
        if line.startswith("objective="):
            return line.removeprefix("objective=").split()[0]
        if line.startswith("Tree="):
            break
    return ""
