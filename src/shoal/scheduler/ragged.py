"""Ragged batches: inputs of any shape, concatenated, and the offsets at which each begins.

    [1, 3]  [1, 2]  --flat-->  [5]   beside it, e.g.,  BATCH_ACCUMULATED_ELEMENT_COUNT  [3, 5]

The model gets all elements without a batch dimension; the tensors made here tell it which belong
to which request. Counts are per request, item shapes per row, as in Triton.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from shoal.core.dtypes import DataType
from shoal.core.request import Request
from shoal.core.signature import TensorSpec
from shoal.core.tensor import Tensor
from shoal.core.validate import format_dims, substitute
from shoal.errors import BackendFailure
from shoal.scheduler.batch import join_tensors

Shapes = Sequence[tuple[int, ...]]  # of one input in each request, the batch dimension first


def flat(parts: Sequence[Tensor]) -> np.ndarray:
    """All elements in one dimension, in request order; a single request is not copied."""
    if len(parts) == 1:
        return parts[0].array.reshape(-1)
    return join_tensors([part.with_shape((part.element_count,)) for part in parts])


def _element_count(shapes: Shapes) -> list[int]:
    return [math.prod(shape) for shape in shapes]


def _accumulated(shapes: Shapes) -> list[int]:
    return list(accumulate(_element_count(shapes)))


def _accumulated_with_zero(shapes: Shapes) -> list[int]:
    return list(accumulate(_element_count(shapes), initial=0))


def _maximum_as_shape(shapes: Shapes) -> list[int]:
    return [0] * max(_element_count(shapes))  # only its shape matters


def _item_shape(shapes: Shapes) -> list[tuple[int, ...]]:
    return [shape[1:] for shape in shapes for _ in range(shape[0])]


def _item_shape_flat(shapes: Shapes) -> list[int]:
    return [size for item in _item_shape(shapes) for size in item]


KINDS: Mapping[str, Callable[[Shapes], Sequence[object]]] = {
    "BATCH_ELEMENT_COUNT": _element_count,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": _accumulated,
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": _accumulated_with_zero,
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": _maximum_as_shape,
    "BATCH_ITEM_SHAPE": _item_shape,
    "BATCH_ITEM_SHAPE_FLATTEN": _item_shape_flat,
}


@dataclass(frozen=True, slots=True)
class MadeInput:
    """A `batch_input` of a config: an input that the server adds to every batch."""

    kind: str
    names: tuple[str, ...]
    datatype: DataType
    source: TensorSpec

    def make(self, requests: Sequence[Request]) -> np.ndarray:
        """The tensor for a batch of these requests. A source left out has no elements."""
        shapes = []
        rank = len(self.source.model_dims)
        for request in requests:
            tensor = request.inputs.get(self.source.name)
            shapes.append((request.rows, *[0] * rank) if tensor is None else tensor.shape)
        made = np.array(KINDS[self.kind](shapes), self.datatype.numpy)
        return made.reshape(-1, rank) if self.kind == "BATCH_ITEM_SHAPE" else made


class Scattered:
    """An output that is split by the shapes of an input (BATCH_SCATTER_WITH_INPUT_SHAPE).

    A variable dimension of the output is as large as the same dimension of the input, so each
    request's part follows from its input.
    """

    def __init__(
        self,
        spec: TensorSpec,
        source: str,
        array: np.ndarray,
        requests: Sequence[Request],
        *,
        batched: bool,
    ) -> None:
        """Raises BackendFailure when the output's size does not match the requests."""
        self._spec = spec
        self._skip = 1 if batched else 0
        dims = (-1, *spec.model_dims) if batched else spec.model_dims
        self._shapes = [_followed(dims, request.inputs[source].shape) for request in requests]
        self._ends = list(accumulate(math.prod(shape) for shape in self._shapes))
        if array.size != self._ends[-1]:
            raise BackendFailure(
                f"output '{spec.name}' has {array.size} elements, but by the shapes of input "
                f"'{source}' the requests of its batch have {self._ends[-1]}: "
                + ", ".join(format_dims(shape) for shape in self._shapes)
            )
        self._array: np.ndarray | None = None
        self._bytes: memoryview | None = None
        if array.dtype.kind == "O" or not array.size:
            self._array = array.reshape(-1)
        else:
            self._bytes = np.ascontiguousarray(array, spec.datatype.numpy).data.cast("B")

    def part(self, number: int, row: int, rows: int) -> Tensor:
        """The part of the request of this number, in the order of the batch."""
        del row, rows
        spec, shape = self._spec, self._shapes[number]
        end = self._ends[number]
        start = end - math.prod(shape)
        if spec.reshape is not None:
            skip = self._skip
            shape = shape[:skip] + substitute(spec.reshape, shape[skip:], spec.dims)
        if self._bytes is None:
            assert self._array is not None
            return Tensor(spec.name, spec.datatype, shape, array=self._array[start:end])
        size = spec.datatype.itemsize
        raw = self._bytes[start * size : end * size]
        return Tensor(spec.name, spec.datatype, shape, raw=raw)


def _followed(dims: tuple[int, ...], source: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(source[axis] if dim == -1 else dim for axis, dim in enumerate(dims))
