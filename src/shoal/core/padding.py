"""Lengths: the dimensions in which requests that share a batch may differ, because it is padded.

    [1, 5]  [1, 3]  [1, 8]  --filled up to the longest-->  [3, 8]  --each cut back-->  5, 3, 8

A length has a name and may be a dimension of several tensors: then it is the same number in all
of them. Nothing here waits or copies; `shoal.scheduler.padding` fills and cuts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.core.dtypes import BF16, BOOL, BYTES, DataType
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument

_BOOLEANS = {"": False, "0": False, "false": False, "1": True, "true": True}

Axes = tuple[tuple[int, str], ...]  # dimensions, the batch counted, and the lengths they are


@dataclass(frozen=True, slots=True)
class Buckets:
    """Which sizes are near enough to be padded together: one bucket per power of two, unless
    `width` makes them equally wide or `edges` (rising) are their upper bounds."""

    width: int = 0
    edges: tuple[int, ...] = ()

    def of(self, size: int) -> int:
        """The number of the bucket; those beyond the last edge share one."""
        if self.edges:
            return bisect_left(self.edges, size)
        if self.width:
            return -(-size // self.width)
        return (size - 1).bit_length() if size else 0


@dataclass(frozen=True, slots=True)
class Padding:
    """How a model's batches are padded. Dimensions are those the model sees."""

    inputs: Mapping[str, Axes]  # the inputs that are filled up
    fills: Mapping[str, object]  # with what, by input
    outputs: Mapping[str, Axes]  # the outputs that are cut back
    masks: frozenset[str] = frozenset()  # inputs that are ones where a request leaves them out
    multiple: int = 1  # sizes are rounded up to this
    buckets: Buckets | None = None  # None: requests of all sizes share batches
    lengths: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = dict.fromkeys(length for axes in self.inputs.values() for _, length in axes)
        object.__setattr__(self, "lengths", tuple(names))

    def sizes(self, inputs: Mapping[str, Tensor]) -> dict[str, int]:
        """How long a request's lengths are.

        Raises InvalidArgument where two inputs disagree: alone, that request would fail.
        """
        found: dict[str, int] = {}
        for name, axes in self.inputs.items():
            tensor = inputs.get(name)
            if tensor is None:
                continue
            for axis, length in axes:
                size = tensor.shape[axis]
                if found.setdefault(length, size) != size:
                    raise self._disagree(inputs, length)
        return found

    def key(self, inputs: Mapping[str, Tensor]) -> tuple[int | None, ...]:
        """What must be equal, of a request's lengths, for it to share a batch with another.

        Raises as `sizes` does.
        """
        sizes = self.sizes(inputs)
        if self.buckets is None:
            return ()
        return tuple(
            self.buckets.of(self.rounded(sizes[length])) if length in sizes else None
            for length in self.lengths
        )

    def rounded(self, size: int) -> int:
        """The size that is computed for a requested one."""
        return -(-size // self.multiple) * self.multiple

    def targets(self, batch: Iterable[Mapping[str, int]]) -> dict[str, int]:
        """How long the lengths of a batch are, from the sizes of its requests."""
        longest: dict[str, int] = {}
        for sizes in batch:
            for length, size in sizes.items():
                if size > longest.get(length, -1):
                    longest[length] = size
        return {length: self.rounded(size) for length, size in longest.items()}

    def _disagree(self, inputs: Mapping[str, Tensor], length: str) -> InvalidArgument:
        found = [
            f"'{name}' {inputs[name].shape[axis]}"
            for name, axes in self.inputs.items()
            if name in inputs
            for axis, own in axes
            if own == length
        ]
        return InvalidArgument(
            f"the inputs disagree about the length '{length}', which must be equal in all of "
            f"them: {', '.join(found)}"
        )


def fill_value(datatype: DataType, text: str) -> object:
    """What fills an input, from how a config writes it; "" is zero, false or the empty string.

    Raises ValueError where `text` is no value of that type.
    """
    if datatype is BYTES:
        return text.encode()
    if datatype is BOOL:
        if text.lower() not in _BOOLEANS:
            raise ValueError(text)
        return _BOOLEANS[text.lower()]
    if datatype is BF16:  # carried as the upper half of an FP32
        return int(np.float32(text or 0).view(np.uint32)) >> 16
    if datatype.numpy.kind == "f":
        return float(text or 0)
    value = int(text or 0)
    limits = np.iinfo(datatype.numpy.name)
    if not limits.min <= value <= limits.max:
        raise ValueError(text)
    return value
