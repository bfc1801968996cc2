"""Triton's `fil` backend: boosted trees with one matrix in, `input__0`, and one out, `output__0`.

    model_type: xgboost_ubj | xgboost_json | lightgbm   output_class, predict_proba, threshold

The trees run in their own libraries, on the CPU. Parameters that tune the GPU library Triton uses
there have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from shoal.backends import graph_config
from shoal.backends.base import LoadContext
from shoal.backends.files import find_model_file
from shoal.backends.registry import missing_library
from shoal.backends.tabular.backend import TabularBackend
from shoal.backends.tabular.boosted import BoostedTrees
from shoal.backends.tabular.predictor import Predictor, PredictorOutput
from shoal.errors import ConfigError

OUTPUT = "output__0"

# Model type to the names its file may have.
_FILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "xgboost_ubj": ("xgboost.ubj", "model.ubj"),
        "xgboost_json": ("xgboost.json", "model.json"),
        "xgboost": ("xgboost.model",),
        "lightgbm": ("model.txt",),
        "treelite_checkpoint": ("checkpoint.tl",),
    }
)


class FilBackend(TabularBackend):
    """Serves a repository made for Triton's forest inference backend."""

    name = "fil"
    filenames = tuple(name for names in _FILES.values() for name in names)
    what = "forest"
    input_name = "input__0"

    def open(self, model_file: Path, context: LoadContext, threads: int) -> Predictor:
        """Load the trees with their own library."""
        config, file = context.config, context.file
        parameters = context.parameters(self.name)
        kind = parameters.text("model_type") or _kind_of(model_file)
        if not config.default_model_filename and parameters.text("model_type"):
            model_file = find_model_file(config, model_file.parent, _FILES[kind], self.what, file)
        if kind == "treelite_checkpoint":
            raise ConfigError(
                "Treelite checkpoints cannot be served",
                file=file,
                field="parameters['model_type']",
                fix="Serve what the checkpoint was made from: an XGBoost model (xgboost_ubj), a "
                'LightGBM model (lightgbm), or a scikit-learn forest with backend: "sklearn"',
            )
        forest = _load(kind, model_file, threads, parameters.number("threshold"), file)
        classifies = parameters.flag("output_class")
        width = next(
            (graph_config.model_dims(out)[-1] for out in config.output if out.name == OUTPUT), 0
        )
        return FilPredictor(
            forest,
            probabilities=parameters.flag("predict_proba") is True and forest.classes > 0,
            classifies=forest.classes > 0 if classifies is None else classifies,
            width=width,
        )


class FilPredictor(Predictor):
    """A forest with Triton's output: one tensor, always numbers."""

    def __init__(
        self, forest: BoostedTrees, *, probabilities: bool, classifies: bool, width: int
    ) -> None:
        """`width` is that of the output in the config, or 0."""
        self.features = forest.features
        self._forest = forest
        self._probabilities = probabilities
        self._classifies = classifies and forest.classes > 0
        # Triton counts two classes as one: then the output is the probability of the second.
        self._second_only = probabilities and forest.classes == 2 and width == 1
        if probabilities:
            columns = 1 if self._second_only else forest.classes
        elif self._classifies or forest.classes == 2:
            columns = 1
        else:
            columns = forest.outputs["predict"].width if not forest.classes else forest.classes
        self.outputs = {OUTPUT: PredictorOutput(np.dtype(np.float32), columns)}

    def predict(self, rows: np.ndarray, wanted: Sequence[str]) -> Sequence[np.ndarray]:
        """The one output there is."""
        scores = np.asarray(self._forest.scores(rows))
        if self._probabilities:
            result = self._forest.probabilities(scores)
            result = result[:, 1:] if self._second_only else result
        else:
            result = self._forest.labels(scores) if self._classifies else scores
        return [result for _ in wanted]


def _kind_of(model_file: Path) -> str:
    """The model type of a file name."""
    suffixes = {Path(names[0]).suffix: kind for kind, names in _FILES.items()}
    return suffixes.get(model_file.suffix, "xgboost_ubj")


def _load(
    kind: str, model_file: Path, threads: int, threshold: float | None, file: str
) -> BoostedTrees:
    library = "lightgbm" if kind == "lightgbm" else "xgboost"
    try:
        if library == "lightgbm":
            from shoal.backends.tabular.lightgbm import LightgbmPredictor

            return LightgbmPredictor(model_file, threads, threshold)
        from shoal.backends.tabular.xgboost import XgboostPredictor

        return XgboostPredictor(model_file, threads, threshold)
    except ImportError as error:
        raise missing_library(library, error, file=file) from error
