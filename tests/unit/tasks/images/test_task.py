"""The task as a whole, with a model made of a function."""

from __future__ import annotations

import base64
import json
import threading

import numpy as np
import pytest
from PIL import Image

from shoal.errors import BackendFailure, ConfigError, InvalidArgument
from shoal.tasks.endpoint import check_task
from shoal.tasks.images.task import ImageClassification
from shoal.tasks.request import File

RED, GREEN, BLUE = (250, 20, 10), (20, 250, 10), (10, 20, 250)
COLOURS = {"red": RED, "green": GREEN, "blue": BLUE}


@pytest.fixture
def photo(encode):
    return lambda colour: encode(Image.new("RGB", (12, 10), COLOURS[colour]))


def tops(answer):
    return [image["labels"][0]["label"] for image in answer["images"]]


def test_a_photo_gets_its_labels(classifier, photo):
    answer = classifier().ask(File(photo("green"), "image", "leaf.png"))
    assert answer == {
        "model_name": "fake",
        "model_version": "1",
        "images": [
            {
                "file": "leaf.png",
                "labels": [
                    {"label": "green", "score": 250.0, "index": 1},
                    {"label": "red", "score": 20.0, "index": 0},
                    {"label": "blue", "score": 10.0, "index": 2},
                ],
            }
        ],
    }
    json.dumps(answer)


def test_several_photos_keep_their_order_and_share_requests(classifier, photo):
    colours = ["red", "blue", "green", "green", "blue", "red", "blue", "blue", "red"]
    made = classifier()
    assert tops(made.ask(*map(photo, colours))) == colours
    assert [request.inputs["image"].shape[0] for request in made.model.requests] == [4, 4, 1]


def test_top(classifier, photo):
    made = classifier(task={"top": 2})
    assert len(made.ask(photo("red"))["images"][0]["labels"]) == 2
    assert len(made.ask(photo("red"), top="1")["images"][0]["labels"]) == 1
    for wrong in (0, 4, "many", 1.5, True):
        with pytest.raises(InvalidArgument, match="'top' must be a whole number from 1 to 3"):
            made.ask(photo("red"), top=wrong)


def test_base64(classifier, photo):
    text = base64.b64encode(photo("blue")).decode()
    assert tops(classifier().ask(image=text)) == ["blue"]


def test_one_bad_photo_is_named_and_the_model_is_not_asked(classifier, photo):
    made = classifier()
    good, bad = File(photo("red"), "image", "good.png"), File(b"%PDF-1.4", "image", "bad.pdf")
    with pytest.raises(InvalidArgument, match=r"the image 'bad\.pdf' is a PDF document"):
        made.ask(good, bad, good)
    with pytest.raises(InvalidArgument, match="image 2 of 2 is empty"):
        made.ask(photo("red"), b"")
    assert made.model.requests == []
    assert tops(made.ask(good)) == ["red"]


def test_no_photo_and_too_many(classifier, photo):
    made = classifier(task={"max_images": 2})
    with pytest.raises(InvalidArgument, match="there is no image in the request"):
        made.ask()
    with pytest.raises(InvalidArgument, match="has 3 images, at most 2"):
        made.ask(*[photo("red")] * 3)


def test_limits_of_the_settings(classifier, photo):
    made = classifier(task={"max_bytes": 10})
    with pytest.raises(InvalidArgument, match="at most 10 are allowed"):
        made.ask(photo("red"))


def test_what_the_model_fails_with_is_told(classifier, photo):
    def fail(inputs):
        raise BackendFailure("out of colours")

    with pytest.raises(BackendFailure, match="out of colours"):
        classifier(compute=fail).ask(photo("red"))


def test_counts(classifier, photo):
    made = classifier()
    made.ask(photo("red"), photo("blue"))
    with pytest.raises(InvalidArgument):
        made.ask()
    counted = made.endpoint.statistics.snapshot()
    assert counted["name"] == "image-classification"
    counts = {kind: counted[kind]["count"] for kind in ("success", "fail")}
    assert counts == {"success": 1, "fail": 1}
    assert counted["preprocess"]["count"] == 2
    assert counted["postprocess"]["count"] == 1


def test_the_work_is_done_off_the_loop(classifier, photo, monkeypatch):
    names = []
    prepared = ImageClassification._prepared

    def note(self, photos):
        names.append(threading.current_thread().name)
        return prepared(self, photos)

    monkeypatch.setattr(ImageClassification, "_prepared", note)
    classifier().ask(photo("red"))
    assert all(name.startswith("shoal-task") for name in names)
    assert names


def config(inputs, outputs='{ name: "scores" data_type: TYPE_FP32 dims: [ 3 ] }', batch=0):
    return (
        f'name: "fake" backend: "identity" max_batch_size: {batch} input {inputs} '
        f'output {outputs} parameters {{ key: "task" value {{ '
        f'string_value: "image-classification" }} }}'
    )


def one(data_type="TYPE_FP32", dims="3, 8, 8", more=""):
    return f'{{ name: "image" data_type: {data_type} dims: [ {dims} ] {more} }}'


def test_a_model_without_a_batch_dimension(classifier, photo):
    made = classifier(
        config(one()), compute=lambda inputs: {"scores": inputs["image"].mean(axis=(1, 2))}
    )
    assert tops(made.ask(photo("red"), photo("blue"))) == ["red", "blue"]
    assert [request.inputs["image"].shape for request in made.model.requests] == [(3, 8, 8)] * 2


@pytest.mark.parametrize(("first", "shapes"), [("1", [1, 1]), ("-1", [2])])
def test_a_batch_dimension_among_the_dims(classifier, photo, first, shapes):
    scores = '{ name: "scores" data_type: TYPE_FP32 dims: [ -1, 3 ] }'
    made = classifier(config(one(dims=f"{first}, 3, 8, 8"), scores))
    assert tops(made.ask(photo("red"), photo("blue"))) == ["red", "blue"]
    assert [request.inputs["image"].shape[0] for request in made.model.requests] == shapes


def test_bytes_of_pixels_channels_last(classifier, photo):
    made = classifier(
        config(one("TYPE_UINT8", "8, 8, 3"), batch=8),
        compute=lambda inputs: {"scores": inputs["image"].mean(axis=(1, 2), dtype=np.float32)},
    )
    assert tops(made.ask(photo("blue"))) == ["blue"]
    assert made.model.requests[0].inputs["image"].array.dtype == np.uint8


def test_the_format_of_the_config_counts(classifier, photo):
    made = classifier(
        config(one(dims="3, 3, 3", more="format: FORMAT_NHWC"), batch=1),
        compute=lambda inputs: {"scores": inputs["image"].mean(axis=(1, 2))},
    )
    assert tops(made.ask(photo("blue"))) == ["blue"]


def test_one_of_several_outputs(classifier, photo):
    outputs = (
        '{ name: "features" data_type: TYPE_FP32 dims: [ 8 ] } '
        'output { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] }'
    )
    made = classifier(config(one(), outputs, batch=4), task={"output": "scores"})
    assert tops(made.ask(photo("green"))) == ["green"]
    assert made.model.requests[0].requested_outputs == ("scores",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (config(one() + " input " + one().replace("image", "mask")), "the model has 2 inputs"),
        (config(one(dims="2, 3, 8, 8")), "requires exactly 2 images in a request"),
        (config(one(dims="8, 8")), "photos need three: channels, height and width"),
        (config(one("TYPE_STRING", "1, 8, 8")), "photos become numbers"),
    ],
)
def test_models_that_are_no_classifiers(classifier, text, sentence):
    with pytest.raises(ConfigError) as raised:
        classifier(text)
    assert sentence in raised.value.message


def test_a_setting_nobody_knows(classifier):
    with pytest.raises(ConfigError, match=r"task\.json: topp: no such setting"):
        classifier(task={"topp": 5})


def test_checking_without_a_model(classifier, tmp_path):
    made = classifier()
    folder = tmp_path / "fake"
    check_task(made.model.config, made.model.signature, folder)
    (folder / "task.json").write_text('{"size": 9}')
    with pytest.raises(ConfigError, match=r"task\.json: size"):
        check_task(made.model.config, made.model.signature, folder)
