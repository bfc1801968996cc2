"""Exported JAX functions for tests.

save(scaled(2.0), folder / "1" / "model.jax")
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from shoal.backends.jax import wide_types


def exported(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    """A function exported for arguments like `(datatype, "b, 4")`: a numpy type and its dims."""
    scope = export.SymbolicScope()  # equal letters are equal sizes

    def described(argument: Any) -> Any:
        kind, dims = argument
        shape = export.symbolic_shape(dims, scope=scope)
        return jax.ShapeDtypeStruct(shape, kind)

    with wide_types():
        made = export.export(jax.jit(function))(
            *(described(argument) for argument in args),
            **{name: described(argument) for name, argument in kwargs.items()},
        )
        return bytes(made.serialize())


def scaled(factor: float, width: int = 4) -> bytes:
    """OUTPUT0 = INPUT0 * factor, rows of FP32."""

    def function(*, INPUT0: Any) -> dict[str, Any]:  # noqa: N803 - the tensor's name
        return {"OUTPUT0": INPUT0 * np.float32(factor)}

    return exported(function, INPUT0=(np.float32, f"b, {width}"))


def identity(kind: Any, width: int = 3) -> bytes:
    """OUTPUT0 = INPUT0, rows of any type."""

    def function(*, INPUT0: Any) -> dict[str, Any]:  # noqa: N803 - the tensor's name
        return {"OUTPUT0": INPUT0}

    return exported(function, INPUT0=(kind, f"b, {width}"))


def add() -> bytes:
    """OUTPUT__0 = INPUT__0 + INPUT__1, all of one length, which it insists on."""
    return exported(lambda x, y: x + y, (np.float32, "n"), (np.float32, "n"))


def dense(size: int, seed: int = 0) -> bytes:
    """OUTPUT0 = INPUT0 through a layer of `size` x `size` random weights."""
    weights = np.random.default_rng(seed).random((size, size), dtype=np.float32)

    def function(*, INPUT0: Any) -> dict[str, Any]:  # noqa: N803 - the tensor's name
        return {"OUTPUT0": INPUT0 @ weights}

    return exported(function, INPUT0=(np.float32, f"b, {size}"))


def save(content: bytes, file: Path) -> Path:
    """Write a model."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file
