"""ONNX models, run by ONNX Runtime.

    model.onnx --open_session--> one session per device --run--> any number of instances

The runtime's `run` may be called from many threads at once, so instances share a session and its
weights; `parameters { key: "share_session" value: { string_value: "false" } }` gives each its own.
They divide the cores; a `LoneSession` gives all cores to an execution that runs alone.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from shoal.backends import graph_config, onnx_session
from shoal.backends.base import (
    ArrayForm,
    BoundRun,
    Executor,
    LoadContext,
    LoadedModel,
    Placement,
)
from shoal.backends.file_backend import FileBackend
from shoal.backends.graph import Graph, GraphTensor
from shoal.backends.onnx_binding import bound_run
from shoal.backends.onnx_lone_session import LoneSession, SecondSession
from shoal.backends.onnx_options import (
    BACKEND,
    INSPECTION,
    SessionSettings,
    global_threads,
    session_settings,
)
from shoal.backends.onnx_providers import CPU, CUDA, Provider, providers
from shoal.backends.onnx_types import (
    BF16_ELEMENT_TYPE,
    axis_names,
    bf16_from_runtime,
    graph_of,
    strings_from_runtime,
    strings_to_runtime,
)
from shoal.config.model import ModelConfig
from shoal.core.concurrency import ExpectedConcurrency, LoneClient
from shoal.core.dtypes import BF16, BYTES
from shoal.core.tensor import Buffer
from shoal.errors import BackendFailure, ConfigError, InvalidArgument, ShoalError
from shoal.statistics.footprint import file_bytes

Device = tuple[str, int]
Conversion = Callable[[np.ndarray], Any]

_CPU_DEVICE: Device = ("cpu", 0)
_LIGHT_BYTES = 32 << 20  # a model of this size may have its weights in memory twice


class OnnxRuntimeBackend(FileBackend):
    """Loads ONNX files, and folders that hold one beside its external data."""

    name = BACKEND
    default_cpu_instances = 2  # as Triton; they share weights, and the cores between them

    def why_not_on_gpus(self) -> str:
        """That the installed build of ONNX Runtime is one for CPUs, if it is."""
        if CUDA in onnx_session.available_providers():
            return ""
        return (
            "the installed ONNX Runtime cannot use GPUs; install onnxruntime-gpu instead of "
            "onnxruntime"
        )

    def describe(self, context: LoadContext) -> Graph:
        """Open the file without optimisations: the runtime must infer the shapes of outputs."""
        config, folder, file = context.config, context.version_folder, context.file
        model_file = onnx_session.find_model_file(config, folder, file)
        libraries = onnx_session.find_op_libraries(config, context.model_folder, folder, file)
        return _inspect(model_file, libraries, file)

    def load(self, context: LoadContext) -> LoadedModel:
        """Open the sessions the placements need and check the config against the graph."""
        return OnnxRuntimeModel(context)


class OnnxRuntimeModel(LoadedModel):
    """One version of a model: its sessions, by device."""

    def __init__(self, context: LoadContext) -> None:
        config = context.config
        self._config = config
        self._file = context.file
        self._settings = session_settings(
            config, context.settings, len(context.placements), context.cores, self._file
        )
        if self._settings.global_threads:
            onnx_session.use_global_threads(*global_threads(context.settings, context.cores))
        version_folder = context.version_folder
        self._model_file = onnx_session.find_model_file(config, version_folder, self._file)
        self._file_bytes = file_bytes(self._model_file)  # now: its repository may be lost later
        self._libraries = onnx_session.find_op_libraries(
            config, context.model_folder, version_folder, self._file
        )
        self._lock = threading.Lock()  # guards _sessions
        self._sessions: dict[Device, Any] = {}
        placements = context.placements or [Placement("KIND_CPU")]
        wanted = {_device(place): self._providers(place) for place in placements}
        # Other providers wait for their device; custom operators may wait for anything.
        plain = all(chosen == [(CPU, {})] for chosen in wanted.values())
        self.may_run_on_loop = plain and self._settings.shared and not self._libraries
        self._lone: LoneSession | None = None
        lone = replace(self._settings, intra_op_threads=self._settings.lone_threads)
        is_light = file_bytes(version_folder) <= _LIGHT_BYTES
        # Where the first session has as many, they only do not spin.
        gains = lone.lone_threads > (0 if is_light else self._settings.intra_op_threads)
        if gains and plain and not self._libraries:
            self._lone = LoneSession(
                lambda: onnx_session.open_session(
                    self._model_file, lone, [(CPU, {})], (), self._file, spins=True
                ),
                context.concurrency,
                config.name,
                is_light=is_light,
            )
        try:
            for device, chosen in wanted.items():
                self._sessions[device] = self._open(chosen)
                if len(self._sessions) == 1:
                    self._graph = graph_of(self._sessions[device])
                    self.axis_names = axis_names(self._sessions[device])
                    graph_config.check(config, self._graph, self._file)
                    self._check_datatypes_together()
        except BaseException:
            self._sessions.clear()  # the traceback would keep them alive
            raise

    @property
    def settings(self) -> SessionSettings:
        """How this model's sessions are set up."""
        return self._settings

    def executor(self, placement: Placement) -> Executor:
        """Make an instance; on a device that has no session yet this opens one."""
        device = _device(placement)
        with self._lock:
            if self._settings.shared:
                session = self._sessions.get(device)
                if session is None:
                    session = self._sessions[device] = self._open(self._providers(placement))
            else:  # the first instance takes what loading opened
                session = self._sessions.pop(device, None) or self._open(self._providers(placement))
        lone = self._lone if device == _CPU_DEVICE else None
        return OnnxRuntimeExecutor(session, self._config, self._graph, self._settings, lone)

    def close(self) -> None:
        """Drop the sessions; once the executors are closed too, the weights are freed."""
        with self._lock:
            self._sessions.clear()
        if self._lone is not None:
            self._lone.close()

    def memory_elsewhere(self) -> int:
        """The second session, which was not there when the memory of loading was measured."""
        if self._lone is None or self._lone.second is None:
            return 0
        return self._file_bytes

    def _providers(self, placement: Placement) -> list[Provider]:
        return providers(self._config, placement, onnx_session.available_providers(), self._file)

    def _open(self, chosen: Sequence[Provider]) -> Any:
        return onnx_session.open_session(
            self._model_file, self._settings, chosen, self._libraries, self._file
        )

    def _check_datatypes_together(self) -> None:
        """BF16 leaves the runtime only on a path that takes no strings in."""
        strings = [
            tensor.name for tensor in self._config.input if tensor.data_type == "TYPE_STRING"
        ]
        for index, output in enumerate(self._config.output):
            if strings and output.data_type == "TYPE_BF16":
                raise ConfigError(
                    f"ONNX Runtime cannot return the BF16 output '{output.name}' of a model that "
                    f"takes strings ('{strings[0]}')",
                    file=self._file,
                    field=f"output[{index}]",
                    fix="Leave this output out, or have the model cast it to FP32",
                )


class OnnxRuntimeExecutor(Executor):
    """One instance. Its session may be shared; everything else here is its own."""

    def __init__(
        self,
        session: Any,
        config: ModelConfig,
        graph: Graph,
        settings: SessionSettings,
        lone: LoneSession | None = None,
    ) -> None:
        self._lone = lone
        self._last_run_ns = 0  # by the clock, where there may be a second session
        self._model_name = config.name
        self._session = session
        self._run = onnx_session.run_of(session)
        self._run_options = onnx_session.run_options(settings)
        self._required = graph.required_inputs
        self._prepare: dict[str, Conversion] = {}
        self._finish: dict[str, Conversion] = {}
        scalars = graph_config.scalar_dims(config.input, config)
        for name, tensor in {**graph.inputs, **graph.defaults}.items():
            to_shape = _reshape(()) if not tensor.dims and name in scalars else None
            convert = _to_runtime(tensor)
            if to_shape or convert:
                self._prepare[name] = _both(to_shape, convert)
        scalars = graph_config.scalar_dims(config.output, config)
        for name, tensor in graph.outputs.items():
            to_shape = _reshape(scalars[name]) if not tensor.dims and name in scalars else None
            convert = strings_from_runtime if tensor.datatype is BYTES else None
            if to_shape or convert:
                self._finish[name] = _both(convert, to_shape)
        self._bf16_outputs = frozenset(
            name for name, tensor in graph.outputs.items() if tensor.datatype is BF16
        )
        # Outputs that are read from memory that was allocated before the run. Elsewhere than in
        # their first dimension, the batch, sizes may depend on the contents of inputs.
        self._bindable: frozenset[str] = frozenset()
        if session.get_providers() == [CPU] and hasattr(session, "_sess"):
            self._bindable = (
                frozenset(
                    name
                    for name, tensor in graph.outputs.items()
                    if tensor.dims
                    and min(tensor.dims[1:], default=1) > 0
                    and name not in self._finish
                )
                - self._bf16_outputs
            )

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Compute the named outputs. Raises BackendFailure with what the runtime said, or
        InvalidArgument for strings it cannot be given."""
        feed: dict[str, Any] = {
            # Compiled kernels may assume that numbers lie at multiples of their size.
            name: array if array.flags.aligned else array.copy()
            for name, array in inputs.items()
        }
        if not self._required <= feed.keys():
            raise self._incomplete(feed)
        for name, prepare in self._prepare.items():
            if name in feed:
                feed[name] = prepare(feed[name])
        try:
            if self._bf16_outputs and not self._bf16_outputs.isdisjoint(outputs):
                results = self._run_with_values(feed, outputs)
            elif self._lone is not None:
                start_ns = time.perf_counter_ns()
                results = self._run_with_quicker(self._lone, feed, outputs)
                self._last_run_ns = time.perf_counter_ns() - start_ns
            else:
                results = self._run(outputs, feed, self._run_options)
        except ShoalError:
            raise
        except UnicodeDecodeError as error:
            raise BackendFailure(
                f"model '{self._model_name}' computed a string that is not UTF-8, which ONNX "
                "Runtime cannot return"
            ) from error
        except Exception as error:
            raise BackendFailure(
                f"model '{self._model_name}' failed: {onnx_session.clean_message(error)}"
            ) from error
        if self._finish:
            results = [
                self._finish[name](array) if name in self._finish else array
                for name, array in zip(outputs, results, strict=True)
            ]
        return results

    def bind(self, inputs: Sequence[ArrayForm], outputs: Sequence[ArrayForm]) -> BoundRun | None:
        """Bind memory of its own to the inputs and outputs, which saves half of a small run."""
        names = {form.name for form in inputs}
        if (
            not self._required <= names
            or not names.isdisjoint(self._prepare)
            or not self._bindable.issuperset(form.name for form in outputs)
        ):
            return None
        run = bound_run(self._session, self._run_options, inputs, outputs)
        if self._lone is None or not self._lone.is_for(self._last_run_ns):
            return run
        return _bound_to_both(self._lone, run, self._run_options, inputs, outputs)

    def _run_with_quicker(
        self, lone: LoneSession, feed: dict[str, Any], outputs: Sequence[str]
    ) -> Any:
        """Run with the model's own session, or, where the execution is alone, with the quicker
        one."""
        if not lone.concurrency.is_lone():
            return self._run(outputs, feed, self._run_options)
        elements = sum([one.size for one in feed.values() if isinstance(one, np.ndarray)])
        return lone.run(elements, _run_with, (self._run, outputs, feed, self._run_options))

    def close(self) -> None:
        """Let go of the session."""
        self._session = None
        self._run = _closed

    def _run_with_values(self, feed: dict[str, Any], outputs: Sequence[str]) -> list[np.ndarray]:
        """The slower way, on which results of types unknown to numpy can be had."""
        make = onnxruntime.OrtValue.ortvalue_from_numpy
        values = {
            name: make(np.asarray(item, order="C")) if isinstance(item, np.ndarray) else item
            for name, item in feed.items()
        }
        results = self._session.run_with_ort_values(list(outputs), values, self._run_options)
        return [
            bf16_from_runtime(value) if name in self._bf16_outputs else value.numpy()
            for name, value in zip(outputs, results, strict=True)
        ]

    def _incomplete(self, feed: Mapping[str, Any]) -> InvalidArgument:
        missing = ", ".join(f"'{name}'" for name in sorted(self._required - feed.keys()))
        return InvalidArgument(
            f"model '{self._model_name}' cannot run without {missing}: the configuration marks it "
            "optional, but the model has no value of its own for it. Send it with every request"
        )


def _inspect(model_file: Path, libraries: Sequence[Path], file: str) -> Graph:
    """Read the graph's inputs and outputs, on the CPU unless only a GPU knows its operators."""
    try:
        session = onnx_session.open_session(model_file, INSPECTION, [(CPU, {})], libraries, file)
    except InvalidArgument as error:
        gpu_build = CUDA in onnx_session.available_providers()
        if not gpu_build or type(error.__cause__).__name__ != "NotImplemented":
            raise
        both: list[Provider] = [(CUDA, {}), (CPU, {})]
        session = onnx_session.open_session(model_file, INSPECTION, both, libraries, file)
    return graph_of(session)


def _run_with(work: tuple[Any, ...], second: SecondSession | None) -> Any:
    """Run what is not bound."""
    run, *arguments = work
    return (run if second is None else onnx_session.run_of(second.session))(*arguments)


def _bound_to_both(
    lone: LoneSession,
    first: BoundRun,
    run_options: Any,
    inputs: Sequence[ArrayForm],
    outputs: Sequence[ArrayForm],
) -> BoundRun:
    """What runs `first`, or the same bound to the second session where that is quicker. There are
    many of these: what they need are defaults, which are smaller than variables they share."""
    elements = sum(math.prod(form.shape) for form in inputs)

    def run(
        contents: Buffer,
        first: BoundRun = first,
        concurrency: ExpectedConcurrency = lone.concurrency,
        lone_client: LoneClient = lone.concurrency.lone_client,
        lone: LoneSession = lone,
        elements: int = elements,
        forms: tuple[Any, ...] = (run_options, tuple(inputs), tuple(outputs)),
    ) -> bytes:
        # As `is_lone`, which is asked again: to call it takes as long as all of this.
        if concurrency.executions == 1 or lone_client.is_there:
            return lone.run(elements, _run_bound, (first, forms, contents))
        return first(contents)

    return run


def _run_bound(
    work: tuple[BoundRun, tuple[Any, ...], Buffer], second: SecondSession | None
) -> bytes:
    """Run what is bound, or what has the same forms in the second session."""
    first, forms, contents = work
    if second is None:
        return first(contents)
    run = second.bound_runs.get(first)
    if run is None:
        run = second.bound_runs[first] = bound_run(second.session, *forms)
    return run(contents)


def _device(placement: Placement) -> Device:
    """What decides whether two instances can share a session."""
    on_gpu = placement.kind == "KIND_GPU"
    return ("gpu", placement.device_id) if on_gpu else _CPU_DEVICE


def _both(first: Conversion | None, second: Conversion | None) -> Conversion:
    """One conversion after the other, where there are two."""
    if first is None or second is None:
        only = first or second
        assert only is not None
        return only
    return lambda array: second(first(array))


def _to_runtime(tensor: GraphTensor) -> Conversion | None:
    """How an input becomes what the runtime takes; None where it can stay as it is."""
    if tensor.datatype is BYTES:
        return lambda array: strings_to_runtime(array, tensor.name)
    return _bf16_to_runtime if tensor.datatype is BF16 else None


def _bf16_to_runtime(array: np.ndarray) -> Any:
    make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
    return make(np.asarray(array, order="C"), BF16_ELEMENT_TYPE)


def _reshape(dims: tuple[int, ...]) -> Conversion:
    """Between a scalar and the dims of ones that stand for it; other tensors pass."""
    return lambda array: array.reshape(dims) if array.size == 1 else array


def _closed(*_: Any) -> list[Any]:
    raise BackendFailure("the instance is closed")
