"""A Triton model repository for the workload's model, as Shoal and Triton read it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.forms import DATATYPES
from benchmarks.workloads import Array, Workload

MAX_BATCH = 64


def config(workload: Workload, name: str, backend: str, more: str = "") -> str:
    """The text of config.pbtxt: dynamic batching without a delay, as both servers document it, or
    no batching."""
    dims = [-1] if workload.model == "double" else None  # Triton wants it as in the model's file
    inputs = _tensors("input", workload.inputs, dims)
    outputs = _tensors("output", workload.outputs, dims)
    most_rows = MAX_BATCH if workload.batched else 1
    batching = "dynamic_batching { }\n" if workload.batched else ""
    return (
        f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {most_rows}\n'
        f"{inputs}{outputs}{batching}{more}"
    )


def write_all(
    folder: Path, workload: Workload, backend: str, file: str, source: Path, more: str = ""
) -> None:
    """Write the workload's model and its copies."""
    for name in workload.model_names:
        write(folder, name, config(workload, name, backend, more), file, source)


def write(folder: Path, name: str, text: str, file: str, source: Path | None) -> None:
    """Write one model with one version; the model file, if it has one, is a link to `source`."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(text, encoding="utf-8")
    if source is not None:
        (version / file).symlink_to(source)


def _tensors(field: str, tensors: dict[str, Array], dims: list[int] | None) -> str:
    return "".join(
        f'{field} {{ name: "{name}" data_type: {_word(value)} '
        f"dims: {dims or list(value.shape[1:])} }}\n"
        for name, value in tensors.items()
    )


def _word(value: Array) -> str:
    """The data type in config.pbtxt, which calls BYTES by another name."""
    datatype = DATATYPES[value.dtype.name]
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
