"""A checkpoint of transformers on disk: its config, its model, its tokenizer.

Nothing is downloaded: a missing file is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import InvalidArgument, NotFound, Unsupported
from shoal.export.source import read_json

_VOCABULARIES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
_INSTALL = "Install what exporting needs: pip install 'shoal[export]'"
_UNLIMITED = 1_000_000  # tokenizers without a limit write a very large one


class Checkpoint:
    """A folder as `save_pretrained` writes it."""

    def __init__(self, folder: Path, name: str = "") -> None:
        """Read the folder's config.json. Raises InvalidArgument."""
        self.folder = folder
        self.name = name or folder.name
        self.config: dict[str, Any] = read_json(folder / "config.json")

    @property
    def architectures(self) -> list[str]:
        """The classes of transformers that it holds; its model_type where it names none."""
        named = self.config.get("architectures") or [self.config["model_type"]]
        return [str(name) for name in named]

    def expect(self, architecture: str) -> None:
        """Raise Unsupported where it holds something else."""
        if architecture not in self.architectures:
            raise Unsupported(
                f"'{self.folder}' holds a {', '.join(self.architectures)}; this export is for "
                f"{architecture}"
            )

    def load(self, kind: str) -> Any:
        """The model, as the class `kind` of transformers loads it.

        Raises Unsupported without the libraries and InvalidArgument for a broken checkpoint.
        """
        try:
            import onnx  # noqa: F401 - needed once the weights, which take a while, are read
            import torch
            import transformers
        except ImportError as error:
            missing = (error.name or str(error)).partition(".")[0]
            raise Unsupported(f"{missing} is not installed. {_INSTALL}") from error
        transformers.utils.logging.disable_progress_bar()
        try:
            model = getattr(transformers, kind).from_pretrained(
                str(self.folder), local_files_only=True, dtype=torch.float32
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise InvalidArgument(f"'{self.folder}' cannot be loaded: {reason}") from error
        return model.eval()

    def weights(self, kind: str) -> tuple[Any, dict[str, np.ndarray]]:
        """The config, and the weights by name; as `load`."""
        model = self.load(kind)
        weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
        return model.config, weights

    def optional_json(self, name: str) -> dict[str, Any]:
        """A file of settings; empty where there is none."""
        found = read_json(self.folder / name, {})
        return found if isinstance(found, dict) else {}

    def labels(self) -> list[str]:
        """The names of the classes, in the order of the output; numbered where it has none."""
        named = self.config.get("id2label") or {}
        count = max(len(named), int(self.config.get("num_labels") or 0)) or 2
        return [" ".join(str(named.get(str(n), f"LABEL_{n}")).split()) for n in range(count)]

    def longest_text(self, positions: int) -> int:
        """The most tokens of a text: what the tokenizer says, within the model's positions."""
        told: Any = self.optional_json("tokenizer_config.json").get("model_max_length")
        limit = int(told) if type(told) in (int, float) and 0 < told < _UNLIMITED else positions
        return min(limit, positions)

    def tokenizer_json(self) -> bytes:
        """The tokenizer as the tokenizers library saves it, made from an older form if need be.

        What it truncates and pads to is left out: how long texts may be is a setting of the task.
        """
        found = read_json(self.folder / "tokenizer.json")
        if not isinstance(found, dict):
            found = self._made_tokenizer()
        document = {**found, "truncation": None, "padding": None}
        return json.dumps(document, ensure_ascii=False).encode()

    def _made_tokenizer(self) -> dict[str, Any]:
        missing = NotFound(
            f"there is no tokenizer in '{self.folder}': put its tokenizer.json, or vocab.txt, there"
        )
        if not any((self.folder / name).is_file() for name in _VOCABULARIES):
            raise missing  # the library would make an empty one
        try:
            from transformers import AutoTokenizer

            folder = str(self.folder)  # nothing is downloaded, so there is no revision to pin
            made = AutoTokenizer.from_pretrained(folder, local_files_only=True)  # nosec B615
            document: dict[str, Any] = json.loads(made.backend_tokenizer.to_str())
            return document
        except ImportError as error:
            raise Unsupported(f"{error.name or error} is not installed. {_INSTALL}") from error
        except Exception as error:
            raise missing from error
