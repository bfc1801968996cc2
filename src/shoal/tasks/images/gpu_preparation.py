"""Where the pixels of photos go when a GPU prepares them, as plain numbers for its kernel.

    frames of a batch --place--> one `PLACES` entry each --kernel--> rows of the model's input

The kernel computes what `ImagePreparation` computes with Pillow: the same crop, and the same
weights of pixels. A photo is turned upright by the order in which its pixels are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image
from PIL import __version__ as pillow_version

from shoal.tasks.images.preparation import ImagePreparation

# How a photo is read: pixel (x, y) of the upright photo is at `origin + x * step_x + y * step_y`.
# Pixel (x, y) of the row lies at (left + (x + 0.5) * scale_x, top + (y + 0.5) * scale_y) in it.
PLACES = np.dtype(
    [
        ("origin", np.int64),
        ("step_x", np.int32),
        ("step_y", np.int32),
        ("width", np.int32),
        ("height", np.int32),
        ("left", np.float64),
        ("top", np.float64),
        ("scale_x", np.float64),
        ("scale_y", np.float64),
        ("down_first", np.int32),  # the mean of columns is computed before that of lines
        ("unused", np.int32),
    ]
)
PIXEL_BYTES = 3
_FILTERS = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}
_DOWN_MAY_BE_FIRST = int(pillow_version.partition(".")[0]) >= 13
# By EXIF orientation: whether the upright x and y run along the stored width, and backwards.
_TURNED = np.array([False] * 5 + [True] * 4)
_MIRRORED_COLUMNS = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1])
_MIRRORED_ROWS = np.array([0, 0, 0, 1, 1, 0, 1, 1, 0])


@dataclass(frozen=True, slots=True)
class GpuPreparation:
    """What a kernel does with photos: they become rows of [3, height, width], in any layout."""

    height: int
    width: int
    cover: tuple[int, int] | None  # as in ImagePreparation
    filter: str  # "bilinear", "bicubic"
    antialias: bool
    factors: tuple[float, ...]  # by channel of the input: value * factor + offset
    offsets: tuple[float, ...]
    reverse: bool  # BGR
    channels_first: bool

    @classmethod
    def of(cls, prepare: ImagePreparation) -> GpuPreparation | None:
        """The same preparation for a GPU; None if only Pillow can do it."""
        name = _FILTERS.get(prepare.resampling)
        plain = prepare.antialias or name == "bilinear"
        if name is None or not plain or prepare.channels != 3 or prepare.table.dtype.kind != "f":
            return None
        first, last = prepare.table[:, 0].astype(float), prepare.table[:, 255].astype(float)
        return cls(
            prepare.height,
            prepare.width,
            prepare.cover,
            name,
            prepare.antialias,
            tuple((last - first) / 255),
            tuple(first),
            prepare.reverse,
            prepare.channels_first,
        )

    def place(self, frames: np.ndarray, starts: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` (PLACES) for photos whose pixels lie, without gaps, from `starts` on.

        The first of `frames` are width, height and orientation of each.
        """
        stored_width, stored_height, orientation = frames[:, :3].astype(np.int64).T
        turned = _TURNED[orientation]
        width = np.where(turned, stored_height, stored_width)
        height = np.where(turned, stored_width, stored_height)
        pitch = stored_width * PIXEL_BYTES
        columns, rows = _MIRRORED_COLUMNS[orientation], _MIRRORED_ROWS[orientation]
        along = np.where(columns, -PIXEL_BYTES, PIXEL_BYTES)
        down = np.where(rows, -pitch, pitch)
        resized_width, resized_height = self._resized(width, height)
        out["origin"] = (
            starts + columns * (stored_width - 1) * PIXEL_BYTES + rows * (stored_height - 1) * pitch
        )
        out["step_x"] = np.where(turned, down, along)
        out["step_y"] = np.where(turned, along, down)
        out["width"], out["height"] = width, height
        out["down_first"] = self._goes_down_first(width, height)
        out["left"], out["scale_x"] = _box(width, resized_width, self.width)
        out["top"], out["scale_y"] = _box(height, resized_height, self.height)

    def _goes_down_first(self, width: np.ndarray, height: np.ndarray) -> np.ndarray | bool:
        """Whether Pillow computes the mean of columns before that of lines."""
        fewer = height - self.height
        return _DOWN_MAY_BE_FIRST and (fewer > 0) & (fewer > 2 * (width - self.width))

    def _resized(self, width: np.ndarray, height: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sizes before the centre crop; see `ImagePreparation`."""
        if self.cover is None:
            return np.full_like(width, self.width), np.full_like(height, self.height)
        across, down = self.cover
        by_width = across * height >= down * width
        return (
            np.where(by_width, across, np.maximum(across, (width * down / height).astype(int))),
            np.where(by_width, np.maximum(down, (height * across / width).astype(int)), down),
        )


def _box(length: np.ndarray, resized: np.ndarray, kept: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the centre that is kept of a resized photo begins in the photo, and how many of its
    pixels become one. Pillow has the ends in single precision."""
    before = np.rint((resized - kept) / 2)
    start, end = (np.float32(edge * (length / resized)) for edge in (before, before + kept))
    return start.astype(np.float64), (end - start).astype(np.float64) / kept
