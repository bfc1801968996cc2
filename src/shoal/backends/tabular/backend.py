"""What all models of rows share: the config, the datatypes on the way in and out, the instances.

    request [rows, features] --> Predictor --> predict [rows, 1], predict_proba [rows, classes]

A predictor is loaded once and shared by all instances. Inputs are FP32 unless the config has
another datatype; outputs have the datatype of the config.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from shoal.backends import graph_config
from shoal.backends.base import Executor, LoadContext, LoadedModel, Placement
from shoal.backends.file_backend import FileBackend
from shoal.backends.files import find_model_file
from shoal.backends.graph import Graph, GraphTensor
from shoal.backends.tabular.predictor import NUMBERS, Predictor, PredictorOutput
from shoal.config.model import ModelConfig, ModelInput, ModelOutput
from shoal.core import dtypes
from shoal.core.dtypes import BY_CONFIG_NAME, DataType
from shoal.errors import BackendFailure, InvalidArgument, ShoalError


class TabularBackend(FileBackend):
    """A backend for models of rows; a library's own part is `open`."""

    filenames: Sequence[str]
    what: str  # what a model file is called in messages
    input_name = "features"
    uses_gpus = False
    default_max_batch_size = 1024  # rows are small

    @abstractmethod
    def open(self, model_file: Path, context: LoadContext, threads: int) -> Predictor:
        """Load `model_file`, to use `threads` threads per prediction. Raises a ShoalError."""

    def describe(self, context: LoadContext) -> Graph:
        """Load the model to see its features and outputs."""
        return self._graph(self._open(context, 1), context.config, completing=True)

    def load(self, context: LoadContext) -> LoadedModel:
        """Load the model and check its config against it."""
        config = context.config
        threads = context.parameters(self.name).count("threads") or context.threads
        predictor = self._open(context, threads)
        graph_config.check(config, self._graph(predictor, config), context.file)
        return TabularModel(predictor, config)

    def _open(self, context: LoadContext, threads: int) -> Predictor:
        model_file = find_model_file(
            context.config, context.version_folder, self.filenames, self.what, context.file
        )
        return self.open(model_file, context, threads)

    def _graph(
        self, predictor: Predictor, config: ModelConfig, *, completing: bool = False
    ) -> Graph:
        """The predictor as a graph, with the config's datatypes if the model supports them."""
        takes = (dtypes.BYTES,) if predictor.takes_text else NUMBERS
        if predictor.takes_strings and dtypes.BYTES not in takes:
            takes = (*takes, dtypes.BYTES)
        width = 1 if predictor.takes_text else predictor.features
        name = config.input[0].name if config.input else self.input_name
        written = config.input[0] if config.input else None
        source = GraphTensor(name, "a matrix", _chosen(written, takes), (-1, width))
        outputs = {tensor.name: tensor for tensor in config.output}
        # With FP64 inputs, outputs are FP64 too.
        prefers = dtypes.FP64 if source.datatype is dtypes.FP64 else None
        answers = [
            _answer_tensor(name, answer, outputs.get(name), prefers)
            for name, answer in predictor.outputs.items()
            if answer.listed or not completing or name in outputs
        ]
        return Graph.of([source], answers)


class TabularModel(LoadedModel):
    """One version of a model."""

    may_run_on_loop = True  # it only computes

    def __init__(self, predictor: Predictor, config: ModelConfig) -> None:
        self._predictor: Predictor | None = predictor
        self._config = config

    @property
    def predictor(self) -> Predictor | None:
        """The model itself, as long as it is loaded."""
        return self._predictor

    def executor(self, placement: Placement) -> Executor:
        """An instance, which shares the predictor."""
        del placement
        assert self._predictor is not None
        return TabularExecutor(self._predictor, self._config)

    def close(self) -> None:
        """Drop the predictor; the last executor frees its memory."""
        self._predictor = None


class TabularExecutor(Executor):
    """One instance."""

    def __init__(self, predictor: Predictor, config: ModelConfig) -> None:
        self._predictor: Predictor | None = predictor
        self._model_name = config.name
        self._input = config.input[0].name
        self._strings = config.input[0].data_type == "TYPE_STRING"
        self._datatypes = {
            output.name: BY_CONFIG_NAME[output.data_type] for output in config.output
        }

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Predict. What the library raises is a BackendFailure with its text."""
        assert self._predictor is not None
        rows = inputs[self._input]
        features = self._predictor.features
        if features > 0 and rows.shape[-1] != features:  # a config may have -1
            raise InvalidArgument(
                f"model '{self._model_name}' takes rows of {features} features, got "
                f"{rows.shape[-1]}"
            )
        if self._strings:
            rows = self._texts(rows)
        try:
            results = self._predictor.predict(rows, outputs)
        except ShoalError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            raise BackendFailure(
                f"model '{self._model_name}' failed: {type(error).__name__}: {text}"
            ) from error
        return [
            _to_datatype(array, self._datatypes[name])
            for name, array in zip(outputs, results, strict=True)
        ]

    def close(self) -> None:
        """Let go of the predictor."""
        self._predictor = None

    def _texts(self, rows: np.ndarray) -> np.ndarray:
        texts = np.empty(rows.size, object)
        try:
            texts[:] = [str(element, "utf-8") for element in rows.reshape(-1).tolist()]
        except UnicodeDecodeError:
            raise InvalidArgument(
                f"an element of the BYTES input '{self._input}' is not UTF-8 text. Send text as "
                "UTF-8"
            ) from None
        return texts.reshape(rows.shape)


def _answer_tensor(
    name: str, answer: PredictorOutput, written: ModelOutput | None, prefers: DataType | None
) -> GraphTensor:
    choices = answer.datatypes
    if prefers in choices:
        choices = (prefers, *choices)
    datatype = _chosen(written, choices)
    return GraphTensor(name, str(answer.dtype), datatype, (-1, answer.width))


def _chosen(
    written: ModelInput | ModelOutput | None, choices: Sequence[DataType | None]
) -> DataType | None:
    """The config's datatype of a tensor if the model supports it, else the default."""
    wanted = BY_CONFIG_NAME.get(written.data_type) if written is not None else None
    return wanted if wanted in choices else next(iter(choices), None)


def _to_datatype(array: np.ndarray, datatype: DataType) -> np.ndarray:
    """A library's result, [rows] or [rows, columns], as an output tensor."""
    array = np.asarray(array)
    if array.ndim == 1:
        array = array.reshape(-1, 1)
    if datatype is not dtypes.BYTES:
        return np.ascontiguousarray(array, dtype=datatype.numpy)
    elements = np.empty(array.size, object)
    elements[:] = [
        item if isinstance(item, bytes) else str(item).encode()
        for item in array.reshape(-1).tolist()
    ]
    return elements.reshape(array.shape)
