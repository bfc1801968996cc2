"""Checkpoints of small text encoders with random weights, as sentence-transformers lays them out.

    encoder_checkpoint(folder)    config.json, model.safetensors, tokenizer.json, modules.json, …

A vocabulary of a few words, so that tests can tell how many tokens a text has: one for each word
that is in it, and one at either end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

WORDS = (
    *("a", "the", "one", "two", "red", "blue", "old", "small", "fish", "shark", "boat", "sea"),
    *("river", "net", "swims", "sleeps", "eats", "sees", "far", "near", "under", "over", "with"),
    *("and", "or", "not", ".", ",", "!"),
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
LONGEST = 64  # tokens that the model has places for

_DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64"}


def encoder_checkpoint(
    folder: Path,
    *,
    model_type: str = "bert",
    pooling: str = "mean_tokens",
    normalise: bool = True,
    max_seq_length: int = 32,
    hidden: int = 16,
    layers: int = 2,
    heads: int = 4,
    seed: int = 0,
) -> Path:
    """Write a checkpoint into `folder`; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    offset = 2 if model_type == "roberta" else 0
    config = {
        "model_type": model_type,
        "architectures": [f"{model_type.capitalize()}Model"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 2 * hidden,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": LONGEST + offset,
        "type_vocab_size": 1 if offset else 2,
        "vocab_size": len(SPECIAL) + len(WORDS),
        "pad_token_id": 1 if offset else 0,
        "position_embedding_type": "absolute",
    }
    _write(folder / "config.json", config)
    write_safetensors(folder / "model.safetensors", _weights(config, seed))
    _write(folder / "tokenizer.json", tokenizer_document())
    names = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{name}" if n else "", "type": f"models.{name}"}
        for n, name in enumerate(names)
    ]
    _write(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    ways = ("cls_token", "mean_tokens", "max_tokens")
    _write(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": hidden,
            **{f"pooling_mode_{way}": way == pooling for way in ways},
        },
    )
    _write(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length})
    return folder


def tokenizer_document() -> dict[str, Any]:
    """A tokenizer.json that truncates and pads to 8 tokens, as some do that were published."""
    ids = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    special = [
        {
            "id": ids[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in SPECIAL
    ]
    ends = {
        token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")
    }
    single = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    return {
        "version": "1.0",
        "truncation": {
            "direction": "Right",
            "max_length": 8,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 8},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": special,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": ends,
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "[UNK]"},
    }


def write_safetensors(path: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Write a .safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, array in weights.items():
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [place, place + array.nbytes],
        }
        place += array.nbytes
    text = json.dumps(header).encode()
    blobs = [array.tobytes() for array in weights.values()]
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *blobs]))


def _weights(config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    made: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int, middle: float = 0.0) -> None:
        made[name] = (middle + 0.2 * random.standard_normal(shape)).astype(np.float32)

    def normal(name: str) -> None:
        add(f"{name}.weight", hidden, middle=1.0)
        add(f"{name}.bias", hidden)

    def dense(name: str, taken: int, given: int) -> None:
        add(f"{name}.weight", given, taken)
        add(f"{name}.bias", given)

    for name, rows in (
        ("word", config["vocab_size"]),
        ("position", config["max_position_embeddings"]),
        ("token_type", config["type_vocab_size"]),
    ):
        add(f"embeddings.{name}_embeddings.weight", rows, hidden)
    normal("embeddings.LayerNorm")
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{part}", hidden, hidden)
        dense(f"{layer}.attention.output.dense", hidden, hidden)
        normal(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", hidden, inner)
        dense(f"{layer}.output.dense", inner, hidden)
        normal(f"{layer}.output.LayerNorm")
    return made


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
