"""Writing the folder of a model: graphs, tokenizer, task.json and config.pbtxt.

blip checkpoint  -->  captions/ config.pbtxt task.json tokenizer.json 1/encoder.onnx 1/decoder.onnx
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import AlreadyExists, Unsupported
from shoal.export.checkpoint import Checkpoint

# What BLIP was trained with, for checkpoints without preprocessor_config.json.
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_DEFAULT_MAX_TOKENS = 20  # as transformers'

_CONFIG = """\
backend: "generation"
{task}# Texts that are generated at the same time, each beam counting as one; others wait.
parameters {{ key: "max_sequences" value: {{ string_value: "{rows}" }} }}
"""
_TASK = 'parameters { key: "task" value: { string_value: "image-to-text" } }\n'

_SINGLE = """\
platform: "onnxruntime_onnx"
max_batch_size: {rows}
input [
  {{ name: "pixel_values" data_type: TYPE_FP32 dims: [ 3, {side}, {side} ] }},
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }}
]
output [
  {{ name: "logits" data_type: TYPE_FP32 dims: [ -1, {vocabulary} ] }}
]
dynamic_batching {{ }}
parameters {{ key: "task" value: {{ string_value: "image-to-text" }} }}
parameters {{ key: "padding" value: {{ string_value: "true" }} }}
"""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of an export."""

    max_sequences: int = 16
    single_file: bool = False  # one ONNX file without past states, for clients with their own loop
    overwrite: bool = False


def export_blip(source: Path, target: Path, options: ExportOptions) -> list[Path]:
    """Make the folder of a captioning model from a BLIP checkpoint; returns what was written.

    Raises a ShoalError; then the target is as it was.
    """
    checkpoint = Checkpoint(source, "BlipForConditionalGeneration")
    _check_target(target, options)
    config, weights = _loaded(checkpoint)
    from shoal.export.blip import Blip

    blip = Blip(config, weights)
    text, side = config.text_config, blip.vision.image_size
    task = {
        **_image_settings(checkpoint, side),
        **_generation_settings(checkpoint, stop=text.sep_token_id),
        "start_token": text.bos_token_id,
        "pad_token": text.pad_token_id,
    }
    tokenizer = checkpoint.tokenizer_json()

    def write(folder: Path) -> None:
        if options.single_file:
            blip.single().save(folder / "1" / "model.onnx")
            settings = _SINGLE.format(
                rows=options.max_sequences, side=side, vocabulary=blip.text.vocabulary
            )
            task["max_length"] = blip.text.positions
        else:
            blip.encoder().save(folder / "1" / "encoder.onnx")
            blip.decoder().save(folder / "1" / "decoder.onnx")
            settings = _CONFIG.format(task=_TASK, rows=options.max_sequences)
            task["max_length"] = blip.text.positions
        _write_texts(folder, settings, task, tokenizer)

    return _replace(target, write)


def export_gpt2(source: Path, target: Path, options: ExportOptions) -> list[Path]:
    """Make the folder of a text model from a GPT-2 checkpoint; as `export_blip`."""
    checkpoint = Checkpoint(source, "GPT2LMHeadModel")
    if options.single_file:
        raise Unsupported("--single-file is for BLIP: GPT-2 is always one file with past states")
    _check_target(target, options)
    config, weights = _loaded(checkpoint)
    from shoal.export.gpt2 import Gpt2

    gpt2 = Gpt2(config, weights)
    settings = {
        **_generation_settings(checkpoint, stop=config.eos_token_id),
        "max_length": gpt2.positions,
    }
    tokenizer = checkpoint.tokenizer_json()

    def write(folder: Path) -> None:
        gpt2.decoder().save(folder / "1" / "decoder.onnx")
        config_text = _CONFIG.format(task="", rows=options.max_sequences)
        _write_texts(folder, config_text, settings, tokenizer)

    return _replace(target, write)


def _loaded(checkpoint: Checkpoint) -> tuple[Any, dict[str, np.ndarray]]:
    try:
        import onnx  # noqa: F401 - needed once the weights, which take a while, are read
    except ImportError as error:
        raise Unsupported(
            "onnx is not installed. Install what exporting needs: pip install 'shoal[export]'"
        ) from error
    return checkpoint.load()


def _image_settings(checkpoint: Checkpoint, side: int) -> dict[str, Any]:
    """How photos are preprocessed, as entries of task.json."""
    found = checkpoint.optional_json("preprocessor_config.json")
    size = found.get("size", side)
    if isinstance(size, Mapping):
        size = size.get("height", size.get("shortest_edge", side))
    if size != side:
        raise Unsupported(
            f"preprocessor_config.json makes photos {size} pixels large, the model takes {side}"
        )
    resampling = _RESAMPLING.get(found.get("resample", 3))
    if resampling is None:
        raise Unsupported(f"preprocessor_config.json: resample {found['resample']} is not known")
    normalises = found.get("do_normalize", True)
    return {
        "size": side,
        "crop": "none",
        "interpolation": resampling,
        "scale": found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1,
        "mean": list(found.get("image_mean", _MEAN)) if normalises else 0,
        "std": list(found.get("image_std", _STD)) if normalises else 1,
    }


def _generation_settings(checkpoint: Checkpoint, stop: int) -> dict[str, Any]:
    """The settings of generation_config.json that differ from the defaults."""
    found = checkpoint.optional_json("generation_config.json")
    return {
        "stop_tokens": [stop],
        "max_tokens": found.get("max_new_tokens") or _DEFAULT_MAX_TOKENS,
        "num_beams": found.get("num_beams") or 1,
        "length_penalty": found.get("length_penalty") or 1.0,
        "early_stopping": found.get("early_stopping") is True,
    }


def _write_texts(folder: Path, config: str, task: Mapping[str, Any], tokenizer: bytes) -> None:
    (folder / "config.pbtxt").write_text(config, "utf-8")
    (folder / "task.json").write_text(json.dumps(task, indent=2) + "\n", "utf-8")
    (folder / "tokenizer.json").write_bytes(tokenizer)


def _check_target(target: Path, options: ExportOptions) -> None:
    if target.is_file() or (target.is_dir() and any(target.iterdir()) and not options.overwrite):
        raise AlreadyExists(
            f"'{target}' is there already. Name another folder, or write over it with --force"
        )


def _replace(target: Path, write: Callable[[Path], None]) -> list[Path]:
    """Write beside the target and move it there when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        write(made)
        made.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return sorted(path for path in target.rglob("*") if path.is_file())
