"""Running a model on the CPU, with tensors in the memory of the arrays and vice versa.

    {name: array} --feed--> {name: tensor} --call--> results --fetch--> arrays

`cuda` does the same on a GPU.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from shoal.backends import graph_config
from shoal.backends.base import Executor
from shoal.backends.pytorch import strings
from shoal.backends.pytorch.library import (
    DATATYPES,
    TORCH_TYPES,
    clean_message,
    process,
    synchronize,
    to_array,
    to_tensor,
)
from shoal.backends.pytorch.names import index_of
from shoal.backends.pytorch.program import Program, Results
from shoal.backends.pytorch.settings import PyTorchSettings
from shoal.config.model import ModelConfig
from shoal.core.device_tensor import DeviceTensor, OnDevice, adjacent
from shoal.core.dtypes import BY_CONFIG_NAME, BYTES, DataType
from shoal.errors import BackendFailure, InvalidArgument, ShoalError

logger = logging.getLogger(__name__)

Input: TypeAlias = np.ndarray | Sequence[DeviceTensor]
Inputs: TypeAlias = Mapping[str, Input]


class TorchExecutor(Executor):
    """One instance on the CPU, or where the model itself puts its tensors (KIND_MODEL)."""

    def __init__(
        self,
        program: Program,
        config: ModelConfig,
        settings: PyTorchSettings,
        file: str,
        *,
        owns: bool = False,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        """With `owns` the program belongs to this instance; `on_failure` receives its exceptions.

        Raises ConfigError if the names in `config` do not match the program.
        """
        self.device = program.device
        self._program = program if owns else None
        self._model_name = config.name
        self._settings = settings
        self._on_failure = on_failure
        self._batched = config.max_batch_size > 0
        self._input_types = input_types(config)
        self._output_types = output_types(config)
        self._output_dims = {
            tensor.name: graph_config.model_dims(tensor) for tensor in config.output
        }
        names = {"model": config.name, "file": file}
        self._call = program.caller(list(self._input_types), **names)
        self._results = Results(list(self._output_types), program.outputs, **names)
        self._own_inputs = program.mutates_inputs
        self._own_outputs = program.stateful
        self._scalars = _scalar_inputs(program, config)
        self._half = program.half
        self._channels_last = program.channels_last
        self._autocast = program.half if program.autocast else None
        self._mode = torch.inference_mode if settings.inference_mode else torch.no_grad

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Compute the named outputs. Raises BackendFailure with the model's exception."""
        return self._run(inputs, outputs, ())  # type: ignore[return-value]  # nothing is kept

    def run_on_device(
        self, inputs: Inputs, outputs: Sequence[str], keep: Collection[str]
    ) -> Sequence[np.ndarray | OnDevice]:
        """As `run`; outputs in `keep` that are tensors stay where they are."""
        return self._run(inputs, outputs, keep)

    def seconds(self, inputs: Inputs, runs: int) -> float:
        """How long one of `runs` executions takes on the device, without copies. Raises what the
        model raises."""
        process.prepare(self._settings.intra_op_threads, self._settings.switches)
        with self._mode():
            values = {name: self._feed(name, given) for name, given in inputs.items()}
            synchronize(self.device)
            begun = time.perf_counter()
            for _ in range(runs):
                self._compute(values)
            synchronize(self.device)
            return (time.perf_counter() - begun) / runs

    def _run(
        self, inputs: Inputs, outputs: Sequence[str], keep: Collection[str]
    ) -> Sequence[np.ndarray | OnDevice]:
        process.prepare(self._settings.intra_op_threads, self._settings.switches)
        try:
            with self._mode():
                values = self._execute(inputs, outputs)
                return self._fetch_all(outputs, values, self._rows(inputs), keep)
        except ShoalError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _execute(self, inputs: Inputs, outputs: Sequence[str]) -> Sequence[Any]:
        """The model's results for the outputs, on any device."""
        result = self._compute({name: self._feed(name, given) for name, given in inputs.items()})
        return self._results.pick(result, outputs)

    def _fetch_all(
        self, outputs: Sequence[str], values: Sequence[Any], rows: int | None, keep: Collection[str]
    ) -> list[np.ndarray | OnDevice]:
        return [
            OnDevice(self._kept(name, value), to_array)
            if name in keep and isinstance(value, torch.Tensor)
            else self._fetch(name, value, rows)
            for name, value in zip(outputs, values, strict=True)
        ]

    def close(self) -> None:
        """Let go of the model."""
        self._call = _closed
        if self._program is not None:
            self._program.close()
            self._program = None

    def _feed(self, name: str, given: Input) -> Any:
        """An input as the model takes it."""
        if not isinstance(given, np.ndarray):
            return self._formatted(self._joined(given))
        datatype = self._input_types[name]
        if datatype is BYTES:
            return strings.to_list(given, name)
        tensor = to_tensor(self._shaped(name, given), datatype)
        if self.device.type != "cpu":
            tensor = tensor.to(self.device)
        elif self._own_inputs:
            tensor = tensor.clone()
        return self._formatted(tensor)

    def _joined(self, parts: Sequence[DeviceTensor]) -> torch.Tensor:
        """Tensors that another model left on a device, as one on ours; not necessarily our own."""
        tensors = [
            _tensor_of(content).reshape(shape).to(self.device) for content, shape in adjacent(parts)
        ]
        if len(tensors) > 1:
            return torch.cat(tensors)
        return tensors[0].clone() if self._own_inputs else tensors[0]

    def _kept(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """A result that stays on the device and is not written to any more."""
        tensor = self._typed(name, value).detach()
        return tensor.clone() if self._own_outputs else tensor

    def _shaped(self, name: str, array: np.ndarray) -> np.ndarray:
        return array.reshape(()) if name in self._scalars and array.size == 1 else array

    def _formatted(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the precision and the layout that the model is run with."""
        if self._half is not None and self._autocast is None and tensor.is_floating_point():
            tensor = tensor.to(self._half)
        if self._channels_last and tensor.dim() == 4 and tensor.is_floating_point():
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def _compute(self, values: Mapping[str, Any]) -> Any:
        if self._autocast is None:
            return self._call(values)
        with torch.autocast(self.device.type, self._autocast):
            return self._call(values)

    def _fetch(self, name: str, value: Any, rows: int | None) -> np.ndarray:
        """A result as an array that is not written to any more."""
        if not isinstance(value, torch.Tensor):
            return self._plain(name, value, rows)
        tensor = self._typed(name, value)
        if self._own_outputs and tensor.device.type == "cpu":
            tensor = tensor.clone()
        return self._with_dims(name, to_array(tensor))

    def _plain(self, name: str, value: Any, rows: int | None) -> np.ndarray:
        """A result that is no tensor: a list of strings, or a number."""
        datatype = self._output_types[name]
        if isinstance(value, list) and (datatype is BYTES or not value):
            return strings.from_list(value, name, self._output_dims.get(name, (-1,)), rows)
        if isinstance(value, bool | int | float) and datatype is not BYTES:
            made = torch.tensor(value, dtype=TORCH_TYPES[datatype])
            return self._with_dims(name, to_array(made))
        kind = "None" if value is None else f"a {type(value).__name__}"
        wanted = "a list of strings" if datatype is BYTES else "a tensor"
        raise BackendFailure(
            f"PyTorch execute failure: output '{name}' of model '{self._model_name}' is {kind}, "
            f"where the configuration ({datatype.config_name}) has {wanted}"
        )

    def _typed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with the config's datatype; only its precision may be converted."""
        wanted = self._output_types[name]
        kind = TORCH_TYPES.get(wanted)
        if tensor.dtype is kind:
            return tensor
        if self._half is not None and kind is not None and _are_floats(tensor.dtype, kind):
            return tensor.to(kind)
        found = DATATYPES.get(tensor.dtype)
        provided = found.config_name if found is not None else str(tensor.dtype)
        raise InvalidArgument(
            f"configuration expects datatype {wanted.config_name} for output '{name}', model "
            f"provides {provided}"
        )

    def _with_dims(self, name: str, array: np.ndarray) -> np.ndarray:
        """A scalar in the shape of the config: dims of ones."""
        if array.ndim or self._batched:
            return array
        dims = self._output_dims.get(name, (1,))
        return array.reshape(dims) if set(dims) <= {1, -1} else array

    def _rows(self, inputs: Inputs) -> int | None:
        if not self._batched:
            return None
        first = next(iter(inputs.values()), None)
        if first is None:
            return 1
        if isinstance(first, np.ndarray):
            return int(first.shape[0])
        return sum(part.shape[0] for part in first)

    def _failure(self, error: Exception) -> BackendFailure:
        logger.debug("model '%s' failed", self._model_name, exc_info=error)
        if self._on_failure is not None:
            self._on_failure(error)
        return BackendFailure(
            f"PyTorch execute failure: model '{self._model_name}' failed: {clean_message(error)}"
        )


def input_types(config: ModelConfig) -> dict[str, DataType]:
    """Every input of the model in the config's order, those that the server provides last."""
    types = {tensor.name: BY_CONFIG_NAME[tensor.data_type] for tensor in config.input}
    for batch_input in config.batch_input:
        types.update(dict.fromkeys(batch_input.target_name, BY_CONFIG_NAME[batch_input.data_type]))
    sequences = config.sequence_batching
    if sequences is not None:
        for entry in sequences.control_input:
            for control in entry.control:
                types[entry.name] = BY_CONFIG_NAME[graph_config._control_type(control)]
        for state in sequences.state:
            types[state.input_name] = BY_CONFIG_NAME[state.data_type]
    return types


def output_types(config: ModelConfig) -> dict[str, DataType]:
    """Every output of the model in the config's order, including states."""
    types = {tensor.name: BY_CONFIG_NAME[tensor.data_type] for tensor in config.output}
    if config.sequence_batching is not None:
        for state in config.sequence_batching.state:
            types.setdefault(state.output_name, BY_CONFIG_NAME[state.data_type])
    return types


def _scalar_inputs(program: Program, config: ModelConfig) -> frozenset[str]:
    """The inputs that the model takes as scalars."""
    slots = program.inputs or ()
    known = {name: slot for slot in slots for name in slot.names}
    known |= {
        name: slots[place]
        for name in graph_config.scalar_dims(config.input, config)
        if name not in known and (place := index_of(name)) is not None and place < len(slots)
    }
    ones = graph_config.scalar_dims(config.input, config)
    return frozenset(name for name in ones if name in known and known[name].dims == ())


def _tensor_of(content: OnDevice) -> torch.Tensor:
    array = content.array
    tensor = array if isinstance(array, torch.Tensor) else torch.from_dlpack(array)
    return tensor if content.rows is None else tensor[content.rows]


def _are_floats(one: torch.dtype, other: torch.dtype) -> bool:
    return bool(one.is_floating_point and other.is_floating_point)


def _closed(_: Any) -> Any:
    raise BackendFailure("the instance is closed")
