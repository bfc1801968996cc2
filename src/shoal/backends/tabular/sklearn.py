"""scikit-learn estimators and pipelines, stored by skops or, where that is allowed, by pickle.

    model.skops --types checked--> estimator        model.joblib | model.pkl: only if allowed

Loading a pickle runs the code that its author put into it, so only the operator of the server can
allow it, not a model's config. skops loads only types that are trusted by skops, by Shoal or by
the operator.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import sklearn

from shoal.backends.base import LoadContext
from shoal.backends.files import config_file, short_name, what_else
from shoal.backends.registry import missing_library
from shoal.backends.tabular.backend import TabularBackend
from shoal.backends.tabular.predictor import Predictor, PredictorOutput
from shoal.config.backends import BACKENDS
from shoal.errors import InvalidArgument, ShoalError, Unsupported

_PICKLES = (".joblib", ".pkl", ".pickle")
_REMEDY = "store the model anew with skops.io.dump"
# Methods for outputs, by priority; the last ones only if a config names them.
_METHODS = ("predict", "predict_proba", "transform", "decision_function", "predict_log_proba")


class SklearnBackend(TabularBackend):
    """Serves estimators: `predict`, `predict_proba`, or `transform` for those without them."""

    name = "sklearn"
    filenames = BACKENDS["sklearn"].filenames
    what = "estimator, stored by skops,"

    def __init__(self) -> None:
        # Rows have no column names; the estimator would warn for every batch.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")

    def open(self, model_file: Path, context: LoadContext, threads: int) -> Predictor:
        """Load the estimator; see the module for what is refused."""
        parameters = context.parameters(self.name)
        if model_file.suffix in _PICKLES:
            if parameters.flag("allow_pickle") is not True:
                raise _refused(model_file)
            estimator = _unpickle(model_file)
        else:
            trusted = [name.strip() for name in parameters.text("trusted_types").split(",")]
            estimator = _load_skops(model_file, [name for name in trusted if name])
        if not any(hasattr(estimator, method) for method in _METHODS):
            raise InvalidArgument(
                f"'{short_name(model_file)}' holds a {type(estimator).__name__}, which can neither "
                "predict nor transform. Store a fitted estimator or pipeline"
            )
        _use_threads(estimator, threads)
        return SklearnPredictor(estimator)


class SklearnPredictor(Predictor):
    """An estimator, with its methods as outputs."""

    takes_strings = True  # categories, for instance

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator
        self.features = int(getattr(estimator, "n_features_in_", -1))
        self.takes_text = self.features < 0 and _reads_text(estimator)
        self.outputs = dict(self._find_outputs())

    def predict(self, rows: np.ndarray, wanted: Sequence[str]) -> Sequence[np.ndarray]:
        """Call the methods the outputs are named for."""
        data = rows.reshape(-1) if self.takes_text else rows
        return [np.asarray(_dense(getattr(self.estimator, name)(data))) for name in wanted]

    def _find_outputs(self) -> Iterator[tuple[str, PredictorOutput]]:
        predicts = hasattr(self.estimator, "predict")
        for method in _METHODS:
            if hasattr(self.estimator, method):
                answer = self._try(method) or self._guess(method)
                # A completed config lists only the usual outputs.
                listed = method in ("predict", "predict_proba") if predicts else True
                if answer is not None:
                    yield method, PredictorOutput(answer.dtype, answer.width, listed)

    def _try(self, method: str) -> PredictorOutput | None:
        """The outputs for a row of zeros, if the model accepts one."""
        if self.takes_text:
            row = np.array([""], dtype=object)
        elif self.features > 0:
            row = np.zeros((1, self.features), np.float32)
        else:
            return None
        try:
            result = _dense(getattr(self.estimator, method)(row))
        except Exception:  # noqa: BLE001 - zeros may be nothing it knows; its attributes tell less
            return None
        if isinstance(result, list):  # several outputs, a matrix each: not a single tensor
            return None
        array = np.asarray(result)
        if array.ndim > 2:
            return None
        return PredictorOutput(array.dtype, 1 if array.ndim == 1 else array.shape[1])

    def _guess(self, method: str) -> PredictorOutput | None:
        """The outputs by the attributes of a fitted estimator."""
        classes = getattr(self.estimator, "classes_", None)
        if isinstance(classes, list):  # several outputs
            if method != "predict":
                return None
            return PredictorOutput(np.asarray(classes[0]).dtype, len(classes))
        real = np.dtype(np.float64)
        if method == "predict":
            return PredictorOutput(real if classes is None else np.asarray(classes).dtype)
        if method.startswith("predict_") and classes is not None:
            return PredictorOutput(real, len(classes))
        return PredictorOutput(real, -1)


def _refused(model_file: Path) -> ShoalError:
    name = short_name(model_file)
    return Unsupported(
        f"'{name}' is a pickle, and loading a pickle runs the code its author put into it. Store "
        "the model with skops.io.dump as model.skops (or convert it to ONNX, for instance with "
        "skl2onnx), or, if you trust everyone who can write to the repository, start the server "
        "with --backend-config=sklearn,allow_pickle=true"
    )


def _unpickle(model_file: Path) -> Any:
    try:
        return joblib.load(model_file)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InvalidArgument(
            f"'{short_name(model_file)}' cannot be loaded: {error}. Install what the model was "
            "trained with, in the same versions"
        ) from error
    except Exception as error:
        raise _unreadable(model_file, error, pickle.UnpicklingError, EOFError, KeyError) from error


def _load_skops(model_file: Path, trusted: Sequence[str]) -> Any:
    try:
        import skops.io
    except ImportError as error:
        file = config_file(model_file.parent.parent)
        raise missing_library("sklearn", error, file=file) from error
    try:
        found = skops.io.get_untrusted_types(file=model_file)
        untrusted = [name for name in found if name not in trusted and not _is_sklearns_own(name)]
        if untrusted:
            raise Unsupported(
                f"'{short_name(model_file)}' contains types that are not scikit-learn's: "
                f"{', '.join(untrusted)}. If you trust it, install it here and start the server "
                f"with --backend-config=sklearn,trusted_types={','.join(untrusted)}"
            )
        return skops.io.load(model_file, trusted=found)
    except ShoalError:
        raise
    except Exception as error:
        raise _unreadable(model_file, error, zipfile.BadZipFile) from error


def _is_sklearns_own(name: str) -> bool:
    """Whether a type is a class that scikit-learn itself defines; functions may do anything."""
    module, _, attribute = name.rpartition(".")
    if not module.startswith("sklearn.") or module.startswith("sklearn.externals"):
        return False
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return False
    return inspect.isclass(found) and found.__module__ == module


def _unreadable(
    model_file: Path, error: Exception, *damaged: type[BaseException]
) -> InvalidArgument:
    name = short_name(model_file)
    if isinstance(error, damaged):
        return InvalidArgument(f"'{name}' is not an estimator: {what_else(model_file, _REMEDY)}")
    text = " ".join(str(error).split())
    return InvalidArgument(
        f"scikit-learn {sklearn.__version__} cannot load '{name}': {type(error).__name__}: {text}"
    )


def _reads_text(estimator: Any) -> bool:
    """Whether the first step turns texts into features."""
    steps = getattr(estimator, "steps", None)
    while steps:
        estimator = steps[0][1]
        steps = getattr(estimator, "steps", None)
    return hasattr(estimator, "build_analyzer")


def _use_threads(estimator: Any, threads: int) -> None:
    """Make an estimator that was trained with several jobs use its share of the cores."""
    get_params = getattr(estimator, "get_params", None)
    if get_params is None:
        return
    jobs = {
        key: threads
        for key, value in get_params(deep=True).items()
        if (key == "n_jobs" or key.endswith("__n_jobs")) and value not in (None, 1)
    }
    if jobs:
        estimator.set_params(**jobs)


def _dense(result: Any) -> Any:
    """A sparse matrix, as vectorisers give it, as an array."""
    return result.toarray() if hasattr(result, "toarray") else result
