"""Testing a Python model without a server: `pytest examples/python_model`.

`PythonModelRunner` initialises the model as the server would and hands it requests. The models it
asks are played by functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.testing.python_models import ModelFailed, PythonModelRunner

MODEL = Path(__file__).parent / "model_repository" / "word_lengths" / "1" / "model.py"


def text(*words: bytes | str) -> dict[str, np.ndarray]:
    """A request's input: one row per word."""
    return {"TEXT": np.array([[word] for word in words], dtype=object)}


@pytest.fixture
def model() -> Iterator[PythonModelRunner]:
    """The initialised model; finalised after the test."""
    with PythonModelRunner(MODEL) as runner:
        yield runner


def test_characters_are_counted(model: PythonModelRunner) -> None:
    assert model.infer(text("shoal", "été"))["LENGTH"].tolist() == [[5], [3]]


def test_a_batch_is_answered_request_by_request(model: PythonModelRunner) -> None:
    first, second = model.batch([text("a"), text("four")])
    assert (first["LIKED"].item(), second["LIKED"].item()) == (False, True)


def test_only_what_is_asked_for_is_computed(model: PythonModelRunner) -> None:
    assert list(model.infer(text("a"), requested_outputs=["LENGTH"])) == ["LENGTH"]


def test_a_wrong_text_fails_alone(model: PythonModelRunner) -> None:
    with pytest.raises(ModelFailed, match="TEXT is not UTF-8"):
        model.infer(text(b"\xff"))


def test_the_metric_counts(model: PythonModelRunner) -> None:
    model.infer(text("shoal"))
    assert 'word_lengths_characters{model="word_lengths"} 5' in model.metrics_text()


def test_another_model_may_judge() -> None:
    config = {"name": "word_lengths", "parameters": {"judge": {"string_value": "critic"}}}
    critic = {"critic": lambda inputs: {"LIKED": inputs["LENGTH"] == 1}}
    with PythonModelRunner(MODEL, config=config, models=critic) as model:
        assert model.infer(text("a"))["LIKED"].item()
