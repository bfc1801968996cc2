from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from shoal.backends.pytorch.load_check import difference, example
from shoal.config.model import ModelConfig, ModelInput


def config(*inputs, batch=0):
    return ModelConfig(
        max_batch_size=batch,
        input=tuple(ModelInput(name=n, data_type=f"TYPE_{t}", dims=d) for n, t, d in inputs),
    )


def test_a_batch_has_the_shapes_and_types_of_the_config():
    kinds = [
        ("ids", "INT64", (5,)),
        ("x", "FP16", (2, 3)),
        ("m", "BOOL", (1,)),
        ("b", "BF16", (4,)),
    ]
    found = example(config(*kinds, batch=64))
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        "ids": ((4, 5), np.int64),
        "x": ((4, 2, 3), np.float16),
        "m": ((4, 1), np.bool_),
        "b": ((4, 4), np.uint16),
    }
    assert set(np.unique(found["ids"])) == {0, 1}
    assert ((found["x"] >= 0) & (found["x"] <= 1)).all()
    assert example(config(("x", "FP32", (3,))))["x"].shape == (3,)


@pytest.mark.parametrize("unknown", [("x", "FP32", (-1,)), ("x", "STRING", (1,))])
def test_there_is_none_for_shapes_that_vary_and_for_strings(unknown):
    assert example(config(unknown)) is None


ONES = np.ones(100, np.float32)


@pytest.mark.parametrize(
    ("after", "share"),
    [
        (ONES, 0),
        (ONES * 1.05, 0.05),
        (ONES.astype(np.float16), math.inf),
        (ONES[:50], math.inf),
        (ONES * np.inf, math.inf),
        (ONES * np.nan, math.inf),
    ],
)
def test_the_difference_is_a_share_of_the_size(after, share):
    assert difference([ONES, ONES], [ONES, after]) == pytest.approx(share, abs=1e-6)


def test_numbers_that_were_none_before_do_not_count():
    before = np.float32([1, np.nan, -np.inf])
    assert difference([before], [np.float32([1, 0, np.nan])]) == 0


def test_integers_differ_or_not():
    assert difference([np.arange(4)], [np.int64([0, 1, 2, 7])]) == 0.25
    assert difference([np.zeros(0, np.int64)], [np.zeros(0, np.int64)]) == 0
    assert difference([np.zeros(3, np.float32)], [np.full(3, 1e-9, np.float32)]) < 1e-8
