"""Text and integers as Triton's bindings take them.

The original classes are bound with pybind11, which takes `bytes` wherever a string is wanted, and
anything with `__index__`, such as numpy's integers, for an integer. Models rely on that: an element
of a BYTES tensor is `bytes`, and names another model.
"""

from __future__ import annotations

import operator
from typing import Any


def text(name: str, value: Any) -> str:
    """`value` as a str; TypeError if it is neither str nor bytes, ValueError if it is not UTF-8."""
    if isinstance(value, str):
        return str(value)  # numpy's str_ is a subclass, which marshal refuses
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{name} must be UTF-8, not {bytes(value)!r}") from None
    raise TypeError(f"{name} must be a str or bytes, not {type(value)}")


def integer(name: str, value: Any) -> int:
    """`value` as an int; TypeError if it is not one."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {type(value)}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value)}") from None
