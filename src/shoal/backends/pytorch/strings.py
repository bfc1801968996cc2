"""BYTES tensors and lists of strings: PyTorch has no tensors of strings, only `List[str]`.

As in Triton, a model receives all elements of the batch in one list; a list it returns has one
element per element of the output's dims, for each row of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.errors import BackendFailure, InvalidArgument


def to_list(array: np.ndarray, name: str) -> list[str]:
    """The elements as `str`. InvalidArgument when one is not UTF-8."""
    try:
        return [
            element if isinstance(element, str) else str(element, "utf-8")
            for element in array.reshape(-1).tolist()
        ]
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"an element of the BYTES input '{name}' is not UTF-8 text, and PyTorch takes no other "
            "strings. Send text as UTF-8 and binary data as a UINT8 tensor"
        ) from None


def from_list(
    elements: Sequence[str], name: str, dims: Sequence[int], rows: int | None
) -> np.ndarray:
    """A model's list as an object array of `bytes`.

    `rows` is the size of the batch, None if there is none; `dims` follow it. Raises
    BackendFailure when the list cannot have that shape.
    """
    flat = np.empty(len(elements), dtype=object)
    try:
        flat[:] = [element.encode() for element in elements]
    except AttributeError:
        raise BackendFailure(
            f"output '{name}' must be of type Tensor or List[str], received a list of other things"
        ) from None
    if rows is None:
        return flat
    try:
        return flat.reshape(rows, *dims)
    except ValueError:
        shape = ",".join(map(str, dims))
        raise BackendFailure(
            f"output '{name}' is a list of {len(elements)} strings, which is not [{shape}] for "
            f"each of {rows} rows"
        ) from None
