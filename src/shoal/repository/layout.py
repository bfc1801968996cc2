"""A repository on disk: model folders, version folders, and fingerprints to detect changes.

<repository>/<model>/config.pbtxt
<repository>/<model>/<version>/model.onnx
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from shoal.config.model import ModelVersionPolicy
from shoal.errors import InvalidArgument

logger = logging.getLogger(__name__)

# Folders of a model that are not versions and need no warning.
_KNOWN_FOLDERS = {"warmup", "initial_state", "configs"}

Fingerprint = tuple[tuple[str, int, int], ...]


def check_name(name: str) -> None:
    """Refuse model names that would reach outside a repository."""
    if not name or name in (".", "..") or any(c in name for c in "/\\\0"):
        raise InvalidArgument(
            f"invalid model name {name!r}: a model's name is the name of its folder, without "
            f"slashes"
        )


def folders_named(repositories: Sequence[Path], name: str) -> list[Path]:
    """The folders of models called `name`, without reading any other."""
    if not name or name.startswith(".") or any(c in name for c in "/\\\0"):
        return []
    folders = [repository / name for repository in repositories]
    return [folder for folder in folders if os.path.isdir(folder)]  # noqa: PTH112 - never raises


def find_models(repositories: Sequence[Path], *, namespaced: bool = False) -> dict[str, list[Path]]:
    """Every model folder by name; more than one path means the name is not unique.

    With namespaces the keys are the paths of the folders, which are unique. A repository that does
    not exist any more has no models.
    """
    found: dict[str, list[Path]] = {}
    for repository in repositories:
        try:
            entries = sorted(os.scandir(repository), key=lambda entry: entry.name)
        except OSError as error:
            logger.warning("cannot read the model repository '%s': %s", repository, error.strerror)
            continue
        for entry in entries:
            if _is_folder(entry) and not entry.name.startswith("."):
                key = f"{repository.as_posix()}/{entry.name}" if namespaced else entry.name
                found.setdefault(key, []).append(Path(entry.path))
    return found


def version_folders(model: Path) -> dict[int, Path]:
    """The version folders of a model: whole numbers from 1 without leading zeros, as in Triton.

    Other folders are skipped with a warning.
    """
    versions: dict[int, Path] = {}
    try:
        entries = sorted(os.scandir(model), key=lambda entry: entry.name)
    except OSError:
        return {}
    for entry in entries:
        name = entry.name
        if not _is_folder(entry) or name in _KNOWN_FOLDERS or name.startswith((".", "__")):
            continue
        if name.isascii() and name.isdecimal() and (not name.startswith("0")):
            versions[int(name)] = Path(entry.path)
        else:
            logger.warning(
                "'%s' is not a version of model '%s' (versions are numbers like 1 or 42): skipped",
                name,
                model.name,
            )
    return versions


def select_versions(
    policy: ModelVersionPolicy | None, available: Iterable[int], model: str
) -> list[int]:
    """The versions to serve by the version policy, ascending. Missing ones are only logged."""
    there = sorted(available)
    if policy is None:
        return there[-1:]
    if policy.all is not None:
        return there
    if policy.specific is not None:
        for version in policy.specific.versions:
            if version not in there:
                logger.warning("version %d of model '%s' does not exist", version, model)
        return [version for version in there if version in policy.specific.versions]
    count = policy.latest.num_versions if policy.latest is not None else 1
    return there[-max(1, count) :]


def config_file(model: Path, config_name: str = "") -> Path:
    """Where a model's configuration is (or would be)."""
    if config_name:
        custom = model / "configs" / f"{config_name}.pbtxt"
        if custom.is_file():
            return custom
    return model / "config.pbtxt"


def fingerprint(folder: Path, *, skip_folders: bool = False) -> Fingerprint:
    """Path, time and size of each file below `folder`.

    With `skip_folders` only the files directly in it. Files that disappear meanwhile are left out.
    """
    rows: list[tuple[str, int, int]] = []
    for root, folders, files in os.walk(folder, followlinks=True):
        for name in files:
            path = Path(root, name)
            try:
                status = path.stat()
            except OSError:
                continue
            rows.append((str(path.relative_to(folder)), status.st_mtime_ns, status.st_size))
        folders[:] = [] if skip_folders else [f for f in folders if f != "__pycache__"]
    return tuple(sorted(rows))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or not readable
        return False
