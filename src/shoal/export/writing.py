"""Writing the folder of a model: complete or not at all, and what an export may be told."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.errors import AlreadyExists


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of an export."""

    max_batch_size: int = 32
    max_sequences: int = 16
    single_file: bool = False  # one ONNX file without past states, for clients with their own loop
    prompts: Mapping[str, str] = field(default_factory=dict)  # in place of the checkpoint's
    overwrite: bool = False


def check_target(target: Path, options: ExportOptions) -> None:
    """Raise AlreadyExists where an export would replace something without being told to."""
    if target.is_file() or (target.is_dir() and any(target.iterdir()) and not options.overwrite):
        raise AlreadyExists(
            f"'{target}' is there already and is not empty. Name another folder, or write over it "
            f"with --force"
        )


def write_folder(target: Path, write: Callable[[Path], None], options: ExportOptions) -> None:
    """Write beside the target and move it there when it is complete.

    Raises AlreadyExists where something else has written it meanwhile.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        write(made)
        made.chmod(0o755)
        if options.overwrite and target.exists():
            shutil.rmtree(target)
        try:
            made.rename(target)  # in place of an empty folder, too
        except OSError:
            check_target(target, options)
            raise
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON object, for people to read."""
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
