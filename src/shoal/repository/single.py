"""One model under a name that is given, as a repository of links to its files (`--model-name`).

    /mnt/models/1/model.onnx, "mnist"   -->  TEMPORARY/mnist -> /mnt/models
    /mnt/models/model.onnx, "mnist"     -->  TEMPORARY/mnist/mnist.onnx -> /mnt/models/model.onnx

Where a model's files are put by another program (KServe's storage initializer), their folder has a
name that says nothing. The links are removed when the process ends.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from shoal.errors import InvalidArgument
from shoal.repository import layout
from shoal.repository.declared import is_model_file

_links: list[tempfile.TemporaryDirectory[str]] = []  # removed with the process


def named_model(path: Path, name: str) -> Path:
    """What to serve in place of `path`, so that its only model is called `name`; `path` itself if
    its models have names of their own.

    Raises InvalidArgument for an invalid name, and where no links can be made.
    """
    layout.check_name(name)
    try:
        if path.is_dir() and layout.is_single_model(path):
            repository = _new_folder()
            (repository / name).symlink_to(path.resolve(), target_is_directory=True)
            return repository
        file = _only_file(path)
        return path if file is None else _named_file(file, name)
    except OSError as error:
        raise InvalidArgument(
            f"--model-name={name} cannot make links to '{path}' in {tempfile.gettempdir()}: "
            f"{error.strerror}. Set TMPDIR to a folder that can be written"
        ) from error


def _only_file(path: Path) -> Path | None:
    """The model file that `path` is, or that is the only one in it; None if there is none."""
    if path.is_file():
        return path if _is_one_model(path) else None
    if not path.is_dir() or layout.find_models([path]):
        return None
    files = [file for file in sorted(path.iterdir()) if _is_one_model(file)]
    return files[0] if len(files) == 1 else None


def _is_one_model(path: Path) -> bool:
    """Whether it is a model file; a Python file has functions, which have names."""
    return is_model_file(path) and path.suffix != ".py"


def _named_file(file: Path, name: str) -> Path:
    """A link with the model's name, beside links to the files that it may need: its weights."""
    folder = _new_folder() / name
    folder.mkdir()
    for other in file.resolve().parent.iterdir():
        if other.is_file():
            (folder / other.name).symlink_to(other)
    for other in list(folder.glob(f"{file.stem}.*")):
        link = folder / f"{name}{other.name.removeprefix(file.stem)}"
        if link != other:
            link.unlink(missing_ok=True)
            link.symlink_to(other.readlink())
    return folder / f"{name}{file.suffix}"


def _new_folder() -> Path:
    _links.append(tempfile.TemporaryDirectory(prefix="shoal-"))
    return Path(_links[-1].name)
