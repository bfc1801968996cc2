"""Photos as files, as bare bodies and in JSON."""

from __future__ import annotations

import base64

import pytest

from shoal.errors import InvalidArgument
from shoal.tasks.images.sent import images_of, titles
from shoal.tasks.request import File, TaskRequest

TEXT = base64.b64encode(b"one photo").decode()


def test_files_come_in_order():
    files = [File(b"1", "image", "b.jpg"), File(b"2", "image", "a.jpg"), File(b"3")]
    assert images_of(TaskRequest(files)) == files


@pytest.mark.parametrize(
    ("values", "contents"),
    [
        ({"image": TEXT}, [b"one photo"]),
        ({"images": [TEXT, TEXT]}, [b"one photo"] * 2),
        ({"image": [TEXT], "images": TEXT}, [b"one photo"] * 2),
        ({"image": f"data:image/png;base64,{TEXT}"}, [b"one photo"]),
        ({"image": f"{TEXT[:4]}\n{TEXT[4:]}\n"}, [b"one photo"]),
    ],
)
def test_base64(values, contents):
    assert [file.data for file in images_of(TaskRequest(values=values))] == contents


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "there is no image in the request. Send one with curl -F image=@photo.jpg"),
        ({"images": []}, "there is no image in the request"),
        ({"image": None}, "there is no image in the request"),
        ({"image": 7}, "'image' must be an image in base64, as a text"),
        ({"images": [TEXT, {}]}, "'images'[1] must be an image in base64"),
        ({"image": "cat.jpg"}, "write an @ before its name: curl -F image=@cat.jpg"),
        ({"image": "x" * 1001}, "'image' is not base64. Send one with curl"),
        ({"image": "https://x/cat.jpg"}, "'image' is a URL; the server does not fetch URLs"),
        ({"image": "data:image/png,abc"}, "'image' is a data: URL without ;base64"),
    ],
)
def test_what_is_no_photo(values, sentence):
    with pytest.raises(InvalidArgument) as raised:
        images_of(TaskRequest(values=values))
    assert sentence in raised.value.message


def test_too_many():
    files = [File(b"1")] * 3
    with pytest.raises(InvalidArgument, match="has 3 images, at most 2 are allowed"):
        images_of(TaskRequest(files), most=2)


def test_titles():
    assert titles([File(b"", name="cat.jpg")]) == ["the image 'cat.jpg'"]
    assert titles([File(b"")]) == ["the image"]
    assert titles([File(b""), File(b"", name="a")]) == ["image 1 of 2", "the image 'a'"]
