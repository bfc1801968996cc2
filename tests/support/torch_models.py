"""Small PyTorch models for tests: each function writes a file, in a fraction of a second.

    add_sub_script(folder / "1" / "model.pt")       OUTPUT__0 = INPUT__0 + INPUT__1, OUTPUT__1 = -
    add_sub_exported(folder / "1" / "model.pt2")    the same, with a variable batch; needs no config

Inputs are called `left` and `right`, which Triton's conventions know as INPUT__0 and INPUT__1 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shoal.backends.pytorch.library import TORCH_TYPES, quiet
from shoal.core.dtypes import from_name

_TENSOR = '{ name: "%s" data_type: TYPE_%s dims: [ %s ] }'


class AddSub(torch.nn.Module):
    """Sum and difference."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As in the backends of Triton's examples."""
        return left + right, left - right


def add_sub_config(datatype: str = "INT32", dims: Sequence[int] = (16,), batch: int = 8) -> str:
    """A config for either of the two files, by Triton's names."""
    listed = ", ".join(map(str, dims))
    inputs = ", ".join(_TENSOR % (f"INPUT__{i}", datatype, listed) for i in range(2))
    outputs = ", ".join(_TENSOR % (f"OUTPUT__{i}", datatype, listed) for i in range(2))
    return (
        f'backend: "pytorch"\nmax_batch_size: {batch}\n'
        f"input [ {inputs} ]\noutput [ {outputs} ]\n" + ("dynamic_batching { }\n" if batch else "")
    )


def add_sub_script(file: Path) -> Path:
    """TorchScript. The file does not say what the tensors hold: any datatype, any shape."""
    return script(AddSub(), file)


def add_sub_exported(
    file: Path, datatype: str = "INT32", dims: Sequence[int] = (16,), *, batch: bool = True
) -> Path:
    """A torch.export program with a variable first dimension, or without one."""
    kind = TORCH_TYPES[from_name(datatype)]
    shape = (2, *dims) if batch else tuple(dims)
    example = (torch.zeros(shape, dtype=kind), torch.zeros(shape, dtype=kind))
    return export(AddSub(), example, file, batch=batch)


def script(model: Any, file: Path) -> Path:
    """Save a module as TorchScript."""
    return _saved(file, lambda: torch.jit.script(model.eval()).save(str(file)))


def trace(model: Any, example: Sequence[Any], file: Path) -> Path:
    """Save a module as TorchScript that remembers the shapes of its example."""
    return _saved(file, lambda: torch.jit.trace(model.eval(), tuple(example)).save(str(file)))


def export(
    model: Any,
    example: Sequence[Any],
    file: Path,
    *,
    batch: bool = True,
    dynamic_shapes: Any = None,
) -> Path:
    """Save a module as a torch.export program; `batch` makes the first dimension variable."""
    if dynamic_shapes is None and batch:
        size = torch.export.Dim("batch")
        dynamic_shapes = tuple({0: size} for _ in example)
    with quiet:
        program = torch.export.export(model.eval(), tuple(example), dynamic_shapes=dynamic_shapes)
    return _saved(file, lambda: torch.export.save(program, str(file)))


def _saved(file: Path, save: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with quiet:
        save()
    return file
