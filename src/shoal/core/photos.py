"""Photos as requests: the bytes of a JPEG with its frame, answered with the best labels.

    task --PlannedRequest of a photo template--> the model's queue --> an instance that decodes them

They wait in the same queue as other requests, with a batch key of their own: a batch has photos
only, or none. So queue limits, delays, cancellation and statistics are those of the model.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from shoal.core import dtypes
from shoal.core.planned import BatchReplies, RequestTemplate, ResponseLayout
from shoal.core.request import Request
from shoal.core.tensor import Buffer

PHOTOS: Final = "photos"  # the batch key; compare with `is`
FRAME = struct.Struct("<HHHH")  # width and height as stored, EXIF orientation, sampling
PHOTO, FRAME_OF_PHOTO = 0, 1  # their places in the message of a request
# Instead of the first index, where there are no labels:
UNREADABLE = -1  # the GPU cannot decode it: it has to be prepared on the CPU
NOT_FINITE = -2  # the model has computed scores that are not finite
_INPUTS = (("photo", dtypes.UINT8, (-1,)), ("frame", dtypes.UINT16, (4,)))


def photo_template(
    model_name: str, model_version: int, replies: BatchReplies, model: Any = None
) -> RequestTemplate:
    """The template of a model's photos, whose labels go to `replies`."""
    return RequestTemplate(
        model_name,
        model_version,
        _INPUTS,
        requested_outputs=(),
        parameters={},
        priority=0,
        timeout_us=0,
        rows=1,
        batch_key=PHOTOS,
        replies=replies,
        sizes=(0, 0),  # photos have any
        model=None if model is None else weakref.ref(model),
    )


def frames_of(batch: Sequence[Request]) -> np.ndarray:
    """Width, height, orientation and sampling of each photo."""
    packed = b"".join([request.message[FRAME_OF_PHOTO] for request in batch])  # type: ignore[attr-defined]
    return unpacked_frames(packed)


def unpacked_frames(packed: Buffer) -> np.ndarray:
    """Frames that were packed one behind the other."""
    return np.frombuffer(packed, np.uint16).reshape(-1, 4)


def labels_layout(model_name: str, model_version: int, labels: int) -> ResponseLayout:
    """The layout of responses: index and score of the best labels, the best first."""
    outputs = (("index", dtypes.INT32, (labels,)), ("score", dtypes.FP32, (labels,)))
    return ResponseLayout(model_name, model_version, outputs, (4 * labels, 4 * labels))
