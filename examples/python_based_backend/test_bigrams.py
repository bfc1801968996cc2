"""Testing a Python-based backend without a server: `pytest examples/python_based_backend`.

The runner initialises the backend's model.py as the server would for the model in `version_folder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.testing.python_models import ModelFailed, PythonModelRunner

FOLDER = Path(__file__).parent


@pytest.fixture
def tides() -> Iterator[PythonModelRunner]:
    """The model `tides`; finalised after the test."""
    with PythonModelRunner(
        FOLDER / "backends" / "bigrams" / "model.py",
        version_folder=FOLDER / "model_repository" / "tides" / "1",
    ) as runner:
        yield runner


def prompt(text: str, **switches: bool) -> dict[str, np.ndarray]:
    tensors = {name: np.array([value]) for name, value in switches.items()}
    return {"text_input": np.array([text], dtype=object), **tensors}


def test_the_whole_text_at_once(tides: PythonModelRunner) -> None:
    assert tides.infer(prompt("The sea"))["text_output"] == [b" pulls the tide comes in and"]


def test_one_response_for_each_word(tides: PythonModelRunner) -> None:
    responses = tides.stream(prompt("The sea", stream=True), parameters={"max_tokens": 2})
    assert [outputs["text_output"].item() for outputs in responses] == [b" pulls", b" the"]


def test_an_unknown_word(tides: PythonModelRunner) -> None:
    with pytest.raises(ModelFailed, match="does not have the word 'sky'"):
        tides.infer(prompt("The sky"))
