"""An explicit description of a tensor: `shoal.Tensor(np.float32, (3, 224, 224))`.

It is used where a type is not enough: in `inputs=` and `outputs=` of `@shoal.model`, and in
`Annotated`. What it leaves out is taken from the type.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.core import dtypes
from shoal.core.dtypes import BYTES, DataType
from shoal.errors import InvalidArgument

_PYTHON_TYPES: dict[Any, DataType] = {
    builtins.bool: dtypes.BOOL,
    builtins.int: dtypes.INT64,
    builtins.float: dtypes.FP64,
    builtins.str: BYTES,
    builtins.bytes: BYTES,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output. `shape` leaves the batch dimension out; -1 or None is any size.

    `dtype` is a numpy type (`np.float32`), a name of the protocol ("FP32", "BYTES") or a Python
    type (`str` for text). `name` is the clients' name for it, if that differs from the function's
    argument. `labels` names a file with a label per line, beside the Python file.
    """

    dtype: Any = None
    shape: tuple[int | None, ...] | None = None
    name: str = ""
    labels: str = ""

    @property
    def datatype(self) -> DataType | None:
        """The protocol's type; None if unknown. Raises InvalidArgument for anything else."""
        return None if self.dtype is None else to_datatype(self.dtype)

    @property
    def is_text(self) -> bool:
        """Whether elements are `str` rather than `bytes`."""
        return is_text(self.dtype)

    @property
    def dims(self) -> tuple[int, ...] | None:
        """The shape with -1 for any size; None if unknown. Raises InvalidArgument."""
        return None if self.shape is None else to_dims(self.shape)


def to_datatype(dtype: Any) -> DataType:
    """The protocol's type for a numpy, Python or protocol type. Raises InvalidArgument."""
    if isinstance(dtype, DataType):
        return dtype
    if isinstance(dtype, type) and dtype in _PYTHON_TYPES:
        return _PYTHON_TYPES[dtype]
    if isinstance(dtype, str):
        name = dtype.upper().removeprefix("TYPE_")
        if name in ("STRING", "STR"):
            return BYTES
        if name in dtypes.BY_NAME:
            return dtypes.BY_NAME[name]
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError):
        kind = None
    fits = kind is not None and (kind.kind in "biufSU" or dtype is np.object_)
    if kind is None or not fits:
        raise InvalidArgument(
            f"{_shown(dtype)} is not a type of tensors; use a numpy type like np.float32, str, or "
            f"one of {', '.join(dtypes.BY_NAME)}"
        )
    return dtypes.from_numpy(kind)


def is_text(dtype: Any) -> bool:
    """Whether `dtype` means text, so that the function gets `str`."""
    if isinstance(dtype, str):
        return dtype.lower() == "str"
    return dtype is str or dtype is np.str_


def to_dims(shape: Iterable[int | None] | int) -> tuple[int, ...]:
    """A shape as in config.pbtxt. Raises InvalidArgument for an invalid size."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    dims = tuple(-1 if size is None else size for size in sizes)
    for size in dims:
        if not isinstance(size, int) or isinstance(size, bool) or size == 0 or size < -1:
            raise InvalidArgument(
                f"the shape {sizes} has the size {size!r}; sizes are whole numbers from 1, or -1 "
                "for any"
            )
    if not dims:
        raise InvalidArgument("a tensor has at least one dimension; write (1,) for a single value")
    return dims


def _shown(dtype: Any) -> str:
    return getattr(dtype, "__name__", None) or repr(dtype)
