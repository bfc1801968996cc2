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
_BLOCKS = (8, 16)  # of a photo, whose threads convert more than one pixel of a large one
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

__device__ void convert(
    const unsigned char* planes, const Planes& p, int x, int y, unsigned char* at
) {
    const int luma = planes[p.luma + (long long)y * p.luma_pitch + x];
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
extern "C" __global__ void convert_planes(
    const unsigned char* planes, const Planes* all, unsigned char* pixels
) {
    const Planes p = all[blockIdx.z];
    const int columns = gridDim.x * blockDim.x, lines = gridDim.y * blockDim.y;
    const int first_x = blockIdx.x * blockDim.x + threadIdx.x;
    for (int y = blockIdx.y * blockDim.y + threadIdx.y; y < p.height; y += lines)
        for (int x = first_x; x < p.width; x += columns)
            convert(planes, p, x, y, pixels + p.pixels + ((long long)y * p.width + x) * 3);
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
        self, memory: torch.Tensor, planes: torch.Tensor, pixels: torch.Tensor, stream: Any
    ) -> None:
        """Convert photos, except those without width, on `stream`."""
        grid = (*_BLOCKS, len(planes))
        self._launch(grid=grid, block=_BLOCK, args=[memory, planes, pixels], stream=stream)


def lay_out(frames: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fill `out` (PLANES) for photos that lie one behind the other, in both memories; returns where
    their planes and their pixels end."""
    width, height, _, sampling = frames.astype(np.int64).T
    narrow = (sampling >= COLOURS_NARROW).astype(np.int64)
    low = (sampling == COLOURS_HALVED).astype(np.int64)
    chroma_width, chroma_height = (width + narrow) >> narrow, (height + low) >> low
    luma_pitch, chroma_pitch = -(-width // _PITCH) * _PITCH, -(-chroma_width // _PITCH) * _PITCH
    luma = luma_pitch * (-(-height // _LINES) * _LINES)
    chroma = chroma_pitch * (-(-chroma_height // _LINES) * _LINES)
    planes, pixels = luma + 2 * chroma, width * height * PIXEL_BYTES
    plane_ends, pixel_ends = np.cumsum(planes), np.cumsum(pixels)
    starts = plane_ends - planes
    out["luma"], out["blue"] = starts, starts + luma
    out["red"] = starts + luma + chroma
    out["pixels"] = pixel_ends - pixels
    out["width"], out["height"], out["sampling"] = width, height, sampling
    out["luma_pitch"], out["chroma_pitch"] = luma_pitch, chroma_pitch
    out["chroma_width"], out["chroma_height"] = chroma_width, chroma_height
    return plane_ends, pixel_ends
