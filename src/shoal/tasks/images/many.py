"""Several photos at once, each with an outcome of its own: a row, or what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from shoal.core.tensor import Buffer
from shoal.tasks.images.decode import Photo
from shoal.tasks.images.nvjpeg import NvJpeg
from shoal.tasks.images.preparation import ImagePreparation

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class SentPhoto(NamedTuple):
    """A photo, what to call it, and where its row goes."""

    data: Buffer
    title: str
    row: np.ndarray


def outcomes(
    work: Callable[..., Result], items: Iterable[tuple[Any, ...]]
) -> list[Result | Exception]:
    """What `work` gives for each item, or what it raised: one's fault is not its neighbours'."""
    return [_outcome(work, item) for item in items]


def _outcome(work: Callable[..., Result], item: tuple[Any, ...]) -> Result | Exception:
    try:
        return work(*item)
    except Exception as error:  # noqa: BLE001 - raised where it is awaited
        return error


def prepare_on_gpu(
    gpu: NvJpeg, prepare: ImagePreparation, photos: Sequence[SentPhoto]
) -> list[np.ndarray | Exception]:
    """The rows of all photos: by the GPU what it can read, the others by Pillow."""
    opened = outcomes(prepare.opened, [(photo.data, photo.title) for photo in photos])
    heads = {place: found for place, found in enumerate(opened) if isinstance(found, Photo)}
    try:
        decoded = gpu.pixels([(head, photos[place].data) for place, head in heads.items()], prepare)
    except RuntimeError as error:  # out of memory, mostly
        logger.warning("the GPU could not decode %d photos, Pillow does: %s", len(heads), error)
        decoded = [None] * len(heads)
    pixels = dict(zip(heads, decoded, strict=True))
    return [
        found
        if isinstance(found, Exception)
        else _outcome(prepare, photo)
        if pixels[place] is None
        else _outcome(prepare.filled, (pixels[place], photo.row))
        for place, (found, photo) in enumerate(zip(opened, photos, strict=True))
    ]
