"""The kind of a model's file, detected from its contents.

    model.pt     TorchScript, or the weights for the module in model.py
    model.pt2    a torch.export program, or an AOTInductor package
model.py     an nn.Module; its weights, if any, are beside it in model.pt

All of PyTorch's files are zip archives with one folder of any name.
"""

from __future__ import annotations

import enum
import zipfile
from dataclasses import dataclass
from pathlib import Path

from shoal.backends.files import find_model_file, short_name, what_else
from shoal.config.model import ModelConfig
from shoal.errors import InvalidArgument

RUNTIME = "model.py"  # the value of `runtime` for a module in Python
_FILENAMES = ("model.pt", "model.pt2", "model.py")
_EXPORT = (
    "export it: torch.export.save(torch.export.export(model, example_inputs), 'model.pt2'), or "
    "torch.jit.script(model).save('model.pt')"
)


class ProgramKind(enum.Enum):
    """The forms a model comes in."""

    SCRIPT = "TorchScript"
    EXPORTED = "torch.export program"
    COMPILED = "AOTInductor package"
    EAGER = "module in Python"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A version's model: its file, its kind, and for a module in Python its weights."""

    kind: ProgramKind
    path: Path
    weights: Path | None = None


def find(config: ModelConfig, version_folder: Path, file: str) -> ModelFile:
    """The model of a version.

    Raises NotFound when there is none, InvalidArgument when the file is none of these.
    """
    written = config.default_model_filename
    beside = version_folder / Path(written or _FILENAMES[0]).with_suffix(".py").name
    if beside.is_file() and (config.runtime == RUNTIME or not _has(version_folder, written)):
        return _module(beside)
    path = find_model_file(config, version_folder, _FILENAMES, "PyTorch model", file)
    if path.suffix == ".py":
        return _module(path)
    entries = _entries(path)
    if any(name.startswith("data/aotinductor/") for name in entries):
        return ModelFile(ProgramKind.COMPILED, path)
    if entries & {"models/model.json", "serialized_exported_program.json"}:
        return ModelFile(ProgramKind.EXPORTED, path)
    if any(name.startswith("code/") for name in entries):
        return ModelFile(ProgramKind.SCRIPT, path)
    if "data.pkl" not in entries:
        raise InvalidArgument(
            f"'{short_name(path)}' is not a PyTorch model: {what_else(path, _EXPORT)}"
        )
    if beside.is_file():
        return _module(beside)
    raise InvalidArgument(
        f"'{short_name(path)}' holds weights or a pickled object (torch.save), not a model that "
        f"can run by itself. Put a {beside.name} with the nn.Module class beside the weights, or "
        f"{_EXPORT}"
    )


def has_traced_inputs(path: Path) -> bool:
    """Whether a TorchScript file contains the shapes it was traced with."""
    return "traced_inputs.pkl" in _entries(path)


def _has(version_folder: Path, written: str) -> bool:
    names = (written,) if written else _FILENAMES[:2]
    return any((version_folder / name).is_file() for name in names)


def _module(path: Path) -> ModelFile:
    weights = path.with_suffix(".pt")
    return ModelFile(ProgramKind.EAGER, path, weights if weights.is_file() else None)


def _entries(path: Path) -> set[str]:
    """The names in an archive, without the folder they are all in."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        raise InvalidArgument(
            f"'{short_name(path)}' is not a PyTorch model: {what_else(path, _EXPORT)}"
        ) from None
    # Early torch.export archives have no folder.
    return names | {name.partition("/")[2] for name in names}
