from __future__ import annotations

import json

import pytest

import triton_python_backend_utils as pb_utils

INPUT = {"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}


def config(**fields):
    return pb_utils.ModelConfig(
        json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields})
    )


def test_tensors_are_added():
    made = config()
    made.add_input({**INPUT, "optional": True})
    made.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
    assert made.as_dict()["input"] == [{**INPUT, "optional": True}]
    assert made.as_dict()["output"][0]["name"] == "OUT"


def test_what_is_written_half_is_completed():
    made = config(input=[{"name": "IN", "data_type": "TYPE_INVALID", "dims": []}])
    made.add_input(INPUT)
    assert made.as_dict()["input"] == [INPUT]


def test_saying_the_same_again_changes_nothing():
    made = config(input=[INPUT])
    made.add_input(INPUT)
    assert made.as_dict()["input"] == [INPUT]


def test_batching():
    made = config()
    made.set_max_batch_size(8)
    made.set_dynamic_batching()
    assert made.as_dict()["max_batch_size"] == 8
    assert made.as_dict()["dynamic_batching"] == {}


def test_decoupled():
    made = config()
    made.set_model_transaction_policy({"decoupled": True})
    assert made.as_dict()["model_transaction_policy"] == {"decoupled": True}
    made.set_model_transaction_policy({})
    assert pb_utils.using_decoupled_model_transaction_policy(made.as_dict())


@pytest.mark.parametrize(
    ("fields", "change", "text"),
    [
        (
            {"max_batch_size": 16},
            lambda c: c.set_max_batch_size(8),
            "function for model 'm' specified max_batch_size 8",
        ),
        (
            {"sequence_batching": {}},
            lambda c: c.set_dynamic_batching(),
            "Configuration specified scheduling_choice as 'sequence_batching', but",
        ),
        (
            {"input": [INPUT]},
            lambda c: c.add_input({**INPUT, "data_type": "TYPE_INT8"}),
            "configuration expects datatype TYPE_FP32 for input 'IN', model provides TYPE_INT8",
        ),
        (
            {"output": [INPUT]},
            lambda c: c.add_output({**INPUT, "dims": [5]}),
            "tensor 'IN': the model expects dims [5] but the model configuration specifies dims [4]",
        ),
        (
            {"input": [{**INPUT, "optional": False}]},
            lambda c: c.add_input({**INPUT, "optional": True}),
            "the model expects optional True but the model configuration specifies optional False",
        ),
        (
            {},
            lambda c: c.add_input({**INPUT, "shape": [4]}),
            "contains property other than 'name', 'data_type', 'dims' and 'optional'.",
        ),
        (
            {},
            lambda c: c.add_output({**INPUT, "optional": True}),
            "contains property other than 'name', 'data_type' and 'dims'.",
        ),
        ({}, lambda c: c.add_input({"dims": [1]}), "is missing 'name' property."),
        (
            {},
            lambda c: c.add_input({"name": "IN", "dims": [1]}),
            "input 'IN' in auto-complete-config function for model 'm' is missing 'data_type'",
        ),
        ({}, lambda c: c.add_output({"name": "O", "data_type": "TYPE_FP32"}), "missing 'dims'"),
        (
            {"model_transaction_policy": {"decoupled": False}},
            lambda c: c.set_model_transaction_policy({"decoupled": True}),
            "which is already set to 'False'.",
        ),
        (
            {},
            lambda c: c.set_model_transaction_policy({"other": 1}),
            "contains property other than 'decoupled'.",
        ),
    ],
)
def test_contradictions(fields, change, text):
    made = config(**fields)
    with pytest.raises(ValueError) as raised:
        change(made)
    assert text in str(raised.value)
