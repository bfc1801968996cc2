"""From the planes of a decoded JPEG to pixels: brightness, blueness and redness to RGB.

    Y, Cb, Cr, as they are stored --upsampling of the colours, conversion--> RGB, without gaps

The decoder of a GPU could do that itself, but it repeats the pixels of colour planes that have half
the width or height. This does what libjpeg does, and with it Pillow: each is a mean of up to four
neighbours, in the same arithmetic of whole numbers. So the pixels are exactly those of Pillow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shoal.tasks.images.gpu_preparation import PIXEL_BYTES
from shoal.tasks.images.jpeg import COLOURS_HALVED, COLOURS_NARROW, GREY

# The planes of a photo, as offsets into the memory for planes, and where its pixels go. The colour
# planes are alike; of a grey photo they are not read.
PLANES = np.dtype(
    [
        ("luma", np.int64),
        ("blue", np.int64),
        ("red", np.int64),
        ("pixels", np.int64),
        ("width", np.int32),
        ("height", np.int32),
        ("luma_pitch", np.int32),
        ("chroma_pitch", np.int32),
        ("chroma_width", np.int32),
        ("chroma_height", np.int32),
        ("sampling", np.int32),
        ("unused", np.int32),
    ]
)
_PITCH, _LINES = 32, 16  # planes are multiples of these
_BLOCK = (64, 4, 1)
_SOURCE = (
    r"""
struct Planes {
    long long luma, blue, red, pixels;
    int width, height, luma_pitch, chroma_pitch, chroma_width, chroma_height, sampling, unused;
};
__device__ int upsampled(const unsigned char* plane, const Planes& p, int x, int y) {
    if (p.sampling != HALVED && p.sampling != NARROW) return plane[y * p.chroma_pitch + x];
    const int own = x >> 1;
    const int beside = min(max(own + (x & 1 ? 1 : -1), 0), p.chroma_width - 1);
    if (p.sampling == NARROW) {
        const unsigned char* line = plane + y * p.chroma_pitch;
        return (3 * line[own] + line[beside] + (x & 1 ? 2 : 1)) >> 2;
    }
    const unsigned char* line = plane + (y >> 1) * p.chroma_pitch;
    const int row = min(max((y >> 1) + (y & 1 ? 1 : -1), 0), p.chroma_height - 1);
    const unsigned char* other = plane + row * p.chroma_pitch;
    const int near_sum = 3 * line[own] + other[own], far_sum = 3 * line[beside] + other[beside];
    return (3 * near_sum + far_sum + (x & 1 ? 7 : 8)) >> 4;
}
__device__ unsigned char eight_bits(int value) { return min(max(value, 0), 255); }

extern "C" __global__ void convert_planes(
    const unsigned char* planes, const Planes* all, unsigned char* pixels
) {
    const Planes& p = all[blockIdx.z];
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= p.width || y >= p.height) return;
    const int luma = planes[p.luma + (long long)y * p.luma_pitch + x];
    unsigned char* at = pixels + p.pixels + ((long long)y * p.width + x) * 3;
    if (p.sampling == GREY) {
        at[0] = at[1] = at[2] = luma;
        return;
    }
    const int blue = upsampled(planes + p.blue, p, x, y) - 128;
    const int red = upsampled(planes + p.red, p, x, y) - 128;
    at[0] = eight_bits(luma + ((91881 * red + 32768) >> 16));
    at[1] = eight_bits(luma + ((-22554 * blue - 46802 * red + 32768) >> 16));
    at[2] = eight_bits(luma + ((116130 * blue + 32768) >> 16));
}
""".replace("HALVED", str(COLOURS_HALVED))
    .replace("NARROW", str(COLOURS_NARROW))
    .replace("GREY", str(GREY))
)


class PlaneKernel:
    """The kernel, compiled for one GPU."""

    def __init__(self) -> None:
        """Compile it for the current GPU. Raises RuntimeError if that fails."""
        self._launch: Any = torch.cuda._compile_kernel(_SOURCE, "convert_planes")

    def __call__(
        self,
        memory: torch.Tensor,
        planes: torch.Tensor,
        pixels: torch.Tensor,
        size: Any,
        stream: Any,
    ) -> None:
        """Convert photos of at most this width and height, on `stream`."""
        columns, lines, _ = _BLOCK
        grid = (-(-int(size[0]) // columns), -(-int(size[1]) // lines), len(planes))
        self._launch(grid=grid, block=_BLOCK, args=[memory, planes, pixels], stream=stream)


def plane_bytes(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of the planes, and of the pixels, of each photo."""
    sides = frames.astype(np.int64)
    luma, chroma = _sizes(sides)
    return luma.prod(1) + 2 * chroma.prod(1), sides[:, 0] * sides[:, 1] * PIXEL_BYTES


def lay_out(frames: np.ndarray, out: np.ndarray) -> None:
    """Fill `out` (PLANES) for photos that lie one behind the other, in both memories."""
    sides = frames.astype(np.int64)
    luma, chroma = _sizes(sides)
    planes, pixels = plane_bytes(frames)
    starts = np.cumsum(planes) - planes
    out["luma"] = starts
    out["blue"] = starts + luma.prod(1)
    out["red"] = out["blue"] + chroma.prod(1)
    out["pixels"] = np.cumsum(pixels) - pixels
    out["width"], out["height"] = sides[:, 0], sides[:, 1]
    out["luma_pitch"], out["chroma_pitch"] = luma[:, 0], chroma[:, 0]
    out["sampling"] = sides[:, 3]
    used = _chroma(sides)
    out["chroma_width"], out["chroma_height"] = used[:, 0], used[:, 1]


def _chroma(sides: np.ndarray) -> np.ndarray:
    """Width and height of the colour planes."""
    sampling = sides[:, 3]
    narrow = (sampling == COLOURS_NARROW) | (sampling == COLOURS_HALVED)
    low = sampling == COLOURS_HALVED
    return np.stack([(sides[:, 0] + narrow) >> narrow, (sides[:, 1] + low) >> low], 1)


def _sizes(sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pitch and lines of the planes, as they are allocated."""
    units = np.array([_PITCH, _LINES])
    return -(-sides[:, :2] // units) * units, -(-_chroma(sides) // units) * units
