"""Checkpoints that are served by their folder: exported on first use, reused afterwards.

    ~/.cache/shoal/checkpoints/<digest>/<name>/config.pbtxt …   one repository for each checkpoint

The digest covers the checkpoint's files (names, sizes and times) and the version of Shoal, so a
changed checkpoint is exported again. Nothing is ever removed: the folder may be deleted at any
time while no server uses it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import shoal
from shoal.errors import AlreadyExists, InvalidArgument
from shoal.export.exporting import export
from shoal.export.source import read_json

_CONFIG = "config.json"


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint of transformers and not a model or a repository."""
    if not (path / _CONFIG).is_file() or (path / "config.pbtxt").exists():
        return False
    try:
        found = read_json(path / _CONFIG)
    except InvalidArgument:
        return False
    return isinstance(found, dict) and "model_type" in found


def exported_repository(
    checkpoint: Path,
    cache: str = "",
    note: Callable[[str], None] = lambda _: None,
    name: str = "",
) -> Path:
    """The repository with the model of a checkpoint, which is made if it is not there yet.

    `note` gets a sentence before that, because it takes a while. The model's name is that of the
    folder unless it is given. Raises a ShoalError.
    """
    folder = checkpoint.resolve()
    repository = _root(cache) / _digest(folder, name)
    name = name or re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip(".-") or "model"
    target = repository / name
    if not target.is_dir():
        note(f"exporting the checkpoint '{checkpoint}' to '{target}'; this is done once")
        with suppress(AlreadyExists):  # another server was quicker
            export(folder, target)
    return repository


def _root(cache: str) -> Path:
    if cache:
        return Path(cache).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "shoal" / "checkpoints"


def _digest(folder: Path, name: str) -> str:
    """A name for this state of the checkpoint, with the name of the model if that is given."""
    found = hashlib.sha256(f"{shoal.__version__}\0{folder}\0{name}".encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        state = path.stat()
        line = f"\0{path.relative_to(folder)}\0{state.st_size}\0{state.st_mtime_ns}"
        found.update(line.encode())
    return found.hexdigest()[:16]
