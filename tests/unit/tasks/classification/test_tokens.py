"""Which words of a text are an entity."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shoal.errors import ConfigError, InvalidArgument
from shoal.tasks.classification.tokens import TokenClassification
from shoal.testing.tasks import TaskRunner
from tests.support.encoders import tokenizer_document

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
CONFIG = """
max_batch_size: 4
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "logits" data_type: TYPE_FP32 dims: [ -1, %d ] }
parameters { key: "task" value { string_value: "token-classification" } }
"""


@pytest.fixture
def tag(tmp_path):
    """Runs the task on a text whose words get these labels; the entities."""

    def run(text, labels, **values):
        found = [LABELS.index(label) for label in ("O", *labels.split(), "O")]

        def compute(inputs):
            logits = np.zeros((1, inputs["input_ids"].shape[1], len(LABELS)), np.float32)
            logits[0, np.arange(len(found)), found] = 5
            return {"logits": logits}

        folder(tmp_path)
        with TaskRunner(TokenClassification, tmp_path, compute) as task:
            return task.ask(text=text, **values)["texts"][0]["entities"]

    return run


def folder(path, classes=5):
    (path / "config.pbtxt").write_text(CONFIG % classes)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_document()))
    (path / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))


@pytest.mark.parametrize(
    ("labels", "entities"),
    [
        ("O O O O", []),
        ("B-PER I-PER O B-LOC", [("PER", "the old"), ("LOC", "boat")]),
        ("B-PER B-PER O O", [("PER", "the"), ("PER", "old")]),  # the second begins another
        ("I-PER I-LOC I-LOC O", [("PER", "the"), ("LOC", "old red")]),
        ("B-PER I-PER I-PER I-PER", [("PER", "the old red boat")]),
    ],
)
def test_neighbours_of_one_name_are_one_entity(tag, labels, entities):
    found = tag("the old red boat", labels)
    assert [(one["label"], one["text"]) for one in found] == entities
    text = "the old red boat"
    assert all(text[one["start"] : one["end"]] == one["text"] for one in found)


def test_every_token_by_itself(tag):
    found = tag("the old", "B-PER I-PER", aggregation="none")
    assert [(one["label"], one["text"]) for one in found] == [("B-PER", "the"), ("I-PER", "old")]


def test_a_word_has_the_label_of_its_first_token(tag):
    (found,) = tag("the old", "B-PER O", aggregation="first")
    assert (found["text"], found["label"]) == ("the", "PER")


def test_what_is_wrong_is_said(tag, tmp_path):
    with pytest.raises(InvalidArgument, match="'aggregation' must be one of simple, first, none"):
        tag("the", "O", aggregation="max")
    folder(tmp_path, classes=3)
    with (
        pytest.raises(ConfigError, match="there are 5 labels, and output 'logits' has 3"),
        TaskRunner(TokenClassification, tmp_path, lambda inputs: inputs),
    ):
        pass
