"""Tests of the task without a server, with a function as the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from shoal_prices import PriceEstimate

from shoal.errors import ConfigError, InvalidArgument
from shoal.testing.tasks import TaskRunner

CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
parameters { key: "task" value { string_value: "price-estimate" } }
"""


def total(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A model: one unit of money per 100 square metres, and one per room."""
    return {"y": inputs["x"].sum(axis=1, keepdims=True)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "task.json").write_text('{"currency": "CHF"}')
    return tmp_path


def test_it_answers(folder: Path) -> None:
    with TaskRunner(PriceEstimate, folder, total) as task:
        assert task.ask(size=80, rooms=3) == {"price": 380_000, "words": "about 380,000 CHF"}
        assert task.ask()["price"] == 400_000


def test_wrong_numbers(folder: Path) -> None:
    with TaskRunner(PriceEstimate, folder, total) as task:
        with pytest.raises(InvalidArgument, match="'rooms' must be a whole number from 1 to 100"):
            task.ask(rooms=0)
        with pytest.raises(InvalidArgument, match="'size' must be a number from 1 to 10000"):
            task.ask(size="large")


def test_settings_are_checked(folder: Path) -> None:
    (folder / "task.json").write_text(json.dumps({"curency": "CHF"}))
    with pytest.raises(ConfigError, match="Did you mean 'currency'"):
        TaskRunner(PriceEstimate, folder, total)


def test_other_models(folder: Path) -> None:
    (folder / "config.pbtxt").write_text(CONFIG.replace("[ 2 ]", "[ 3 ]"))
    with pytest.raises(ConfigError, match="size and rooms"):
        TaskRunner(PriceEstimate, folder, total)
