"""Ragged batches, padding and batches by shape: what may be written, and what is said otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.config import rules
from shoal.config.pbtxt import parse_pbtxt
from shoal.config.shapes import by_shape_of, padding_of
from shoal.errors import ConfigError
from tests.support.repositories import parameter

MODEL = """
name: "m" backend: "fake" max_batch_size: 8 dynamic_batching { }
input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "mask" data_type: TYPE_BOOL dims: [ -1 ] }
input { name: "fixed" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "states" data_type: TYPE_FP32 dims: [ -1, 4 ] }
"""


def config_of(*more, model=MODEL):
    return parse_pbtxt(model + "\n".join(more), "config.pbtxt")


def fault(*more, model=MODEL):
    with pytest.raises(ConfigError) as caught:
        rules.check(config_of(*more, model=model), file="config.pbtxt")
    return str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "fills", "axes", "masks", "multiple"),
    [
        ({"padding": "true"}, None, {}, (), 1),
        ({"padding": " TRUE "}, None, {}, (), 1),
        ({"padding": "ids"}, {"ids": ""}, {}, (), 1),
        ({"padding": "ids=7, mask = true,"}, {"ids": "7", "mask": "true"}, {}, (), 1),
        ({"padding": "true", "padding_multiple": "8"}, None, {}, (), 8),
        ({"padding": "true", "padding_mask": "mask"}, None, {}, ("mask",), 1),
        (
            {"padding": "true", "padding_axes": "ids[n],mask[ n ] , states[n]"},
            None,
            {"ids": ("n",), "mask": ("n",), "states": ("n",)},
            (),
            1,
        ),
        ({"padding": "true", "padding_axes": "states[_]"}, None, {"states": ("_",)}, (), 1),
    ],
)
def test_padding(parameters, fills, axes, masks, multiple):
    config = config_of(*(parameter(*entry) for entry in parameters.items()))
    rules.check(config, file="config.pbtxt")
    found = padding_of(config)
    assert found.fills == fills
    assert found.axes == axes
    assert found.masks == masks
    assert found.multiple == multiple


@pytest.mark.parametrize(
    ("parameters", "window", "width", "edges"),
    [
        ({}, None, 0, ()),
        ({"batch_by_shape_window": "16"}, 16, 0, ()),
        ({"padding": "true", "batch_by_shape_bucket": "32"}, None, 32, ()),
        ({"padding": "true", "batch_by_shape_bucket": "16, 64,256"}, None, 0, (16, 64, 256)),
    ],
)
def test_by_shape(parameters, window, width, edges):
    parameters = {"batch_by_shape": "true", **parameters}
    config = config_of(*(parameter(*entry) for entry in parameters.items()))
    rules.check(config, file="config.pbtxt")
    found = by_shape_of(config)
    assert (found.window, found.width, found.edges) == (window, width, edges)


def test_neither_where_neither_is_written():
    for text in ("", parameter("padding", "false") + parameter("batch_by_shape", "false")):
        config = config_of(text)
        rules.check(config, file="config.pbtxt")
        assert padding_of(config) is None
        assert by_shape_of(config) is None


def test_a_python_models_parameters_are_its_own():
    config = replace(
        config_of(parameter("padding", "left"), parameter("padding_axis", "1")), backend="python"
    )
    assert padding_of(config) is None
    rules.check(config, file="config.pbtxt")


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"padding": ""}, "parameters['padding']: it is empty. Write true, or inputs"),
        ({"padding": "ids=1,ids=2"}, "'ids=1,ids=2' names input 'ids' twice"),
        ({"padding": "=1"}, "'=1' has an entry without a name"),
        ({"padding": "words=0"}, "m has no input 'words'. Its inputs are: ids, mask, fixed"),
        ({"padding": "left"}, "m has no input 'left'"),
        ({"padding": "fixed=0"}, "input 'fixed' of m has no variable dimension. Leave it out"),
        ({"padding": "ids=x"}, "'x' is no value for the TYPE_INT64 input 'ids' of m. Write for"),
        ({"padding": "ids=1.5"}, "'1.5' is no value for the TYPE_INT64 input 'ids'"),
        ({"padding": "true", "padding_multiple": "0"}, "found '0'. Write a whole number, at"),
        ({"padding": "true", "padding_multiple": "x"}, "parameters['padding_multiple']: found 'x'"),
        ({"padding": "true", "padding_mask": "fixed"}, "'fixed' is no padded input of m. Write"),
        ({"padding": "ids=0", "padding_mask": "mask"}, "'mask' is no padded input of m. Write one"),
        ({"padding": "true", "padding_axes": "ids"}, "padding_axes']: cannot read 'ids'. Write"),
        ({"padding": "true", "padding_axes": "ids[n"}, "cannot read 'ids[n'"),
        ({"padding": "true", "padding_axes": "ids[n], ids[m]"}, "'ids' is listed twice"),
        ({"padding": "true", "padding_axes": "ids[1]"}, "'1' cannot be the name of a length"),
        ({"padding": "true", "padding_axes": "x[n]"}, "m has no input or output 'x'"),
        (
            {"padding": "true", "padding_axes": "states[n, k]"},
            "'states' of m has 1 variable dimensions, found names for 2. Write states[n]",
        ),
        ({"padding": "true", "padding_axes": "ids[_]"}, "of the padded input 'ids' of m is a"),
        (
            {"padding_multiple": "8"},
            (
                "'padding_multiple' has no effect without 'padding' for m. Write parameters { key: "
                '"padding" value: { string_value: "true" } }'
            ),
        ),
        ({"batch_by_shape": "maybe"}, "parameters['batch_by_shape']: found 'maybe'. Write true or"),
        ({"batch_by_shape_window": "9"}, "has no effect without 'batch_by_shape' for m"),
        ({"batch_by_shape": "true", "batch_by_shape_window": "0"}, "found '0'. Write a whole"),
        (
            {"batch_by_shape": "true", "batch_by_shape_bucket": "32"},
            "requests of different shapes share no batch unless it is padded for m",
        ),
        *(
            (
                {"padding": "true", "batch_by_shape": "true", "batch_by_shape_bucket": text},
                f"found '{text}'. Write how wide buckets are (32), or where each of them ends",
            )
            for text in ("", "a", "64, 16", "0", "8,,x")
        ),
    ],
)
def test_wrong(parameters, sentence):
    assert sentence in fault(*(parameter(*entry) for entry in parameters.items()))


PADDED = parameter("padding", "true")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("max_batch_size: 8", "max_batch_size: 0", "tensors without a batch dimension"),
        ("dynamic_batching { }", "", "requests share no batches without dynamic_batching, for m"),
        ("dynamic_batching { }", "sequence_batching { }", "sequences are not padded, for m"),
    ],
)
def test_padding_needs_batches(old, new, sentence):
    found = [
        one.message
        for one in rules.faults(config_of(PADDED, model=MODEL.replace(old, new)))
        if one.field == "parameters['padding']"
    ]
    assert len(found) == 1
    assert sentence in found[0]


def test_a_multiple_is_worth_something_without_batches():
    alone = MODEL.replace("dynamic_batching { }", "")
    config = config_of(PADDED, parameter("padding_multiple", "8"), model=alone)
    rules.check(config, file="config.pbtxt")


def test_padding_needs_something_to_pad():
    assert "no input of m has a variable dimension that could be padded" in fault(
        PADDED, model=MODEL.replace("-1", "4")
    )


def test_nobody_overtakes_where_the_order_is_kept():
    ordered = MODEL.replace("dynamic_batching { }", "dynamic_batching { preserve_ordering: true }")
    sentence = fault(parameter("batch_by_shape", "true"), model=ordered)
    assert sentence == (
        "config.pbtxt: parameters['batch_by_shape']: requests cannot overtake each other while "
        "'preserve_ordering' is true for m. Write preserve_ordering: false, or remove "
        "batch_by_shape"
    )


def test_batches_by_shape_need_batches():
    assert "there are no batches to put together without dynamic_batching for m" in fault(
        parameter("batch_by_shape", "true"), model=MODEL.replace("dynamic_batching { }", "")
    )


RAGGED = """
name: "m" backend: "fake" max_batch_size: 8
input { name: "items" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
input { name: "maybe" data_type: TYPE_FP32 dims: [ -1 ] optional: true }
output { name: "same" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "matrix" data_type: TYPE_FP32 dims: [ 2, -1 ] }
"""
COUNT = "batch_input { target_name: 'n' data_type: TYPE_INT32 source_input: 'items' }"
SCATTER = "batch_output { target_name: '%s' source_input: '%s' }"


def test_ragged():
    rules.check(config_of(COUNT, SCATTER % ("same", "items"), model=RAGGED), file="f")
    assert rules.not_acted_on(config_of(COUNT, SCATTER % ("same", "items"), model=RAGGED)) == []


@pytest.mark.parametrize(
    ("more", "old", "new", "sentence"),
    [
        (
            "",
            "max_batch_size: 8",
            "max_batch_size: 0",
            (
                "input[0].allow_ragged_batch: 'items' needs batches of several requests, but m has "
                "no batch dimension (max_batch_size: 0). Write max_batch_size: N"
            ),
        ),
        (
            COUNT.replace("target_name", "kind: BATCH_ITEM_SHAPE target_name"),
            "max_batch_size: 8",
            "max_batch_size: 0",
            "'items' needs batches",
        ),
        (COUNT.replace("'items'", "'x'"), "", "", "unknown source input name 'x' for m"),
        (COUNT.replace("'items'", "['items', 'maybe']"), "", "", "expects 1 source input, got 2"),
        (COUNT.replace("INT32", "INT64"), "", "", "must be TYPE_INT32 or TYPE_FP32 for m, found"),
        (SCATTER % ("x", "items"), "", "", "unknown target output name 'x' for m"),
        (SCATTER % ("same", "x"), "", "", "unknown source input name 'x' for m"),
        (
            SCATTER % ("same", "maybe"),
            "",
            "",
            "batch output source input 'maybe' must not be optional for m",
        ),
        (
            SCATTER % ("matrix", "items"),
            "",
            "",
            (
                "output 'matrix' has a variable dimension 1, but its source input 'items' has only "
                "1 dimensions for m"
            ),
        ),
        (parameter("padding", "items=0"), "", "", "input 'items' of m is ragged. Leave it out"),
    ],
)
def test_wrong_ragged(more, old, new, sentence):
    model = RAGGED.replace("max_batch_size: 8", "max_batch_size: 8 dynamic_batching { }")
    assert sentence in fault(more, model=model.replace(old, new) if old else model)
