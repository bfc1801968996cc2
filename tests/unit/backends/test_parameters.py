"""Parameters of a config, with the settings of its backend behind them."""

from __future__ import annotations

import pytest

from shoal.backends.parameters import Parameters
from shoal.config.model import ModelConfig, ModelParameter
from shoal.errors import ConfigError


def parameters(settings=None, **values):
    config = ModelConfig(parameters={key: ModelParameter(text) for key, text in values.items()})
    return Parameters("mine", config, settings or {}, "m/config.pbtxt")


def test_a_model_goes_before_its_backend():
    given = parameters({"threads": "2", "only": "x"}, threads="3")
    assert given.count("threads") == 3
    assert given.text("only") == "x"
    assert given.text("neither") == ""


def test_the_first_name_that_is_there_counts():
    assert parameters(OLD="5").count("NEW", "OLD") == 5
    assert parameters(OLD="5", NEW="6").count("NEW", "OLD") == 6


@pytest.mark.parametrize(
    ("text", "answer"),
    [("YES", True), ("true", True), ("1", True), ("NO", False), ("False", False), ("", None)],
)
def test_flags(text, answer):
    assert parameters(flag=text).flag("flag") is answer


def test_numbers_and_choices():
    assert parameters(threshold="0.25").number("threshold") == 0.25
    assert parameters().number("threshold") is None
    assert parameters(hint="latency").choice(("LATENCY", "THROUGHPUT"), "hint") == "LATENCY"
    assert parameters().choice(("LATENCY",), "hint") == ""


def test_default_max_batch_size():
    assert parameters().default_max_batch_size() == 4
    assert parameters().default_max_batch_size(64) == 64
    assert parameters({"default-max-batch-size": "0"}).default_max_batch_size(64) == 0


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (lambda p: p.count("x"), "-1", "a whole number"),
        (lambda p: p.flag("x"), "maybe", "true or false"),
        (lambda p: p.number("x"), "high", "a number"),
        (lambda p: p.choice(("A", "B"), "x"), "C", "one of A, B"),
    ],
)
def test_wrong_values_name_their_place(read, text, expected):
    with pytest.raises(ConfigError) as raised:
        read(parameters(x=text))
    assert raised.value.message.startswith(f"m/config.pbtxt: parameters['x']: expected {expected}")
    assert repr(text) in raised.value.message
    with pytest.raises(ConfigError) as raised:
        read(parameters({"x": text}))
    assert raised.value.message.startswith(f"--backend-config=mine,x={text}: expected {expected}")


def test_a_wrong_default_max_batch_size():
    with pytest.raises(ConfigError, match="default-max-batch-size=many: expected a whole number"):
        parameters({"default-max-batch-size": "many"}).default_max_batch_size()
