"""Names that numpy 2 removed and models for numpy 1 still use: np.NINF, np.float_, …

They are added on first use, with one warning each that says what to write instead. Nothing changes
for code that does not use them, or if numpy still has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

# name -> what to write instead, as an expression on np
_REPLACEMENTS: dict[str, str] = {
    "Inf": "inf",
    "Infinity": "inf",
    "NINF": "-inf",
    "NZERO": "-0.0",
    "NaN": "nan",
    "PINF": "inf",
    "PZERO": "0.0",
    "alltrue": "all",
    "bool8": "bool_",
    "complex_": "complex128",
    "cumproduct": "cumprod",
    "float_": "float64",
    "in1d": "isin",
    "infty": "inf",
    "int0": "intp",
    "longfloat": "longdouble",
    "object0": "object_",
    "product": "prod",
    "round_": "round",
    "row_stack": "vstack",
    "singlecomplex": "complex64",
    "sometrue": "any",
    "string_": "bytes_",
    "uint0": "uintp",
    "unicode_": "str_",
}


def install() -> None:
    """Add the removed names to numpy. Idempotent."""
    original: Callable[[str], Any] | None = vars(np).get("__getattr__")
    if not _is_two() or original is None or getattr(original, "finds_old_names", False):
        return

    def find(name: str) -> Any:
        try:
            return original(name)
        except AttributeError:
            instead = _REPLACEMENTS.get(name)
            if instead is None:
                raise
        value = _value(instead)
        setattr(np, name, value)  # the next use finds it without a warning
        written = f"np.{instead}" if not instead.startswith("-") else f"-np.{instead[1:]}"
        logger.warning(
            "a Python model uses np.%s, which numpy %s no longer has: write %s",
            name,
            np.__version__,
            written if instead.strip("-.0") else instead,
        )
        return value

    find.finds_old_names = True  # type: ignore[attr-defined]
    vars(np)["__getattr__"] = find


def _is_two() -> bool:
    return int(np.__version__.partition(".")[0]) >= 2


def _value(expression: str) -> Any:
    negative = expression.startswith("-")
    name = expression.lstrip("-")
    found = 0.0 if name == "0.0" else getattr(np, name)
    return -found if negative else found
