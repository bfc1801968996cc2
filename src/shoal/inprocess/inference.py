"""A request from Python values: checked options, and inputs as the model's tensors.

{"x": [1, 2]} --prepare--> Request --engine--> Responses --> {"output": array}
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.backends.function.structured import JsonConverter
from shoal.backends.python.api import dlpack
from shoal.backends.python.api.errors import TritonModelException
from shoal.client.inputs import bfloat16_bits
from shoal.core.casting import cast_to
from shoal.core.dtypes import BF16, BYTES, DataType
from shoal.core.interface import FunctionInterface, ValueForm
from shoal.core.reply import DISCARD, Reply
from shoal.core.request import Request
from shoal.core.response import ParameterValue
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.engine.local import LocalEngine
from shoal.errors import DeadlineExceeded, InvalidArgument, ShoalError

Inputs = Mapping[str, Any]


class Deadline:
    """Until when a caller waits for responses; without `timeout_secs` for ever."""

    __slots__ = ("_end_secs", "_timeout_secs")

    def __init__(self, timeout_secs: float | None) -> None:
        self._timeout_secs = timeout_secs
        self._end_secs = None if timeout_secs is None else time.monotonic() + timeout_secs

    @property
    def end_ns(self) -> int | None:
        """The moment by the clock of requests."""
        return None if self._end_secs is None else int(self._end_secs * 1e9)

    def left_secs(self) -> float | None:
        """The remaining time; None if there is no limit."""
        return None if self._end_secs is None else max(0.0, self._end_secs - time.monotonic())

    def error(self) -> DeadlineExceeded:
        """The error when it has passed."""
        return DeadlineExceeded(
            f"there was no response within {self._timeout_secs:g} s, and the request was cancelled;"
            " a larger timeout_secs= allows more"
        )


class PreparedRequest(NamedTuple):
    """A request that can be submitted once it has a reply."""

    request: Request
    deadline: Deadline
    decoupled: bool  # whether the model may send any number of responses


def prepare(
    engine: LocalEngine,
    model: str,
    inputs: Inputs,
    *,
    outputs: Sequence[str] = (),
    version: int = -1,
    id: str = "",
    parameters: Mapping[str, ParameterValue] | None = None,
    priority: int = 0,
    server_timeout_us: int = 0,
    sequence_id: int | str = 0,
    sequence_start: bool = False,
    sequence_end: bool = False,
    timeout_secs: float | None = None,
) -> PreparedRequest:
    """A request for a model. Raises NotFound and InvalidArgument; ModelLoading for a model that has
    to be loaded first."""
    served = engine.find(model, version)
    deadline = Deadline(timeout_secs)
    flags = sequence_start * Request.SEQUENCE_START | sequence_end * Request.SEQUENCE_END
    if served.interface is not None:
        inputs = _with_json(inputs, served.interface)
    request = Request(
        model,
        tensors(inputs, served.signature),
        DISCARD,
        model_version=version,
        id=id,
        requested_outputs=tuple(outputs),
        parameters=dict(parameters or {}),
        priority=_unsigned("priority", priority),
        timeout_us=_unsigned("server_timeout_us", server_timeout_us),
        correlation_id=sequence_id,
        flags=flags,
    )
    if deadline.end_ns is not None:
        request.answer_by_ns = deadline.end_ns
    return PreparedRequest(request, deadline, served.decoupled)


def submit(engine: LocalEngine, request: Request, reply: Reply) -> None:
    """Let the engine take the request over, traced if it is sampled; responses go to `reply`.

    Raises the ShoalError of a request that is refused.
    """
    request.reply = reply
    trace = engine.tracer.start(request.model_name, _no_header) if engine.tracer.active else None
    if trace is None:
        engine.infer(request)
        return
    trace.attach(request)
    trace.leave()  # nothing is sent: it is complete with the request
    try:
        engine.infer(request)
    except ShoalError as error:
        trace.failed(error.message)
        trace.finish()
        raise


def _no_header(_name: str) -> None:
    return None


def _unsigned(name: str, value: int) -> int:
    if not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{name}= takes a whole number of at least 0, found {value!r}")
    return value


# ---- tensors


def _with_json(inputs: Inputs, interface: FunctionInterface) -> Inputs:
    """Objects for arguments that are JSON, as the elements of tensors; others as they are."""
    documents = {field.name for field in interface.inputs if field.form is ValueForm.JSON}
    rows = {name: value for name, value in inputs.items() if name in documents}
    if not interface.batched:
        return {**inputs, **{name: [_document(value)] for name, value in rows.items()}}
    several = {
        name: [[_document(each)] for each in value]
        for name, value in rows.items()
        if isinstance(value, (list, tuple))
    }
    return {**inputs, **several}


def _document(value: Any) -> Any:
    """The JSON of an object; texts and bytes are JSON already."""
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, bytes)):
        value = value[0]
    return value if isinstance(value, (str, bytes)) else JsonConverter.encode(value)


def tensors(inputs: Inputs, signature: Signature) -> dict[str, Tensor]:
    """Arrays, lists and single values as the model's tensors. InvalidArgument for others."""
    batched = signature.max_batch_size > 0
    return {
        name: _tensor(name, value, signature.inputs.get(name), batched=batched)
        for name, value in inputs.items()
    }


def _tensor(name: str, value: Any, spec: TensorSpec | None, *, batched: bool) -> Tensor:
    """`value` as a tensor; the engine checks whether it fits the model."""
    expected = None if spec is None else spec.datatype
    if isinstance(value, np.ndarray):
        array, datatype = _from_array(value, expected)
    elif hasattr(value, "__dlpack__"):
        array, datatype = _from_dlpack(name, value)
    else:
        array, datatype = _from_values(name, value, expected)
    if datatype is BYTES or (datatype is None and array.dtype.kind in "SUO"):
        array = _as_bytes(array, name)
    if spec is not None and spec.dims == (1,) and array.ndim == len(spec.dims) + batched - 1:
        array = array[..., np.newaxis]  # a scalar instead of a list of one
    return Tensor.from_array(name, array, datatype)


Converted = tuple[np.ndarray, DataType | None]  # None: the datatype is that of the array


def _from_array(array: np.ndarray, expected: DataType | None) -> Converted:
    """The caller's memory, read-only: a model may write to its inputs."""
    if array.dtype.isbuiltin != 1 and array.dtype.name == "bfloat16":  # of ml_dtypes
        return array.view(np.uint16), BF16
    if expected is BF16:
        if array.dtype == np.float32:
            return bfloat16_bits(array), BF16
        return array, BF16 if array.dtype == np.uint16 else None
    view = array.view()
    view.flags.writeable = False
    return view, None


def _from_dlpack(name: str, value: Any) -> Converted:
    """A tensor of another library, without a copy if it is contiguous and on the CPU."""
    device = value.__dlpack_device__()[0]
    if device not in (dlpack.CPU, dlpack.CUDA_HOST):
        raise InvalidArgument(
            f"input '{name}' is in the memory of a device; pass a copy on the CPU, for example "
            f"tensor.cpu() with PyTorch"
        )
    try:
        taken = dlpack.take(value.__dlpack__())
    except TritonModelException:  # not contiguous, or a type that only its library knows
        return _from_array(np.asarray(value), None)
    except (BufferError, RuntimeError, TypeError) as error:  # a tensor that requires gradients
        raise InvalidArgument(f"input '{name}' cannot be read: {error}") from None
    assert taken.array is not None  # it is on the CPU
    array = taken.array.view(taken.datatype.numpy).reshape(taken.shape)
    array.flags.writeable = False
    return array, taken.datatype


def _from_values(name: str, value: Any, expected: DataType | None) -> Converted:
    """Lists and single values, converted to the datatype of the model's input."""
    try:
        array = np.asarray(value, dtype=object if expected is BYTES else None)
    except ValueError as error:
        raise InvalidArgument(
            f"input '{name}' is not a regular array: {error}; use rows of equal length"
        ) from None
    if expected is None or expected is BYTES:
        return array, expected
    if expected is BF16:
        if array.dtype.kind in "fiu":
            return bfloat16_bits(array.astype(np.float32)), BF16
        cast = None
    else:
        cast = cast_to(array, expected.numpy)
    if cast is None:
        raise InvalidArgument(
            f"input '{name}' takes {expected}, found values that are not ({array.dtype})"
        )
    return cast, expected


def _as_bytes(array: np.ndarray, name: str) -> np.ndarray:
    made = np.empty(array.size, dtype=object)
    for index, element in enumerate(array.reshape(-1).tolist()):
        if not isinstance(element, (str, bytes)):
            raise InvalidArgument(
                f"input '{name}' takes text, found an element of type {type(element).__name__}"
            )
        made[index] = element.encode() if isinstance(element, str) else element
    return made.reshape(array.shape)
