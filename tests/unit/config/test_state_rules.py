"""What a config may say about implicit state."""

from __future__ import annotations

import pytest

from shoal.config import pbtxt, rules
from shoal.errors import ConfigError

HEAD = """
name: "m" backend: "onnxruntime" max_batch_size: 4
input { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
GOOD = 'input_name: "A" output_name: "B" data_type: TYPE_FP32 dims: [ 2, -1 ]'
INITIAL = 'name: "i" data_type: TYPE_FP32 dims: [ 2, 3 ]'


def check(block):
    rules.check(
        pbtxt.parse_pbtxt(f"{HEAD} sequence_batching {{ {block} }}", "config.pbtxt"),
        file="config.pbtxt",
    )


def initial(fields):
    return f"state {{ {GOOD} initial_state {{ {fields} }} }}"


@pytest.mark.parametrize(
    "block",
    [
        f"state {{ {GOOD} }}",
        f"state {{ {GOOD} use_same_buffer_for_input_output: true use_growable_memory: true }}",
        initial(f"{INITIAL} zero_data: true"),
        initial(f'{INITIAL} data_file: "start"'),
        f'state {{ {GOOD} }} state {{ input_name: "C" output_name: "D" data_type: TYPE_STRING }}',
        'state { input_name: "A" output_name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }',
    ],
)
def test_right(block):
    check(block)


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (
            'state { input_name: "INPUT" output_name: "B" data_type: TYPE_FP32 }',
            "state[0].input_name: State input name 'INPUT' specified more than once: it is in input too",
        ),
        (
            f'state {{ {GOOD} }} state {{ input_name: "A" output_name: "C" data_type: TYPE_FP32 }}',
            "state[1].input_name: State input name 'A' specified more than once: it is in another state too",
        ),
        (
            f'state {{ {GOOD} }} state {{ input_name: "C" output_name: "B" data_type: TYPE_FP32 }}',
            "state[1].output_name: state output name 'B' specified more than once",
        ),
        ('state { output_name: "B" }', "a state needs its input_name"),
        ('state { input_name: "A" }', "a state needs its output_name"),
        (
            'state { input_name: "A" output_name: "B" }',
            "state input 'A' must specify 'data_type'. Write for example data_type: TYPE_FP32",
        ),
        (
            'state { input_name: "A" output_name: "B" data_type: TYPE_FP32 dims: [ 0 ] }',
            "a dimension of state input 'A' must be integer >= 1, or -1",
        ),
        (
            f"state {{ {GOOD} use_growable_memory: true }}",
            "you must also enable 'use_same_buffer_for_input_output' for state input 'A'",
        ),
        (
            f"state {{ {GOOD} initial_state {{ {INITIAL} }} initial_state {{ {INITIAL} }} }}",
            "must contain exactly one or zero element. Found '2' elements",
        ),
        (
            initial('name: "i" data_type: TYPE_INT32 dims: [ 2, 3 ] zero_data: true'),
            "does not match the state data type: TYPE_INT32 is not TYPE_FP32",
        ),
        (
            initial("data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true"),
            "Field 'name' must be set when using initial_state for state input 'A'",
        ),
        (initial(INITIAL), "expects state 'A' to have state_data set"),
        (
            initial('name: "i" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true'),
            "for state input 'A'. 1 != 2",
        ),
        (
            initial('name: "i" data_type: TYPE_FP32 dims: [ 2, -1 ] zero_data: true'),
            "contains variable dimensions",
        ),
        (
            initial('name: "i" data_type: TYPE_FP32 dims: [ 4, 3 ] zero_data: true'),
            "doesn't match 'state' dim description. 4 != 2",
        ),
        (
            'control_input { name: "INPUT" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }',
            "control tensor 'INPUT' is listed in input as well for m. Remove it from input",
        ),
    ],
)
def test_wrong(block, sentence):
    with pytest.raises(ConfigError) as caught:
        check(block)
    assert sentence in str(caught.value)
