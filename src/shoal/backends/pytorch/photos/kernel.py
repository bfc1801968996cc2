"""The CUDA kernel that makes rows of a model's input of decoded photos of any size.

It computes what Pillow's `resize` computes, bit by bit: for each pixel a weighted mean in one
direction, rounded to eight bits, then one in the other. Weights are computed in double precision
and applied as whole numbers. The tests have the same arithmetic in numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shoal.tasks.images.gpu_preparation import GpuPreparation

_COLUMNS, _LINES = 32, 8  # of a block of threads
_EXACT = ["--fmad=false"]  # a sum of products is rounded twice, as on the CPU
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
    "bilinear": (1, "return d < 1. ? 1. - d : 0.;"),
    "bicubic": (2, "return d < 1. ? NEAR : d < 2. ? FAR : 0.;"),
}
_CUBES = {
    "NEAR": "((1.5 * d - 2.5) * d * d + 1.)",
    "FAR": "((((d - 5.) * d + 8.) * d - 4.) * -.5)",
}
# The fields of `PLACES`; the text in capitals is defined for each model.
_SOURCE = r"""
struct Place {
    long long origin;
    int step_x, step_y, width, height;
    double left, top, scale_x, scale_y;
    int down_first, unused;
};
// The pixels of a photo's line that one pixel of the row is a mean of.
struct Window {
    int first, count;
    double center, shrink, sum;
    int cached[CACHED];
};
__device__ double weight(const Window& window, int index) {
    const double d = fabs((index + window.first - window.center + .5) * window.shrink);
    WEIGHT
}
__device__ int whole_weight(const Window& window, int index) {
    const double part = weight(window, index) / window.sum;
    return (int)(part * (1 << BITS) + (part < 0. ? -.5 : .5));
}
__device__ void fill(Window& window, int index, double start, double scale, int length) {
    const double stretch = ANTIALIAS ? fmax(scale, 1.) : 1., support = SUPPORT * stretch;
    window.center = start + (index + .5) * scale;
    window.shrink = 1. / stretch;
    window.first = max(0, (int)(window.center - support + .5));
    window.count = min(length, (int)(window.center + support + .5)) - window.first;
    window.sum = 0.;
    for (int i = 0; i < window.count; i++) window.sum += weight(window, i);
    for (int i = 0; i < min(window.count, CACHED); i++) window.cached[i] = whole_weight(window, i);
}
__device__ int applied(const Window& window, int index) {
    return index < CACHED ? window.cached[index] : whole_weight(window, index);
}
__device__ int eight_bits(int sum) { return min(max(sum >> BITS, 0), 255); }
__device__ void store(ELEMENT* at, float value) { STORE }

extern "C" __global__ void prepare_photos(
    const unsigned char* pixels, const Place* places, ELEMENT* rows,
    int row, int channel, int line, int column
) {
    __shared__ Window across[COLUMNS], down[LINES];
    const Place place = places[blockIdx.z];
    if (!place.width) return;
    const int thread = threadIdx.y * COLUMNS + threadIdx.x;
    const int first_x = blockIdx.x * COLUMNS, first_y = blockIdx.y * LINES;
    if (thread < COLUMNS)
        fill(across[thread], first_x + thread, place.left, place.scale_x, place.width);
    else if (thread < COLUMNS + LINES)
        fill(down[thread - COLUMNS], first_y + thread - COLUMNS, place.top, place.scale_y,
             place.height);
    __syncthreads();
    const int x = first_x + threadIdx.x, y = first_y + threadIdx.y;
    if (x >= WIDTH || y >= HEIGHT) return;
    const Window& of_x = across[threadIdx.x];
    const Window& of_y = down[threadIdx.y];
    const Window& inner = place.down_first ? of_y : of_x;
    const Window& outer = place.down_first ? of_x : of_y;
    const int inner_step = place.down_first ? place.step_y : place.step_x;
    const int outer_step = place.down_first ? place.step_x : place.step_y;
    const int half = 1 << (BITS - 1);
    int red = half, green = half, blue = half;
    for (int j = 0; j < outer.count; j++) {
        const unsigned char* p = pixels + place.origin
            + (long long)(outer.first + j) * outer_step + (long long)inner.first * inner_step;
        int r = half, g = half, b = half;
        for (int i = 0; i < inner.count; i++, p += inner_step) {
            const int part = applied(inner, i);
            r += part * p[0]; g += part * p[1]; b += part * p[2];
        }
        const int part = applied(outer, j);
        red += part * eight_bits(r);
        green += part * eight_bits(g);
        blue += part * eight_bits(b);
    }
    ELEMENT* at = rows + (long long)blockIdx.z * row + (long long)y * line + (long long)x * column;
    store(at + RED * channel, eight_bits(red) * FACTOR_RED + OFFSET_RED);
    store(at + channel, eight_bits(green) * FACTOR_GREEN + OFFSET_GREEN);
    store(at + BLUE * channel, eight_bits(blue) * FACTOR_BLUE + OFFSET_BLUE);
}
"""
_WEIGHT_BITS = 22  # as in Pillow
_CACHED_WEIGHTS = 24  # of a window; those of photos that are much larger are computed again


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
        self._launch: Any = compile_kernel(
            source(prepare, dtype), "prepare_photos", nvcc_options=_EXACT
        )
        self._prepare = prepare

    def __call__(
        self,
        pixels: torch.Tensor,
        places: torch.Tensor,
        rows: torch.Tensor,
        stream: Any,
    ) -> None:
        """Fill the rows, which have the model's dims, of photos with some width, on `stream`."""
        prepare = self._prepare
        strides = rows.stride()
        if not prepare.channels_first:  # to row, channel, line, column
            strides = (strides[0], strides[3], strides[1], strides[2])
        grid = (-(-prepare.width // _COLUMNS), -(-prepare.height // _LINES), len(rows))
        arguments = [pixels, places, rows, *strides]
        self._launch(grid=grid, block=(_COLUMNS, _LINES, 1), args=arguments, stream=stream)


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
        "SUPPORT": f"{support}.",
        "BITS": _WEIGHT_BITS,
        "CACHED": _CACHED_WEIGHTS,
        "COLUMNS": _COLUMNS,
        "LINES": _LINES,
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
    return f"({np.float32(value):.9e}f)"
