"""A folder for the task `sentence-embedding`, made from a sentence-transformers checkpoint.

    config.json, model.safetensors, tokenizer.json, 1_Pooling, modules.json
        --> OUTPUT/1/model.onnx, config.pbtxt, task.json, tokenizer.json

How sentences are pooled and how long they may be is read from the checkpoint's own files.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import orjson

from shoal.errors import AlreadyExists, InvalidArgument, Unsupported
from shoal.export.encoder_shape import EncoderShape, longest_text
from shoal.export.source import checkpoint_folder, read_json

MAX_BATCH_SIZE = 32

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

_CONFIG = """\
# {source}: texts to vectors. Texts of similar length share a batch.
backend: "onnxruntime"
max_batch_size: {rows}
dynamic_batching {{ }}
parameters {{ key: "task" value {{ string_value: "sentence-embedding" }} }}
parameters {{ key: "padding" value {{ string_value: "{fillers}" }} }}
parameters {{ key: "batch_by_shape" value {{ string_value: "true" }} }}
parameters {{ key: "batch_by_shape_bucket" value {{ string_value: "{buckets}" }} }}
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the checkpoint makes one vector of a text."""

    pooling: str
    normalise: bool
    max_length: int


def export(source: str, output: Path, *, max_batch_size: int = MAX_BATCH_SIZE) -> Path:
    """Write the model's folder, `output`; its path. Complete or not at all.

    Raises AlreadyExists where `output` has something in it, and what is wrong with the source.
    """
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise AlreadyExists(f"'{output}' is not empty; name a folder that does not exist yet")
    with checkpoint_folder(source) as folder:
        output.parent.mkdir(parents=True, exist_ok=True)
        made = Path(mkdtemp(prefix=f".{output.name}-", dir=output.parent))
        try:
            _fill(folder, made, Path(source).name, max_batch_size)
            made.chmod(0o755)
            if output.is_dir():
                output.rmdir()
            made.rename(output)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    return output


def _fill(folder: Path, made: Path, source: str, rows: int) -> None:
    config: Mapping[str, Any] = read_json(folder / "config.json")
    tokenizer = read_json(folder / _TOKENIZER)
    if not isinstance(tokenizer, dict):
        raise InvalidArgument(
            f"there is no {_TOKENIZER} in '{source}': save the tokenizer with its fast version"
        )
    recipe = read_recipe(folder, config, tokenizer)
    (made / "1").mkdir()
    model = made / "1" / "model.onnx"
    ready = next((folder / name for name in _READY_MADE if (folder / name).is_file()), None)
    if ready is not None:
        shutil.copyfile(ready, model)
        fillers, settings = "true", {"pooling": recipe.pooling}
    else:
        _write_model(folder, config, recipe, model)
        fillers = f"input_ids={int(config.get('pad_token_id') or 0)}, attention_mask=0"
        settings = {}
    (made / _TOKENIZER).write_bytes(
        # What it was trained with, whole: how long texts may be is a setting of the task.
        orjson.dumps({**tokenizer, "truncation": None, "padding": None})
    )
    answer = {**settings, "normalise": recipe.normalise, "max_length": recipe.max_length}
    (made / "task.json").write_bytes(orjson.dumps(answer, option=orjson.OPT_INDENT_2) + b"\n")
    buckets = ", ".join(map(str, length_buckets(recipe.max_length)))
    text = _CONFIG.format(source=source, rows=rows, fillers=fillers, buckets=buckets)
    (made / "config.pbtxt").write_text(text, encoding="utf-8")
    for name in _LICENCES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, made / name)


def length_buckets(longest: int) -> list[int]:
    """The bounds of lengths that share a batch, two per octave: at most a third is padding."""
    ends = [8]
    while ends[-1] < longest:
        ends.append(ends[-1] * 3 // 2 if ends[-1] & (ends[-1] - 1) == 0 else ends[-1] * 4 // 3)
    return ends


def read_recipe(folder: Path, config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> Recipe:
    """How the checkpoint makes vectors. Unsupported for a way that is not offered here."""
    modules: Sequence[Mapping[str, Any]] = read_json(folder / "modules.json", [])
    places = {str(m.get("type", "")).rpartition(".")[2]: str(m.get("path", "")) for m in modules}
    others = [kind for kind in places if kind not in _MODULES]
    if others:
        raise Unsupported(
            f"modules.json: '{others[0]}' is not written; a sentence is made by "
            f"{', '.join(_MODULES)} here"
        )
    pooling = _pooling(read_json(folder / places.get("Pooling", "1_Pooling") / "config.json", {}))
    told = read_json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    trained = (tokenizer.get("truncation") or {}).get("max_length")
    longest = longest_text(config)
    return Recipe(
        pooling,
        normalise="Normalize" in places or not modules,
        max_length=min(int(told or trained or longest), longest),
    )


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
