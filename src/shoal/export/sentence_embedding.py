"""A folder for the task `sentence-embedding`, made from a sentence-transformers checkpoint.

    config.json, model.safetensors, tokenizer.json, 1_Pooling, modules.json
        --> OUTPUT/1/model.onnx, config.pbtxt, task.json, tokenizer.json

How sentences are pooled and how long they may be is read from the checkpoint's own files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgument, Unsupported
from shoal.export.checkpoint import Checkpoint
from shoal.export.encoder_shape import MODEL_TYPES, EncoderShape, longest_text
from shoal.export.source import read_json
from shoal.export.texts import text_config, write_encoder
from shoal.export.writing import ExportOptions, write_json

_WEIGHTS = "model.safetensors"
_TOKENIZER = "tokenizer.json"
_READY_MADE = ("onnx/model.onnx", "model.onnx")
_LICENCES = ("LICENSE", "LICENSE.txt", "README.md")
_NEEDED = "pip install onnx"
_MODULES = ("Transformer", "Pooling", "Normalize")
_POOLINGS = {
    "mean_tokens": "mean",
    "cls_token": "cls",
    "max_tokens": "max",
    "mean": "mean",
    "cls": "cls",
    "max": "max",
}
# Encoders that torch writes, with transformers; those of MODEL_TYPES need neither.
TRACED_TYPES = frozenset(
    ("albert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "modernbert", "mpnet")
)
# What is written before texts, for published checkpoints whose files do not say it.
_CONVENTIONS = (
    (r"\be5-(small|base|large)(?!.*instruct)", {"query": "query: ", "passage": "passage: "}),
    (
        r"\bbge-(small|base|large)-en",
        {"query": "Represent this sentence for searching relevant passages: ", "passage": ""},
    ),
    (
        r"\bbge-(small|base|large)-zh",
        {
            "query": "\u4e3a\u8fd9\u4e2a\u53e5\u5b50\u751f\u6210\u8868\u793a\u4ee5\u7528\u4e8e"
            "\u68c0\u7d22\u76f8\u5173\u6587\u7ae0\uff1a",
            "passage": "",
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the checkpoint makes one vector of a text."""

    pooling: str
    normalise: bool
    max_length: int
    prompts: Mapping[str, str]
    default_prompt: str


def write_embedding(checkpoint: Checkpoint, folder: Path, options: ExportOptions) -> None:
    """Vectors for texts. Raises a ShoalError."""
    source, config = checkpoint.folder, checkpoint.config
    tokenizer = read_json(source / _TOKENIZER)
    if not isinstance(tokenizer, dict):
        raise InvalidArgument(
            f"there is no {_TOKENIZER} in '{checkpoint.name}': save the tokenizer with its fast "
            f"version"
        )
    recipe = read_recipe(checkpoint, tokenizer)
    (folder / "1").mkdir()
    model = folder / "1" / "model.onnx"
    ready = next((source / name for name in _READY_MADE if (source / name).is_file()), None)
    settings: dict[str, Any] = {}
    if ready is not None:
        shutil.copyfile(ready, model)
        fillers, settings = "true", {"pooling": recipe.pooling}
    elif config.get("model_type") in TRACED_TYPES:
        fillers = _write_traced(checkpoint, recipe, model)
    else:
        _write_model(source, config, recipe, model)
        fillers = f"input_ids={int(config.get('pad_token_id') or 0)}, attention_mask=0"
    (folder / _TOKENIZER).write_bytes(checkpoint.tokenizer_json())
    settings |= {"normalise": recipe.normalise, "max_length": recipe.max_length}
    prompts = dict(options.prompts) or dict(recipe.prompts)
    if prompts:
        settings["prompts"] = prompts
    if recipe.default_prompt in prompts:
        settings["default_prompt"] = recipe.default_prompt
    write_json(folder / "task.json", settings)
    text = text_config(
        checkpoint.name,
        "texts to vectors",
        "sentence-embedding",
        options.max_batch_size,
        fillers,
        recipe.max_length,
    )
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")
    for name in _LICENCES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def read_recipe(checkpoint: Checkpoint, tokenizer: Mapping[str, Any]) -> Recipe:
    """How the checkpoint makes vectors. Unsupported for a way that is not offered here."""
    folder, config = checkpoint.folder, checkpoint.config
    modules: Sequence[Mapping[str, Any]] = read_json(folder / "modules.json", [])
    places = {str(m.get("type", "")).rpartition(".")[2]: str(m.get("path", "")) for m in modules}
    others = [kind for kind in places if kind not in _MODULES]
    if others:
        raise Unsupported(
            f"modules.json: '{others[0]}' is not written; a sentence is made by "
            f"{', '.join(_MODULES)} here"
        )
    said = read_json(folder / places.get("Pooling", "1_Pooling") / "config.json", {})
    prompts, default = _prompts(checkpoint)
    if said.get("include_prompt") is False and any(prompts.values()):
        raise Unsupported(
            "the checkpoint leaves its prompts out of the pooling (include_prompt is false), which "
            "is not offered here"
        )
    told = read_json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    trained = (tokenizer.get("truncation") or {}).get("max_length")
    longest = longest_text(config)
    return Recipe(
        _pooling(said),
        normalise="Normalize" in places or not modules,
        max_length=min(int(told or trained or longest), longest),
        prompts=prompts,
        default_prompt=default,
    )


def _prompts(checkpoint: Checkpoint) -> tuple[Mapping[str, str], str]:
    """What is written before texts, by name, and the default name."""
    said = checkpoint.optional_json("config_sentence_transformers.json")
    prompts = said.get("prompts")
    if isinstance(prompts, dict) and any(prompts.values()):
        known = {str(name): str(text) for name, text in prompts.items()}
        return known, str(said.get("default_prompt_name") or "")
    names = f"{checkpoint.name} {checkpoint.config.get('_name_or_path', '')}".lower()
    return next((found for words, found in _CONVENTIONS if re.search(words, names)), {}), ""


def _pooling(said: Mapping[str, Any]) -> str:
    """The mode that the Pooling module's file enables; the mean by default."""
    chosen = [key for key in said if key.startswith("pooling_mode_") and said[key] is True]
    if isinstance(said.get("pooling_mode"), str):  # as newer files have it
        chosen = [said["pooling_mode"]]
    ways = [_POOLINGS.get(key.removeprefix("pooling_mode_"), "") for key in chosen] or ["mean"]
    if len(ways) > 1 or not ways[0]:
        raise Unsupported(
            f"the checkpoint pools by {' and '.join(chosen)}; supported are mean, cls and max"
        )
    return ways[0]


def _write_model(folder: Path, config: Mapping[str, Any], recipe: Recipe, model: Path) -> None:
    try:
        from shoal.export import encoder
    except ImportError as error:
        raise Unsupported(f"writing the model needs onnx ({error}): {_NEEDED}") from error
    if config.get("model_type") not in MODEL_TYPES:
        raise Unsupported(
            f"config.json: model_type is {config.get('model_type')!r}; encoders of the types "
            f"{', '.join(sorted(MODEL_TYPES | TRACED_TYPES))} are written. For others put an ONNX "
            f"file of the encoder into the folder, as {_READY_MADE[0]}"
        )
    from shoal.export.safetensors import read_weights

    if not (folder / _WEIGHTS).is_file():
        raise InvalidArgument(
            f"there is neither a {_WEIGHTS} nor an ONNX file ({_READY_MADE[0]}) in the checkpoint"
        )
    built = encoder.build(
        EncoderShape.of(config),
        read_weights(folder / _WEIGHTS),
        pooling=recipe.pooling,
        normalise=recipe.normalise,
    )
    model.write_bytes(built.SerializeToString())


def _write_traced(checkpoint: Checkpoint, recipe: Recipe, path: Path) -> str:
    """Write the encoder by torch; returns the padding of its inputs."""
    encoder = checkpoint.load("AutoModel")
    import torch

    class Sentence(torch.nn.Module):  # type: ignore[misc]
        """The encoder and what makes one vector of its states."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, **inputs: Any) -> Any:
            states = self.encoder(**inputs).last_hidden_state
            shown = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
            if recipe.pooling == "mean":
                vectors = (states * shown).sum(1) / shown.sum(1)
            elif recipe.pooling == "max":
                vectors = (states + (shown - 1) * 1e9).amax(1)
            else:
                vectors = states[:, 0]
            if recipe.normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            return vectors

    return write_encoder(
        encoder, path, {"sentence_embedding": {0: "batch"}}, forward=Sentence().eval()
    )
