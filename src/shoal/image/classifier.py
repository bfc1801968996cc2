"""The image format of a classifier, from its metadata and config.

    {"inputs": [{"name": "data", "shape": [-1, 3, 224, 224], …}], …}  -->  Classifier(…)

The config's `format` tells the dimension of the channels; without it, it is the one of size 1 or 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.errors import InvalidArgument

NCHW = "FORMAT_NCHW"
NHWC = "FORMAT_NHWC"
_NONE = "FORMAT_NONE"
_CHANNELS = (1, 3)  # grey, or red, green and blue
_NO_NUMBERS = (dtypes.BYTES, dtypes.BOOL)

Size = tuple[int, int]  # height, width


class NoClassifier(InvalidArgument):
    """The model is not an image classifier that this client supports."""


@dataclass(frozen=True, slots=True)
class Classifier:
    """The input and output format of an image classifier."""

    model: str
    input: str
    output: str
    datatype: DataType
    channels: int
    height: int
    width: int
    channels_first: bool
    max_batch_size: int  # 0: one image per request
    batch_dim: bool  # whether the input has a batch dimension
    classes: int  # number of classes; -1 if unknown


def read_classifier(
    metadata: Mapping[str, Any], config: Mapping[str, Any] | None, size: Size | None = None
) -> Classifier:
    """The classifier that a model's `metadata` and `config` describe.

    `size` is for models with dynamic image sizes. Without a config (not every server has one),
    a fourth dimension is assumed to be the batch. Raises NoClassifier with the reason.
    """
    model = str(metadata.get("name", ""))
    source = _only(metadata.get("inputs", ()), "input", model)
    target = _only(metadata.get("outputs", ()), "output", model)
    shape = [int(dim) for dim in source["shape"]]
    if config is None:
        max_batch_size = _LARGEST_BATCH if len(shape) == 4 else 0
    else:
        max_batch_size = int(config.get("max_batch_size", 0))
    batch_dim = max_batch_size > 0 or (len(shape) == 4 and shape[0] in (1, -1))
    dims = shape[1:] if batch_dim else shape
    if len(dims) != 3:
        raise NoClassifier(
            f"model '{model}' is not an image classifier: its input '{source['name']}' has the "
            f"shape {shape}; expected three dimensions (height, width, channels) after the batch's"
        )
    declared = _format(config)
    channels_first = _channels_first(model, declared, dims)
    channels = dims[0] if channels_first else dims[2]
    if channels == -1:
        channels = 3
    height, width = _size(model, dims[1:] if channels_first else dims[:2], size)
    return Classifier(
        model,
        str(source["name"]),
        str(target["name"]),
        _datatype(model, source, target),
        channels,
        height,
        width,
        channels_first,
        max_batch_size,
        batch_dim,
        _classes(model, target, batched=max_batch_size > 0),
    )


_LARGEST_BATCH = 1 << 31  # unknown: the server reports batches that are too large


def _only(tensors: Sequence[Mapping[str, Any]], kind: str, model: str) -> Mapping[str, Any]:
    if len(tensors) != 1:
        named = ", ".join(f"'{tensor.get('name')}'" for tensor in tensors) or "none"
        raise NoClassifier(
            f"model '{model}' is not an image classifier: expecting 1 {kind}, got {len(tensors)} "
            f"({named})"
        )
    return tensors[0]


def _format(config: Mapping[str, Any] | None) -> str:
    inputs = (config or {}).get("input") or [{}]
    return str(inputs[0].get("format") or _NONE)


def _channels_first(model: str, declared: str, dims: Sequence[int]) -> bool:
    if declared in (NCHW, NHWC):
        found = dims[0] if declared == NCHW else dims[2]
        if found not in (*_CHANNELS, -1):
            raise NoClassifier(
                f"model '{model}' takes images of {found} channels ({declared}, dims "
                f"{list(dims)}); this client makes images of 1 (grey) or 3 (colour)"
            )
        return declared == NCHW
    if dims[0] in _CHANNELS:  # checked first: an image of three rows is unlikely
        return True
    if dims[2] in _CHANNELS:
        return False
    raise NoClassifier(
        f"cannot determine which dimension of the input of model '{model}' contains the channels: "
        f"it has the dims {list(dims)} and no format; write 'format: FORMAT_NCHW' or 'FORMAT_NHWC' "
        f"into the input of its config.pbtxt"
    )


def _size(model: str, dims: Sequence[int], size: Size | None) -> Size:
    height, width = dims
    if -1 not in dims:
        if size not in (None, (height, width)):
            raise NoClassifier(
                f"model '{model}' takes images of {height}x{width} only; leave --size out"
            )
        return height, width
    if size is None:
        raise NoClassifier(
            f"model '{model}' takes images of any size (dims {list(dims)}); choose one with "
            f"--size HEIGHTxWIDTH, for instance --size 224x224"
        )
    for fixed, given in zip(dims, size, strict=True):
        if fixed not in (-1, given):
            raise NoClassifier(
                f"--size {size[0]}x{size[1]} does not fit model '{model}', whose height and width "
                f"are {list(dims)}"
            )
    return size


def _datatype(model: str, source: Mapping[str, Any], target: Mapping[str, Any]) -> DataType:
    for tensor in (source, target):
        if dtypes.from_name(str(tensor["datatype"])) in _NO_NUMBERS:
            raise NoClassifier(
                f"model '{model}' is not an image classifier: '{tensor['name']}' is of datatype "
                f"{tensor['datatype']}; expected numbers"
            )
    return dtypes.from_name(str(source["datatype"]))


def _classes(model: str, target: Mapping[str, Any], *, batched: bool) -> int:
    """The length of the output vector; dimensions of size 1 are ignored."""
    shape = [int(dim) for dim in target["shape"]]
    dims = shape[1:] if batched else shape
    if not batched and len(dims) > 1 and dims[0] == -1:  # an undeclared batch dimension
        dims = dims[1:]
    long = [dim for dim in dims if dim != 1]
    if len(long) > 1:
        raise NoClassifier(
            f"model '{model}' is not an image classifier: expecting model output to be a vector, "
            f"'{target['name']}' has the shape {shape}"
        )
    return long[0] if long else 1
