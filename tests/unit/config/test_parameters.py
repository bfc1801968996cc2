"""The table of parameters, its reader, and what is checked with it."""

from __future__ import annotations

import pytest

from shoal.config import rules
from shoal.config.backends import BACKENDS
from shoal.config.model import ModelConfig, ModelDynamicBatching, ModelParameter
from shoal.config.parameter import Parameter, one_of
from shoal.config.parameter_table import TABLE
from shoal.config.parameters import Parameters, declared, value_of
from shoal.errors import ConfigError


def config_of(backend="mine", values=None, **fields):
    written = {key: ModelParameter(text) for key, text in (values or {}).items()}
    return ModelConfig(name="m", backend=backend, parameters=written, **fields)


def parameters(settings=None, **values):
    return Parameters("mine", config_of(values=values), settings or {}, "m/config.pbtxt")


def test_a_model_goes_before_its_backend():
    given = parameters({"threads": "2", "only": "x"}, threads="3")
    assert given.count("threads") == 3
    assert given.text("only") == "x"
    assert given.text("neither") == ""


def test_a_count_of_0_is_the_backends_default():
    assert parameters({"threads": "2"}, threads="0").count("threads") == 2
    assert parameters(threads="0").count("threads") == 0


def test_aliases():
    row = Parameter("NEW", declared("threads", "sklearn").type, "", aliases=("OLD",))
    assert parameters(OLD="5").count(row) == 5
    assert parameters(OLD="5", NEW="6").count(row) == 6


@pytest.mark.parametrize(
    ("text", "answer"),
    [("YES", True), ("true", True), ("1", True), ("NO", False), ("False", False), ("", None)],
)
def test_flags(text, answer):
    assert parameters(flag=text).flag("flag") is answer


def test_numbers_and_choices():
    assert parameters(threshold="0.25").number("threshold") == 0.25
    assert parameters({"threshold": "1"}, threshold="0").number("threshold") == 0
    assert parameters().number("threshold") is None
    hint = Parameter("hint", one_of("LATENCY", "THROUGHPUT"), "")
    assert parameters(hint="latency").text(hint) == "LATENCY"
    assert parameters().text(hint) == ""


def test_default_max_batch_size():
    assert parameters().default_max_batch_size() == 4
    assert parameters().default_max_batch_size(64) == 64
    assert parameters({"default-max-batch-size": "0"}).default_max_batch_size(64) == 0


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (lambda p: p.count("x"), "-1", "a whole number, 0 for the default"),
        (lambda p: p.flag("x"), "maybe", "true or false"),
        (lambda p: p.number("x"), "high", "a number"),
        (lambda p: p.text(Parameter("x", one_of("A", "B", "C"), "")), "D", "A, B or C"),
    ],
)
def test_wrong_values_name_their_place(read, text, expected):
    with pytest.raises(ConfigError) as raised:
        read(parameters(x=text))
    assert raised.value.message == (
        f"m/config.pbtxt: parameters['x']: found '{text}'. Write {expected}"
    )
    with pytest.raises(ConfigError) as raised:
        read(parameters({"x": text}))
    assert raised.value.message == f"--backend-config=mine,x: found '{text}'. Write {expected}"


def test_a_wrong_default_max_batch_size():
    with pytest.raises(ConfigError, match=r"default-max-batch-size: found 'many'\. Write a whole"):
        parameters({"default-max-batch-size": "many"}).default_max_batch_size()


def test_a_parameter_of_shoals_own_backends_must_be_in_the_table():
    with pytest.raises(KeyError, match="no_such is not in the table"):
        Parameters("jax", config_of("jax"), {}, "").flag("no_such")
    with pytest.raises(KeyError):
        value_of(config_of(), "no_such")


def test_what_only_the_operator_may_set_is_not_read_from_a_config():
    config = config_of("sklearn", {"allow_pickle": "true"})
    assert Parameters("sklearn", config, {}, "").flag("allow_pickle") is None
    assert Parameters("sklearn", config, {"allow_pickle": "1"}, "").flag("allow_pickle") is True


# ---- the table


def test_names_are_declared_once():
    seen = [
        (name, backend, row.in_config)
        for row in TABLE
        for name in (row.name, *row.aliases)
        for backend in row.backends or ("",)
    ]
    assert len(seen) == len(set(seen))


def test_rows_name_known_backends_and_have_help():
    for row in TABLE:
        assert set(row.backends) | set(row.ignored_by) <= set(BACKENDS)
        assert row.help.endswith((".", "…"))


def test_thread_parameters_of_backends_are_in_the_table():
    for backend in BACKENDS.values():
        if backend.thread_parameter:
            assert declared(backend.thread_parameter, backend.name) is not None


# ---- rules and hints


def faults(config):
    return [fault for fault in rules.faults(config) if fault.field.startswith("parameters")]


@pytest.mark.parametrize(
    ("backend", "key", "fix"),
    [
        ("identity", "execution", "Write auto, loop or threads"),
        ("mine", "max_queue_size", "Write a whole number, 0 for no limit"),
        ("pytorch", "NUM_THREADS", "Write a whole number, 0 for the default"),
        ("onnx", "share_session", "Write true or false"),
        ("onnxruntime_onnx", "share_session", "Write true or false"),
    ],
)
def test_a_wrong_value_is_a_fault(backend, key, fix):
    (fault,) = faults(config_of(backend, {key: "x"}))
    assert fault == (f"parameters['{key}']", "found 'x'", fix)


def test_tritons_texts_stay():
    (fault,) = faults(config_of("python", {"FORCE_CPU_ONLY_INPUT_TENSORS": "maybe"}))
    assert fault.message == "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: 'maybe'"
    (fault,) = faults(config_of("onnxruntime", {"arena_extend_strategy": "9"}))
    assert fault.message == "unsupported arena_extend_strategy value '9' is requested"


@pytest.mark.parametrize(
    ("backend", "key"),
    [("python", "share_session"), ("jax", "threads"), ("python", "padding_multiple")],
)
def test_parameters_of_other_backends_are_the_models_own(backend, key):
    assert faults(config_of(backend, {key: "x"})) == []


def test_a_parameter_of_another_scheduler_is_not_checked():
    config = config_of(values={"max_queue_size": "x"}, dynamic_batching=ModelDynamicBatching())
    assert faults(config) == []


@pytest.mark.parametrize(
    ("backend", "key", "meant"),
    [
        ("pytorch", "INFERNCE_MODE", "INFERENCE_MODE"),
        ("pytorch", "inference_mode", "INFERENCE_MODE"),
        ("onnxruntime", "INTRA_OP_THREAD_COUNT", "intra_op_thread_count"),
        ("mine", "padding_axis", "padding_axes"),
        ("mine", "batch_by_shapes", "batch_by_shape"),
        ("identity", "exection", "execution"),
    ],
)
def test_a_misspelt_name_gets_a_hint_and_no_refusal(backend, key, meant):
    config = config_of(backend, {key: "x"})
    (sentence,) = rules.without_use(config, cache=True, limiter=True)
    assert sentence == (
        f"parameters['{key}'] has no effect, because there is no such parameter. "
        f"Did you mean '{meant}'?"
    )
    assert faults(config) == []


@pytest.mark.parametrize(
    ("backend", "key"),
    [("python", "exection"), ("function", "exection"), ("mine", "colour"), ("onnx", "session.x")],
)
def test_other_names_are_the_models_own(backend, key):
    assert rules.without_use(config_of(backend, {key: "x"}), cache=True, limiter=True) == []
