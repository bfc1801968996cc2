"""TensorRT engines (model.plan), with the memory, streams and CUDA graphs of PyTorch models.

    model.plan --deserialised once per GPU--> engine --one context per instance and profile--> run

An engine runs only on the kind of GPU, and with the version of TensorRT, that it was built with.
Around it everything is as for PyTorch models on a GPU: page-locked memory, tensors that stay on
the GPU between steps of an ensemble, CUDA graphs. PyTorch allocates the memory.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tensorrt as trt
import torch

from shoal.backends import graph_config
from shoal.backends.base import Executor, LoadContext, LoadedModel, Placement
from shoal.backends.file_backend import FileBackend
from shoal.backends.files import find_model_file, short_name, what_else
from shoal.backends.graph import Graph, GraphTensor
from shoal.backends.pytorch import settings as pytorch_settings
from shoal.backends.pytorch.archive import ProgramKind
from shoal.backends.pytorch.cuda import CudaExecutor
from shoal.backends.pytorch.library import TORCH_TYPES, has_cuda
from shoal.backends.pytorch.names import Slot
from shoal.backends.pytorch.program import Caller, Program
from shoal.config.backends import BACKENDS
from shoal.config.model import ModelConfig
from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.errors import BackendFailure, ConfigError, InvalidArgument

logger = logging.getLogger(__name__)

NAME = "tensorrt"
_BUILD = "build it again: trtexec --onnx=model.onnx --saveEngine=model.plan"
# By the name of the type, because not every version has all of them.
_DATATYPES: Mapping[str, DataType] = MappingProxyType(
    {
        "FLOAT": dtypes.FP32,
        "HALF": dtypes.FP16,
        "BF16": dtypes.BF16,
        "INT8": dtypes.INT8,
        "INT32": dtypes.INT32,
        "INT64": dtypes.INT64,
        "UINT8": dtypes.UINT8,
        "BOOL": dtypes.BOOL,
    }
)


class TensorRtBackend(FileBackend):
    """Serves engines that were built before."""

    name = NAME

    def describe(self, context: LoadContext) -> Graph:
        """The tensors of the engine, which has to be loaded onto a GPU for that."""
        return _open(context, _device(Placement("KIND_GPU"), context.file)).graph()

    def load(self, context: LoadContext) -> LoadedModel:
        """Load the engine onto its first GPU, and check the config."""
        return TensorRtModel(context)


class Engine:
    """An engine on one GPU. Any thread may make contexts of it."""

    def __init__(self, path: Path, device: torch.device) -> None:
        """Raises InvalidArgument with TensorRT's reason if it cannot be loaded."""
        self.device = device
        self.nbytes = path.stat().st_size  # about: weights and code
        _log.last_error = ""
        with torch.cuda.device(device):
            trt.init_libnvinfer_plugins(_log, "")
            self._runtime = trt.Runtime(_log)  # must outlive the engine
            self.engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self.engine is None:
            raise InvalidArgument(
                f"TensorRT {trt.__version__} cannot load '{short_name(path)}': "
                f"{_log.last_error or what_else(path, _BUILD)}. An engine runs on the kind of GPU "
                f"and with the version of TensorRT that it was built with; {_BUILD}"
            )
        names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        of_input = trt.TensorIOMode.INPUT
        self.inputs = [name for name in names if self.engine.get_tensor_mode(name) == of_input]
        self.outputs = [name for name in names if name not in self.inputs]
        self.on_host = frozenset(  # tensors whose values are shapes
            name
            for name in names
            if self.engine.get_tensor_location(name) == trt.TensorLocation.HOST
        )
        for name in names:
            kind = self.engine.get_tensor_format(name)
            if kind != trt.TensorFormat.LINEAR:  # rows of such tensors cannot be sent or joined
                raise InvalidArgument(
                    f"the tensor '{name}' of the engine '{short_name(path)}' has the format "
                    f"{kind.name}, and requests have LINEAR ones. Build the engine without "
                    "--inputIOFormats and --outputIOFormats"
                )

    @property
    def profiles(self) -> int:
        """How many optimisation profiles it has."""
        return int(self.engine.num_optimization_profiles)

    def limits(self, name: str, profile: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The smallest and the largest shape of an input in a profile."""
        least, _, most = self.engine.get_tensor_profile_shape(name, profile)
        return tuple(least), tuple(most)

    def torch_type(self, name: str) -> torch.dtype:
        """The type of a tensor. Raises ConfigError for one that requests cannot contain."""
        datatype = self._datatype(name)
        if datatype is None:
            raise ConfigError(
                f"the tensor '{name}' of the engine has the type "
                f"{self.engine.get_tensor_dtype(name)}, which requests cannot contain"
            )
        return TORCH_TYPES[datatype]

    def graph(self) -> Graph:
        """Its inputs and outputs; the largest batch is that of the profiles."""
        sides = [[self._tensor(name) for name in side] for side in (self.inputs, self.outputs)]
        graph = Graph.of(*sides)
        dynamic = [tensor.name for tensor in sides[0] if tensor.dims[:1] == (-1,)]
        largest = [
            max(self.limits(name, profile)[1][0] for profile in range(self.profiles))
            for name in dynamic
            if name not in self.on_host
        ]
        return Graph(graph.inputs, graph.outputs, largest_batch=min(largest, default=None))

    def _datatype(self, name: str) -> DataType | None:
        return _DATATYPES.get(self.engine.get_tensor_dtype(name).name)

    def _tensor(self, name: str) -> GraphTensor:
        kind = self.engine.get_tensor_dtype(name)
        dims = tuple(self.engine.get_tensor_shape(name))
        return GraphTensor(name, str(kind), self._datatype(name), dims)


class EngineProgram(Program):
    """An engine with the contexts of one instance, as a program that `CudaExecutor` runs."""

    kind = ProgramKind.COMPILED
    mutates_inputs = False
    stateful = False

    def __init__(self, engine: Engine, profiles: Sequence[int]) -> None:
        """Batches run in the first of `profiles` that their shapes fit."""
        self.device = engine.device
        self.inputs = tuple(Slot((name,)) for name in engine.inputs)
        self.outputs = tuple(Slot((name,)) for name in engine.outputs)
        self._engine: Engine | None = engine
        self._profiles = tuple(profiles)
        self._contexts: dict[int, Any] = {}
        # By profile and output. A context keeps every one that it was ever given.
        self._results: dict[tuple[int, str], _Results] = {}
        self._types = {name: engine.torch_type(name) for name in engine.outputs}

    def caller(self, written: Sequence[str], *, model: str, file: str) -> Caller:
        """Run the engine; the names are those of the config, which was checked against it."""
        del written, model, file
        return self._run

    def close(self) -> None:
        """Release the contexts and, with the last instance, the engine."""
        self._contexts.clear()
        self._results.clear()
        self._engine = None

    @property
    def workspace_bytes(self) -> int:
        """GPU memory of the contexts."""
        if self._engine is None:
            return 0
        return len(self._contexts) * int(self._engine.engine.device_memory_size_v2)

    def _run(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        engine = self._engine
        assert engine is not None
        missing = [name for name in engine.inputs if name not in values]
        if missing:
            raise InvalidArgument(
                f"the engine cannot run without {', '.join(missing)}. Send it with every request"
            )
        profile = self._profile(values)
        context = self._context(profile)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        given: list[torch.Tensor] = []  # kept until the engine was launched
        for name in engine.inputs:
            tensor = values[name].contiguous()
            if name in engine.on_host:
                tensor = tensor.cpu()
            given.append(tensor)
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise InvalidArgument(f"the engine does not take the shape {list(tensor.shape)}")
            context.set_tensor_address(name, _address(tensor))
        if engine.on_host and (unknown := context.infer_shapes()):
            raise InvalidArgument(f"the engine has no shapes for {', '.join(unknown)}")
        results: dict[str, torch.Tensor | _Results] = {}
        for name in engine.outputs:
            results[name] = self._output(context, name, profile)
        if not context.execute_async_v3(stream):
            raise BackendFailure("TensorRT could not run the engine; the log has its reason")
        return {
            name: found.take() if isinstance(found, _Results) else found
            for name, found in results.items()
        }

    def _output(self, context: Any, name: str, profile: int) -> torch.Tensor | _Results:
        """Memory for an output; of one whose shape depends on the data, what will receive it."""
        shape = tuple(context.get_tensor_shape(name))
        if any(size < 0 for size in shape):
            results = self._results.get((profile, name))
            if results is None:
                results = self._results[profile, name] = _Results(self._types[name], self.device)
                context.set_output_allocator(name, results)
            return results
        assert self._engine is not None
        device = "cpu" if name in self._engine.on_host else self.device
        tensor = torch.empty(shape, dtype=self._types[name], device=device)
        context.set_tensor_address(name, _address(tensor))
        return tensor

    def _context(self, profile: int) -> Any:
        context = self._contexts.get(profile)
        if context is None:
            assert self._engine is not None
            reason = "the GPU has no memory for it"
            with torch.cuda.device(self.device):
                context = self._engine.engine.create_execution_context()
                stream = torch.cuda.current_stream(self.device)
                try:
                    if context is not None:
                        context.set_optimization_profile_async(profile, stream.cuda_stream)
                        stream.synchronize()
                except RuntimeError as error:
                    context, reason = None, str(error)
            if context is None:
                raise BackendFailure(
                    f"TensorRT cannot make a context with the profile {profile}: "
                    f"{_log.last_error or reason}"
                )
            self._contexts[profile] = context
        return context

    def _profile(self, values: Mapping[str, torch.Tensor]) -> int:
        """The first profile that the shapes fit; if there is one alone, TensorRT checks them."""
        engine = self._engine
        assert engine is not None
        if len(self._profiles) == 1:
            return self._profiles[0]
        shapes = {
            name: tuple(values[name].shape) for name in engine.inputs if name not in engine.on_host
        }
        for profile in self._profiles:
            if all(
                _lies_within(shape, *engine.limits(name, profile)) for name, shape in shapes.items()
            ):
                return profile
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise InvalidArgument(f"no optimisation profile of the engine has the shapes {listed}")


class TensorRtModel(LoadedModel):
    """One version of a model: an engine on each of its GPUs."""

    takes_device_tensors = True

    def __init__(self, context: LoadContext) -> None:
        self._context = context
        config = context.config
        # Of the parameters, only those of `optimization` exist for this backend.
        self._settings = pytorch_settings.read(
            config, {}, len(context.placements), context.cores, context.file
        )
        self._lock = threading.Lock()  # guards the two below
        self._engines: dict[torch.device, Engine] = {}
        self._programs: list[EngineProgram] = []
        placements = context.placements or [Placement("KIND_GPU")]
        first = self._engine(_device(placements[0], context.file))
        graph_config.check(config, first.graph(), context.file)
        for placement in placements:
            _profiles(config, placement, first, context.file)

    def executor(self, placement: Placement) -> Executor:
        """Make an instance with contexts of its own."""
        device = _device(placement, self._context.file)
        with self._lock:
            engine = self._engine(device)
        config, file = self._context.config, self._context.file
        program = EngineProgram(engine, _profiles(config, placement, engine, file))
        made = CudaExecutor(program, config, self._settings, file, owns=True)
        with self._lock:
            self._programs.append(program)
        return made

    def gpu_memory(self) -> Mapping[int, int]:
        """The engines and the contexts of instances, about."""
        with self._lock:
            found = {device.index or 0: engine.nbytes for device, engine in self._engines.items()}
            for program in self._programs:
                number = program.device.index or 0
                found[number] = found.get(number, 0) + program.workspace_bytes
        return found

    def close(self) -> None:
        """Release the engines."""
        with self._lock:
            self._programs.clear()
            self._engines.clear()

    def _engine(self, device: torch.device) -> Engine:
        found = self._engines.get(device)
        if found is None:
            found = self._engines[device] = _open(self._context, device)
        return found


class _Results(trt.IOutputAllocator):  # type: ignore[misc]  # the library has no types
    """Receives an output whose shape is known only after it was computed."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        trt.IOutputAllocator.__init__(self)
        self._dtype = dtype
        self._device = device
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._shape: tuple[int, ...] = ()

    def reallocate_output_async(
        self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
    ) -> int:
        """Called by TensorRT while it runs the engine."""
        del tensor_name, memory, alignment, stream  # PyTorch aligns to 512 bytes
        self._memory = torch.empty(max(1, size), dtype=torch.uint8, device=self._device)
        return int(self._memory.data_ptr())

    def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
        """The same for versions before 10."""
        return self.reallocate_output_async(tensor_name, memory, size, alignment, 0)

    def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:
        """Called by TensorRT when the shape is known."""
        del tensor_name
        self._shape = tuple(shape)

    def take(self) -> torch.Tensor:
        """The output, after the engine has been launched; the next one gets other memory."""
        memory, self._memory = self._memory, torch.empty(0, dtype=torch.uint8)
        whole = memory[: math.prod(self._shape) * self._dtype.itemsize].view(self._dtype)
        return whole.view(self._shape)


class _Log(trt.ILogger):  # type: ignore[misc]
    """TensorRT's messages in our log."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.last_error = ""

    def log(self, severity: Any, msg: str) -> None:
        """Called by TensorRT, on any thread."""
        levels = {"INTERNAL_ERROR": logging.ERROR, "ERROR": logging.ERROR}
        levels["WARNING"] = logging.WARNING
        level = levels.get(severity.name, logging.DEBUG)
        if level == logging.ERROR:
            self.last_error = msg
        logger.log(level, "TensorRT: %s", msg)


_log = _Log()  # TensorRT uses the first one that it gets for everything


def _open(context: LoadContext, device: torch.device) -> Engine:
    names = BACKENDS[NAME].filenames
    path = find_model_file(
        context.config, context.version_folder, names, "TensorRT engine", context.file
    )
    return Engine(path, device)


def _device(placement: Placement, file: str) -> torch.device:
    """The GPU of an instance. ConfigError without one."""
    if placement.kind != "KIND_GPU":
        raise ConfigError(
            f"TensorRT engines run on GPUs, not with {placement.kind}",
            file=file,
            field="instance_group.kind",
            fix="Write instance_group [ { kind: KIND_GPU } ]",
        )
    if not has_cuda():
        raise ConfigError(
            f"the installed PyTorch ({torch.__version__}) cannot use the GPU",
            file=file,
            field="instance_group.kind",
            fix="Install a build with CUDA (https://pytorch.org/get-started)",
        )
    return torch.device("cuda", placement.device_id)


def _profiles(
    config: ModelConfig, placement: Placement, engine: Engine, file: str
) -> Sequence[int]:
    """The profiles that the group of an instance lists, or all. ConfigError for an unknown one."""
    group = placement.name.rpartition("_")[0]
    listed = next((own.profile for own in config.instance_group if own.name == group), ())
    for text in listed:
        if not text.isdecimal() or int(text) >= engine.profiles:
            raise ConfigError(
                f"the engine has no optimisation profile '{text}': it has {engine.profiles}",
                file=file,
                field="instance_group.profile",
                fix="Write the numbers of its profiles, from '0' on",
            )
    return [int(text) for text in listed] or range(engine.profiles)


def _lies_within(shape: Sequence[int], least: Sequence[int], most: Sequence[int]) -> bool:
    return len(shape) == len(least) and all(
        low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
    )


def _address(tensor: torch.Tensor) -> int:
    """Where a tensor is; an empty one must have an address, too."""
    return int(tensor.data_ptr()) or int(torch.empty(1, device=tensor.device).data_ptr())
