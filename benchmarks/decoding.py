"""What a machine can do with photos at most: plain processes that decode one with Pillow.

    python -m benchmarks.decoding [--processes 1,2,4,8,16] [--seconds 2]

The photo and the work are those of the load `photos` in `benchmarks.cores`, without a server.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import time
from collections.abc import Sequence

import numpy as np
from PIL import Image

from benchmarks.cores import make_photo
from benchmarks.machine import describe
from benchmarks.shapes import PICTURE

START_SECS = 1.0  # for the slowest process to start


def decode(photo: bytes, begin: float, end: float) -> tuple[int, float]:
    """Decode until `end`; how many photos, and the CPU seconds that they took."""
    time.sleep(max(0.0, begin - time.time()))
    count, cpu_secs = 0, time.process_time()
    while time.time() < end:
        picture = Image.open(io.BytesIO(photo)).convert("RGB")
        small = picture.resize(PICTURE[1:], Image.Resampling.BILINEAR)
        np.asarray(small, np.float32).transpose(2, 0, 1).copy()
        count += 1
    return count, time.process_time() - cpu_secs


def main(words: Sequence[str] | None = None) -> None:
    """Print the rate for each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--processes", default="1,2,4,8,16")
    parser.add_argument("--seconds", type=int, default=2)
    asked = parser.parse_args(words)
    print(", ".join(f"{key} {value}" for key, value in describe().items()))
    photo, first = make_photo(), 0.0
    for processes in [int(number) for number in asked.processes.split(",")]:
        begin = time.time() + START_SECS
        work = (photo, begin, begin + asked.seconds)
        with multiprocessing.Pool(processes) as pool:
            done = pool.starmap(decode, [work] * processes, chunksize=1)
        photos = sum([count for count, _ in done])
        rate = photos / asked.seconds
        first = first or rate
        cpu_us = sum([secs for _, secs in done]) / photos * 1e6
        print(
            f"{processes} processes: {rate:,.0f} photos/s, {rate / first:.2f} times one, "
            f"{cpu_us:.0f} µs of CPU each",
            flush=True,
        )


if __name__ == "__main__":
    main()
