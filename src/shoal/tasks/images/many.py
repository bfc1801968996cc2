"""Prepares several photos at once; the outcome of each is a row or an error."""

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
    """A photo, its name in errors, and the row to fill."""

    data: Buffer
    title: str
    row: np.ndarray


def outcomes(
    work: Callable[..., Result], items: Iterable[tuple[Any, ...]]
) -> list[Result | Exception]:
    """The result of `work` for each item, or its error."""
    return [_outcome(work, item) for item in items]


def _outcome(work: Callable[..., Result], item: tuple[Any, ...]) -> Result | Exception:
    try:
        return work(*item)
    except Exception as error:  # noqa: BLE001 - raised where it is awaited
        return error


def prepare_on_gpu(
    gpu: NvJpeg, prepare: ImagePreparation, photos: Sequence[SentPhoto]
) -> list[np.ndarray | Exception]:
    """The rows of all photos, decoded by the GPU where it can, else by Pillow."""
    opened = outcomes(prepare.opened, [(photo.data, photo.title) for photo in photos])
    headers = {index: found for index, found in enumerate(opened) if isinstance(found, Photo)}
    try:
        decoded = gpu.pixels(
            [(header, photos[index].data) for index, header in headers.items()], prepare
        )
    except RuntimeError as error:  # out of memory, mostly
        logger.warning("the GPU failed, Pillow decodes %d photos: %s", len(headers), error)
        decoded = [None] * len(headers)
    pixels = dict(zip(headers, decoded, strict=True))
    return [
        found
        if isinstance(found, Exception)
        else _outcome(prepare, photo)
        if pixels[index] is None
        else _outcome(prepare.filled, (pixels[index], photo.row))
        for index, (found, photo) in enumerate(zip(opened, photos, strict=True))
    ]
