"""Control tensors: they tell a model a request's position in its sequence.

    flags + correlation id --tensors--> START, END, READY, CORRID as the config names and types them

The server makes these inputs; clients do not send them. Each tensor has one element per request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.config.model import ModelConfig, ModelSequenceBatching
from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.core.request import Request
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument

START = "CONTROL_SEQUENCE_START"
END = "CONTROL_SEQUENCE_END"
READY = "CONTROL_SEQUENCE_READY"
CORRELATION_ID = "CONTROL_SEQUENCE_CORRID"

_BOTH = Request.SEQUENCE_START | Request.SEQUENCE_END


@dataclass(frozen=True, slots=True)
class _Switch:
    """A control with two values."""

    off: Tensor
    on: Tensor


class Controls:
    """The control inputs of one model. Tensors are made once and shared by all requests."""

    def __init__(self, config: ModelConfig) -> None:
        """`config` has passed the rules for configs."""
        batching = config.sequence_batching
        assert batching is not None
        self._model_name = config.name
        self._shape = (1, 1) if config.max_batch_size else (1,)
        self._id_name = ""
        self._id_type = dtypes.UINT64
        switches: dict[str, tuple[str, _Switch]] = {}
        for entry in batching.control_input:
            for control in entry.control:
                if control.kind == CORRELATION_ID:
                    self._id_name = entry.name
                    self._id_type = dtypes.BY_CONFIG_NAME[control.data_type]
                else:
                    switches[control.kind] = (entry.name, _switch(entry.name, control, self._shape))
        self._by_flags = [
            _settings(switches, ready=True, flags=flags) for flags in range(_BOTH + 1)
        ]
        self._not_ready = _settings(switches, ready=False, flags=0)
        self._no_id = self._id_tensor("" if self._id_type is dtypes.BYTES else 0)

    def check_id(self, request: Request) -> None:
        """InvalidArgument when the model does not take this kind of correlation id."""
        if not self._id_name:
            return
        is_text = isinstance(request.correlation_id, str)
        if is_text is not (self._id_type is dtypes.BYTES):
            found = dtypes.BYTES if is_text else dtypes.UINT64
            raise InvalidArgument(
                f"{request.log_prefix()}sequence batching control '{self._id_name}' data-type is "
                f"'{found.name}', but model '{self._model_name}' expects '{self._id_type.name}'"
            )

    def tensors(self, request: Request) -> dict[str, Tensor]:
        """The control inputs of a request; do not change the dict."""
        settings = self._by_flags[request.flags & _BOTH]
        if not self._id_name:
            return settings
        return {**settings, self._id_name: self._id_tensor(request.correlation_id)}

    def not_ready(self) -> dict[str, Tensor]:
        """The control inputs of a slot without a request; do not change the dict."""
        if not self._id_name:
            return self._not_ready
        return {**self._not_ready, self._id_name: self._no_id}

    def _id_tensor(self, correlation_id: int | str) -> Tensor:
        datatype = self._id_type
        if datatype is dtypes.BYTES:
            array = np.array([str(correlation_id).encode()], object).reshape(self._shape)
            return Tensor(self._id_name, datatype, self._shape, array=array)
        number = int(correlation_id) % (1 << 8 * datatype.itemsize)  # 32 bits keep the lower half
        raw = number.to_bytes(datatype.itemsize, "little")
        return Tensor(self._id_name, datatype, self._shape, raw=raw)


def _switch(name: str, control: ModelSequenceBatching.Control, shape: tuple[int, ...]) -> _Switch:
    """The two tensors of a START, END or READY control."""
    values: tuple[float, ...]
    if control.int32_false_true:
        datatype, values = dtypes.INT32, control.int32_false_true
    elif control.fp32_false_true:
        datatype, values = dtypes.FP32, control.fp32_false_true
    else:
        datatype, values = dtypes.BOOL, control.bool_false_true
    off, on = (_one(name, datatype, value, shape) for value in values)
    return _Switch(off, on)


def _one(name: str, datatype: DataType, value: float, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, datatype, shape, raw=np.array([value], datatype.numpy).tobytes())


def _settings(
    switches: dict[str, tuple[str, _Switch]], *, ready: bool, flags: int
) -> dict[str, Tensor]:
    on = {
        START: bool(flags & Request.SEQUENCE_START),
        END: bool(flags & Request.SEQUENCE_END),
        READY: ready,
    }
    return {
        name: switch.on if on[kind] else switch.off for kind, (name, switch) in switches.items()
    }
