"""Small pictures to decode, and models made of a function."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from shoal.tasks.images.task import ImageClassification
from shoal.tasks.settings import TaskSettings
from shoal.testing.tasks import TaskRunner


def encode(image, kind="PNG", **options):
    """The bytes of a picture as a file of that kind."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def gradient(width=64, height=48):
    """Red grows to the right, green downwards; blue is 90."""
    across = np.linspace(0, 255, width, dtype=np.uint8)
    down = np.linspace(0, 255, height, dtype=np.uint8)
    pixels = np.full((height, width, 3), 90, np.uint8)
    pixels[:, :, 0] = across
    pixels[:, :, 1] = down[:, None]
    return Image.fromarray(pixels)


@pytest.fixture
def settings(tmp_path):
    """Make the settings of a task.json."""
    return lambda **values: TaskSettings(values, tmp_path)


CONFIG = """
name: "fake" backend: "identity" max_batch_size: 4
input { name: "image" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] }
parameters { key: "task" value { string_value: "image-classification" } }
"""
PLAIN = {"crop": "none", "scale": 1, "scores": "as-is"}


def mean_colours(inputs):
    """What the fake model gives: how much red, green and blue there is on an image."""
    return {"scores": inputs["image"].mean(axis=(2, 3))}


@pytest.fixture
def classifier(tmp_path):
    """Make a task with a model behind it that tells colours apart."""
    made = []
    folder = tmp_path / "fake"
    folder.mkdir()

    def make(config=CONFIG, task=None, compute=mean_colours):
        (folder / "config.pbtxt").write_text(config)
        (folder / "task.json").write_text(json.dumps(PLAIN | (task or {})))
        (folder / "labels.txt").write_text("red\ngreen\nblue\n")
        made.append(TaskRunner(ImageClassification, folder, compute))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(name="encode")
def encode_fixture():
    return encode


@pytest.fixture(name="gradient")
def gradient_fixture():
    return gradient
