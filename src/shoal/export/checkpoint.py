"""A checkpoint of transformers on disk: its config, its weights as arrays, its tokenizer.

Nothing is downloaded: a missing file is an error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import InvalidArgument, NotFound, Unsupported

_VOCABULARIES = ("vocab.txt", "vocab.json")
_INSTALL = "Install what exporting needs: pip install 'shoal[export]'"


class Checkpoint:
    """A folder as `save_pretrained` writes it."""

    def __init__(self, folder: Path, architecture: str, alternatives: Sequence[str] = ()) -> None:
        """Read the folder's config.json. Raises NotFound, InvalidArgument or Unsupported."""
        self.folder = folder
        if not folder.is_dir():
            raise NotFound(
                f"there is no folder '{folder}'. Name the folder of a checkpoint on disk; "
                f"nothing is downloaded"
            )
        path = folder / "config.json"
        if not path.is_file():
            raise NotFound(
                f"there is no config.json in '{folder}': it is not a checkpoint of transformers, "
                f"as save_pretrained writes it"
            )
        config = read_json(path)
        known = {architecture, *alternatives}
        found = config.get("architectures") or [config.get("model_type", "of no known kind")]
        if not known & set(found):
            raise Unsupported(
                f"'{folder}' holds a {', '.join(map(str, found))}; this export is for "
                f"{architecture}"
            )
        self._architecture = architecture

    def load(self) -> tuple[Any, dict[str, np.ndarray]]:
        """The config, and the weights by name. Raises Unsupported without the libraries."""
        try:
            import torch
            import transformers
        except ImportError as error:
            raise Unsupported(f"{error.name or error} is not installed. {_INSTALL}") from error
        transformers.utils.logging.disable_progress_bar()
        kind = getattr(transformers, self._architecture)
        try:
            model = kind.from_pretrained(
                str(self.folder), local_files_only=True, dtype=torch.float32
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise InvalidArgument(f"'{self.folder}' cannot be loaded: {reason}") from error
        weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
        return model.config, weights

    def optional_json(self, name: str) -> dict[str, Any]:
        """A file of settings; empty where there is none."""
        path = self.folder / name
        return read_json(path) if path.is_file() else {}

    def tokenizer_json(self) -> bytes:
        """The tokenizer as the tokenizers library saves it, made from an older form if need be."""
        path = self.folder / "tokenizer.json"
        if path.is_file():
            return path.read_bytes()
        missing = NotFound(
            f"there is no tokenizer in '{self.folder}': put its tokenizer.json, or vocab.txt, there"
        )
        if not any((self.folder / name).is_file() for name in _VOCABULARIES):
            raise missing  # the library would make an empty one
        try:
            from transformers import AutoTokenizer

            folder = str(self.folder)  # nothing is downloaded, so there is no revision to pin
            made = AutoTokenizer.from_pretrained(folder, local_files_only=True)  # nosec B615
            return bytes(made.backend_tokenizer.to_str(), "utf-8")
        except ImportError as error:
            raise Unsupported(f"{error.name or error} is not installed. {_INSTALL}") from error
        except Exception as error:
            raise missing from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file. Raises InvalidArgument."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"'{path}' cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArgument(f"'{path}' must hold a JSON object")
    return document
