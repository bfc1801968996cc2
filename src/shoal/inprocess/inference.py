"""Inference in the same process: values in, arrays out, without a socket or protocol.

{"x": [1, 2]} --tensors--> Request --engine--> ResponseQueue --outputs--> {"output": array}
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from shoal.core.casting import cast_to
from shoal.core.dtypes import BYTES
from shoal.core.model_loading import ModelLoading
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.engine import Engine
from shoal.errors import InvalidArgument, ShoalError, Unavailable

Result = TypeVar("Result")
Inputs = Mapping[str, Any]
Outputs = dict[str, np.ndarray]


class ResponseQueue:
    """The responses to one request, for the thread that waits for them."""

    def __init__(self, timeout_secs: float | None) -> None:
        self._timeout_secs = timeout_secs
        self._end_secs = None if timeout_secs is None else time.monotonic() + timeout_secs
        self._responses: queue.SimpleQueue[Response] = queue.SimpleQueue()

    def send(self, response: Response) -> None:
        """Add one response; see `shoal.core.reply.Reply`."""
        self._responses.put(response)

    def next(self) -> Response:
        """Wait for the next response; Unavailable after the time-out."""
        left_secs = None
        if self._end_secs is not None:
            left_secs = max(0.0, self._end_secs - time.monotonic())
        try:
            return self._responses.get(timeout=left_secs)
        except queue.Empty:
            raise Unavailable(f"there was no response within {self._timeout_secs:g} s") from None


def outputs_of(engine: Engine, request: Request, responses: ResponseQueue) -> Iterator[Outputs]:
    """Submit the request at once; the result yields the outputs of each response."""
    engine.infer(request)

    def receive() -> Iterator[Outputs]:
        over = False
        try:
            while not over:
                response = responses.next()
                over = response.final
                if response.error is not None:
                    raise response.error
                if not response.is_end_only:
                    yield {tensor.name: tensor.array.copy() for tensor in response.outputs}
        finally:
            if not over:
                request.cancel()

    return receive()


def when_loaded(lookup: Callable[[], Result]) -> Result:
    """The result of `lookup`, once the model is loaded on demand. Raises as `lookup` does."""
    while True:
        try:
            return lookup()
        except ModelLoading as pending:
            settled: queue.SimpleQueue[ShoalError | None] = queue.SimpleQueue()
            pending.then(settled.put)
            error = settled.get()
            if error is not None:
                raise error from None


def tensors(inputs: Inputs, signature: Signature) -> dict[str, Tensor]:
    """Arrays, lists and single values as the model's tensors. InvalidArgument for others."""
    batched = signature.max_batch_size > 0
    return {
        name: _tensor(name, value, signature.inputs.get(name), batched=batched)
        for name, value in inputs.items()
    }


def _tensor(name: str, value: Any, spec: TensorSpec | None, *, batched: bool) -> Tensor:
    """`value` as a tensor; the engine checks whether it fits the model."""
    if spec is None:
        return Tensor.from_array(name, np.asarray(value))
    array = np.asarray(value, dtype=object if spec.datatype is BYTES else None)
    if spec.datatype is BYTES:
        array = _as_bytes(array, name)
    elif not isinstance(value, np.ndarray):
        cast = cast_to(array, spec.datatype.numpy)
        if cast is None:
            raise InvalidArgument(
                f"input '{name}' takes {spec.datatype}, found values that are not ({array.dtype})"
            )
        array = cast
    full = len(spec.dims) + batched
    if spec.dims == (1,) and array.ndim == full - 1:  # a scalar instead of a list of one
        array = array[..., np.newaxis]
    datatype = spec.datatype if array.dtype == spec.datatype.numpy else None
    return Tensor.from_array(name, array, datatype)


def _as_bytes(array: np.ndarray, name: str) -> np.ndarray:
    made = np.empty(array.size, dtype=object)
    for index, element in enumerate(array.reshape(-1).tolist()):
        if not isinstance(element, (str, bytes)):
            raise InvalidArgument(
                f"input '{name}' takes text, found an element of type {type(element).__name__}"
            )
        made[index] = element.encode() if isinstance(element, str) else element
    return made.reshape(array.shape)
