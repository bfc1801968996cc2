"""Folders of models for photos: classifiers that torch traces, and how photos are prepared.

preprocessor_config.json  -->  size, resize, crop, interpolation, scale, mean, std of task.json
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import Unsupported
from shoal.export.checkpoint import Checkpoint
from shoal.export.texts import write_labels
from shoal.export.traced import write_traced
from shoal.export.writing import ExportOptions, write_json

_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_FILE = "preprocessor_config.json"
# What CLIP and BLIP were trained with, for checkpoints without a file that says it.
CLIP_LIKE: Mapping[str, Any] = {
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_WHOLE_FROM = 384  # ConvNeXt's processor crops smaller photos only

_CONFIG = """\
# {source}: labels for photos.
backend: "onnxruntime"
max_batch_size: {rows}
dynamic_batching {{ }}
parameters {{ key: "task" value {{ string_value: "image-classification" }} }}
"""


def write_image_classification(
    checkpoint: Checkpoint, folder: Path, options: ExportOptions
) -> None:
    """Labels for photos. Raises a ShoalError."""
    labels = checkpoint.labels()
    settings = image_settings(checkpoint)
    model = checkpoint.load("AutoModelForImageClassification")
    import torch

    height, width = _pair(settings["size"])
    channels = int(getattr(model.config, "num_channels", 3))
    example = torch.zeros(2, channels, height, width)
    write_traced(
        model,
        folder / "1" / "model.onnx",
        {"pixel_values": (example, {0: "batch"})},
        {"logits": {0: "batch"}},
    )
    several = checkpoint.config.get("problem_type") == "multi_label_classification"
    settings["scores"] = "sigmoid" if several else "softmax"
    write_json(folder / "task.json", settings)
    write_labels(folder, labels)
    text = _CONFIG.format(source=checkpoint.name, rows=options.max_batch_size)
    (folder / "config.pbtxt").write_text(text, "utf-8")


def image_settings(
    checkpoint: Checkpoint, side: int = 0, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """How photos are prepared, as entries of task.json. `side` is the size of the model's input.

    `defaults` are for what the checkpoint does not say. Raises Unsupported for a way that the task
    does not have.
    """
    found = checkpoint.optional_json(_FILE)
    if not found:  # newer processors have everything in one file
        found = checkpoint.optional_json("processor_config.json").get("image_processor", {})
    found = {**(defaults or {}), **found}
    side = side or _side(checkpoint)
    settings = _sizes(found, side)
    if side and settings["size"] not in (side, [side, side]):
        size = settings["size"]
        raise Unsupported(f"{_FILE} makes photos {size} pixels large, the model takes {side}")
    resampling = _RESAMPLING.get(found.get("resample", 2))
    if resampling is None:
        raise Unsupported(f"{_FILE}: resample {found['resample']} is not known")
    if found.get("rescale_offset"):
        raise Unsupported(f"{_FILE}: rescale_offset is not offered here")
    normalises = found.get("do_normalize", True)
    mean = list(found.get("image_mean", [0.5] * 3)) if normalises else [0] * 3
    std = list(found.get("image_std", [0.5] * 3)) if normalises else [1] * 3
    if found.get("include_top"):  # EfficientNet divides a second time
        std = [each * each for each in std]
    return {
        **settings,
        "interpolation": resampling,
        "scale": found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1,
        "mean": mean,
        "std": std,
    }


def _sizes(found: Mapping[str, Any], side: int) -> dict[str, Any]:
    """The settings `size`, `resize` and `crop`."""
    size = found.get("size") or side
    if not size:
        raise Unsupported(f"there is no {_FILE} that says how large photos are")
    if isinstance(size, int) and ("crop_pct" in found or found.get("do_center_crop")):
        size = {"shortest_edge": size}
    edge = size.get("shortest_edge") if isinstance(size, Mapping) else None
    if "crop_pct" in found and edge:  # ConvNeXt and ResNet
        if edge >= _WHOLE_FROM:
            return {"size": edge, "crop": "none"}
        share = found.get("crop_pct") or 224 / 256
        return {"size": edge, "crop": "center", "resize": int(edge / share)}
    if found.get("do_center_crop"):
        crop = _lengths(found.get("crop_size") or size)
        return {"size": crop, "crop": "center", "resize": edge or _pair(_lengths(size))}
    if edge:
        raise Unsupported(
            f"{_FILE} keeps the shape of photos (shortest_edge without do_center_crop); this task "
            f"needs one size"
        )
    return {"size": _lengths(size), "crop": "none"}


def _lengths(size: Any) -> int | list[int]:
    """A size of a processor as `size` of task.json."""
    if isinstance(size, Mapping):
        if "height" not in size:
            return int(size["shortest_edge"])
        height, width = int(size["height"]), int(size["width"])
        return height if height == width else [height, width]
    return int(size)


def _pair(size: int | list[int]) -> list[int]:
    return [size, size] if isinstance(size, int) else size


def _side(checkpoint: Checkpoint) -> int:
    """The size of the model's input, where its config fixes it; 0 where it does not."""
    side = checkpoint.config.get("image_size")
    # Convolutions take photos of any size, positions of patches do not.
    fixed = {"patch_size", "num_attention_heads"} <= checkpoint.config.keys()
    return side if fixed and type(side) is int else 0
