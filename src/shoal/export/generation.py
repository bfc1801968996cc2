"""Folders of models that generate text: BLIP for captions, GPT-2.

blip checkpoint  -->  captions/ config.pbtxt task.json tokenizer.json 1/encoder.onnx 1/decoder.onnx
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import Unsupported
from shoal.export.checkpoint import Checkpoint
from shoal.export.images import CLIP_LIKE, image_settings
from shoal.export.writing import ExportOptions, write_json

BLIP, GPT2 = "BlipForConditionalGeneration", "GPT2LMHeadModel"

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


def write_blip(checkpoint: Checkpoint, folder: Path, options: ExportOptions) -> None:
    """Captions for photos, from a BLIP checkpoint. Raises a ShoalError."""
    checkpoint.expect(BLIP)
    config, weights = checkpoint.weights(BLIP)
    from shoal.export.blip import Blip

    blip = Blip(config, weights)
    text, side = config.text_config, blip.vision.image_size
    task = {
        **image_settings(checkpoint, side, CLIP_LIKE),
        **_generation_settings(checkpoint, stop=text.sep_token_id),
        "start_token": text.bos_token_id,
        "pad_token": text.pad_token_id,
        "max_length": blip.text.positions,
    }
    tokenizer = checkpoint.tokenizer_json()
    if options.single_file:
        blip.single().save(folder / "1" / "model.onnx")
        settings = _SINGLE.format(
            rows=options.max_sequences, side=side, vocabulary=blip.text.vocabulary
        )
    else:
        blip.encoder().save(folder / "1" / "encoder.onnx")
        blip.decoder().save(folder / "1" / "decoder.onnx")
        settings = _CONFIG.format(task=_TASK, rows=options.max_sequences)
    _write_texts(folder, settings, task, tokenizer)


def write_gpt2(checkpoint: Checkpoint, folder: Path, options: ExportOptions) -> None:
    """Texts, from a GPT-2 checkpoint. Raises a ShoalError."""
    checkpoint.expect(GPT2)
    if options.single_file:
        raise Unsupported("--single-file is for BLIP: GPT-2 is always one file with past states")
    config, weights = checkpoint.weights(GPT2)
    from shoal.export.gpt2 import Gpt2

    gpt2 = Gpt2(config, weights)
    settings = {
        **_generation_settings(checkpoint, stop=config.eos_token_id),
        "max_length": gpt2.positions,
    }
    tokenizer = checkpoint.tokenizer_json()
    gpt2.decoder().save(folder / "1" / "decoder.onnx")
    _write_texts(folder, _CONFIG.format(task="", rows=options.max_sequences), settings, tokenizer)


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
    write_json(folder / "task.json", task)
    (folder / "tokenizer.json").write_bytes(tokenizer)
