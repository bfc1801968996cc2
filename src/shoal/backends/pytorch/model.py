"""One version of a PyTorch model: its programs, by device, and the instances that run them.

Instances share a program, and with it the weights, if one run cannot change the next: the file
shows that for TorchScript and torch.export. Modules in Python are not shared unless
ENABLE_WEIGHT_SHARING is set.
"""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.backends import graph_config
from shoal.backends.base import Executor, LoadContext, LoadedModel, Placement
from shoal.backends.files import config_file
from shoal.backends.pytorch import archive, completion, names, settings
from shoal.backends.pytorch.archive import ModelFile, ProgramKind
from shoal.backends.pytorch.compiled import CompiledProgram
from shoal.backends.pytorch.cuda import CudaExecutor
from shoal.backends.pytorch.eager import EagerProgram
from shoal.backends.pytorch.executor import TorchExecutor, input_types, output_types
from shoal.backends.pytorch.exported import ExportedProgram
from shoal.backends.pytorch.improvement import Improvement
from shoal.backends.pytorch.library import breaks_gpu, gpu_of, has_cuda, process
from shoal.backends.pytorch.program import Program, Results
from shoal.backends.pytorch.script import ScriptProgram
from shoal.backends.pytorch.settings import HALF, PyTorchSettings
from shoal.config.model import ModelConfig
from shoal.core import dtypes
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.tasks.images.plan import PhotoPlan

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_MOST_ON_LOOP_BYTES = 64 << 20  # of weights on a GPU


def open_program(
    found: ModelFile,
    device: torch.device | None,
    *,
    runners: int = 1,
    model_class: str = "",
    file: str = "config.pbtxt",
) -> Program:
    """Load a model's file onto a device; None keeps the devices of the file.

    Raises a ShoalError that names the file; then nothing stays loaded.
    """
    if found.kind is ProgramKind.SCRIPT:
        return ScriptProgram(found.path, device)
    if found.kind is ProgramKind.EXPORTED:
        return ExportedProgram(found.path, device)
    if found.kind is ProgramKind.COMPILED:
        return CompiledProgram(found.path, device, runners, file)
    return EagerProgram(found.path, found.weights, device, model_class=model_class, file=file)


class PyTorchModel(LoadedModel):
    """One version of a model."""

    def __init__(self, context: LoadContext) -> None:
        config = context.config
        self._config = config
        self._file = config_file(context.model_folder)
        self._settings = settings.read(
            config, context.settings, len(context.placements), context.cores, self._file
        )
        if self._settings.inter_op_threads:
            process.use_inter_op_threads(self._settings.inter_op_threads, self._file)
        self._photo_plan: PhotoPlan | None = None
        self._found = archive.find(config, context.version_folder, self._file)
        self._runners = max(1, len(context.placements))
        self._lock = threading.Lock()  # guards _programs
        # Those that instances share; without sharing, the one for the first instance.
        self._programs: dict[torch.device | None, Program] = {}
        self._improvement = Improvement(config, self._settings, self._file)
        self._on_gpus: weakref.WeakSet[CudaExecutor] = weakref.WeakSet()
        self._broken = False
        placements = self._placements = context.placements or [Placement("KIND_CPU")]
        devices = [self._device(placement) for placement in placements]
        first = self._open(devices[0])
        try:
            self._check(first)
            first = self._improved(first, placements[0])
        except BaseException:
            first.close()
            raise
        self._programs[devices[0]] = first
        self._shared = self._shares(first)
        if self._shared and first.outputs is not None:
            self.axis_names = _axis_names(first, config, self._file)
        self._on_gpu = any(placement.kind == "KIND_GPU" for placement in placements)
        self.may_run_on_loop = self._shared and self._is_for_loop(first, set(devices))
        self.takes_device_tensors = self._on_gpu and self._settings.keep_on_gpu

    @property
    def settings(self) -> PyTorchSettings:
        """How the model is run."""
        return self._settings

    @property
    def kind(self) -> ProgramKind:
        """What the model's file is."""
        return self._found.kind

    @property
    def shares_weights(self) -> bool:
        """Whether instances on one device run one program."""
        return self._shared

    def classify_photos(self, plan: PhotoPlan) -> bool:
        """Make instances that decode and classify photos, if all of them are on GPUs."""
        # It needs Pillow, which not every server has.
        from shoal.backends.pytorch.photos.executor import can_classify

        if list(input_types(self._config)) != [plan.input]:
            return False
        if not can_classify(
            [self._device(placement) for placement in self._placements], self._config.name
        ):
            return False
        self._photo_plan = plan
        self.may_run_on_loop = False  # it waits for the GPU
        return True

    def executor(self, placement: Placement) -> Executor:
        """Make an instance; the first one on a device loads the model there."""
        device = self._device(placement)
        with self._lock:
            program = self._programs.pop(device, None)
            if program is None:
                program = self._improved(self._open(device), placement)
            if self._shared:
                self._programs[device] = program
        on_gpu = device is not None and device.type == "cuda"
        try:
            made: TorchExecutor = self._executor_type(on_gpu)(
                program,
                self._config,
                self._settings,
                self._file,
                owns=not self._shared,
                on_failure=self._note_failure,
            )
            if isinstance(made, CudaExecutor):
                self._on_gpus.add(made)
                self._improvement.check_graphs(made)
            if self._settings.compile is not None:
                self._first_run(made)
        except BaseException:
            if not self._shared:
                program.close()
            raise
        return made

    def gpu_memory(self) -> Mapping[int, int]:
        """Weights and CUDA graphs on each GPU."""
        found: dict[int, int] = {}
        with self._lock:
            shared = [program for program in self._programs.values() if self._shared]
        for program in shared:
            if program.device.type == "cuda":
                _add(found, program.device, program.nbytes or 0)
        for executor in list(self._on_gpus):
            _add(found, executor.device, executor.own_bytes)
        return {number: size for number, size in found.items() if size}

    def _executor_type(self, on_gpu: bool) -> Any:
        if not on_gpu:
            return TorchExecutor
        if self._photo_plan is None:
            return CudaExecutor
        from shoal.backends.pytorch.photos.executor import CudaPhotoExecutor

        return partial(CudaPhotoExecutor, plan=self._photo_plan)

    def ready(self) -> bool:
        """False if the GPU has failed and the server must be restarted."""
        return not self._broken

    def close(self) -> None:
        """Drop the programs, and return unused GPU memory to the driver."""
        with self._lock:
            for program in self._programs.values():
                program.close()
            self._programs.clear()
        if self._on_gpu and has_cuda():
            gc.collect()  # reference cycles would keep their memory in PyTorch's cache
            torch.cuda.empty_cache()

    def _open(self, device: torch.device | None) -> Program:
        return open_program(
            self._found,
            device,
            runners=self._runners,
            model_class=self._settings.model_class,
            file=self._file,
        )

    def _improved(self, program: Program, placement: Placement) -> Program:
        on_gpu = placement.kind == "KIND_GPU"
        device = self._device(placement)
        made = self._improvement.apply(program, partial(self._open, device), on_gpu=on_gpu)
        self._settings = self._improvement.settings
        return made

    def _is_for_loop(self, program: Program, devices: set[torch.device | None]) -> bool:
        """Whether the event loop may run it if it is quick; for that it gets another instance."""
        if self._found.kind is ProgramKind.EAGER or self._settings.compile is not None:
            return False
        if devices == {_CPU}:
            return True
        # Executions of large models are long, and more of their CUDA graphs take much memory.
        size = program.nbytes
        one_gpu = None not in devices and len(devices) == 1
        return one_gpu and size is not None and size <= _MOST_ON_LOOP_BYTES

    def _shares(self, program: Program) -> bool:
        wanted = self._settings.share_weights
        return wanted if wanted is not None else not program.stateful

    def _device(self, placement: Placement) -> torch.device | None:
        """Where an instance computes; None: where the model decides. ConfigError without CUDA."""
        if placement.kind == "KIND_MODEL":
            return None
        if placement.kind != "KIND_GPU":
            return _CPU
        return gpu_of(placement, self._file)

    def _check(self, program: Program) -> None:
        """Raise ConfigError if the model could not run requests that match the config."""
        config, file = self._config, self._file
        if self._settings.half and program.kind is ProgramKind.COMPILED:
            raise ConfigError(
                "an AOTInductor package has the precision it was compiled with",
                file=file,
                field=f"parameters['{HALF}']",
                fix=f"Leave {HALF} out, or compile the model in {self._settings.half}",
            )
        if self._settings.half and not _has_floats(config):
            logger.warning("%s: %s: the model takes no floating-point inputs", file, HALF)
        if program.outputs is not None and any(s.dims is not None for s in program.outputs):
            graph_config.check(config, completion.graph_of(program, config, file), file)
            largest = program.largest_batch
            if largest is not None and config.max_batch_size > largest:
                raise ConfigError(
                    f"the model was exported for batches of at most {largest}, not "
                    f"{config.max_batch_size}",
                    file=file,
                    field="max_batch_size",
                    fix=f"Write max_batch_size: {largest}, or export it for larger ones",
                )
        # The names, also of models that declare nothing else.
        sides = (
            ("input", list(input_types(config)), program.inputs),
            ("output", list(output_types(config)), program.outputs),
        )
        for kind, written, slots in sides:
            names.warn_of_order(kind, written, slots, model=config.name, file=file)
        program.caller(list(input_types(config)), model=config.name, file=file)
        Results(list(output_types(config)), program.outputs, model=config.name, file=file)

    def _first_run(self, executor: TorchExecutor) -> None:
        """Compile a model before the first request, if its shapes are known."""
        dims = {tensor.name: graph_config.model_dims(tensor) for tensor in self._config.input}
        types = input_types(self._config)
        if set(dims) != set(types) or any(-1 in own for own in dims.values()):
            return
        batch = self._config.max_batch_size
        head = (min(2, batch),) if batch else ()
        arrays: dict[str, np.ndarray] = {}
        for name, datatype in types.items():
            shape = head + tuple(dims[name])
            empty = datatype is dtypes.BYTES
            arrays[name] = np.full(shape, b"", object) if empty else np.zeros(shape, datatype.numpy)
        executor.run(arrays, [tensor.name for tensor in self._config.output])

    def _note_failure(self, error: Exception) -> None:
        if not self._broken and breaks_gpu(error):
            self._broken = True
            logger.critical(
                "model '%s' has broken the GPU's connection with this process (%s): every model "
                "on it will fail until the server is restarted",
                self._config.name,
                str(error).partition("\n")[0],
            )


def _add(found: dict[int, int], device: torch.device, size: int) -> None:
    number = device.index or 0
    found[number] = found.get(number, 0) + size


def _has_floats(config: ModelConfig) -> bool:
    return any(dtypes.BY_CONFIG_NAME[t.data_type].numpy.kind == "f" for t in config.input) or any(
        t.data_type == "TYPE_BF16" for t in config.input
    )


def _axis_names(
    program: Program, config: ModelConfig, file: str
) -> Mapping[str, Sequence[str | None]]:
    """The names of dimensions, by the config's names of the tensors."""
    found: dict[str, Sequence[str | None]] = {}
    sides: Sequence[tuple[str, Sequence[names.Slot], Sequence[str]]] = (
        ("input", program.inputs or (), [tensor.name for tensor in config.input]),
        ("output", program.outputs or (), [tensor.name for tensor in config.output]),
    )
    for kind, slots, written in sides:
        places = names.places(kind, written, slots, model=config.name, file=file)
        found |= {
            name: slots[place].axes
            for name, place in zip(written, places, strict=True)
            if any(slots[place].axes)
        }
    return found
