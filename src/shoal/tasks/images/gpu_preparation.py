"""Where the pixels of photos go when a GPU prepares them, as plain numbers for its kernel.

    frames of a batch --place--> one `PLACES` entry each --kernel--> rows of the model's input

The kernel computes what `ImagePreparation` computes with Pillow: the same crop, and the same
weights of pixels. A photo is turned upright by the order in which its pixels are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from shoal.tasks.images.preparation import ImagePreparation

# How a photo is read: pixel (x, y) of the upright photo is at `origin + x * step_x + y * step_y`.
# Pixel (x, y) of the row lies at ((x + left + 0.5) * scale_x, (y + top + 0.5) * scale_y) in it.
PLACES = np.dtype(
    [
        ("origin", np.int64),
        ("step_x", np.int32),
        ("step_y", np.int32),
        ("width", np.int32),
        ("height", np.int32),
        ("scale_x", np.float32),
        ("scale_y", np.float32),
        ("left", np.float32),
        ("top", np.float32),
    ]
)
PIXEL_BYTES = 3
_FILTERS = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}
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
        out["scale_x"], out["scale_y"] = width / resized_width, height / resized_height
        out["left"] = np.rint((resized_width - self.width) / 2)
        out["top"] = np.rint((resized_height - self.height) / 2)

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
