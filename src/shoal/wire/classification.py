"""Classification: the best scores of an output as `value:index:label` strings.

A client that requests the top N of an output gets a BYTES tensor instead of the scores, one row of
strings for each row of the batch, the highest score first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shoal.core.dtypes import BF16, BOOL, BYTES, FP16, FP32, FP64
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument

MOST_ELEMENTS = 1_000_000  # of one row; more is a mistake that would cost seconds to sort

_UNSUPPORTED = (BYTES, BOOL, FP16, BF16)
_FLOATS = (FP32, FP64)


def classify(tensor: Tensor, count: int, *, batched: bool, labels: Sequence[str] = ()) -> Tensor:
    """The `count` highest elements of each row of `tensor`, fewer where a row has fewer.

    `batched`: whether the first dimension counts rows. Equal scores keep their order, NaN
    comes last. Raises InvalidArgument for datatypes without an order and for very large rows.
    """
    datatype = tensor.datatype
    if datatype in _UNSUPPORTED:
        raise InvalidArgument(
            f"class result not available for output due to unsupported type '{datatype.name}'"
        )
    rows = tensor.shape[0] if batched and tensor.shape else 1
    width = math.prod(tensor.shape[1:] if batched else tensor.shape)
    if width > MOST_ELEMENTS:
        raise InvalidArgument("classification output tensor too large")
    kept = min(count, width)
    form = "%f:%d" if datatype in _FLOATS else "%d:%d"
    strings: list[bytes] = []
    for row in tensor.array.reshape(rows, width):
        for index in highest(row, kept):
            text = form % (row[index], index)
            if index < len(labels) and labels[index]:
                text = f"{text}:{labels[index]}"
            strings.append(text.encode())
    array = np.empty(rows * kept, dtype=object)
    array[:] = strings
    shape = (rows, kept) if batched and tensor.shape else (kept,)
    return Tensor(tensor.name, BYTES, shape, array=array.reshape(shape))


def highest(row: np.ndarray, count: int) -> list[int]:
    """Where the `count` highest elements of `row` are, best first."""
    if not count:
        return []
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    candidates = np.arange(row.size)
    if count < row.size:  # sort only what can be among them
        least = np.partition(row, row.size - count)[row.size - count]
        candidates = np.flatnonzero(row >= least)
    # Ascending over the reversed row and then reversed: descending, equal scores in order.
    order = np.argsort(row[candidates][::-1], kind="stable")[::-1]
    chosen = candidates[::-1][order][:count]
    return [int(index) for index in chosen]
