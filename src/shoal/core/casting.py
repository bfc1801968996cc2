"""Whether numbers of one type can be numbers of another."""

from __future__ import annotations

import numpy as np


def cast_to(array: np.ndarray, wanted: np.dtype[np.generic]) -> np.ndarray | None:
    """A copy of `array` as `wanted`, or None where that would change its values.

    Floats may lose digits and integers become floats; integers must fit, and no float becomes an
    integer.
    """
    if not array.size or np.can_cast(array.dtype, wanted, "same_kind"):
        cast: np.ndarray = array.astype(wanted)
        return cast
    if array.dtype.kind in "iu" and wanted.kind in "iu":
        cast = array.astype(wanted)
        return cast if np.array_equal(cast, array) else None
    return None
