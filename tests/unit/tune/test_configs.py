"""What is searched, and the configs that come of it."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.config.pbtxt import parse_pbtxt, to_pbtxt
from shoal.errors import InvalidArgument
from shoal.tune.configs import Bounds, Change, Subject
from shoal.tune.space import ConfigPoint, doubling

WHOLE = """
name: "m" backend: "onnxruntime" max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: 4 }
output { name: "B" data_type: TYPE_FP32 dims: 4 }
instance_group { name: "m" count: 1 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 300 }
"""
WRITTEN = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 300 }"


def config(text, **changes):
    return dataclasses.replace(parse_pbtxt(text, "config.pbtxt"), **changes)


def subject(whole=WHOLE, written=WRITTEN, cores=4, **changes):
    return Subject(config(whole, **changes), cores, None if written is None else config(written))


def test_the_start_is_the_config():
    assert subject().start() == ConfigPoint(8, 300, 1, 4)
    assert subject(dynamic_batching=None).start() == ConfigPoint(1, 0, 1, 4)
    assert subject(dynamic_batching=None).start(rows=2) == ConfigPoint(2, 0, 1, 4)
    assert subject(max_batch_size=0, dynamic_batching=None).start() == ConfigPoint(0, 0, 1, 4)


def test_threads_that_are_written_count():
    made = subject(
        WHOLE + 'parameters { key: "intra_op_thread_count" value { string_value: "3" } }'
    )
    assert made.start().threads == 3
    assert 3 in made.space(Bounds(64), (32,)).threads


def test_the_space():
    space = subject().space(Bounds(64), (8, 32))
    assert space.batches == (1, 2, 4, 8, 16, 32)  # 32 clients never fill 64
    assert space.delays_us == (0, 200, 300, 1000, 5000)
    assert space.instances == (1, 2, 4, 8)
    assert space.threads == (1, 2, 4)
    # One config where nothing is merged, else every delay.
    assert space.size == (1 + 5 * 5) * 4 * 3 * 2


def test_delays_beyond_the_limit_are_left_out():
    assert subject().space(Bounds(64), (8,), limit_us=1000).delays_us == (0, 200, 300)


def test_bounds():
    space = subject().space(Bounds(16, 3, rows=4), (32,))
    assert space.batches == (4, 8, 16)
    assert space.instances == (1, 2, 3)


def test_a_model_that_does_not_batch_has_instances_and_threads_only():
    made = subject(max_batch_size=0, dynamic_batching=None)
    space = made.space(Bounds(64), (32,))
    assert (space.batches, space.delays_us) == ((0,), (0,))
    assert len(space.instances) > 1
    assert made.fixed == ["the model does not batch (max_batch_size is 0): batching is not tuned"]
    with pytest.raises(InvalidArgument, match="leave --batch-size at 1"):
        made.space(Bounds(64, rows=2), (32,))


def test_other_backends_and_gpus_have_no_threads_to_choose():
    made = subject(backend="python")
    assert made.start().threads == 0
    assert made.space(Bounds(64), (32,)).threads == (0,)
    assert "of the backend 'python' has no thread setting" in made.fixed[0]
    gpu = subject(WHOLE.replace("KIND_CPU", "KIND_GPU"))
    assert "on a GPU" in gpu.fixed[0]


def test_ensembles_are_told_apart():
    text = """name: "e" platform: "ensemble" max_batch_size: 4
    ensemble_scheduling { step { model_name: "a" } step { model_name: "b" } }"""
    with pytest.raises(InvalidArgument, match="tune its models: a, b"):
        subject(text, None)


def test_what_is_measured_is_whole_and_has_no_cache():
    made = subject(WHOLE + "response_cache { enable: true }").measured(ConfigPoint(16, 0, 2, 1))
    assert made.response_cache is None
    assert made.max_batch_size == 16
    assert made.dynamic_batching.preferred_batch_size == ()
    assert made.instance_group[0].count == 2
    assert made.parameters["intra_op_thread_count"].string_value == "1"
    assert made.input


def test_what_is_written_says_no_more_than_before_and_the_changes():
    made = subject().output(ConfigPoint(16, 0, 2, 2))
    assert to_pbtxt(made) == (
        "max_batch_size: 16\ninstance_group {\n  count: 2\n  kind: KIND_CPU\n}\n"
        "dynamic_batching {\n}\n"
    )  # two threads are what two instances of four cores have anyway


def test_nothing_is_written_differently_for_the_start():
    made = subject()
    assert made.output(made.start()) == made.written
    assert made.changes(made.start()) == []


def test_unmerged_requests_keep_their_sizes():
    made = subject()
    point = ConfigPoint(1, 0, 1, 4)
    written = made.output(point)
    assert written.max_batch_size == 8
    assert written.dynamic_batching is None
    assert written.input == made.whole.input  # else dynamic batching would be added again
    assert made.changes(point) == [
        Change("dynamic_batching.max_queue_delay_microseconds", "300", "no dynamic batching")
    ]


def test_what_clients_rely_on_stays():
    text = WHOLE.replace(
        "preferred_batch_size: 8", "preferred_batch_size: [ 4, 8 ] priority_levels: 2"
    )
    made = subject(text).measured(ConfigPoint(1, 0, 1, 4))
    assert made.dynamic_batching.priority_levels == 2
    assert made.max_batch_size == 1
    wide = subject(text).measured(ConfigPoint(16, 0, 1, 4))
    assert wide.dynamic_batching.preferred_batch_size == (4,)


def test_changes_are_listed():
    assert subject().changes(ConfigPoint(32, 0, 4, 4)) == [
        Change("max_batch_size", "8", "32"),
        Change("dynamic_batching.max_queue_delay_microseconds", "300", "0"),
        Change("instance_group.count", "1", "4"),
        Change("parameters.intra_op_thread_count", "the cores divided among instances", "4"),
    ]


def test_a_config_for_a_model_that_had_none():
    made = Subject(config(WHOLE, default_model_filename="m.onnx"), 4, None, bare=True)
    text = to_pbtxt(made.output(ConfigPoint(8, 300, 2, 2)))
    assert 'name: "m"' not in text
    assert "default_model_filename" not in text
    assert "dims: 4" in text
    assert "count: 2" in text


@pytest.mark.parametrize(
    ("first", "last", "values"),
    [(1, 8, (1, 2, 4, 8)), (1, 6, (1, 2, 4, 6)), (3, 3, (3,)), (1, 1, (1,))],
)
def test_doubling(first, last, values):
    assert doubling(first, last) == values
