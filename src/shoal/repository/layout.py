"""A repository on disk: model folders, version folders, and how to tell that they changed.

<repository>/<model>/config.pbtxt
<repository>/<model>/<version>/model.onnx
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from shoal.errors import InvalidArgument

logger = logging.getLogger(__name__)

# Folders of a model that are no versions and deserve no warning.
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
    """The folders of models called `name`, without a look at any other."""
    if not name or name.startswith(".") or any(c in name for c in "/\\\0"):
        return []
    folders = [repository / name for repository in repositories]
    return [folder for folder in folders if os.path.isdir(folder)]  # noqa: PTH112 - never raises


def find_models(repositories: Sequence[Path], *, namespaced: bool = False) -> dict[str, list[Path]]:
    """Every model folder by name; more than one path means the name is not unique.

    With namespaces they go by the paths of their folders, which are. A repository that has vanished
    has no models.
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
    """The version folders of a model: whole numbers from 1 without leading zeros, as Triton reads.

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


def config_file(model: Path, config_name: str = "") -> Path:
    """Where a model's configuration is (or would be)."""
    if config_name:
        custom = model / "configs" / f"{config_name}.pbtxt"
        if custom.is_file():
            return custom
    return model / "config.pbtxt"


def fingerprint(folder: Path, *, skip_folders: bool = False) -> Fingerprint:
    """What the files below `folder` look like: path, time and size of each.

    With `skip_folders` only the files directly in it. Files that vanish meanwhile are left out.
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
    except OSError:  # a link to itself, or nothing we may look at
        return False
