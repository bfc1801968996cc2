"""Scores become labels, the best first."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core import dtypes
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import ConfigError, Internal
from shoal.tasks.ranking import Ranking


def output(name="scores", dims=(3,), datatype=dtypes.FP32, labels=()):
    return TensorSpec(name, datatype, dims, labels=labels)


def ranking(settings, tmp_path, *outputs, **values):
    read = settings(**values)
    specs = {spec.name: spec for spec in outputs or (output(),)}
    made = Ranking.of(read, Signature("m", 8, {}, specs), tmp_path)
    read.check_all_read()
    return made


def best(made, *rows, top=3):
    array = np.array(rows, np.float32)
    return made.best(array, len(rows), top)


def test_logits_become_probabilities(settings, tmp_path):
    (row,) = best(ranking(settings, tmp_path), [0, np.log(2), np.log(5)])
    assert [(label["index"], label["label"], label["score"]) for label in row] == [
        (2, "2", 0.625),
        (1, "1", 0.25),
        (0, "0", 0.125),
    ]


def test_probabilities_stay_as_they_are(settings, tmp_path):
    (row,) = best(ranking(settings, tmp_path), [0.25, 0.5, 0.25], top=2)
    assert [label["score"] for label in row] == [0.5, 0.25]
    (row,) = best(ranking(settings, tmp_path, scores="softmax"), [0.25, 0.5, 0.25], top=1)
    assert row[0]["score"] == pytest.approx(0.391, abs=0.001)


def test_scores_as_they_are(settings, tmp_path):
    (row,) = best(ranking(settings, tmp_path, scores="as-is"), [7, -3, 9.5])
    assert [label["score"] for label in row] == [9.5, 7, -3]


def test_quantised_scores_stay_as_they_are(settings, tmp_path):
    made = ranking(settings, tmp_path, output(datatype=dtypes.UINT8))
    (row,) = made.best(np.array([[1, 250, 4]], np.uint8), 1, 1)
    assert row == [{"label": "1", "score": 250, "index": 1}]


def test_equal_scores_come_by_number(settings, tmp_path):
    made = ranking(settings, tmp_path, scores="as-is")
    assert [label["index"] for label in best(made, [1, 1, 1])[0]] == [0, 1, 2]


def test_rows_of_several_photos(settings, tmp_path):
    made = ranking(settings, tmp_path, scores="as-is", top=1)
    assert made.top == 1
    assert [row[0]["index"] for row in best(made, [1, 2, 3], [9, 2, 3], top=1)] == [2, 0]


def test_outputs_without_a_batch_dimension_and_with_ones(settings, tmp_path):
    made = ranking(settings, tmp_path, output(dims=(3, 1, 1)), scores="as-is")
    assert made.classes == 3
    assert made.best(np.ones((3, 1, 1), np.float32), 1, 3)[0][0]["index"] == 0
    assert ranking(settings, tmp_path, output(dims=(-1, 3))).classes == 3


def test_labels_of_the_folder_the_output_and_the_setting(settings, tmp_path):
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    (tmp_path / "mine.txt").write_text("x\ny\nz\n")
    assert ranking(settings, tmp_path).labels == ("a", "b", "c")
    labelled = output(labels=("r", "g", "b"))
    assert ranking(settings, tmp_path, labelled).labels == ("r", "g", "b")
    assert ranking(settings, tmp_path, labelled, labels="mine.txt").labels == ("x", "y", "z")


def test_the_number_of_classes_is_that_of_the_labels_where_it_is_open(settings, tmp_path):
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    made = ranking(settings, tmp_path, output(dims=(-1,)))
    assert made.highest_top == 3


def test_no_labels_and_an_open_number_of_classes(settings, tmp_path):
    made = ranking(settings, tmp_path, output(dims=(-1,)), scores="as-is")
    assert made.highest_top > 1000
    assert len(best(made, [1, 2], top=50)[0]) == 2


def test_which_output(settings, tmp_path):
    two = (output("features", (512,)), output("scores", labels=("a", "b", "c")))
    assert ranking(settings, tmp_path, *two).output == "scores"
    plain = (output("features", (512,)), output("scores"))
    assert ranking(settings, tmp_path, *plain, output="scores").output == "scores"


@pytest.mark.parametrize(
    ("outputs", "values", "sentence"),
    [
        ((output("a"), output("b")), {}, "2 outputs. Write which one has the scores: a, b"),
        ((output("a"),), {"output": "b"}, "there is no output 'b'. Write one of a"),
        ((output(dims=(7, 8)),), {}, "a classifier returns one row of scores per input"),
        ((output(datatype=dtypes.BYTES),), {}, "a classifier returns scores"),
        ((output(),), {"top": 4}, "Write a whole number from 1 to 3"),
        ((output(),), {"scores": "log"}, "Write one of auto, softmax, sigmoid, as-is"),
        ((output(),), {"labels": "none.txt"}, "there is no file 'none.txt'"),
        ((output(),), {"labels": "two.txt"}, "there are 2 labels, and output 'scores' has 3"),
        ((output(),), {"labels": "odd.txt"}, "Write one label per line, as UTF-8"),
    ],
)
def test_settings_that_are_wrong(settings, tmp_path, outputs, values, sentence):
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ConfigError) as raised:
        ranking(settings, tmp_path, *outputs, **values)
    assert sentence in raised.value.message


def test_what_are_no_scores(settings, tmp_path):
    made = ranking(settings, tmp_path)
    with pytest.raises(Internal, match="contains scores that are not finite"):
        best(made, [1, float("nan"), 2])
    with pytest.raises(Internal, match="not one row of classes for each of 1 inputs"):
        best(made, [1, 2, 3, 4])
