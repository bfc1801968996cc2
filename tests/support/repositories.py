"""Model repositories for tests, laid out as Triton's users lay out theirs.

    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    add_fake(folder, "held")          a model of `tests.support.fakes.FakeBackend`

Each function returns the model's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from onnx import ModelProto

EXECUTION_MODES = ("loop", "threads")

_FAKE = """
backend: "fake"
max_batch_size: %d
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ %s ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ %s ] }
"""


def add_model(
    repository: Path,
    name: str,
    config: str | None,
    files: Mapping[str, bytes] | None = None,
    *,
    versions: Iterable[int] = (1,),
) -> Path:
    """A model of any kind. `files` lie in the model's folder or below; None writes no config."""
    folder = repository / name
    folder.mkdir(parents=True, exist_ok=True)
    for version in versions:
        (folder / str(version)).mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    for place, content in (files or {}).items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def add_onnx(
    repository: Path,
    name: str,
    built: ModelProto,
    config: str | None = None,
    *,
    versions: Iterable[int] = (1,),
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """An ONNX model, the same file in every version."""
    numbers = list(versions)
    content = built.SerializeToString()
    model_files = {f"{number}/model.onnx": content for number in numbers}
    return add_model(repository, name, config, {**model_files, **(files or {})}, versions=numbers)


def add_fake(
    repository: Path,
    name: str,
    more: str = "",
    *,
    dims: str = "1",
    max_batch_size: int = 8,
    versions: Iterable[int] = (1,),
) -> Path:
    """A model of the fake backend: INT32 rows INPUT0 and OUTPUT0. `more` ends its config."""
    config = _FAKE % (max_batch_size, dims, dims) + more
    return add_model(repository, name, config, versions=versions)


def parameter(key: str, value: str) -> str:
    """A config's `parameters` entry, on a line of its own."""
    return f'\nparameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


def execution(mode: str) -> str:
    """The config line for where a model runs: "loop", "threads" or "auto"."""
    return parameter("execution", mode)


def touch(file: Path) -> None:
    """Make a file look changed, however coarse the clock of its file system is."""
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 2_000_000_000))
