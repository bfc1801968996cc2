"""Implicit state: where a sequence starts from, and what is carried on."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.config import pbtxt
from shoal.core import bytes_tensor
from shoal.errors import BackendFailure, ConfigError
from shoal.scheduler.sequence_state import StateStore, keep_outputs

STATE = 'input_name: "IN" output_name: "OUT"'


def book(tmp_path, states, max_batch_size=4):
    text = f"max_batch_size: {max_batch_size} sequence_batching {{ {states} }}"
    return StateStore.read(pbtxt.parse_pbtxt(text, "config.pbtxt"), tmp_path)


def one(fields="data_type: TYPE_FP32 dims: [ 2 ]"):
    return f"state {{ {STATE} {fields} }}"


def value(states):
    (tensor,) = states.inputs().values()
    return tensor.array


def test_no_state(tmp_path):
    nothing = book(tmp_path, "")
    assert nothing.begin() is None
    assert nothing.outputs == {}
    assert not nothing.has_variable_dims


@pytest.mark.parametrize(
    ("fields", "batch", "expected"),
    [
        ("data_type: TYPE_FP32 dims: [ 2 ]", 4, np.zeros((1, 2), np.float32)),
        ("data_type: TYPE_FP32 dims: [ 2 ]", 0, np.zeros(2, np.float32)),
        ("data_type: TYPE_INT64 dims: [ -1, 3, -1 ]", 4, np.zeros((1, 1, 3, 1), np.int64)),
        ("data_type: TYPE_BOOL dims: [ 1 ]", 4, np.zeros((1, 1), bool)),
        ("data_type: TYPE_STRING dims: [ 2 ]", 4, np.array([[b"", b""]], object)),
        (
            'data_type: TYPE_INT8 dims: [ -1 ] initial_state { name: "i" data_type: TYPE_INT8 dims: [ 3 ] zero_data: true }',
            4,
            np.zeros((1, 3), np.int8),
        ),
    ],
)
def test_a_sequence_starts_from_zeros(tmp_path, fields, batch, expected):
    first = value(book(tmp_path, one(fields), batch).begin())
    assert first.dtype == expected.dtype
    assert np.array_equal(first, expected)


@pytest.mark.parametrize(
    ("data_type", "content", "expected"),
    [
        ("TYPE_INT32", np.array([7, -8], "<i4").tobytes(), [[7, -8]]),
        ("TYPE_FP32", np.array([0.5, 2], "<f4").tobytes(), [[0.5, 2]]),
        ("TYPE_STRING", bytes_tensor.encode([b"one", b""]), [[b"one", b""]]),
    ],
)
def test_a_sequence_starts_from_a_file(tmp_path, data_type, content, expected):
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "start").write_bytes(content)
    initial = f'name: "i" data_type: {data_type} dims: [ 2 ] data_file: "start"'
    states = book(
        tmp_path, one(f"data_type: {data_type} dims: [ -1 ] initial_state {{ {initial} }}")
    )
    assert value(states.begin()).tolist() == expected


def initial(dims="2", file="start", data_type="TYPE_INT32"):
    field = f'name: "i" data_type: {data_type} dims: [ {dims} ] data_file: "{file}"'
    return one(f"data_type: {data_type} dims: [ -1 ] initial_state {{ {field} }}")


def test_a_longer_file_is_worth_a_warning(tmp_path, caplog):
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "start").write_bytes(bytes(9))
    assert value(book(tmp_path, initial()).begin()).tolist() == [[0, 0]]
    assert "initial_state/start has 9 bytes, of which 8 are used" in caplog.text


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        (initial(), "cannot read initial_state/start: No such file or directory. Put the file"),
        (initial(file="short"), "expects 8 bytes, but the data provided from short only has 7"),
        (initial(file="../outside"), "'../outside' lies outside the folder initial_state"),
        (initial(file="short", data_type="TYPE_STRING"), "incomplete string data"),
    ],
)
def test_files_that_do_not_do(tmp_path, states, sentence):
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "short").write_bytes(bytes([0] * 7))
    (tmp_path / "outside").write_bytes(bytes(8))
    with pytest.raises(ConfigError) as caught:
        book(tmp_path, states)
    assert sentence in str(caught.value)
    assert "sequence_batching.state[0].initial_state[0].data_file" in str(caught.value)


def test_sequences_do_not_share_their_states(tmp_path):
    states = book(tmp_path, one())
    first, second = states.begin(), states.begin()
    first.keep("OUT", np.array([[1, 2]], np.float32))
    assert value(first).tolist() == [[1, 2]]
    assert value(second).tolist() == [[0, 0]]
    assert value(states.begin()).tolist() == [[0, 0]]


def test_a_state_may_change_its_shape(tmp_path):
    states = book(tmp_path, one("data_type: TYPE_FP32 dims: [ -1 ]"))
    assert states.has_variable_dims
    run = states.begin()
    assert run.shapes == states.initial_shapes == ((1, 1),)
    run.keep("OUT", np.ones((1, 3), np.float32))
    assert run.shapes == ((1, 3),)
    (blank,) = run.blank_inputs().values()
    assert blank.array.tolist() == [[0, 0, 0]]


MEMORY = {
    "new each time": "",
    "same": "use_same_buffer_for_input_output: true",
    "growable": "use_same_buffer_for_input_output: true use_growable_memory: true",
}


@pytest.mark.parametrize("data_type", ["TYPE_INT32", "TYPE_STRING"])
@pytest.mark.parametrize("memory", MEMORY)
def test_every_kind_of_memory_keeps_the_same_values(tmp_path, memory, data_type):
    states = book(tmp_path, one(f"data_type: {data_type} dims: [ -1 ] {MEMORY[memory]}"))
    run = states.begin()
    for size in (1, 2, 3, 3, 5, 1, 4):
        numbers = list(range(size))
        array = np.array([numbers], np.int32)
        if data_type == "TYPE_STRING":
            array = np.array([[str(n).encode() for n in numbers]], object)
        run.keep("OUT", array)
        assert value(run).tolist() == array.tolist()
    assert value(states.begin()).size == 1


def address(run):
    return value(run).__array_interface__["data"][0]


def test_the_same_buffer_is_written_again(tmp_path):
    states = book(tmp_path, one(f"data_type: TYPE_INT32 dims: [ 2 ] {MEMORY['same']}"))
    run = states.begin()
    before = address(run)
    for number in range(3):
        result = np.full((1, 2), number, np.int32)
        run.keep("OUT", result)
        assert address(run) == before
        result[:] = -1  # what the model returned is not kept
        assert value(run).tolist() == [[number, number]]


def test_growable_memory_grows_in_few_steps(tmp_path):
    states = book(tmp_path, one(f"data_type: TYPE_INT32 dims: [ -1 ] {MEMORY['growable']}"))
    run = states.begin()
    places = set()
    kept = []  # or the allocator may hand out an old place again
    for size in range(1, 101):
        run.keep("OUT", np.arange(size, dtype=np.int32).reshape(1, size))
        kept.append(value(run))
        places.add(address(run))
    assert len(places) <= 8  # 1, 2, 4, ... 128


# ---- a batch's states


def test_each_row_goes_to_its_sequence(tmp_path):
    states = book(tmp_path, one())
    first, second = states.begin(), states.begin()
    batch = np.array([[1, 1], [9, 9], [2, 2]], np.float32)
    keep_outputs([first, None, second], {"OUT": batch}, model_name="m", batches=True)
    assert value(first).tolist() == [[1, 1]]
    assert value(second).tolist() == [[2, 2]]
    assert not np.shares_memory(value(first), batch)  # or one sequence keeps all batch's alive


def test_a_batch_of_one_is_kept_as_it_is(tmp_path):
    states = book(tmp_path, one(), max_batch_size=0)
    run = states.begin()
    result = np.array([3, 4], np.float32)
    keep_outputs([run], {"OUT": result}, model_name="m", batches=False)
    assert value(run) is result


def test_a_state_without_its_rows_changes_nothing(tmp_path):
    two = (
        'state { input_name: "A" output_name: "OUT_A" data_type: TYPE_FP32 dims: [ 1 ] } '
        'state { input_name: "B" output_name: "OUT_B" data_type: TYPE_FP32 dims: [ 1 ] }'
    )
    states = book(tmp_path, two)
    runs = [states.begin(), states.begin()]
    outputs = {"OUT_A": np.ones((2, 1), np.float32), "OUT_B": np.ones((1, 1), np.float32)}
    with pytest.raises(
        BackendFailure, match=r"state output 'OUT_B' of model 'm' has shape \[1,1\]"
    ):
        keep_outputs(runs, outputs, model_name="m", batches=True)
    assert runs[0].inputs()["A"].array.tolist() == [[0]]
