"""A repository on disk: model folders, version folders, and fingerprints to detect changes.

<repository>/<model>/config.pbtxt
<repository>/<model>/<version>/model.onnx
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.config.model import ModelVersionPolicy
from shoal.errors import InvalidArgument
from shoal.storage.listing import is_version

logger = logging.getLogger(__name__)

_CONFIG = "config.pbtxt"
# Folders of a model that are not versions and need no warning.
_KNOWN_FOLDERS = {"warmup", "initial_state", "configs"}

Fingerprint = tuple[tuple[str, int, int], ...]
UNREADABLE = -1  # in place of a time


def check_name(name: str) -> None:
    """Refuse names that no folder of a repository has, with the texts of Triton's core."""
    trimmed = name.strip()
    if not trimmed:
        raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if trimmed in (".", "..") or any(c in name for c in "/\\\0"):
        raise InvalidArgument(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )


def is_model_folder(path: Path) -> bool:
    """Whether a folder is a model rather than a repository: it has a config or versions."""
    if (path / _CONFIG).is_file():
        return True
    numbers = [entry for entry in _folders(path) if entry.name.isdecimal()]
    return any(
        not (entry / _CONFIG).is_file() and not any(f.name.isdecimal() for f in _folders(entry))
        for entry in numbers
    )


def is_single_model(path: Path) -> bool:
    """Whether a folder is a model and holds no other models."""
    return is_model_folder(path) and not any(is_model_folder(entry) for entry in _folders(path))


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir()]
    except OSError:
        return []


def folders_named(repositories: Sequence[Path], name: str) -> list[Path]:
    """The folders of models called `name`, without reading any other."""
    if not name or name.startswith(".") or any(c in name for c in "/\\\0"):
        return []
    folders = [repository / name for repository in repositories]
    return [folder for folder in folders if os.path.isdir(folder)]  # noqa: PTH112 - never raises


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries of a repository at one moment."""

    identity: tuple[int, int]  # device and inode of the folder: another mount has others
    models: Mapping[str, Path]  # the folders of models by name
    unreadable: Mapping[str, str]  # entries that may be folders of models, and why not known


def list_models(repository: Path) -> Listing:
    """The folders of models in one repository, by name. Raises OSError if it cannot be read."""
    status = repository.stat()
    models: dict[str, Path] = {}
    unreadable: dict[str, str] = {}
    with os.scandir(repository) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                # A name that is not UTF-8 could not be in a response; with backslashes instead, a
                # load refuses it.
                name = os.fsencode(entry.name).decode(errors="backslashreplace")
                models[name] = Path(entry.path)
            elif entry.is_symlink():
                reason = _broken(entry)
                if reason:
                    unreadable[entry.name] = reason
    return Listing((status.st_dev, status.st_ino), models, unreadable)


def find_models(repositories: Sequence[Path]) -> dict[str, list[Path]]:
    """Every model folder by name; more than one path means the name is not unique.

    A repository that cannot be read has no models.
    """
    found: dict[str, list[Path]] = {}
    for repository in repositories:
        try:
            listing = list_models(repository)
        except OSError as error:
            logger.warning("cannot read the model repository '%s': %s", repository, error.strerror)
            continue
        for name, folder in listing.models.items():
            found.setdefault(name, []).append(folder)
    return found


def version_folders(model: Path) -> dict[int, Path]:
    """The version folders of a model: whole numbers from 1 without leading zeros, as in Triton.

    Other folders are skipped with a warning. A link whose folder is missing is a version that
    cannot be loaded: without it, an older one would be served in its place.
    """
    versions: dict[int, Path] = {}
    try:
        entries = sorted(os.scandir(model), key=lambda entry: entry.name)
    except OSError:
        return {}
    for entry in entries:
        name = entry.name
        is_folder = _is_folder(entry)
        if not is_folder and not (entry.is_symlink() and _broken(entry)):
            continue
        if name in _KNOWN_FOLDERS or name.startswith((".", "__")):
            continue
        if is_version(name):
            versions[int(name)] = Path(entry.path)
        elif is_folder:
            logger.warning(
                "'%s' is not a version of model '%s' (versions are numbers like 1 or 42): skipped",
                name,
                model.name,
            )
    return versions


def select_versions(
    policy: ModelVersionPolicy | None,
    available: Iterable[int],
    model: str,
    *,
    quiet: bool = False,
) -> list[int]:
    """The versions to serve by the version policy, ascending. Missing ones are only logged, and
    not even that if `quiet`."""
    there = sorted(available)
    if policy is None:
        return there[-1:]
    if policy.all is not None:
        return there
    if policy.specific is not None:
        for version in policy.specific.versions:
            if version not in there and not quiet:
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
    return model / _CONFIG


def fingerprint(folder: Path, *, skip_folders: bool = False) -> Fingerprint:
    """Path, time and size of each file below `folder`.

    With `skip_folders` only the files directly in it. Files that disappear meanwhile are left out.
    What is there and cannot be read, such as a link that leads nowhere, has UNREADABLE as its time
    and the error number as its size.
    """
    rows: list[tuple[str, int, int]] = []

    def note(error: OSError) -> None:
        if error.errno != errno.ENOENT:
            path = os.path.relpath(error.filename or folder, folder)
            rows.append((path, UNREADABLE, error.errno or 0))

    for root, folders, files in os.walk(folder, followlinks=True, onerror=note):
        for name in files:
            path = Path(root, name)
            try:
                status = path.stat()
            except OSError as error:
                if error.errno != errno.ENOENT or path.is_symlink():
                    rows.append((str(path.relative_to(folder)), UNREADABLE, error.errno or 0))
                continue
            rows.append((str(path.relative_to(folder)), status.st_mtime_ns, status.st_size))
        folders[:] = [] if skip_folders else [f for f in folders if f != "__pycache__"]
    return tuple(sorted(rows))


def became_unreadable(before: Fingerprint, now: Fingerprint) -> str:
    """The first file of `now` that cannot be read, and could be before, with the reason."""
    known = {path for path, time_ns, _ in before if time_ns == UNREADABLE}
    for path, time_ns, number in now:
        if time_ns == UNREADABLE and path not in known:
            return f"'{path}': {os.strerror(number)}"
    return ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or not readable
        return False


def _broken(entry: os.DirEntry[str]) -> str:
    """Why the target of a link cannot be read; empty if it can."""
    try:
        entry.stat()
    except OSError as error:
        return f"it is a link that leads nowhere ({error.strerror})"
    return ""
