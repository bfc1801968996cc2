"""Completion and checks of a config against a graph, with no runtime involved."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from shoal.backends.graph import Graph
from shoal.backends.graph_config import check, complete
from shoal.backends.onnx_types import describe
from shoal.config.model import (
    BatchInput,
    BatchOutput,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    ModelTensorReshape,
)
from shoal.errors import ConfigError

FILE = "m/config.pbtxt"


def graph(inputs, outputs, defaults=None):
    """Tensors as (name, shape) or (name, shape, type)."""

    def tensors(rows):
        described = [describe(row[0], (*row, "tensor(float)")[2], row[1]) for row in rows]
        return {tensor.name: tensor for tensor in described}

    return Graph(tensors(inputs), tensors(outputs), tensors(defaults or []))


def tensor_in(name, dims, data_type="TYPE_FP32", reshape=None, **more):
    shape = None if reshape is None else ModelTensorReshape(reshape)
    return ModelInput(name=name, data_type=data_type, dims=dims, reshape=shape, **more)


def tensor_out(name, dims, data_type="TYPE_FP32", reshape=None):
    shape = None if reshape is None else ModelTensorReshape(reshape)
    return ModelOutput(name=name, data_type=data_type, dims=dims, reshape=shape)


BATCHED = graph([("a", ["n", 3])], [("x", ["n", 3])])
FIXED = graph([("a", [1, 3])], [("x", [1, 3])])
ANONYMOUS = graph([("a", [None, 3])], [("x", [-1, 3])])
ROWS_ONLY = graph([("a", ["n"])], [("x", ["n", 2])])
SCALAR = graph([("a", [])], [("x", [])])


@pytest.mark.parametrize(
    ("model", "before", "default", "after", "dynamic"),
    [
        (BATCHED, 0, 4, 4, True),
        (ANONYMOUS, 0, 4, 4, True),
        (BATCHED, 0, 0, 0, False),  # 0 turns batching off
        (BATCHED, 0, -7, 0, False),
        (BATCHED, 0, 1, 1, False),  # one row needs no batcher
        (BATCHED, 8, 4, 8, True),
        (BATCHED, 1, 4, 1, False),
        (FIXED, 0, 4, 0, False),
        (FIXED, 1, 4, 1, False),  # single rows fit a first dimension of 1
        (SCALAR, 0, 4, 0, False),
        (graph([("a", ["n", 3])], [("x", [3])]), 0, 4, 0, False),  # one tensor cannot
        (graph([("a", ["n", 3]), ("b", [])], [("x", ["n"])]), 0, 4, 0, False),
    ],
)
def test_max_batch_size(model, before, default, after, dynamic):
    config = complete(ModelConfig(name="m", max_batch_size=before), model, default, FILE)
    assert config.max_batch_size == after
    assert (config.dynamic_batching is not None) is dynamic
    check(config, model, FILE)


@pytest.mark.parametrize(
    ("model", "limit", "dims_in", "dims_out"),
    [
        (BATCHED, 4, ((3,), None), ((3,), None)),
        (BATCHED, 0, ((-1, 3), None), ((-1, 3), None)),
        (FIXED, 4, ((1, 3), None), ((1, 3), None)),
        # no dimension left below the batch: one element that is reshaped away
        (ROWS_ONLY, 4, ((1,), ModelTensorReshape(())), ((2,), None)),
        # dims may not be empty, and without a batch there is no reshape to nothing
        (SCALAR, 4, ((1,), None), ((1,), None)),
    ],
)
def test_dims(model, limit, dims_in, dims_out):
    config = complete(ModelConfig(name="m"), model, limit, FILE)
    (given,), (result,) = config.input, config.output
    assert (given.dims, given.reshape) == dims_in
    assert (result.dims, result.reshape) == dims_out
    check(config, model, FILE)


def test_tensors_are_listed_in_alphabetical_order():
    model = graph([("b", ["n"]), ("c", ["n"]), ("a", ["n"])], [("z", ["n"]), ("y", ["n"])])
    config = complete(ModelConfig(), model, 4, FILE)
    assert [tensor.name for tensor in config.input] == ["a", "b", "c"]
    assert [tensor.name for tensor in config.output] == ["y", "z"]


@pytest.mark.parametrize(
    ("onnx_type", "data_type"),
    [
        ("tensor(bool)", "TYPE_BOOL"),
        ("tensor(uint8)", "TYPE_UINT8"),
        ("tensor(uint16)", "TYPE_UINT16"),
        ("tensor(uint32)", "TYPE_UINT32"),
        ("tensor(uint64)", "TYPE_UINT64"),
        ("tensor(int8)", "TYPE_INT8"),
        ("tensor(int16)", "TYPE_INT16"),
        ("tensor(int32)", "TYPE_INT32"),
        ("tensor(int64)", "TYPE_INT64"),
        ("tensor(float16)", "TYPE_FP16"),
        ("tensor(float)", "TYPE_FP32"),
        ("tensor(double)", "TYPE_FP64"),
        ("tensor(string)", "TYPE_STRING"),
        ("tensor(bfloat16)", "TYPE_BF16"),
    ],
)
def test_datatypes(onnx_type, data_type):
    model = graph([("a", ["n"], onnx_type)], [("x", ["n"], onnx_type)])
    config = complete(ModelConfig(), model, 4, FILE)
    assert config.input[0].data_type == config.output[0].data_type == data_type
    check(config, model, FILE)


def test_a_config_with_both_sides_is_left_alone():
    config = ModelConfig(input=(tensor_in("a", (7,)),), output=(tensor_out("x", (7,)),))
    assert complete(config, BATCHED, 4, FILE) is config
    ragged = replace(config, input=(), batch_input=(BatchInput(target_name=("a",)),))
    assert complete(ragged, BATCHED, 4, FILE) is ragged


def test_only_the_missing_side_is_filled():
    written = (tensor_in("a", (-1,)),)
    config = complete(ModelConfig(input=written), BATCHED, 4, FILE)
    assert config.input is written
    assert config.max_batch_size == 4
    assert [(tensor.name, tensor.dims) for tensor in config.output] == [("x", (3,))]


def test_dims_that_count_the_batch_dimension_mean_no_batching():
    config = complete(ModelConfig(input=(tensor_in("a", (-1, 3)),)), BATCHED, 4, FILE)
    assert config.max_batch_size == 0
    assert config.dynamic_batching is None
    assert config.output[0].dims == (-1, 3)
    check(config, BATCHED, FILE)


@pytest.mark.parametrize(
    "scheduling",
    [
        {"sequence_batching": ModelSequenceBatching()},
        {"dynamic_batching": ModelDynamicBatching(preferred_batch_size=(2,))},
    ],
)
def test_a_scheduler_that_was_chosen_stays(scheduling):
    config = complete(ModelConfig(max_batch_size=4, **scheduling), BATCHED, 4, FILE)
    assert {name: getattr(config, name) for name in scheduling} == scheduling
    if "sequence_batching" in scheduling:
        assert config.dynamic_batching is None


def test_a_batch_the_model_cannot_take():
    with pytest.raises(ConfigError) as raised:
        complete(ModelConfig(name="m", max_batch_size=8), FIXED, 4, FILE)
    text = raised.value.message
    assert "autofill failed for model 'm': model does not support batching while non-zero" in text
    assert "'a'" in text
    assert "[1,3]" in text
    assert "Set max_batch_size: 0" in text
    assert raised.value.field == "max_batch_size"


def test_optional_inputs_are_completed_as_such():
    model = graph([("a", [2]), ("b", [2], "optional(tensor(float))")], [("x", [2])])
    config = complete(ModelConfig(), model, 4, FILE)
    assert [(tensor.name, tensor.optional) for tensor in config.input] == [
        ("a", False),
        ("b", True),
    ]


def test_inputs_with_a_value_in_the_file_are_not_listed():
    model = graph([("a", [2])], [("x", [2])], defaults=[("weight", [2, 2])])
    assert [t.name for t in complete(ModelConfig(), model, 4, FILE).input] == ["a"]


def test_an_output_nobody_can_carry_is_left_out(caplog):
    model = graph([("a", ["n", 3])], [("x", ["n"]), ("p", [], "seq(map(int64,tensor(float)))")])
    with caplog.at_level(logging.WARNING):
        config = complete(ModelConfig(name="m"), model, 4, FILE)
    assert [tensor.name for tensor in config.output] == ["x"]
    assert config.max_batch_size == 4
    assert "'p' is seq(map(int64,tensor(float)))" in caplog.text


@pytest.mark.parametrize("onnx_type", ["seq(tensor(float))", "tensor(complex64)"])
def test_an_input_nobody_can_send(onnx_type):
    with pytest.raises(ConfigError, match="which requests cannot contain"):
        complete(ModelConfig(), graph([("a", ["n"], onnx_type)], [("x", ["n"])]), 4, FILE)


# --- checks ---


@pytest.mark.parametrize(
    ("model_shape", "max_batch_size", "dims", "reshape"),
    [
        (["n", 3], 4, (3,), None),
        (["n", 3], 4, (-1,), None),  # variable in the config, fixed in the model
        (["n", "k"], 4, (3,), None),  # and the reverse
        (["n", "k"], 4, (-1,), None),
        (["n", 3], 0, (-1, 3), None),
        (["n", 3], 0, (5, 3), None),
        ([1, 3], 1, (3,), None),
        (["n", 6], 4, (2, 3), (6,)),
        (["n"], 4, (1,), ()),
        ([], 0, (1,), None),  # a scalar
        ([], 0, (1, 1), None),
        ([], 0, (1,), ()),
        ([], 0, (-1, 4), None),  # no shape declared: the runtime takes what comes
    ],
)
def test_dims_that_fit(model_shape, max_batch_size, dims, reshape):
    model = graph([("a", model_shape)], [("x", model_shape)])
    config = ModelConfig(
        max_batch_size=max_batch_size,
        input=(tensor_in("a", dims, reshape=reshape),),
        output=(tensor_out("x", dims, reshape=reshape),),
    )
    check(config, model, FILE)


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize(
    ("model_shape", "max_batch_size", "dims", "reshape", "field", "advice"),
    [
        (["n", 3], 4, (4,), None, "dims", "Write dims: [ 3 ]"),
        (["n", 3], 4, (-1, 3), None, "dims", "leaves the batch dimension out, or set max_batch_si"),
        (["n", 3], 0, (3,), None, "dims", "Write dims: [ -1, 3 ]"),
        ([1, 3], 0, (2, 3), None, "dims", "Write dims: [ 1, 3 ]"),
        (["n", 6], 4, (2, 3), (5,), "reshape", "Write reshape.shape: [ 6 ]"),
        ([1, 3], 4, (3,), None, "max_batch_size", "Set max_batch_size: 0"),
        ([8, 3], 8, (3,), None, "max_batch_size", "Set max_batch_size: 0"),
    ],
)
def test_dims_that_conflict(side, model_shape, max_batch_size, dims, reshape, field, advice):
    tensors = {"input": ("a", ["n"]), "output": ("x", ["n"])}
    dims_of = {"input": (), "output": ()}
    reshapes = {"input": None, "output": None}
    tensors[side] = (tensors[side][0], model_shape)
    dims_of[side], reshapes[side] = dims, reshape
    other = "output" if side == "input" else "input"
    if max_batch_size == 0:
        dims_of[other] = (-1,)
    model = graph([tensors["input"]], [tensors["output"]])
    config = ModelConfig(
        max_batch_size=max_batch_size,
        input=(tensor_in("a", dims_of["input"], reshape=reshapes["input"]),),
        output=(tensor_out("x", dims_of["output"], reshape=reshapes["output"]),),
    )
    with pytest.raises(ConfigError) as raised:
        check(config, model, FILE)
    assert raised.value.file == FILE
    assert field in raised.value.field
    assert advice in raised.value.message


def test_the_sentence_for_dims():
    config = ModelConfig(
        max_batch_size=4, input=(tensor_in("a", (4,)),), output=(tensor_out("x", (3,)),)
    )
    with pytest.raises(ConfigError) as raised:
        check(config, BATCHED, FILE)
    assert raised.value.message == (
        "m/config.pbtxt: input[0] 'a'.dims: the model expects 2 dimensions (shape [-1,3]) but the "
        "model configuration specifies 2 dimensions (an initial batch dimension because "
        "max_batch_size > 0 followed by the explicit tensor shape, making complete shape [-1,4]). "
        "Write dims: [ 3 ]"
    )


GOOD = ModelConfig(
    name="m", max_batch_size=4, input=(tensor_in("a", (3,)),), output=(tensor_out("x", (3,)),)
)


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        (
            {"input": (tensor_in("b", (3,)),)},
            "input[0] 'b'.name",
            "unexpected inference input 'b', allowed inputs are: a",
        ),
        (
            {"output": (tensor_out("y", (3,)),)},
            "output[0] 'y'.name",
            "unexpected inference output 'y', allowed outputs are: x",
        ),
        (
            {"input": (tensor_in("a", (3,), "TYPE_INT32"),)},
            "input[0] 'a'.data_type",
            "for input 'a', model provides TYPE_FP32. Write data_type: TYPE_FP32",
        ),
        (
            {"output": (tensor_out("x", (3,), "TYPE_STRING"),)},
            "output[0] 'x'.data_type",
            "model provides TYPE_FP32",
        ),
        (
            {"input": (), "batch_input": (BatchInput(target_name=("count",)),)},
            "batch_input[0].target_name",
            "unexpected inference input 'count'",
        ),
        (
            {"input": (tensor_in("a", (3,), allow_ragged_batch=True),)},
            "input[0] 'a'.allow_ragged_batch",
            "model provides [-1,3]",
        ),
        (
            {
                "sequence_batching": ModelSequenceBatching(
                    control_input=(ModelSequenceBatching.ControlInput("START"),)
                )
            },
            "sequence_batching.control_input[0].name",
            "'START'",
        ),
        (
            {
                "sequence_batching": ModelSequenceBatching(
                    state=(ModelSequenceBatching.State(input_name="a", output_name="s"),)
                )
            },
            "sequence_batching.state[0].output_name",
            "unexpected inference output 's'",
        ),
    ],
)
def test_conflicts(change, field, text):
    with pytest.raises(ConfigError) as raised:
        check(replace(GOOD, **change), BATCHED, FILE)
    assert raised.value.field == field
    assert text in raised.value.message


def test_a_required_input_that_is_not_listed():
    model = graph([("a", ["n", 3]), ("b", ["n"], "tensor(int64)")], [("x", ["n", 3])])
    with pytest.raises(ConfigError) as raised:
        check(GOOD, model, FILE)
    text = raised.value.message
    assert "configuration expects 1 inputs, model provides 2: 'b' missing" in text
    assert (
        'Add input { name: "b" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [ ] } }' in text
    )


def test_the_server_may_fill_inputs_in():
    model = graph(
        [("a", [-1]), ("count", [-1]), ("start", ["n", 1]), ("state", ["n", 2])],
        [("x", ["n", 3]), ("new_state", ["n", 2])],
    )
    config = ModelConfig(
        max_batch_size=4,
        input=(tensor_in("a", (-1,), allow_ragged_batch=True),),
        output=(tensor_out("x", (99,)),),
        batch_input=(BatchInput(target_name=("count",), source_input=("a",)),),
        batch_output=(BatchOutput(target_name=("x",)),),
        sequence_batching=ModelSequenceBatching(
            control_input=(ModelSequenceBatching.ControlInput("start"),),
            state=(ModelSequenceBatching.State(input_name="state", output_name="new_state"),),
        ),
    )
    check(config, model, FILE)


def test_outputs_need_not_all_be_served():
    model = graph(
        [("a", ["n", 3])], [("w", ["n"]), ("x", ["n", 3]), ("l", [], "seq(tensor(float))")]
    )
    check(GOOD, model, FILE)


def test_an_output_nobody_can_carry_may_not_be_listed():
    model = graph([("a", ["n", 3])], [("x", [], "seq(tensor(float))")])
    with pytest.raises(ConfigError, match=r"does not support\. Remove this output"):
        check(GOOD, model, FILE)


def test_inputs_with_a_value_in_the_file_may_be_listed_or_not():
    model = graph([("a", ["n", 3])], [("x", ["n", 3])], defaults=[("bias", ["n", 1])])
    check(GOOD, model, FILE)
    check(replace(GOOD, input=(*GOOD.input, tensor_in("bias", (1,), optional=True))), model, FILE)


def test_an_optional_input_the_model_requires_is_worth_a_warning(caplog):
    config = replace(GOOD, input=(tensor_in("a", (3,), optional=True),))
    with caplog.at_level(logging.WARNING):
        check(config, BATCHED, FILE)
    assert "marked optional, but the model has no value of its own" in caplog.text
