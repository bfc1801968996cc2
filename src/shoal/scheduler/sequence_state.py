"""Implicit state: tensors that the server carries from each request of a sequence to the next.

    initial values --inputs--> execution --keep--> the same sequence's next request

The model reads a state as an input and writes it as an output; the server keeps it in between.
Clients see it only where the config lists it among the outputs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.config.model import ModelConfig, ModelSequenceBatching
from shoal.core import bytes_tensor, dtypes
from shoal.core.dtypes import DataType
from shoal.core.signature import TensorSpec
from shoal.core.tensor import Tensor
from shoal.core.validate import format_dims
from shoal.errors import BackendFailure, ConfigError, InvalidArgument

logger = logging.getLogger(__name__)

FOLDER = "initial_state"


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One state as configured, with its value at the start of a sequence."""

    input_name: str
    output_name: str
    datatype: DataType
    dims: tuple[int, ...]
    initial: np.ndarray  # with the batch dimension, if any; never written to
    same_buffer: bool = False
    growable: bool = False


class StateStore:
    """The states of one model, with which every sequence starts."""

    def __init__(self, specs: Sequence[StateSpec]) -> None:
        self._specs = tuple(specs)
        self.has_variable_dims = any(-1 in spec.dims for spec in specs)
        self.initial_shapes = tuple(spec.initial.shape for spec in specs)
        self.outputs = {  # that hold the new states
            spec.output_name: TensorSpec(spec.output_name, spec.datatype, spec.dims)
            for spec in specs
        }

    @classmethod
    def read(cls, config: ModelConfig, model_folder: Path) -> StateStore:
        """The states of a config that passed the rules, initial values read in.

        Raises ConfigError when a file cannot be read or does not fit.
        """
        batching = config.sequence_batching
        assert batching is not None
        specs = [
            _spec(state, f"sequence_batching.state[{index}]", model_folder, config.max_batch_size)
            for index, state in enumerate(batching.state)
        ]
        return cls(specs)

    def begin(self) -> SequenceStates | None:
        """The states of a sequence that starts; None where the model has no state."""
        if not self._specs:
            return None
        return SequenceStates([_State(spec) for spec in self._specs])


class _State:
    """One state of one sequence, in its own buffer if the config sets that."""

    __slots__ = ("_room", "_spec", "array")

    def __init__(self, spec: StateSpec) -> None:
        self._spec = spec
        self._room: np.ndarray | None = None  # flat memory that is written again and again
        self.array = spec.initial
        if spec.same_buffer:
            self.keep(spec.initial)

    @property
    def spec(self) -> StateSpec:
        return self._spec

    def keep(self, array: np.ndarray) -> None:
        """Make `array` the state; without a buffer of its own the state is `array` itself."""
        if not self._spec.same_buffer:
            self.array = array
            return
        size = array.size
        room = self._room
        if room is None or size > room.size or not (self._spec.growable or size == room.size):
            # Growing states grow again: doubling avoids most copies.
            capacity = max(size, 2 * room.size if room is not None and self._spec.growable else 0)
            room = self._room = np.empty(capacity, self._spec.datatype.numpy)
        room[:size] = array.reshape(-1)
        self.array = room[:size].reshape(array.shape)


class SequenceStates:
    """The states of one sequence between two requests."""

    __slots__ = ("_by_output",)

    def __init__(self, states: Sequence[_State]) -> None:
        self._by_output = {state.spec.output_name: state for state in states}

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of all states: those of a batch must be equal."""
        return tuple(state.array.shape for state in self._by_output.values())

    def inputs(self) -> dict[str, Tensor]:
        """The states as inputs of the next request."""
        return {
            state.spec.input_name: Tensor.from_array(
                state.spec.input_name, state.array, state.spec.datatype
            )
            for state in self._by_output.values()
        }

    def blank_inputs(self) -> dict[str, Tensor]:
        """Zeros of the same shapes, for a slot without a request."""
        return {
            state.spec.input_name: Tensor.from_array(
                state.spec.input_name,
                zeros(state.spec.datatype, state.array.shape),
                state.spec.datatype,
            )
            for state in self._by_output.values()
        }

    def keep(self, output_name: str, array: np.ndarray, *, shared: bool = False) -> None:
        """Store a new state; with `shared` the array is part of a larger one and is copied."""
        state = self._by_output[output_name]
        array = array.astype(state.spec.datatype.numpy, copy=False)
        # A view would keep the states of a whole batch alive as long as this sequence.
        state.keep(array.copy() if shared and not state.spec.same_buffer else array)


def keep_outputs(
    owners: Sequence[SequenceStates | None],
    outputs: Mapping[str, np.ndarray],
    *,
    model_name: str,
    batches: bool,
) -> None:
    """Store each row of a batch's state outputs in the sequence it belongs to.

    `owners` has one entry per row, None for rows of fillers. Raises BackendFailure, with every
    state unchanged, when an output does not have one row per row of the batch.
    """
    rows = len(owners)
    for name, array in outputs.items():
        if batches and (not array.shape or array.shape[0] != rows):
            raise BackendFailure(
                f"state output '{name}' of model '{model_name}' has shape "
                f"{format_dims(array.shape)} for a batch of {rows}: its first dimension must be "
                "the batch"
            )
    for name, array in outputs.items():
        for row, owner in enumerate(owners):
            if owner is None:
                continue
            if rows == 1:
                owner.keep(name, array)
            else:
                owner.keep(name, array[row : row + 1], shared=True)


def zeros(datatype: DataType, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros of any datatype; a string's zero is the empty one."""
    if datatype is dtypes.BYTES:
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, datatype.numpy)


def _spec(
    state: ModelSequenceBatching.State, field: str, model_folder: Path, max_batch_size: int
) -> StateSpec:
    datatype = dtypes.BY_CONFIG_NAME[state.data_type]
    initial = zeros(datatype, tuple(1 if dim == -1 else dim for dim in state.dims))
    if state.initial_state:
        given = state.initial_state[0]
        initial = zeros(datatype, given.dims)
        if given.data_file is not None:
            field = f"{field}.initial_state[0].data_file"
            initial = _read(given.data_file, datatype, given.dims, field, model_folder)
    lead = (1,) if max_batch_size else ()
    return StateSpec(
        state.input_name,
        state.output_name,
        datatype,
        state.dims,
        initial.reshape(*lead, *initial.shape),
        same_buffer=state.use_same_buffer_for_input_output,
        growable=state.use_growable_memory,
    )


def _read(
    filename: str, datatype: DataType, shape: tuple[int, ...], field: str, model_folder: Path
) -> np.ndarray:
    """An initial value from a file of the folder `initial_state`."""
    base = (model_folder / FOLDER).resolve()
    path = (base / filename).resolve()
    if not path.is_relative_to(base):
        raise _wrong(
            f"'{filename}' lies outside the folder {FOLDER}", field, "Name a file in that folder"
        )
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _wrong(
            f"cannot read {FOLDER}/{filename}: {error.strerror}",
            field,
            f"Put the file into the folder {FOLDER} beside config.pbtxt",
        ) from None
    count = math.prod(shape)
    if datatype is dtypes.BYTES:
        try:
            return bytes_tensor.decode(raw, count, f"{FOLDER}/{filename}").reshape(shape)
        except InvalidArgument as error:
            raise _wrong(
                error.message, field, "Each string is a 4-byte little-endian length and its bytes"
            ) from None
    expected = count * datatype.itemsize
    if len(raw) < expected:
        raise _wrong(
            f"initial_state setting expects {expected} bytes, but the data provided from "
            f"{filename} only has {len(raw)} bytes",
            field,
            "Write the elements one after the other, little-endian",
        )
    if len(raw) > expected:
        logger.warning(
            "%s/%s has %d bytes, of which %d are used", FOLDER, filename, len(raw), expected
        )
    return np.frombuffer(raw, datatype.numpy, count).reshape(shape)


def _wrong(message: str, field: str, fix: str) -> ConfigError:
    return ConfigError(message, file="config.pbtxt", field=field, fix=fix)
