"""What a remote repository contains: its files grouped by model, and which of them a load needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.storage import contents
from shoal.storage.paths import why_unsafe
from shoal.storage.source import RemoteFile

_CONFIG = "config.pbtxt"
_CONFIGS = "configs/"
MARKER = ".shoal-push.json"  # in the folder of a model that `shoal push` has stored; see `pushing`


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model, by their paths below its folder."""

    files: Mapping[str, RemoteFile]
    folders: frozenset[str] = frozenset()  # that exist without files, such as versions of ensembles
    refused: str = ""  # why it must not be loaded: a path that leaves its folder, say
    incomplete: bool = False  # it is being stored at this moment

    @property
    def versions(self) -> list[int]:
        """The numbers of its version folders."""
        tops = {path.partition("/")[0] for path in self.files if "/" in path} | self.folders
        return sorted(int(top) for top in tops if is_version(top))

    def configs(self) -> dict[str, RemoteFile]:
        """The files that its configuration may be in."""
        return {
            path: file
            for path, file in self.files.items()
            if path == _CONFIG or (path.startswith(_CONFIGS) and path.endswith(".pbtxt"))
        }

    def needed(self, versions: Collection[int]) -> dict[str, RemoteFile]:
        """The files of these versions, and those that all versions share."""
        left_out = tuple(f"{version}/" for version in self.versions if version not in versions)
        return {path: file for path, file in self.files.items() if not path.startswith(left_out)}

    def fingerprint(self) -> tuple[tuple[str, int, int], ...]:
        """What differs whenever the model has changed."""
        rows = [(f"{path} {file.identity}", 0, file.size) for path, file in self.files.items()]
        return tuple(sorted([*rows, *((f"{folder}/", 0, 0) for folder in self.folders)]))


def is_one_model(files: Iterable[RemoteFile]) -> bool:
    """Whether a listing is that of one model: it has a configuration, or versions."""
    return contents.is_model({file.path for file in files})


def by_model(files: Iterable[RemoteFile]) -> dict[str, ModelFiles]:
    """The models of a listing. Files beside the models, and hidden folders, are left out.

    Some tools store an empty object for a folder. Their names end with a slash, which a listing may
    lack: an empty object is a folder if others are in it or if it is where a version would be.
    """
    found: dict[str, dict[str, RemoteFile]] = {}
    refused: dict[str, str] = {}
    incomplete: set[str] = set()
    for file in files:
        model, _, path = file.path.partition("/")
        if path == MARKER:
            if not file.size:
                incomplete.add(model)
                found.setdefault(model, {})
            continue
        if model.startswith(".") or not model or (not path and file.size):
            continue
        reason = why_unsafe(file.path.removesuffix("/"))
        if reason:
            refused[model] = f"the name '{file.path[:200]}' cannot be used: {reason}"
        found.setdefault(model, {})[path] = file
    return {
        model: ModelFiles({}, incomplete=True)
        if model in incomplete
        else ModelFiles({}, refused=refused[model])
        if model in refused
        else _sorted(paths)
        for model, paths in sorted(found.items())
    }


def without_incomplete(
    models: Mapping[str, ModelFiles], before: Mapping[str, ModelFiles]
) -> dict[str, ModelFiles]:
    """The models of a listing; those that are being stored are as they were `before`, if at all."""
    kept = {name: before.get(name) if model.incomplete else model for name, model in models.items()}
    return {name: model for name, model in kept.items() if model is not None}


def _sorted(paths: Mapping[str, RemoteFile]) -> ModelFiles:
    parents = {parent for path in paths for parent in _parents(path)}
    folders: set[str] = set()
    files: dict[str, RemoteFile] = {}
    for path in sorted(paths):
        name, file = path.removesuffix("/"), paths[path]
        if name in parents and file.size:
            return ModelFiles({}, refused=f"'{file.path[:200]}' is a file and a folder")
        if file.size or not (path.endswith("/") or not name or name in parents or is_version(name)):
            files[name] = file
        elif name and name not in parents:
            folders.add(name)
    return ModelFiles(files, frozenset(folders))


def to_rows(models: Mapping[str, ModelFiles]) -> list[list[Any]]:
    """A listing as JSON has it."""
    return [
        [file.path, file.size, file.identity, file.digest]
        for model in models.values()
        for file in model.files.values()
    ] + [
        [f"{name}/{folder}", 0, "", ""]
        for name, model in models.items()
        for folder in ("", *model.folders)
    ]


def from_rows(rows: Any) -> dict[str, ModelFiles]:
    """The listing that `to_rows` has made JSON of; empty if it is something else."""
    try:
        return by_model(
            RemoteFile(str(path), int(size), str(identity), str(digest))
            for path, size, identity, digest in rows
        )
    except (TypeError, ValueError):
        return {}


def is_version(name: str) -> bool:
    """Whether a folder of a model is one of its versions: numbers of 64 bits, as in Triton."""
    if not name.isascii() or not name.isdecimal() or name.startswith("0"):
        return False
    return int(name) < 2**63


def _parents(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))
