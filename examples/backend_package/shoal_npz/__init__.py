"""A Shoal backend for linear models: y = x @ weights + bias, both from model.npz."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.backends import graph_config
from shoal.backends.base import Executor, LoadContext, LoadedModel, Placement
from shoal.backends.file_backend import FileBackend
from shoal.backends.files import find_model_file, short_name, what_else
from shoal.backends.graph import Graph, GraphTensor
from shoal.core.dtypes import FP32
from shoal.errors import InvalidArgument


class NpzBackend(FileBackend):
    """Serves model.npz."""

    name = "npz"
    uses_gpus = False

    def describe(self, context: LoadContext) -> Graph:
        """Describe the model by the shapes in the file, to complete config.pbtxt."""
        return _read(context)[0]

    def load(self, context: LoadContext) -> LoadedModel:
        """Read the arrays and reject a config that does not match them."""
        graph, weights, bias = _read(context)
        graph_config.check(context.config, graph, context.file)
        return NpzModel(weights, bias)


class NpzModel(LoadedModel):
    """One version; its instances share the arrays."""

    may_run_on_loop = True  # a product of small matrices never blocks

    def __init__(self, weights: np.ndarray, bias: np.ndarray) -> None:
        self._arrays = (weights, bias)

    def executor(self, placement: Placement) -> Executor:
        """Create an instance. There is only one device, so the placement does not matter."""
        del placement
        return NpzExecutor(*self._arrays)


class NpzExecutor(Executor):
    """One instance."""

    def __init__(self, weights: np.ndarray, bias: np.ndarray) -> None:
        self._weights, self._bias = weights, bias

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Compute all rows of a batch at once."""
        y = inputs["x"] @ self._weights + self._bias
        return [y for _ in outputs]


def _read(context: LoadContext) -> tuple[Graph, np.ndarray, np.ndarray]:
    """Read the graph, weights and bias; errors name the file and what to do."""
    names = ["model.npz"]
    path = find_model_file(context.config, context.version_folder, names, "arrays", context.file)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            weights, bias = arrays["weights"], arrays["bias"]
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        why = what_else(path, "save it with numpy.savez(file, weights=…, bias=…)")
        raise InvalidArgument(f"'{short_name(path)}' is no linear model: {why}") from error
    x = GraphTensor("x", "float32", FP32, (-1, weights.shape[0]))
    y = GraphTensor("y", "float32", FP32, (-1, weights.shape[1]))
    return Graph.of([x], [y]), weights.astype(np.float32), bias.astype(np.float32)
