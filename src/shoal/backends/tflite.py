"""TensorFlow Lite models (model.tflite), run by LiteRT.

    model.tflite --read once--> one interpreter per instance --resize, invoke--> outputs

Inputs and outputs have the names of the model's signature, or of its tensors where it has none.
Quantised tensors are served as integers. A model whose first dimension is variable is batched; one
with a first dimension of 1 is too, if the config has max_batch_size and the interpreter can be
resized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from shoal.backends import graph_config
from shoal.backends.base import Executor, LoadContext, LoadedModel, Placement
from shoal.backends.file_backend import FileBackend
from shoal.backends.files import find_model_file, short_name, what_else
from shoal.backends.graph import Graph, GraphTensor
from shoal.config.backends import BACKENDS
from shoal.config.model import ModelConfig
from shoal.config.parameters import Parameters
from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.errors import BackendFailure, ConfigError, InvalidArgument

SIGNATURE = "signature"  # a parameter
_SERVING = "serving_default"


class TfliteBackend(FileBackend):
    """Loads flat buffers."""

    name = "tflite"
    uses_gpus = False

    def describe(self, context: LoadContext) -> Graph:
        """The signature of the model file."""
        content, model_file = _read(context)
        session = InterpreterSession(content, 1, context.parameters(self.name), model_file)
        return session.graph(batched=context.config.max_batch_size > 0)

    def load(self, context: LoadContext) -> LoadedModel:
        """Read the file, make an interpreter and check the config against it."""
        config = context.config
        parameters = context.parameters(self.name)
        threads = parameters.count("num_threads") or context.threads
        content, model_file = _read(context)
        session = InterpreterSession(content, threads, parameters, model_file)
        graph_config.check(config, session.graph(batched=config.max_batch_size > 0), context.file)
        if config.max_batch_size > 1:
            _check_resize(content, context.file)
        return TfliteModel(session, content, threads, parameters, model_file, config)


class InterpreterSession:
    """An interpreter with the names of inputs and outputs. For one thread at a time."""

    def __init__(
        self, content: bytes, threads: int, parameters: Parameters, model_file: Path
    ) -> None:
        """Raises InvalidArgument if the file is not a model, ConfigError for a wrong signature."""
        name = short_name(model_file)
        try:
            self._interpreter = Interpreter(model_content=content, num_threads=threads)
            self._interpreter.allocate_tensors()
        except ValueError as error:
            why = what_else(model_file, "convert the model again")
            raise InvalidArgument(f"'{name}' is not a TensorFlow Lite model: {why}") from error
        except RuntimeError as error:
            raise InvalidArgument(f"LiteRT cannot load '{name}': {_clean(error)}") from None
        signatures = list(self._interpreter.get_signature_list())
        wanted = parameters.text(SIGNATURE) or next(iter(signatures), "")
        if not parameters.text(SIGNATURE) and _SERVING in signatures:
            wanted = _SERVING
        if wanted and wanted not in signatures:
            raise parameters.wrong(SIGNATURE, wanted, f"one of {', '.join(signatures) or 'none'}")
        self._runner = self._interpreter.get_signature_runner(wanted) if wanted else None
        if self._runner is not None:
            self._inputs = dict(self._runner.get_input_details())
            self._outputs = dict(self._runner.get_output_details())
        else:
            self._inputs = {row["name"]: row for row in self._interpreter.get_input_details()}
            self._outputs = {row["name"]: row for row in self._interpreter.get_output_details()}

    def graph(self, *, batched: bool) -> Graph:
        """What the model declares; `batched` treats a first dimension of 1 as the batch."""
        tensors = [*self._inputs.values(), *self._outputs.values()]
        free = batched and all(_dims(row)[:1] in ((1,), (-1,)) for row in tensors)
        return Graph.of(
            [_tensor(name, row, free) for name, row in self._inputs.items()],
            [_tensor(name, row, free) for name, row in self._outputs.items()],
        )

    def run(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Compute everything; the arrays are the caller's."""
        missing = [name for name in self._inputs if name not in inputs]
        if missing:
            raise InvalidArgument(
                f"the model cannot run without {', '.join(missing)}. Send it with every request"
            )
        if self._runner is not None:
            results: Mapping[str, np.ndarray] = self._runner(**inputs)
            return results
        interpreter = self._interpreter
        resized = False
        for name, array in inputs.items():
            row = self._inputs[name]
            if tuple(row["shape"]) != array.shape:
                interpreter.resize_tensor_input(row["index"], list(array.shape))
                self._inputs[name] = {**row, "shape": array.shape}
                resized = True
        if resized:
            interpreter.allocate_tensors()
        for name, array in inputs.items():
            interpreter.set_tensor(self._inputs[name]["index"], array)
        interpreter.invoke()
        return {name: interpreter.get_tensor(row["index"]) for name, row in self._outputs.items()}


class TfliteModel(LoadedModel):
    """One version of a model: its bytes, which all interpreters read."""

    def __init__(
        self,
        session: InterpreterSession,
        content: bytes,
        threads: int,
        parameters: Parameters,
        model_file: Path,
        config: ModelConfig,
    ) -> None:
        self._spare: InterpreterSession | None = session
        self._content = content
        self._threads = threads
        self._parameters = parameters
        self._model_file = model_file
        self._config = config

    def executor(self, placement: Placement) -> Executor:
        """An interpreter of its own; the first instance takes the one loading made."""
        del placement
        session, self._spare = self._spare, None
        if session is None:
            session = InterpreterSession(
                self._content, self._threads, self._parameters, self._model_file
            )
        return TfliteExecutor(session, self._config)

    def close(self) -> None:
        """Drop the file's bytes; interpreters keep them until they are closed."""
        self._spare = None
        self._content = b""


class TfliteExecutor(Executor):
    """One interpreter."""

    def __init__(self, session: InterpreterSession, config: ModelConfig) -> None:
        self._session: InterpreterSession | None = session
        self._model_name = config.name
        graph = session.graph(batched=config.max_batch_size > 0)
        inputs = graph_config.scalar_dims(config.input, config)
        outputs = graph_config.scalar_dims(config.output, config)
        self._scalars_in = {name for name in inputs if not graph.inputs[name].dims}
        self._scalars_out = {
            name: dims for name, dims in outputs.items() if not graph.outputs[name].dims
        }

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Compute the named outputs; BackendFailure with the interpreter's message."""
        assert self._session is not None
        feed = {name: self._to_runtime(name, array) for name, array in inputs.items()}
        try:
            results = self._session.run(feed)
        except (RuntimeError, ValueError) as error:
            raise BackendFailure(f"model '{self._model_name}' failed: {_clean(error)}") from None
        return [self._from_runtime(name, results[name]) for name in outputs]

    def close(self) -> None:
        """Free the interpreter's memory."""
        self._session = None

    def _to_runtime(self, name: str, array: np.ndarray) -> np.ndarray:
        if array.dtype == object:
            array = np.array(array.tolist(), dtype=np.bytes_).reshape(array.shape)
        return array.reshape(()) if name in self._scalars_in else array

    def _from_runtime(self, name: str, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind in "SO":
            array = array.astype(object)
        return array.reshape(self._scalars_out[name]) if name in self._scalars_out else array


def _read(context: LoadContext) -> tuple[bytes, Path]:
    """The file's bytes. They are not mapped: a replaced file would change them."""
    names, what = BACKENDS["tflite"].filenames, "TensorFlow Lite model"
    model_file = find_model_file(context.config, context.version_folder, names, what, context.file)
    try:
        content = model_file.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"'{short_name(model_file)}' cannot be read: {error}") from None
    return content, model_file


def _check_resize(content: bytes, file: str) -> None:
    """Raise ConfigError if the model cannot be resized for batches."""
    interpreter = Interpreter(model_content=content, num_threads=1)
    rows = interpreter.get_input_details()
    if all(_dims(row)[:1] == (-1,) for row in rows):
        return
    try:
        for row in rows:
            interpreter.resize_tensor_input(row["index"], [2, *map(int, row["shape"][1:])])
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the model does not take batches: {_clean(error)}",
            file=file,
            field="max_batch_size",
            fix="Set max_batch_size: 0 and write whole shapes in dims, or convert the model with a "
            "variable first dimension",
        ) from None


def _dims(row: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(dim) for dim in row["shape_signature"])


def _tensor(name: str, row: Mapping[str, Any], free_batch: bool) -> GraphTensor:
    dims = _dims(row)
    if free_batch:
        dims = (-1, *dims[1:])
    kind = np.dtype(row["dtype"])
    return GraphTensor(name, str(kind), _datatype(kind), dims)


def _datatype(kind: np.dtype[Any]) -> DataType | None:
    if kind.name == "bfloat16":
        return None
    try:
        return dtypes.from_numpy(kind)
    except InvalidArgument:
        return None


def _clean(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
