"""The arithmetic of the GPU's kernels, in numpy: planes to pixels, one photo to one row."""

from __future__ import annotations

import numpy as np

from shoal.tasks.images.gpu_preparation import PLACES, GpuPreparation


def convert_planes(luma: np.ndarray, blue: np.ndarray, red: np.ndarray) -> np.ndarray:
    """The pixels of planes, of which those of colours may have half the width and height."""
    height, width = luma.shape
    y = luma.astype(int)
    b, r = (_upsampled(plane.astype(int), width, height) - 128 for plane in (blue, red))
    pixels = (
        y + ((91881 * r + 32768) >> 16),
        y + ((-22554 * b - 46802 * r + 32768) >> 16),
        y + ((116130 * b + 32768) >> 16),
    )
    return np.stack(pixels, 2).clip(0, 255).astype(np.uint8)


def _upsampled(plane: np.ndarray, width: int, height: int) -> np.ndarray:
    sums, shift, biases = plane, 2, (1, 2)
    if plane.shape[1] == width:
        return plane
    if plane.shape[0] != height:
        padded = np.pad(plane, ((1, 1), (0, 0)), mode="edge")
        sums = np.empty((2 * len(plane), plane.shape[1]), int)
        sums[0::2] = 3 * plane + padded[:-2]
        sums[1::2] = 3 * plane + padded[2:]
        shift, biases = 4, (8, 7)
    padded = np.pad(sums, ((0, 0), (1, 1)), mode="edge")
    found = np.empty((len(sums), 2 * plane.shape[1]), int)
    found[:, 0::2] = (3 * sums + padded[:, :-2] + biases[0]) >> shift
    found[:, 1::2] = (3 * sums + padded[:, 2:] + biases[1]) >> shift
    return found[:height, :width]


def _bilinear(d: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - d)


def _bicubic(d: np.ndarray) -> np.ndarray:
    near, far = (1.5 * d - 2.5) * d * d + 1, (((d - 5) * d + 8) * d - 4) * -0.5
    return np.where(d < 1, near, np.where(d < 2, far, 0))


_WEIGHTS = {"bilinear": (1, _bilinear), "bicubic": (2, _bicubic)}
_BITS = 22


def prepare_photo(prepare: GpuPreparation, stored: np.ndarray, orientation: int) -> np.ndarray:
    """The row, channels last, of stored pixels [height, width, 3], read by its place alone."""
    place = np.zeros(1, PLACES)
    frame = np.array([[stored.shape[1], stored.shape[0], orientation, 0]])
    prepare.place(frame, np.zeros(1, np.int64), place)
    return prepare_placed(prepare, stored.reshape(-1), place[0])


def prepare_placed(prepare: GpuPreparation, pixels: np.ndarray, one: np.void) -> np.ndarray:
    """The row of a photo that lies in `pixels` as an entry of PLACES says."""
    at = (
        one["origin"]
        + np.arange(one["width"]) * np.int64(one["step_x"])
        + np.arange(one["height"])[:, None] * np.int64(one["step_y"])
    )
    upright = pixels[at[:, :, None] + np.arange(3)].astype(np.int64)
    across = _weights(prepare, prepare.width, one["width"], one["scale_x"], one["left"])
    down = _weights(prepare, prepare.height, one["height"], one["scale_y"], one["top"])
    passes = [(across, "xi,yic->yxc"), (down, "yj,jxc->yxc")]
    row = upright
    for weights, axes in reversed(passes) if one["down_first"] else passes:
        row = _eight_bits(np.einsum(axes, weights, row))
    if prepare.reverse:
        row = row[:, :, ::-1]
    row = row.astype(np.float32)
    return row * np.array(prepare.factors, np.float32) + np.array(prepare.offsets, np.float32)


def _weights(
    prepare: GpuPreparation, size: int, photo_size: int, scale: np.float64, start: np.float64
) -> np.ndarray:
    """The weight of each pixel of a photo's line for each pixel of the row's, in whole numbers."""
    support, weight = _WEIGHTS[prepare.filter]
    stretch = max(scale, 1.0) if prepare.antialias else 1.0
    centers = start + (np.arange(size)[:, None] + 0.5) * scale
    first = np.maximum(0, (centers - support * stretch + 0.5).astype(int))
    end = np.minimum(photo_size, (centers + support * stretch + 0.5).astype(int))
    pixels = np.arange(photo_size)[None]
    weights = weight(np.abs((pixels - centers + 0.5) * (1 / stretch)))
    weights = np.where((pixels >= first) & (pixels < end), weights, 0)
    parts = weights / weights.cumsum(axis=1)[:, -1:]  # the sum, one after the other
    total: np.ndarray = np.trunc(parts * (1 << _BITS) + np.where(parts < 0, -0.5, 0.5)).astype(int)
    return total


def _eight_bits(sums: np.ndarray) -> np.ndarray:
    return np.clip((sums + (1 << (_BITS - 1))) >> _BITS, 0, 255)
