"""Settings of task.json, and the rows that photos become by them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from PIL import Image

from shoal.core import dtypes
from shoal.errors import ConfigError, InvalidArgument
from shoal.tasks.images import resampling
from shoal.tasks.images.preparation import ImagePreparation

NCHW, NHWC = (3, 32, 32), (32, 32, 3)
FLAT = {"crop": "none", "scale": 1}


def flat_image(colour, size=(32, 32)):
    return Image.new("RGB", size, colour)


def of(settings, dims=NCHW, datatype=dtypes.FP32, declared="FORMAT_NONE", **values):
    read = settings(**values)
    preparation = ImagePreparation.of(read, dims, datatype, declared)
    read.check_all_read()
    return preparation


def test_layouts(settings, encode):
    data = encode(flat_image((10, 20, 30)))
    first = of(settings, NCHW, **FLAT)(data)
    assert first.shape == NCHW
    assert first.dtype == np.float32
    assert first.flags.c_contiguous
    assert first[:, 0, 0].tolist() == [10, 20, 30]
    last = of(settings, NHWC, **FLAT)(data)
    assert last.shape == NHWC
    assert last.flags.c_contiguous
    assert last[0, 0].tolist() == [10, 20, 30]
    assert (first.transpose(1, 2, 0) == last).all()


@pytest.mark.parametrize("dims", [NCHW, NHWC])
@pytest.mark.parametrize("datatype", [dtypes.FP32, dtypes.UINT8])
def test_blue_first(settings, encode, dims, datatype):
    row = of(settings, dims, datatype, channel_order="BGR", **FLAT)(
        encode(flat_image((10, 20, 30)))
    )
    pixel = row[:, 0, 0] if dims is NCHW else row[0, 0]
    assert pixel.tolist() == [30, 20, 10]


@pytest.mark.parametrize(
    ("dims", "told", "layout", "channels_first"),
    [
        ((3, 8, 8), "FORMAT_NONE", None, True),
        ((8, 8, 3), "FORMAT_NONE", None, False),
        ((3, 8, 3), "FORMAT_NHWC", None, False),
        ((3, 8, 3), "FORMAT_NONE", None, True),
        ((3, 8, 3), "FORMAT_NONE", "NHWC", False),
        ((1, 8, 8), "FORMAT_NONE", None, True),
    ],
)
def test_which_dimension_holds_the_channels(settings, dims, told, layout, channels_first):
    values = {"layout": layout} if layout else {}
    assert of(settings, dims, declared=told, **values).channels_first is channels_first


def test_values_as_a_network_was_trained_with(settings, encode):
    data = encode(flat_image((0, 127, 255)))

    def pixel(**values):
        return of(settings, crop="none", **values)(data)[:, 0, 0].tolist()

    assert pixel(scale=1) == [0, 127, 255]
    assert pixel(scale="1/255") == pytest.approx([0, 127 / 255, 1])
    assert pixel(mean=127, std=128) == pytest.approx([-127 / 128, 0, 1])
    assert pixel(mean=[1, 2, 3]) == [-1, 125, 252]
    means, deviations = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    usual = (np.array([0, 127, 255]) / 255 - means) / deviations
    assert pixel() == pytest.approx(usual.tolist(), abs=1e-5)
    told = pixel(scale="1/255", mean=means.tolist(), std=deviations.tolist())
    assert told == pytest.approx(usual.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        (dtypes.UINT8, {}, [0, 127, 255]),
        (dtypes.INT8, {"mean": 128}, [-128, -1, 127]),
        (dtypes.INT32, {"mean": 127}, [-127, 0, 128]),
        (dtypes.FP64, {"scale": 1}, [0, 127, 255]),
        (dtypes.FP16, {"mean": 127, "std": 128}, [-0.9921875, 0, 1]),
    ],
)
@pytest.mark.parametrize("dims", [NCHW, NHWC])
def test_datatypes(settings, encode, datatype, values, expected, dims):
    row = of(settings, dims, datatype, crop="none", **values)(encode(flat_image((0, 127, 255))))
    assert row.dtype == datatype.numpy
    assert (row[:, 0, 0] if dims is NCHW else row[0, 0]).tolist() == expected


def test_bf16_is_the_upper_half_of_fp32(settings, encode):
    row = of(settings, NCHW, dtypes.BF16, crop="none", scale="1/255")(
        encode(flat_image((0, 127, 255)))
    )
    values = (row[:, 0, 0].astype(np.uint32) << 16).view(np.float32)
    assert values.tolist() == pytest.approx([0, 127 / 255, 1], rel=0.005)


def test_grey_models(settings, encode):
    row = of(settings, (32, 32, 1), dtypes.UINT8, crop="none")(encode(flat_image((255, 0, 0))))
    assert row.shape == (32, 32, 1)
    assert row[0, 0, 0] == 76  # what red weighs


def test_the_middle_of_a_photo(settings, encode):
    """32 x 32 from the middle of 64 x 40, made 40 high and then cut."""
    image = flat_image((0, 0, 0), (64, 40))
    image.paste((255, 255, 255), (16, 4, 48, 36))
    row = of(settings, NHWC, dtypes.UINT8, resize=40)(encode(image))
    assert (row == 255).all()
    stretched = of(settings, NHWC, dtypes.UINT8, crop="none")(encode(image))
    assert (stretched[0] == 0).all()


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (77, 501), (224, 224), (31, 20)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_as_resizing_and_then_cutting(settings, encode, gradient, size, interpolation):
    """The usual two steps, shorter side to 40 and the middle 32 of it, are one here."""
    image = gradient(*size)
    found = of(settings, NHWC, dtypes.UINT8, resize=40, interpolation=interpolation)(encode(image))
    shorter = min(size)
    whole = tuple(int(40 * side / shorter) for side in size)
    left, top = (round((side - 32) / 2) for side in whole)
    resampling = Image.Resampling[interpolation.upper()]
    expected = image.resize(whole, resampling).crop((left, top, left + 32, top + 32))
    close = 4 if size == (77, 501) else 2  # blocks are averaged first where there are many rows
    assert np.abs(found.astype(int) - np.asarray(expected)).max() <= close


@given(width=some.integers(1, 400), height=some.integers(1, 400))
def test_any_size_is_covered(width, height):
    preparation = ImagePreparation(
        *(24, 40, 3, True, False, (46, 28), (46, 28), Image.Resampling.BILINEAR, True),
        *(np.zeros((3, 256)), None),
    )
    made_width, made_height = preparation._resized((width, height))
    assert made_width >= 40
    assert made_height >= 24
    assert made_width in (46, int(width * 28 / height))


def test_without_antialias_it_is_what_opencv_does(settings, encode, gradient, monkeypatch):
    """Two by two pixels count for each new one: the corners of a chessboard stay sharp."""
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    data = encode(Image.fromarray(np.stack([board] * 3, axis=2)))
    prepare = of(
        settings, (3, 16, 16), dtypes.UINT8, crop="none", antialias=False, interpolation="bilinear"
    )
    monkeypatch.setattr(resampling, "_opencv", lambda: None)
    assert np.abs(prepare(data).astype(int) - 127).max() <= 1
    calls = []

    class OpenCv:
        @staticmethod
        def resize(pixels, size):
            calls.append((pixels.shape, size))
            return np.full((size[1], size[0], 3), 9, np.uint8)

    monkeypatch.setattr(resampling, "_opencv", lambda: OpenCv)
    assert (prepare(data) == 9).all()
    assert calls == [((64, 64, 3), (16, 16))]
    assert (prepare(encode(gradient().convert("RGBA"))) != 9).any()  # alpha is left to Pillow


def test_opencv_and_pillow_agree_where_both_are_there(settings, encode, gradient, monkeypatch):
    pytest.importorskip("cv2")
    data = encode(gradient(150, 90))
    prepare = of(settings, (3, 40, 40), dtypes.UINT8, antialias=False)
    one = prepare(data).astype(int)
    monkeypatch.setattr(resampling, "_opencv", lambda: None)
    assert np.abs(prepare(data) - one).max() <= 1


def test_rows_are_written_where_they_are_wanted(settings, encode):
    room = np.full((2, *NCHW), -1, np.float32)
    of(settings, NCHW, **FLAT)(encode(flat_image((7, 7, 7))), out=room[1])
    assert (room[0] == -1).all()
    assert (room[1] == 7).all()


def test_photos_of_the_right_size_are_not_resized(settings, encode, gradient):
    image = gradient(32, 32)
    row = of(settings, NHWC, dtypes.UINT8, crop="none")(encode(image))
    assert (row == np.asarray(image)).all()


def test_open_sizes_need_a_setting(settings):
    assert of(settings, (3, -1, -1), size=48).shape == (3, 48, 48)
    assert of(settings, (-1, -1, 3), size=[32, 64]).shape == (32, 64, 3)
    assert of(settings, (-1, -1, -1), size=48, layout="NHWC").shape == (48, 48, 3)


@pytest.mark.parametrize(
    ("dims", "datatype", "values", "sentence"),
    [
        ((3, -1, -1), dtypes.FP32, {}, "task.json: size: the model takes images of any size"),
        (
            (3, 8, 8),
            dtypes.FP32,
            {"size": 9},
            "does not match the model's input: [8, 8]. Leave it out",
        ),
        ((3, 8, 8), dtypes.FP32, {"size": "8"}, "Write 224, or [height, width]"),
        ((3, 8, 8), dtypes.FP32, {"size": [8]}, "Write 224, or [height, width]"),
        ((3, 8, 8), dtypes.FP32, {"resize": 7}, "Write a whole number from 8 to"),
        ((3, 8, 8), dtypes.FP32, {"resize": 9, "crop": "none"}, "photos are stretched"),
        ((3, 8, 8), dtypes.FP32, {"crop": "left"}, "Write one of center, none"),
        ((3, 8, 8), dtypes.FP32, {"interpolation": "sinc"}, "Write one of nearest, bilinear"),
        (
            (3, 8, 8),
            dtypes.FP32,
            {"interpolation": "lanczos", "antialias": False},
            "lanczos needs it",
        ),
        ((3, 8, 8), dtypes.FP32, {"mean": [1, 2]}, "Write 3 numbers, or one for all of them"),
        ((3, 8, 8), dtypes.FP32, {"std": 0}, "found 0, a division by zero"),
        ((3, 8, 8), dtypes.FP32, {"scale": "1/0"}, 'Write a number above 0, or "1/255"'),
        ((3, 8, 8), dtypes.FP32, {"scale": -1}, 'Write a number above 0, or "1/255"'),
        ((3, 8, 8), dtypes.FP32, {"layout": "CHW"}, "Write one of auto, NCHW, NHWC"),
        ((3, 8, 8), dtypes.FP32, {"channel_order": "GBR"}, "Write one of RGB, BGR"),
        ((4, 8, 8), dtypes.FP32, {}, "whose channel dimension is not 1 or 3"),
        ((3, 8, 8), dtypes.FP32, {"layout": "NHWC"}, "whose channel dimension"),
        ((64,), dtypes.FP32, {}, "config.pbtxt: input.dims: has the dims [64]; photos need three"),
        ((3, 8, 8), dtypes.BYTES, {}, "is of type TYPE_STRING; photos become numbers"),
        ((3, 8, 8), dtypes.UINT8, {"mean": 127}, "0 to 255 become -127 to 128"),
        ((3, 8, 8), dtypes.UINT8, {"scale": "1/255"}, "become 0 to 1, which are not whole numbers"),
        ((3, 8, 8), dtypes.INT8, {}, 'as "mean": 128 for INT8'),
        ((3, 8, 8), dtypes.FP32, {"sise": 9}, "no such setting for this task. Did you mean 'size'"),
    ],
)
def test_settings_that_are_wrong(settings, dims, datatype, values, sentence):
    with pytest.raises(ConfigError) as raised:
        of(settings, dims, datatype, **values)
    assert sentence in raised.value.message


def test_files_that_are_too_large(settings, encode, gradient):
    prepare = of(settings, max_bytes=100, max_pixels=10)
    with pytest.raises(InvalidArgument, match="'x' has 1,000 bytes, at most 100 are allowed"):
        prepare(bytes(1000), "'x'")
    prepare = of(settings, max_pixels=10)
    with pytest.raises(InvalidArgument, match="'x' has 64 x 48 pixels, at most 10 are allowed"):
        prepare(encode(gradient()), "'x'")


def test_a_large_jpeg_gives_nearly_the_same_row(settings, encode, gradient):
    image = gradient(1500, 1100)
    prepare = of(settings, NHWC, dtypes.UINT8)
    fast = prepare(encode(image, "JPEG", quality=95)).astype(int)
    whole = prepare(encode(image)).astype(int)
    assert np.abs(fast - whole).max() <= 4


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [(1, 30_000), (30_000, 1), (3, 9_000)])
def test_very_long_photos_are_never_made_whole(
    settings, encode, gradient, antialias, size, monkeypatch
):
    """The middle of one is all that is ever resized: as a whole it would not fit into memory."""
    monkeypatch.setattr(resampling, "_opencv", lambda: pytest.fail("asked for all of it"))
    prepare = of(settings, (3, 224, 224), dtypes.UINT8, antialias=antialias)
    assert not prepare.may_be_resized(size)
    assert prepare(encode(gradient(*size))).shape == (3, 224, 224)
    assert prepare.may_be_resized((4000, 3000))


def test_photos_are_stretched_before_the_crop(settings, encode):
    image = Image.fromarray(np.repeat(np.arange(64, dtype=np.uint8)[None], 20, 0)).convert("RGB")
    row = of(settings, resize=[40, 64], crop="center", scale=1)(encode(image))
    assert row[0, 0].tolist() == list(range(16, 48))  # the width was right; the height is doubled


@pytest.mark.parametrize(
    ("resize", "words"), [([40], "Write 256, or"), ([31, 40], "is smaller than the crop")]
)
def test_lengths_that_photos_cannot_be_stretched_to(settings, resize, words):
    with pytest.raises(ConfigError, match=words):
        of(settings, resize=resize)
