"""The echoing backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.backends import identity
from shoal.backends.base import LoadContext, Placement
from shoal.backends.identity import IdentityBackend
from shoal.config.model import ModelConfig, ModelInput, ModelOutput, ModelParameter
from shoal.errors import BackendFailure, ConfigError

FOLDER = Path("echo")
PLACE = Placement("KIND_CPU")


def tensor_in(name, data_type="TYPE_FP32", dims=(2,), **more):
    return ModelInput(name=name, data_type=data_type, dims=dims, **more)


def tensor_out(name, data_type="TYPE_FP32", dims=(2,)):
    return ModelOutput(name=name, data_type=data_type, dims=dims)


def load_model(config):
    return IdentityBackend().load(LoadContext(FOLDER, FOLDER / "1", 1, config, [PLACE]))


def load(config):
    return load_model(config).executor(PLACE)


def complete(config):
    return IdentityBackend().complete(config, FOLDER, FOLDER / "1", {})


@pytest.mark.parametrize(
    ("inputs", "outputs", "pairs"),
    [
        (["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"], {"OUTPUT0": 0, "OUTPUT1": 1}),
        (["INPUT0", "INPUT1"], ["OUTPUT1", "OUTPUT0"], {"OUTPUT0": 0, "OUTPUT1": 1}),
        (["input_a"], ["output_a"], {"output_a": 0}),
        (["a", "b"], ["x", "y"], {"x": 0, "y": 1}),  # no names to go by
        (["a", "b"], ["x"], {"x": 0}),
    ],
)
def test_which_input_an_output_repeats(inputs, outputs, pairs):
    config = ModelConfig(
        input=tuple(map(tensor_in, inputs)), output=tuple(map(tensor_out, outputs))
    )
    values = {name: np.full(2, i, np.float32) for i, name in enumerate(inputs)}
    results = load(config).run(values, list(pairs))
    assert [array.tolist() for array in results] == [[i, i] for i in pairs.values()]


def test_the_answer_is_a_copy():
    config = ModelConfig(input=(tensor_in("INPUT0"),), output=(tensor_out("OUTPUT0"),))
    array = np.ones(2, np.float32)
    (result,) = load(config).run({"INPUT0": array}, ["OUTPUT0"])
    assert not np.shares_memory(result, array)


def test_outputs_are_completed():
    config = complete(ModelConfig(input=(tensor_in("INPUT0"), tensor_in("x", "TYPE_STRING"))))
    assert [(o.name, o.data_type, o.dims) for o in config.output] == [
        ("OUTPUT0", "TYPE_FP32", (2,)),
        ("x_output", "TYPE_STRING", (2,)),
    ]
    assert complete(config) is config
    load(config)


def test_without_inputs_there_is_nothing_to_echo():
    with pytest.raises(ConfigError, match=r"echo/config.pbtxt: input: .*Write: input \{"):
        complete(ModelConfig())


def test_more_outputs_than_inputs():
    config = ModelConfig(input=(tensor_in("a"),), output=(tensor_out("x"), tensor_out("y")))
    with pytest.raises(ConfigError, match=r"output\[1\]: there is no input for output 'y'"):
        load(config)


def test_datatypes_must_agree():
    config = ModelConfig(input=(tensor_in("a", "TYPE_INT8"),), output=(tensor_out("x"),))
    with pytest.raises(ConfigError, match=r"TYPE_INT8, not TYPE_FP32\. Write data_type: TYPE_INT8"):
        load(config)


def test_an_optional_input_that_was_left_out():
    config = ModelConfig(
        input=(tensor_in("a"), tensor_in("b", optional=True)),
        output=(tensor_out("x"), tensor_out("y")),
    )
    executor = load(config)
    inputs = {"a": np.ones(2, np.float32)}
    assert len(executor.run(inputs, ["x"])) == 1
    with pytest.raises(BackendFailure, match="'y' repeats the input 'b'"):
        executor.run(inputs, ["x", "y"])


def test_delay(monkeypatch):
    slept = []
    monkeypatch.setattr(identity.time, "sleep", slept.append)
    config = ModelConfig(
        input=(tensor_in("a"),),
        output=(tensor_out("x"),),
        parameters={"execute_delay_ms": ModelParameter("250")},
    )
    load(config).run({"a": np.ones(2, np.float32)}, ["x"])
    assert slept == [0.25]
    assert not load_model(config).may_run_on_loop


def test_an_echo_may_run_on_the_loop():
    config = ModelConfig(input=(tensor_in("a"),), output=(tensor_out("x"),))
    assert load_model(config).may_run_on_loop


@pytest.mark.parametrize("text", ["-1", "soon", "1.5"])
def test_a_delay_that_is_no_number(text):
    config = ModelConfig(
        input=(tensor_in("a"),),
        output=(tensor_out("x"),),
        parameters={"execute_delay_ms": ModelParameter(text)},
    )
    with pytest.raises(ConfigError, match=r"execute_delay_ms.*whole number of milliseconds"):
        load(config)
