"""Runs OpenVINO models: one compiled model, one infer request per instance.

    model.xml | model.onnx --read, shape--> Model --compile--> CompiledModel --> infer requests

All instances share the weights. Inputs are passed without a copy; outputs are copied, because the
runtime reuses their memory.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from shoal.backends import graph_config
from shoal.backends.base import Executor, LoadContext, LoadedModel, Placement
from shoal.backends.file_backend import FileBackend
from shoal.backends.files import find_model_file, short_name, what_else
from shoal.backends.graph import Graph
from shoal.backends.openvino.options import CompileOptions, compile_options
from shoal.backends.openvino.ports import (
    datatype_of,
    dims_of,
    graph_of,
    ports_of,
    with_free_batch,
)
from shoal.config.backends import BACKENDS
from shoal.config.model import ModelConfig
from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.errors import BackendFailure, ConfigError, InvalidArgument

FILENAMES = BACKENDS["openvino"].filenames

_ROUNDS_AFTER_FAILURE = 4

# Noise in the runtime's messages.
_NOISE = re.compile(
    r"Exception from \S+:\d+:|Check '.*?' failed at \S+:\d+:|FrontEnd API failed with \w+:"
)


class OpenVinoBackend(FileBackend):
    """Loads IR and ONNX files with OpenVINO's readers."""

    name = "openvino"
    uses_gpus = False  # its GPUs are not those that instance groups number

    def __init__(self) -> None:
        self._core = openvino.Core()

    def describe(self, context: LoadContext) -> Graph:
        """Inputs and outputs of the model file; nothing is compiled."""
        graph = graph_of(self._read(context)[0])
        # Loading gives a model with a fixed batch a variable one.
        return with_free_batch(graph) if context.config.max_batch_size else graph

    def load(self, context: LoadContext) -> LoadedModel:
        """Compile the model and check its config against it."""
        config, file = context.config, context.file
        model, model_file, options = self._read(context)
        _reshape(model, config, options, file)
        graph = graph_of(model)
        if options.fixed_batch and config.max_batch_size:
            graph = with_free_batch(graph)
        graph_config.check(config, graph, file)
        return OpenVinoModel(self._compile(model, model_file, options, file), config, options)

    def _read(self, context: LoadContext) -> tuple[Any, Path, CompileOptions]:
        config, file = context.config, context.file
        options = compile_options(
            context.parameters(self.name), len(context.placements), context.cores
        )
        model_file = find_model_file(config, context.version_folder, FILENAMES, "model", file)
        if options.extension is not None:
            self._add_extension(options.extension, file)
        try:
            return self._core.read_model(str(model_file)), model_file, options
        except RuntimeError as error:
            name = short_name(model_file)
            text = clean_message(error)
            if text.startswith("Unable to read the model"):
                why = what_else(model_file, "convert it with OpenVINO's ovc")
                raise InvalidArgument(f"'{name}' is not a model OpenVINO can read: {why}") from None
            raise InvalidArgument(f"OpenVINO {_version()} cannot read '{name}': {text}") from None

    def _add_extension(self, library: Path, file: str) -> None:
        try:
            self._core.add_extension(str(library))
        except RuntimeError as error:
            raise ConfigError(
                f"the library '{library}' does not load: {clean_message(error)}",
                file=file,
                field="parameters['CPU_EXTENSION_PATH']",
                fix="Write the absolute path of a library built for this version of OpenVINO",
            ) from None

    def _compile(self, model: Any, model_file: Path, options: CompileOptions, file: str) -> Any:
        device = options.device
        known = list(self._core.available_devices)
        if re.fullmatch(r"[A-Z]+", device) and device not in (*known, "AUTO", "HETERO", "MULTI"):
            raise ConfigError(
                f"OpenVINO finds no device '{device}' here",
                file=file,
                field="parameters['TARGET_DEVICE']",
                fix=f"Write one of {', '.join(known)}",
            )
        try:
            return self._core.compile_model(model, device, dict(options.properties))
        except RuntimeError as error:
            raise InvalidArgument(
                f"OpenVINO {_version()} cannot compile '{short_name(model_file)}' for {device}: "
                f"{clean_message(error)}"
            ) from None


class OpenVinoModel(LoadedModel):
    """One compiled version of a model."""

    def __init__(self, compiled: Any, config: ModelConfig, options: CompileOptions) -> None:
        self._compiled = compiled
        self._config = config
        self._options = options
        self._lock = threading.Lock()  # creating requests in parallel is not documented as safe

    def runtime_property(self, name: str) -> Any:
        """The runtime's value of a property, such as NUM_STREAMS."""
        return self._compiled.get_property(name)

    def executor(self, placement: Placement) -> Executor:
        """An infer request of the compiled model."""
        del placement
        with self._lock:
            request = self._compiled.create_infer_request()
        return OpenVinoExecutor(request, self._compiled, self._config, self._options)

    def close(self) -> None:
        """Drop the compiled model; the last infer request frees its memory."""
        self._compiled = None


@dataclass(frozen=True, slots=True)
class _Port:
    """An input or output of a compiled model."""

    index: int
    datatype: DataType | None
    element_type: Any


class OpenVinoExecutor(Executor):
    """One infer request. It may run while others of the model do."""

    def __init__(
        self, request: Any, compiled: Any, config: ModelConfig, options: CompileOptions
    ) -> None:
        self._model_name = config.name
        self._request = request
        self._compiled = compiled
        self._streams = max(1, int(_property(compiled, "NUM_STREAMS") or 1))
        self._ones = {index: _ones(port) for index, _, port in ports_of(compiled.inputs)}
        self._fixed_rows = config.max_batch_size if options.fixed_batch else 0
        self._pads = options.pad_batch
        self._inputs, self._outputs = (
            {
                name: _Port(index, datatype_of(port), port.element_type)
                for index, name, port in ports_of(ports)
            }
            for ports in (compiled.inputs, compiled.outputs)
        )
        ranks = {
            name: len(port.partial_shape) if port.partial_shape.rank.is_static else -1
            for _, name, port in ports_of([*compiled.inputs, *compiled.outputs])
        }
        scalars_in = graph_config.scalar_dims(config.input, config)
        scalars_out = graph_config.scalar_dims(config.output, config)
        self._scalars_in = {name for name in scalars_in if ranks.get(name) == 0}
        self._scalars_out = {
            name: dims for name, dims in scalars_out.items() if ranks.get(name) == 0
        }

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Compute the named outputs; BackendFailure with the runtime's message."""
        if len(inputs) < len(self._inputs):
            raise self._incomplete(inputs)
        rows = 0
        if self._fixed_rows:
            rows = next(iter(inputs.values())).shape[0]
            inputs = self._filled(inputs, rows)
        arrays = {name: self._to_runtime(name, array) for name, array in inputs.items()}
        # Tensors use the memory of the arrays, which must live until the end.
        feed = {self._inputs[name].index: self._tensor(name, arrays[name]) for name in arrays}
        try:
            self._request.start_async(feed)
            self._request.wait()
        except RuntimeError as error:
            self._forget_shapes()
            raise BackendFailure(
                f"model '{self._model_name}' failed: {clean_message(error)}"
            ) from None
        results = [self._from_runtime(name) for name in outputs]
        return [array[:rows] for array in results] if rows else results

    def close(self) -> None:
        """Release the request and, with it, the last inputs."""
        self._request = self._compiled = None

    def _forget_shapes(self) -> None:
        """Run another input after a failure.

        OpenVINO (2026.4) caches the shapes of a failed execution, treats a repetition as computed
        and returns an earlier result. Each stream has its own cache, and any idle one takes the
        next request: so there are more requests than streams, and that more than once.
        """
        requests = [self._compiled.create_infer_request() for _ in range(4 * self._streams)]
        for _ in range(_ROUNDS_AFTER_FAILURE if self._streams > 1 else 1):
            with contextlib.suppress(RuntimeError):  # the result does not matter
                for request in requests:
                    request.start_async(self._ones)
            for request in requests:
                with contextlib.suppress(RuntimeError):
                    request.wait()

    def _tensor(self, name: str, array: np.ndarray) -> Any:
        if array.dtype.kind == "S":
            return openvino.Tensor(array)
        return openvino.Tensor(array, list(array.shape), self._inputs[name].element_type)

    def _filled(self, inputs: Mapping[str, np.ndarray], rows: int) -> Mapping[str, np.ndarray]:
        """The inputs, padded to the model's number of rows."""
        if rows != self._fixed_rows and not self._pads:
            raise InvalidArgument(
                f"model '{self._model_name}' takes batches of exactly {self._fixed_rows} rows, got "
                f"{rows}. Send as many, or set the parameter ENABLE_BATCH_PADDING: YES"
            )
        return {name: _padded(array, self._fixed_rows) for name, array in inputs.items()}

    def _to_runtime(self, name: str, array: np.ndarray) -> np.ndarray:
        """The input as a contiguous, aligned array."""
        if name in self._scalars_in:
            array = array.reshape(())
        if self._inputs[name].datatype is dtypes.BYTES:
            return np.array(array.tolist(), dtype=np.bytes_).reshape(array.shape)
        return np.require(array, requirements=("C", "A"))

    def _from_runtime(self, name: str) -> np.ndarray:
        datatype = self._outputs[name].datatype
        tensor = self._request.get_output_tensor(self._outputs[name].index)
        if datatype is dtypes.BYTES:
            result: np.ndarray = tensor.bytes_data.astype(object)
        elif datatype is dtypes.BF16:
            result = tensor.data.view(np.uint16).copy()
        else:
            result = tensor.data.copy()
        return result.reshape(self._scalars_out[name]) if name in self._scalars_out else result

    def _incomplete(self, inputs: Mapping[str, np.ndarray]) -> InvalidArgument:
        missing = ", ".join(f"'{name}'" for name in self._inputs if name not in inputs)
        return InvalidArgument(
            f"model '{self._model_name}' cannot run without {missing}. Send it with every request"
        )


def clean_message(error: BaseException) -> str:
    """The runtime's message on one line, without source locations."""
    return " ".join(_NOISE.sub(" ", str(error)).split()).rstrip(".") or type(error).__name__


def _version() -> str:
    return str(openvino.__version__).split("-", 1)[0]


def _reshape(model: Any, config: ModelConfig, options: CompileOptions, file: str) -> None:
    """Give the model the shapes of its config: a batch dimension, or all of them."""
    dims = {tensor.name: graph_config.model_dims(tensor) for tensor in config.input}
    batching = config.max_batch_size > 0
    rows = config.max_batch_size if options.fixed_batch else -1
    wanted: dict[Any, list[int]] = {}
    for _, name, port in ports_of(model.inputs):
        found = dims_of(port)
        shape = list(found)
        if options.reshape and name in dims:
            shape = [rows, *dims[name]] if batching else list(dims[name])
        elif batching and found:
            shape[0] = rows
        if tuple(shape) != found:
            wanted[port] = shape
    if not wanted:
        return
    try:
        model.reshape(wanted)
    except RuntimeError as error:
        fix = "Write the dims the model has, or leave RESHAPE_IO_LAYOUTS out"
        if not options.reshape:
            fix = (
                "Set max_batch_size: 0 and write whole shapes in dims, or have batches filled up "
                "to the model's own with the parameter ENABLE_BATCH_PADDING: YES"
            )
        raise ConfigError(
            f"the model cannot take the shapes of its configuration: {clean_message(error)}",
            file=file,
            field="input.dims" if options.reshape else "max_batch_size",
            fix=fix,
        ) from None


def _property(compiled: Any, name: str) -> Any:
    """A property of the compiled model; None if its device does not have it."""
    try:
        return compiled.get_property(name)
    except RuntimeError:
        return None


def _ones(port: Any) -> Any:
    """The smallest possible input of a port."""
    shape = [max(1, dim) for dim in dims_of(port)]
    datatype = datatype_of(port)
    if datatype is dtypes.BF16:
        return openvino.Tensor(openvino.Type.bf16, shape)
    if datatype is dtypes.BYTES or datatype is None:
        return np.full(shape, b"1", np.bytes_)
    return np.ones(shape, datatype.numpy)


def _padded(array: np.ndarray, rows: int) -> np.ndarray:
    """The array, padded with rows of zeros to `rows` rows."""
    missing = rows - array.shape[0]
    if missing <= 0:
        return array
    filler = b"" if array.dtype == object else 0
    return np.concatenate([array, np.full((missing, *array.shape[1:]), filler, array.dtype)])
