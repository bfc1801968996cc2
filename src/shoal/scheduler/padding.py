"""Padding: inputs of a batch are padded to the longest, and its outputs are cut back.

The copy that joins a batch also pads it. Batches of equal lengths are joined and split as any
other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.core.buffers import pool
from shoal.core.dtypes import BYTES
from shoal.core.padding import Axes
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure
from shoal.scheduler.batch import POOLED_BYTES, WholeOutput, join_tensors, reshaped

Sizes = Mapping[str, int]


def fill_up(
    parts: Sequence[Tensor], axes: Axes, targets: Sizes, fill: object
) -> tuple[np.ndarray, int]:
    """Concatenates tensors, each padded to `targets`; also returns how many elements are padding.
    None of them is longer than the targets."""
    wide = list(parts[0].shape[1:])
    for axis, length in axes:
        wide[axis - 1] = targets[length]
    inner = tuple(wide)
    if all(part.shape[1:] == inner for part in parts):
        return (parts[0].array if len(parts) == 1 else join_tensors(parts)), 0
    rows = sum([part.shape[0] for part in parts])
    whole = _room(parts[0], (rows, *inner))
    whole.fill(fill)
    row = used = 0
    for part in parts:
        shape = part.shape
        place = (slice(row, row + shape[0]), *[slice(size) for size in shape[1:]])
        whole[place] = part.array
        row += shape[0]
        used += math.prod(shape)
    return whole, whole.size - used


def _room(like: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Memory for an input; for a large one, aligned and from a pool."""
    datatype = like.datatype
    size = math.prod(shape) * datatype.itemsize
    if datatype is BYTES or size < POOLED_BYTES:
        return np.empty(shape, datatype.numpy)
    return np.frombuffer(pool.take(size), datatype.numpy).reshape(shape)


def mask_of(spec: TensorSpec, rows: int, axes: Axes, sizes: Sizes) -> Tensor:
    """Ones for all of a request's own elements."""
    shape = [rows, *spec.model_dims]
    for axis, length in axes:
        shape[axis] = sizes[length]
    return Tensor.from_array(spec.name, np.ones(shape, spec.datatype.numpy), spec.datatype)


class CutBack:
    """One output of a padded batch: each request gets the part that is as long as itself."""

    def __init__(
        self,
        whole: WholeOutput,
        signature: Signature,
        axes: Axes,
        targets: Sizes,
        sizes: Sequence[Sizes],
    ) -> None:
        """`axes` are those that were padded. Raises BackendFailure when the output does not have
        the size of the padded inputs there: it could not be split correctly."""
        name, array = whole.name, whole.array
        self._array = array
        self._spec = signature.outputs[name]
        self._axes = axes
        self._sizes = sizes
        for axis, length in axes:
            found = array.shape[axis] if axis < array.ndim else None
            if found != targets[length]:
                raise BackendFailure(
                    f"output '{name}' of model '{signature.model_name}' has shape "
                    f"{list(array.shape)} in a batch whose length '{length}' was padded to "
                    f"{targets[length]}, and its dimension {axis} should follow that. If it does "
                    f"not, write {name}[_] in parameters['padding_axes']"
                )

    def part(self, number: int, row: int, rows: int) -> Tensor:
        """The part of the request of this number, in the order of the batch."""
        place = [slice(row, row + rows), *[slice(None)] * (self._array.ndim - 1)]
        for axis, length in self._axes:
            place[axis] = slice(self._sizes[number][length])
        view = self._array[tuple(place)]
        spec = self._spec
        shape = view.shape if spec.reshape is None else reshaped(spec, view.shape, batched=True)
        return Tensor(spec.name, spec.datatype, shape, array=view)
