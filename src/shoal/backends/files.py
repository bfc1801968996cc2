"""A version's model file: finding it, naming it, and saying why it is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.config.model import ModelConfig
from shoal.errors import ConfigError, NotFound


def config_file(model_folder: Path) -> str:
    """How messages name a model's config."""
    return f"{model_folder.name}/config.pbtxt"


def short_name(model_file: Path) -> str:
    """How messages name a model's file: model, version, file."""
    return "/".join(model_file.parts[-3:])


def find_model_file(
    config: ModelConfig, version_folder: Path, names: Sequence[str], what: str, file: str
) -> Path:
    """The file the config names, or the first of `names` that is there.

    `what` says what such a file holds. Raises NotFound with what the folder holds instead;
    ConfigError when the configured name leads out of the version's folder.
    """
    written = config.default_model_filename
    if Path(written).is_absolute() or ".." in Path(written).parts:
        raise ConfigError(
            f"'{written}' leads out of the version's folder",
            file=file,
            field="default_model_filename",
            fix="Write the name of a file in the version's folder",
        )
    wanted = (written,) if written else tuple(names)
    for name in wanted:
        found = version_folder / name
        if found.is_file():
            return found
    here = f"{version_folder.parent.name}/{version_folder.name}"
    choice = " or ".join(f"'{name}'" for name in wanted)
    message = f"unable to find {choice} in '{here}' for model '{config.name}'"
    try:
        beside = sorted(item.name for item in version_folder.iterdir())
    except OSError:  # never there, or deleted while we looked
        raise NotFound(f"{message}: there is no such folder") from None
    suffixes = tuple({Path(name).suffix for name in names})
    others = [name for name in beside if name.endswith(suffixes)]
    if others:
        raise NotFound(
            f"{message}. It holds {', '.join(others)}: rename the file to {wanted[0]} or write "
            f'default_model_filename: "{others[0]}" in {file}'
        )
    raise NotFound(f"{message}. Put the {what} there")


def what_else(model_file: Path, remedy: str) -> str:
    """Why a file is not a model, as far as its first bytes tell; `remedy` goes on from 'Copy it
    again, or'."""
    try:
        with model_file.open("rb") as opened:
            start = opened.read(64)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if not start:
        return "the file is empty. Copy it again"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, the model itself was not fetched. Run git lfs pull"
    return f"its contents are damaged or of another format. Copy it again, or {remedy}"
