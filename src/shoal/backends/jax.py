"""JAX functions, as `jax.export` stores them (model.jax).

    exported.serialize() --> model.jax --deserialize--> jit --one compilation per shape--> outputs

Keyword arguments and dictionary keys are the names of inputs and outputs; those without a name are
INPUT__0, INPUT__1 … and OUTPUT__0 …. A symbolic first dimension is the batch. Each new shape is
compiled at its first request; to avoid that, list the batch sizes in `model_warmup`.
"""

from __future__ import annotations

import contextlib
import importlib
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax import export

from shoal.backends import graph_config
from shoal.backends.base import Executor, LoadContext, LoadedModel, Placement
from shoal.backends.file_backend import FileBackend
from shoal.backends.files import find_model_file, short_name, what_else
from shoal.backends.graph import Graph, GraphTensor
from shoal.config.backends import BACKENDS
from shoal.config.model import ModelConfig
from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.errors import BackendFailure, ConfigError, InvalidArgument, Unsupported

_WIDE = ("float64", "int64", "uint64")  # JAX narrows these by default


class JaxBackend(FileBackend):
    """Loads exported functions."""

    name = "jax"

    def describe(self, context: LoadContext) -> Graph:
        """The function's signature."""
        return _load(context).graph

    def load(self, context: LoadContext) -> LoadedModel:
        """Read the function and check the config against its signature."""
        function = _load(context)
        graph_config.check(context.config, function.graph, context.file)
        return JaxModel(function, context.config, context.file)


class ExportedFunction:
    """An exported function with names for its inputs and outputs."""

    def __init__(self, exported: Any) -> None:
        self._exported = exported
        self.platforms: tuple[str, ...] = tuple(exported.platforms)
        self._in_names = _names(exported.in_tree, len(exported.in_avals), "INPUT__")
        self._out_names = _names(exported.out_tree, len(exported.out_avals), "OUTPUT__")
        self.graph = Graph.of(
            [_tensor(*pair) for pair in zip(self._in_names, exported.in_avals, strict=True)],
            [_tensor(*pair) for pair in zip(self._out_names, exported.out_avals, strict=True)],
        )
        avals = (*exported.in_avals, *exported.out_avals)
        self._wide = any(aval.dtype.name in _WIDE for aval in avals)
        self._bf16 = {
            name
            for name, aval in zip(self._in_names, exported.in_avals, strict=True)
            if aval.dtype.name == "bfloat16"
        }
        self._compiled: dict[object, Any] = {}
        self._lock = threading.Lock()  # guards _compiled; each shape is compiled once

    def __call__(self, inputs: Mapping[str, np.ndarray], device: Any) -> dict[str, np.ndarray]:
        """Run the function on a device; the arrays stay valid as long as they are referenced."""
        with self._precision():
            flat = [
                jax.device_put(self._to_runtime(name, inputs[name]), device)
                for name in self._in_names
            ]
            args, kwargs = jax.tree_util.tree_unflatten(self._exported.in_tree, flat)
            compiled = self._compile(args, kwargs, (device, *(array.shape for array in flat)))
            results = jax.tree_util.tree_leaves(compiled(*args, **kwargs))
            arrays = [np.asarray(result) for result in results]
        return {
            name: array.view(np.uint16) if array.dtype.name == "bfloat16" else array
            for name, array in zip(self._out_names, arrays, strict=True)
        }

    def forget(self) -> None:
        """Free the compiled code.

        JAX caches what it traced, with all constants, and cannot clear that for one function. Other
        models lose nothing: each holds the code that it runs, as here.
        """
        with self._lock:
            self._compiled.clear()
        jax.clear_caches()

    def _compile(self, args: Any, kwargs: Any, key: object) -> Any:
        compiled = self._compiled.get(key)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(key)
                if compiled is None:
                    lowered = jax.jit(self._exported.call).lower(*args, **kwargs)
                    compiled = self._compiled[key] = lowered.compile()
        return compiled

    def _precision(self) -> AbstractContextManager[Any]:
        return wide_types() if self._wide else contextlib.nullcontext()

    def _to_runtime(self, name: str, array: np.ndarray) -> np.ndarray:
        return array.view(jax.numpy.bfloat16) if name in self._bf16 else array


class JaxModel(LoadedModel):
    """One version of a model; instances share the function and what it is compiled to."""

    def __init__(self, function: ExportedFunction, config: ModelConfig, file: str) -> None:
        self._function: ExportedFunction | None = function
        self._config = config
        self._file = file

    def executor(self, placement: Placement) -> Executor:
        """An instance on the device of `placement`, if the function was exported for it."""
        assert self._function is not None
        device = _device(placement, self._function.platforms, self._file)
        return JaxExecutor(self._function, device, self._config)

    def close(self) -> None:
        """Drop the function and everything compiled from it."""
        if self._function is not None:
            self._function.forget()
        self._function = None


class JaxExecutor(Executor):
    """One instance."""

    def __init__(self, function: ExportedFunction, device: Any, config: ModelConfig) -> None:
        self._function: ExportedFunction | None = function
        self._device = device
        self._model_name = config.name
        graph = function.graph
        inputs = graph_config.scalar_dims(config.input, config)
        outputs = graph_config.scalar_dims(config.output, config)
        self._required = graph.inputs.keys()
        self._scalars_in = {name for name in inputs if not graph.inputs[name].dims}
        self._scalars_out = {
            name: dims for name, dims in outputs.items() if not graph.outputs[name].dims
        }

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Compute the named outputs; BackendFailure with JAX's message."""
        assert self._function is not None
        missing = self._required - inputs.keys()
        if missing:
            raise InvalidArgument(
                f"model '{self._model_name}' cannot run without {', '.join(sorted(missing))}. Send "
                "it with every request"
            )
        feed = {
            name: array.reshape(()) if name in self._scalars_in else array
            for name, array in inputs.items()
        }
        try:
            results = self._function(feed, self._device)
        except Exception as error:
            text = " ".join(str(error).split())
            raise BackendFailure(f"model '{self._model_name}' failed: {text}") from error
        return [
            results[name].reshape(self._scalars_out[name])
            if name in self._scalars_out
            else results[name]
            for name in outputs
        ]

    def close(self) -> None:
        """Let go of the function."""
        self._function = None


def wide_types() -> AbstractContextManager[Any]:
    """A context in which JAX, on this thread, does not narrow 64-bit numbers."""
    enable: Any = getattr(jax, "enable_x64", None)
    if enable is None:  # the newest JAX for Python 3.10 has it elsewhere
        enable = importlib.import_module("jax.experimental").enable_x64
    made: AbstractContextManager[Any] = enable(True)
    return made


def _load(context: LoadContext) -> ExportedFunction:
    what = "file that jax.export.Exported.serialize made"
    model_file = find_model_file(
        context.config, context.version_folder, BACKENDS["jax"].filenames, what, context.file
    )
    name = short_name(model_file)
    try:
        return ExportedFunction(export.deserialize(bytearray(model_file.read_bytes())))
    except (struct.error, ValueError, TypeError, IndexError, UnicodeDecodeError) as error:
        why = what_else(model_file, "export the function again")
        raise InvalidArgument(f"'{name}' is not an exported JAX function: {why}") from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise InvalidArgument(f"JAX {jax.__version__} cannot load '{name}': {text}") from error


def _device(placement: Placement, platforms: Sequence[str], file: str) -> Any:
    """Where an instance computes: on its GPU if the function is for one, else on the CPU."""
    if placement.kind == "KIND_GPU":
        on_gpu = [platform for platform in platforms if platform in ("cuda", "rocm")]
        for platform in on_gpu:
            with contextlib.suppress(RuntimeError):  # this JAX has no such devices
                return jax.devices(platform)[placement.device_id]
        if on_gpu or "cpu" not in platforms:
            raise Unsupported(
                f"the function was exported for {', '.join(platforms)}, and the installed JAX "
                "finds no such device. Install JAX for it, for instance with: "
                "pip install 'jax[cuda13]'"
            )
    if "cpu" not in platforms:
        raise ConfigError(
            f"the function was exported for {', '.join(platforms)}, not for a CPU",
            file=file,
            field="instance_group.kind",
            fix="Write kind: KIND_GPU, or export it with platforms=('cpu', 'cuda')",
        )
    return jax.devices("cpu")[0]


def _names(tree: Any, count: int, prefix: str) -> list[str]:
    """A name for every leaf: the dictionary keys of its path, or its number."""
    paths = jax.tree_util.tree_flatten_with_path(
        jax.tree_util.tree_unflatten(tree, list(range(count)))
    )[0]
    names = [
        ".".join(str(key.key) for key in path if hasattr(key, "key")) or f"{prefix}{index}"
        for index, (path, _) in enumerate(paths)
    ]
    if len(set(names)) < len(names):
        return [f"{prefix}{index}" for index in range(count)]
    return names


def _tensor(name: str, aval: Any) -> GraphTensor:
    dims = tuple(dim if isinstance(dim, int) else -1 for dim in aval.shape)
    return GraphTensor(name, aval.dtype.name, _datatype(aval.dtype), dims)


def _datatype(dtype: Any) -> DataType | None:
    if dtype.name == "bfloat16":
        return dtypes.BF16
    try:
        return dtypes.from_numpy(np.dtype(dtype))
    except (InvalidArgument, TypeError):
        return None
