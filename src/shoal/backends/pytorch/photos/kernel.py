"""The CUDA kernel that makes rows of a model's input of decoded photos of any size.

It computes what Pillow's `resize` computes: for each pixel a weighted mean across, rounded to eight
bits, then one down, rounded again. So rows differ from Pillow's by at most one of a pixel's 256
values, and rarely; the tests have the same arithmetic in numpy.
"""

from __future__ import annotations

from typing import Any

import torch

from shoal.tasks.images.gpu_preparation import GpuPreparation

_BLOCK = (32, 8, 1)
# By type of the row: the type in C, and how a float is stored.
_STORES = {
    torch.float32: ("float", "*at = value;"),
    torch.float16: ("unsigned short", 'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*at) : "f"(value));'),
    torch.bfloat16: (
        "unsigned short",
        "unsigned bits = __float_as_uint(value); *at = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;",
    ),
}
_WEIGHTS = {
    "bilinear": (1, "return d < 1.f ? 1.f - d : 0.f;"),
    "bicubic": (2, "return d < 1.f ? NEAR : d < 2.f ? FAR : 0.f;"),
}
_CUBES = {
    "NEAR": "((1.5f * d - 2.5f) * d * d + 1.f)",
    "FAR": "(((-.5f * d + 2.5f) * d - 4.f) * d + 2.f)",
}
# The fields of `PLACES`; the text in capitals is defined for each model.
_SOURCE = r"""
struct Place {
    long long origin;
    int step_x, step_y, width, height;
    float scale_x, scale_y, left, top;
};
__device__ float weight(float d) { d = fabsf(d); WEIGHT }
__device__ float eight_bits(float value) { return fminf(fmaxf(floorf(value + .5f), 0.f), 255.f); }
__device__ void store(ELEMENT* at, float value) { STORE }

extern "C" __global__ void prepare_photos(
    const unsigned char* pixels, const Place* places, ELEMENT* rows,
    int row, int channel, int line, int column
) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= WIDTH || y >= HEIGHT) return;
    const Place place = places[blockIdx.z];
    const unsigned char* photo = pixels + place.origin;
    const float stretch_x = ANTIALIAS ? fmaxf(place.scale_x, 1.f) : 1.f;
    const float stretch_y = ANTIALIAS ? fmaxf(place.scale_y, 1.f) : 1.f;
    const float center_x = (x + place.left + .5f) * place.scale_x;
    const float center_y = (y + place.top + .5f) * place.scale_y;
    const int first_x = max(0, (int)(center_x - SUPPORT * stretch_x + .5f));
    const int first_y = max(0, (int)(center_y - SUPPORT * stretch_y + .5f));
    const int end_x = min(place.width, (int)(center_x + SUPPORT * stretch_x + .5f));
    const int end_y = min(place.height, (int)(center_y + SUPPORT * stretch_y + .5f));
    float sum_x = 0.f, sum_y = 0.f;
    for (int i = first_x; i < end_x; i++) sum_x += weight((i + .5f - center_x) / stretch_x);
    float red = 0.f, green = 0.f, blue = 0.f;
    for (int j = first_y; j < end_y; j++) {
        const float down = weight((j + .5f - center_y) / stretch_y);
        const unsigned char* p = photo + (long long)j * place.step_y
            + (long long)first_x * place.step_x;
        float r = 0.f, g = 0.f, b = 0.f;
        for (int i = first_x; i < end_x; i++, p += place.step_x) {
            const float across = weight((i + .5f - center_x) / stretch_x);
            r += across * p[0]; g += across * p[1]; b += across * p[2];
        }
        sum_y += down;
        red += down * eight_bits(r / sum_x);
        green += down * eight_bits(g / sum_x);
        blue += down * eight_bits(b / sum_x);
    }
    ELEMENT* at = rows + (long long)blockIdx.z * row + (long long)y * line + (long long)x * column;
    store(at + RED * channel, eight_bits(red / sum_y) * FACTOR_RED + OFFSET_RED);
    store(at + channel, eight_bits(green / sum_y) * FACTOR_GREEN + OFFSET_GREEN);
    store(at + BLUE * channel, eight_bits(blue / sum_y) * FACTOR_BLUE + OFFSET_BLUE);
}
"""


class PhotoKernel:
    """The kernel, compiled for one preparation, type of rows and GPU."""

    def __init__(self, prepare: GpuPreparation, dtype: torch.dtype) -> None:
        """Compile it for the current GPU. Raises RuntimeError if that fails."""
        try:
            compile_kernel = torch.cuda._compile_kernel
        except AttributeError:
            raise RuntimeError(
                f"PyTorch {torch.__version__} cannot compile kernels; install 2.9 or newer"
            ) from None
        self._launch: Any = compile_kernel(source(prepare, dtype), "prepare_photos")
        self._prepare = prepare

    def __call__(
        self,
        pixels: torch.Tensor,
        places: torch.Tensor,
        rows: torch.Tensor,
        count: int,
        stream: Any,
    ) -> None:
        """Fill the first `count` rows, which have the model's dims, on `stream`."""
        prepare = self._prepare
        strides = rows.stride()
        if not prepare.channels_first:  # to row, channel, line, column
            strides = (strides[0], strides[3], strides[1], strides[2])
        columns, lines, _ = _BLOCK
        grid = (-(-prepare.width // columns), -(-prepare.height // lines), count)
        arguments = [pixels, places, rows, *strides]
        self._launch(grid=grid, block=_BLOCK, args=arguments, stream=stream)


def source(prepare: GpuPreparation, dtype: torch.dtype) -> str:
    """The kernel in CUDA C++."""
    element, store = _STORES[dtype]
    support, weight = _WEIGHTS[prepare.filter]
    red, blue = (2, 0) if prepare.reverse else (0, 2)
    defined: dict[str, object] = {
        **_CUBES,
        "ELEMENT": element,
        "STORE": store,
        "WEIGHT": weight,
        "SUPPORT": f"{support}.f",
        "ANTIALIAS": int(prepare.antialias),
        "WIDTH": prepare.width,
        "HEIGHT": prepare.height,
        "RED": red,
        "BLUE": blue,
    }
    for name, channel in (("RED", red), ("GREEN", 1), ("BLUE", blue)):
        defined[f"FACTOR_{name}"] = _literal(prepare.factors[channel])
        defined[f"OFFSET_{name}"] = _literal(prepare.offsets[channel])
    return "".join(f"#define {name} {text}\n" for name, text in defined.items()) + _SOURCE


def _literal(value: float) -> str:
    return f"({value:.9e}f)"
