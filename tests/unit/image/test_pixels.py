"""Files become arrays: sizes, layouts, scalings, and what is said of files that are no images."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from shoal.core import dtypes
from shoal.errors import InvalidArgument, NotFound, Unsupported
from shoal.image.classifier import Classifier
from shoal.image.pixels import SCALINGS, check_scaling, fits, image_files, preprocess

Image = pytest.importorskip("PIL.Image")

MODEL = Classifier("m", "data", "prob", dtypes.FP32, 3, 4, 6, True, 8, True, 10)
RED, GREEN = (255, 0, 0), (0, 255, 0)


@pytest.fixture
def red(tmp_path):
    file = tmp_path / "red.png"
    Image.new("RGB", (10, 20), RED).save(file)
    return file


def test_layouts(red):
    first = preprocess(red, MODEL, "NONE")
    assert first.shape == (3, 4, 6)
    assert first.dtype == np.float32
    assert first.flags.c_contiguous
    assert [plane.mean() for plane in first] == [255, 0, 0]
    last = preprocess(red, replace(MODEL, channels_first=False), "NONE")
    assert last.shape == (4, 6, 3)
    np.testing.assert_array_equal(last.transpose(2, 0, 1), first)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "CMYK", "I;16"])
def test_every_kind_of_image_becomes_what_the_model_takes(tmp_path, mode):
    file = tmp_path / "image.tiff"
    Image.new(mode, (3, 3)).save(file)
    assert preprocess(file, MODEL, "NONE").shape == (3, 4, 6)
    assert preprocess(file, replace(MODEL, channels=1), "VGG").shape == (1, 4, 6)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ("NONE", [255, 0, 0]),
        ("INCEPTION", [1, -1, -1]),
        ("VGG", [132, -117, -104]),
        ("UNIT", [1, 0, 0]),
        ("IMAGENET", [2.2489083, -2.0357144, -1.8044444]),
        ("LITE", [1, -127 / 128, -127 / 128]),
    ],
)
def test_scalings(red, scaling, expected):
    found = preprocess(red, MODEL, scaling)
    np.testing.assert_allclose(found[:, 0, 0], expected, rtol=1e-6)
    kind = SCALINGS[scaling]
    assert kind.lowest <= found.min() <= found.max() <= kind.highest


def test_every_scaling_has_a_case_above():
    marks = test_scalings.pytestmark[0].args[1]
    assert [scaling for scaling, _ in marks] == list(SCALINGS)


@pytest.mark.parametrize(
    ("datatype", "scalings"),
    [
        ("FP32", list(SCALINGS)),
        ("BF16", list(SCALINGS)),
        ("UINT8", ["NONE"]),
        ("INT32", ["NONE", "VGG"]),
        ("INT8", []),
    ],
)
def test_which_scalings_fit_a_datatype(datatype, scalings):
    kind = dtypes.from_name(datatype)
    assert [name for name in SCALINGS if fits(name, kind)] == scalings


def test_a_scaling_that_does_not_fit_is_told():
    check_scaling("VGG", MODEL)
    with pytest.raises(
        InvalidArgument, match="UINT8, the datatype of model 'm', cannot represent; use -s NONE"
    ):
        check_scaling("VGG", replace(MODEL, datatype=dtypes.UINT8))
    with pytest.raises(InvalidArgument, match="no scaling fits"):
        check_scaling("NONE", replace(MODEL, datatype=dtypes.INT8))


def test_datatypes(red):
    assert preprocess(red, replace(MODEL, datatype=dtypes.UINT8), "NONE").dtype == np.uint8
    assert preprocess(red, replace(MODEL, datatype=dtypes.FP16), "UNIT").dtype == np.float16
    assert preprocess(red, replace(MODEL, datatype=dtypes.BF16), "UNIT").dtype == np.float32


@pytest.mark.parametrize(("size", "crop"), [((40, 10), True), ((10, 40), True), ((9, 9), True)])
def test_a_crop_leaves_the_edges_out(tmp_path, size, crop):
    image = Image.new("RGB", size, GREEN)
    width, height = size
    middle = Image.new("RGB", (width - 2, height - 2), RED)
    image.paste(middle, (1, 1))
    file = tmp_path / "framed.png"
    image.save(file)
    square = replace(MODEL, height=8, width=8)
    whole = preprocess(file, square, "NONE")
    cut = preprocess(file, square, "NONE", crop=crop)
    assert cut.shape == whole.shape
    assert cut[1].mean() < whole[1].mean()  # less of the green edge


def test_photos_are_turned_as_the_camera_was(tmp_path):
    image = Image.new("RGB", (8, 4), RED)
    image.paste(Image.new("RGB", (4, 4), GREEN), (0, 0))  # green on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees: left becomes top
    file = tmp_path / "photo.png"
    image.save(file, exif=exif)
    found = preprocess(file, replace(MODEL, height=8, width=4), "NONE")
    assert found[1, 0].mean() == 255
    assert found[1, -1].mean() == 0


def test_files_and_folders(tmp_path, red):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_bytes(b"")
    (folder / "deeper.png").mkdir()
    for name in ("b.JPG", "a.png"):
        Image.new("RGB", (2, 2)).save(folder / name)
    found = image_files([str(red), str(folder)])
    assert found == [red, folder / "a.png", folder / "b.JPG"]


def test_what_is_not_there(tmp_path):
    with pytest.raises(NotFound, match=r"no file or folder '.*nowhere'"):
        image_files([str(tmp_path / "nowhere")])
    with pytest.raises(NotFound, match="no images in the folder"):
        image_files([str(tmp_path)])
    with pytest.raises(NotFound, match=r"no file '.*gone\.png'"):
        preprocess(tmp_path / "gone.png", MODEL, "NONE")


def test_broken_images_are_named(tmp_path, red):
    text = tmp_path / "text.jpg"
    text.write_text("no image at all")
    with pytest.raises(InvalidArgument, match=r"text\.jpg' is not an image that Pillow can read"):
        preprocess(text, MODEL, "NONE")
    for ending in ("jpg", "png", "gif", "bmp", "tiff", "webp"):
        cut = tmp_path / f"cut.{ending}"
        Image.effect_noise((64, 64), 90).convert("RGB").save(cut)
        content = cut.read_bytes()
        cut.write_bytes(content[: len(content) * 2 // 3])
        with pytest.raises(
            InvalidArgument, match=rf"cut\.{ending}' (cannot be read: |is not an image)"
        ):
            preprocess(cut, MODEL, "NONE")
    with pytest.raises(InvalidArgument, match="cannot be read: Is a directory"):
        preprocess(tmp_path, MODEL, "NONE")


def test_without_pillow(red, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Unsupported, match=r"pip install 'shoal\[image\]'"):
        preprocess(red, MODEL, "NONE")
