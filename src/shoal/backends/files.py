"""A version's model file: finding it, naming it, and why it cannot be read."""

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
    config: ModelConfig,
    version_folder: Path,
    names: Sequence[str],
    what: str,
    file: str,
    *,
    suffixes: tuple[str, ...] = (),
    in_folder: bool = False,
) -> Path:
    """The file the config names, or the first of `names` that exists.

    `what` is the kind of file, and `suffixes` are those of files that an error suggests instead.
    With `in_folder` the name may be that of a folder with such a file. Raises NotFound with what
    the folder holds instead; ConfigError when the configured name leads out of the version folder.
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
    folder = version_folder
    if in_folder and (version_folder / wanted[0]).is_dir():
        folder, wanted = version_folder / wanted[0], tuple(names)
    for name in wanted:
        found = folder / name
        if found.is_file():
            return found
    here = folder.relative_to(version_folder.parent.parent).as_posix()
    choice = " or ".join(f"'{name}'" for name in wanted)
    message = f"unable to find {choice} in '{here}' for model '{config.name}'"
    try:
        beside = sorted(item.name for item in folder.iterdir())
    except OSError:  # missing, or deleted meanwhile
        raise NotFound(f"{message}: there is no such folder") from None
    special = next((name for name in wanted if name in beside), None)
    if special is not None:
        raise NotFound(f"{message}: '{special}' there is not a file, or a link to none")
    others = [n for n in beside if n.endswith(suffixes or tuple({Path(n).suffix for n in names}))]
    if others:
        raise NotFound(
            f"{message}. It holds {', '.join(others)}: rename the file to {wanted[0]} or write "
            f'default_model_filename: "{others[0]}" in {file}'
        )
    raise NotFound(f"{message}. Put the {what} there")


def what_else(model_file: Path, remedy: str) -> str:
    """Why a file is not a model, judged by its first bytes; `remedy` continues 'Copy it again,
    or'."""
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
