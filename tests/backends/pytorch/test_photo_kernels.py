"""The CUDA kernels of photos, run by the CPU: the rows are bit by bit those of Pillow."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

from shoal.backends.pytorch.photos import kernel, planes  # noqa: E402 - after the check for torch
from shoal.core import dtypes  # noqa: E402
from shoal.tasks.images.gpu_preparation import PLACES, GpuPreparation  # noqa: E402
from shoal.tasks.images.jpeg import COLOURS_HALVED  # noqa: E402
from shoal.tasks.images.preparation import ImagePreparation  # noqa: E402
from shoal.tasks.settings import TaskSettings  # noqa: E402
from tests.support.cuda_on_cpu import compiled  # noqa: E402
from tests.support.photos import encode, photo  # noqa: E402

SIZES = [(100, 75), (75, 100), (64, 48), (30, 40), (190, 70), (180, 141)]
FEW_WEIGHTS = 4  # so that those that are not cached are used, too


@pytest.mark.parametrize("values", [{}, {"interpolation": "bicubic", "crop": "none"}])
def test_rows_of_photos_of_all_sizes(tmp_path, monkeypatch, values):
    monkeypatch.setattr(kernel, "_CACHED_WEIGHTS", FEW_WEIGHTS)
    prepare = ImagePreparation.of(TaskSettings(values, tmp_path), (3, 48, 64), dtypes.FP32)
    gpu = GpuPreparation.of(prepare)
    images = [photo(size=size, noise=100) for size in SIZES]
    pixels = np.concatenate([np.asarray(image).reshape(-1) for image in images])
    frames = np.array([[*size, 1, 0] for size in SIZES])
    areas = frames[:, :2].prod(axis=1) * 3
    places = np.zeros(len(SIZES), PLACES)
    gpu.place(frames, np.cumsum(areas) - areas, places)
    rows = np.zeros((len(SIZES), 3, 48, 64), np.float32)
    run = compiled(kernel.source(gpu, torch.float32), "prepare_photos", tmp_path)
    strides = [stride // 4 for stride in rows.strides]
    run((2, 6, len(SIZES)), (32, 8, 1), pixels, places, rows, *strides)
    for row, image in zip(rows, images, strict=True):
        assert (row == prepare(encode(image, "PNG"))).all(), image.size


def test_pixels_of_planes(tmp_path):
    size = (101, 77)
    data = encode(photo("blue", size, noise=100))
    whole, half = (Image.open(io.BytesIO(data)) for _ in range(2))
    whole.draft("YCbCr", size)
    half.draft("YCbCr", (50, 38))
    frames = np.array([[*size, 1, COLOURS_HALVED]], np.uint16)
    entry = np.zeros(1, planes.PLANES)
    ends, _ = planes.lay_out(frames, entry)
    memory = np.zeros(ends[-1], np.uint8)
    colours = np.asarray(half)
    stored = (np.asarray(whole)[:, :, 0], colours[:, :, 1], colours[:, :, 2])
    for name, plane in zip(("luma", "blue", "red"), stored, strict=True):
        pitch = entry["luma_pitch" if name == "luma" else "chroma_pitch"][0]
        lines = np.zeros((len(plane), pitch), np.uint8)
        lines[:, : plane.shape[1]] = plane
        memory[entry[name][0] : entry[name][0] + lines.size] = lines.reshape(-1)
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    run = compiled(planes._SOURCE, "convert_planes", tmp_path)
    run((1, 3, 1), (64, 4, 1), memory, entry, pixels)  # fewer threads than pixels
    assert (pixels == np.asarray(Image.open(io.BytesIO(data)))).all()
