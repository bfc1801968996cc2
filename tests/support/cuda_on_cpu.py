"""Runs the source of a CUDA kernel on the CPU: a C++ compiler makes a library of it.

    run = compiled(source, "kernel", tmp_path)
    run((2, 3, 1), (32, 8, 1), array, 7)        grid, block, arguments

Each thread of a block runs on its own, up to the first `__syncthreads()`, and then again to the end.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

_BEFORE = r"""
#include <math.h>
#define __device__ static
#define __global__
#define __shared__ static
#define __syncthreads() if (before_barrier) return
struct Three { int x, y, z; };
static Three blockIdx, threadIdx, blockDim, gridDim;
static bool before_barrier;
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
"""
_AFTER = r"""
extern "C" void run_blocks(const int* grid, const int* block, PARAMETERS) {
    blockDim = Three{block[0], block[1], block[2]};
    gridDim = Three{grid[0], grid[1], grid[2]};
    for (int i = 0; i < grid[0] * grid[1] * grid[2]; i++) {
        blockIdx = Three{i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]};
        for (int times = HAS_BARRIER; times >= 0; times--) {
            before_barrier = times;
            for (int t = 0; t < block[0] * block[1]; t++) {
                threadIdx = Three{t % block[0], t / block[0], 0};
                KERNEL(ARGUMENTS);
            }
        }
    }
}
"""


def compiled(source, kernel, folder):
    """A function that runs the kernel; the test is left out without a C++ compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    head = source[source.index(f"void {kernel}(") :]
    parameters = head[head.index("(") + 1 : head.index(")")].strip()
    names = [word.split()[-1] for word in parameters.split(",")]
    after = _AFTER.replace("PARAMETERS", parameters).replace("ARGUMENTS", ", ".join(names))
    after = after.replace("KERNEL", kernel)
    after = after.replace("HAS_BARRIER", "1" if "__syncthreads" in head else "0")
    file, made = folder / f"{kernel}.cpp", folder / f"{kernel}.so"
    file.write_text(_BEFORE + source + after)
    line = [compiler, "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w", "-o", str(made)]
    subprocess.run([*line, str(file)], check=True)
    function = ctypes.CDLL(str(made)).run_blocks

    def run(grid, block, *arguments):
        sizes = [(ctypes.c_int * 3)(*three) for three in (grid, block)]
        given = [
            ctypes.c_void_p(one.ctypes.data) if isinstance(one, np.ndarray) else ctypes.c_int(one)
            for one in arguments
        ]
        function(*sizes, *given)

    return run
