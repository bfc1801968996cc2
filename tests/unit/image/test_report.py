"""The batches of a run, the lines that are printed, and the bar."""

import io
from pathlib import Path

import numpy as np
import pytest

from shoal.client import Output, Result
from shoal.errors import Internal
from shoal.image.report import ImageProgress, ImageReport
from shoal.image.sending import Batch, BatchResult, batches

FILES = [Path("a.png"), Path("b.png"), Path("c.png")]


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (3, 1, ["a", "b", "c"]),
        (3, 2, ["ab", "ca"]),  # the last is filled from the front
        (3, 3, ["abc"]),
        (1, 4, ["aaaa"]),
        (2, 5, ["ababa"]),
    ],
)
def test_batches(count, size, expected):
    found = list(batches(FILES[:count], size))
    assert ["".join(file.stem for file in batch.files) for batch in found] == expected
    assert [batch.number for batch in found] == list(range(1, len(found) + 1))


def answer(rows, number=1):
    """The answer that a server with the classification extension gives."""
    texts = np.array([[text.encode() for text in row] for row in rows], object)
    output = Output("prob", "BYTES", texts.shape, array=texts)
    files = tuple(FILES[place % len(FILES)] for place in range(len(rows)))
    return BatchResult(Batch(number, files), Result("m", "1", {"prob": output}))


def test_the_best_class_stands_beside_the_image():
    report = ImageReport("prob", 1)
    found = list(report.lines(answer([["0.777365:504:COFFEE MUG"], ["0.5:7"]])))
    assert found == [
        "Request 1, batch size 2",
        "Image 'a.png': 504 (COFFEE MUG) = 0.777365",
        "Image 'b.png': 7 = 0.500000",
    ]


def test_several_classes_stand_below_it():
    report = ImageReport("prob", 2)
    found = list(report.lines(answer([["0.75:504:COFFEE MUG", "0.25:968:CUP: of tea"]], 3)))
    assert found == [
        "Request 3, batch size 1",
        "Image 'a.png':",
        "    504 (COFFEE MUG) = 0.750000",
        "    968 (CUP: of tea) = 0.250000",
    ]


def test_totals():
    report = ImageReport("prob", 1)
    list(report.lines(answer([["0.5:1:cat"], ["0.5:2:dog"]])))
    list(report.lines(answer([["0.5:2:dog"], ["0.5:3"]])))
    assert list(report.totals()) == [
        "Prediction totals:",
        "\tcnt=2\t(2) dog",
        "\tcnt=1\t(1) cat",
        "\tcnt=1\t(3)",
    ]


def test_logits_become_probabilities():
    report = ImageReport("prob", 2, softmax=True)
    found = list(report.lines(answer([["1000:1:cat", "1000:2:dog", "-1000:3:eel"]])))
    assert found[2:] == ["    1 (cat) = 0.500000", "    2 (dog) = 0.500000"]


def test_servers_that_do_not_classify_send_scores():
    scores = np.array([[0.25, 0.75]], np.float32)
    result = Result("m", "1", {"prob": Output("prob", "FP32", scores.shape, array=scores)})
    found = list(ImageReport("prob", 1).lines(BatchResult(Batch(1, (FILES[0],)), result)))
    assert found[1:] == ["Image 'a.png': 1 = 0.750000"]


def test_a_row_for_each_image():
    rows = answer([["0.5:1:cat"]])
    with pytest.raises(Internal, match="expected 2 results, got 1"):
        list(ImageReport("prob", 1).lines(BatchResult(Batch(1, tuple(FILES[:2])), rows.result)))


def test_the_bar():
    terminal = io.StringIO()
    progress = ImageProgress(4, terminal)
    progress.step(1)
    progress.step(5)  # images that filled a batch up do not count
    progress.hide()
    _, first, second, hidden = terminal.getvalue().split("\r")
    assert first == f"[{'#' * 7}{'.' * 23}] 1/4"
    assert second == f"[{'#' * 30}] 4/4"
    assert hidden == "\x1b[K"


def test_no_bar_without_a_terminal():
    progress = ImageProgress(4, None)
    progress.step(1)
    progress.hide()
