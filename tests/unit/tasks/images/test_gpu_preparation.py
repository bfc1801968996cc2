"""What the GPU's kernel computes, in numpy, beside what Pillow computes on the CPU."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from shoal.core import dtypes
from shoal.tasks.images.gpu_preparation import GpuPreparation
from shoal.tasks.images.preparation import ImagePreparation
from tests.support.photo_kernel import prepare_photo

IDENTITY = {"scale": 1}


def photo(width: int, height: int) -> Image.Image:
    """Gradients with noise, different in each corner."""
    across, down = np.linspace(0, 200, width), np.linspace(0, 200, height)[:, None]
    noise = np.random.default_rng(width * height).integers(0, 56, (height, width, 3))
    pixels = noise + np.stack([across + 0 * down, 0 * across + down, (across + down) / 2], axis=2)
    return Image.fromarray(pixels.astype(np.uint8))


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def both(settings, image, orientation=1, dims=(3, 48, 64), **values):
    """The row that Pillow makes of the upright photo, and the kernel's of the stored one."""
    prepare = ImagePreparation.of(settings(**values), dims, dtypes.FP32)
    gpu = GpuPreparation.of(prepare)
    assert gpu is not None
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's operations, to store it
    stored = image if orientation == 1 else image.transpose(Image.Transpose(undo[orientation]))
    row = prepare(png(image))
    if prepare.channels_first:
        row = row.transpose(1, 2, 0)
    return row, prepare_photo(gpu, np.asarray(stored), orientation)


@pytest.mark.parametrize(
    ("width", "height"), [(100, 75), (75, 100), (64, 48), (73, 55), (30, 40), (190, 70)]
)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("crop", ["center", "none"])
def test_same_pixels_as_pillow(settings, width, height, interpolation, crop):
    image = photo(width, height)
    pillow, kernel = both(settings, image, interpolation=interpolation, crop=crop, **IDENTITY)
    assert pillow.shape == kernel.shape
    assert (pillow == kernel).all()


def test_where_pillow_averages_blocks_first(settings):
    pillow, kernel = both(settings, photo(400, 300), crop="none", **IDENTITY)
    assert np.abs(pillow - kernel).max() <= 3
    assert np.abs(pillow - kernel).mean() < 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright(settings, orientation):
    pillow, kernel = both(settings, photo(101, 77), orientation, **IDENTITY)
    assert (pillow == kernel).all()


def test_without_antialias(settings):
    pillow, kernel = both(settings, photo(150, 120), antialias=False, **IDENTITY)
    assert np.abs(pillow - kernel).max() <= 1


@pytest.mark.parametrize("dims", [(3, 48, 64), (48, 64, 3)])
def test_scale_and_order(settings, dims):
    """The usual mean and deviation, and blue first."""
    pillow, kernel = both(settings, photo(100, 75), dims=dims, channel_order="BGR")
    assert (pillow == kernel).all()


@pytest.mark.parametrize(
    ("dims", "datatype", "values"),
    [
        ((1, 32, 32), dtypes.FP32, {}),
        ((3, 32, 32), dtypes.UINT8, {}),
        ((3, 32, 32), dtypes.FP32, {"interpolation": "lanczos"}),
        ((3, 32, 32), dtypes.FP32, {"interpolation": "nearest"}),
        ((3, 32, 32), dtypes.FP32, {"interpolation": "bicubic", "antialias": False}),
    ],
)
def test_only_pillow_can(settings, dims, datatype, values):
    prepare = ImagePreparation.of(settings(**values), dims, datatype)
    assert GpuPreparation.of(prepare) is None
