"""Joining inputs and handing out outputs."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core import dtypes
from shoal.core.planned import PlannedRequest, RequestTemplate
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure
from shoal.scheduler.batch import (
    POOLED_BYTES,
    PlannedOutputs,
    group_by_template,
    join,
    join_mixed,
    join_planned,
    rows_at,
    shared_template,
    split,
    wanted_outputs,
)
from tests.support.fakes import make_request

SIGNATURE = Signature(
    "m",
    8,
    {"x": TensorSpec("x", dtypes.INT32, (2,)), "t": TensorSpec("t", dtypes.BYTES, (1,))},
    {"y": TensorSpec("y", dtypes.INT32, (2,)), "z": TensorSpec("z", dtypes.INT32, (2,))},
)


def ints(*rows):
    return Tensor("x", dtypes.INT32, (len(rows), 2), raw=np.array(rows, np.int32).tobytes())


def request(*rows, outputs=()):
    return make_request(ints(*rows), rows=len(rows), requested_outputs=outputs)[0]


def test_a_batch_of_one_is_not_copied():
    one = request([1, 2])
    assert np.shares_memory(join([one])["x"], one.inputs["x"].array)


def test_rows_are_joined_in_order():
    joined = join([request([1, 2]), request([3, 4], [5, 6])])["x"]
    assert joined.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert joined.dtype == np.int32


def test_strings_and_arrays_are_joined_too():
    def text(value):
        array = np.array([[value]], dtype=object)
        return make_request(Tensor("t", dtypes.BYTES, (1, 1), array=array), rows=1)[0]

    assert join([text(b"a"), text(b"b")])["t"].tolist() == [[b"a"], [b"b"]]


def test_each_request_gets_its_rows_as_views():
    requests = [request([1, 2]), request([3, 4], [5, 6])]
    array = np.arange(6, dtype=np.int32).reshape(3, 2)
    first, second = split(requests, ["y", "z"], [array, array * 2], SIGNATURE)
    assert [t.name for t in first] == ["y", "z"]
    assert first[0].array.tolist() == [[0, 1]]
    assert second[1].array.tolist() == [[4, 6], [8, 10]]
    assert np.shares_memory(second[0].array, array)


def test_everybody_gets_what_they_asked_for():
    requests = [request([1, 2], outputs=("z",)), request([1, 2], outputs=("z", "y"))]
    names = wanted_outputs(requests, SIGNATURE)
    assert names == ["y", "z"]
    y, z = np.zeros((2, 2), np.int32), np.ones((2, 2), np.int32)
    first, second = split(requests, names, [y, z], SIGNATURE)
    assert [t.name for t in first] == ["z"]
    assert [t.name for t in second] == ["z", "y"]
    assert wanted_outputs([requests[0]], SIGNATURE) == ["z"]
    assert wanted_outputs([requests[0], request([1, 2])], SIGNATURE) == ["y", "z"]


@pytest.mark.parametrize("shape", [(), (1, 2), (3, 2)])
def test_an_output_without_the_batch_dimension_is_the_models_fault(shape):
    requests = [request([1, 2]), request([3, 4])]
    with pytest.raises(BackendFailure, match="its first dimension must be"):
        split(requests, ["y", "z"], [np.zeros(shape, np.int32)] * 2, SIGNATURE)


def test_output_reshape_is_undone():
    spec = TensorSpec("y", dtypes.FP32, (-1,), reshape=(1, -1, 1))
    signature = Signature("m", 8, SIGNATURE.inputs, {"y": spec})
    ((tensor,),) = split([request([1, 2])], ["y"], [np.zeros((1, 1, 5, 1))], signature)
    assert tensor.shape == (1, 5)
    with pytest.raises(BackendFailure, match="reshape"):
        split([request([1, 2])], ["y"], [np.zeros((1, 2, 5, 1))], signature)


class Replies:
    reply_types = (object,)

    def send_all(self, answer, requests):
        raise AssertionError("nobody answers here")


def planned(*rows, outputs=()):
    """Requests of one template, each with as many rows, and the same as usual requests."""
    count = len(rows[0])
    inputs = (("x", dtypes.INT32, (count, 2)),)
    template = RequestTemplate("m", -1, inputs, outputs, {}, 0, 0, count, (), Replies())
    made = []
    for own in rows:
        message = b"before" + np.array(own, np.int32).tobytes() + b"after"
        places = (slice(6, 6 + 8 * count),)
        made.append(PlannedRequest(template, message, places, "", None, None, 0))
    return template, made, [request(*own, outputs=outputs) for own in rows]


def test_large_inputs_of_a_batch_do_not_share_memory():
    width, count = 2_000, 8
    inputs = tuple((name, dtypes.INT32, (1, width)) for name in ("a", "b", "c"))
    template = RequestTemplate("m", -1, inputs, (), {}, 0, 0, 1, (), Replies())
    places = tuple(slice(4 * width * index, 4 * width * (index + 1)) for index in range(3))
    made = []
    for number in range(count):
        message = np.repeat([number, 100 + number, 200 + number], width).astype(np.int32)
        made.append(PlannedRequest(template, message.tobytes(), places, "", None, None, 0))
    assert 4 * width * count >= POOLED_BYTES
    mixed = [*made[:-1], make_request(*made[-1].inputs.values(), rows=1)[0]]
    for joined in (
        join_planned(made, template),
        join(made),
        join_mixed(mixed, {template: range(count - 1), None: [count - 1]}),
    ):
        for first, name in ((0, "a"), (100, "b"), (200, "c")):
            assert joined[name][:, 0].tolist() == list(range(first, first + count))


@pytest.mark.parametrize("width", [2_000, 40_000])  # joined piece by piece, and by numpy
def test_large_inputs_are_joined_in_the_memory_of_their_reader(width):
    count = 8
    template = RequestTemplate(
        "m", -1, (("x", dtypes.INT32, (1, width)),), (), {}, 0, 0, 1, (), Replies()
    )
    rows = [np.full(width, number, np.int32).tobytes() for number in range(count)]
    made = [PlannedRequest(template, row, (slice(None),), "", None, None, 0) for row in rows]
    taken = []

    def take(size):
        taken.append(np.empty(size, np.uint8))
        return taken[-1].data

    full = [make_request(*one.inputs.values(), rows=1)[0] for one in made]
    for joined in (
        join_planned(made, template, take),
        join(full, take),
        join_mixed([*made[:-1], full[-1]], {template: range(count - 1), None: [count - 1]}, take),
    ):
        assert np.shares_memory(joined["x"], taken.pop(0))
        assert joined["x"][:, -1].tolist() == list(range(count))
    assert not taken


@pytest.mark.parametrize("requests", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("outputs", [(), ("z",), ("z", "y")])
def test_requests_of_one_plan_are_joined_and_answered_as_others(requests, rows, outputs):
    own = np.arange(requests * rows * 2).reshape(requests, rows, 2).tolist()
    template, together, usual = planned(*own, outputs=outputs)
    joined, expected = join_planned(together, template)["x"], join(usual)["x"]
    assert joined.dtype == expected.dtype
    assert joined.tolist() == expected.tolist()
    assert join(together)["x"].tolist() == expected.tolist()
    names = wanted_outputs(usual, SIGNATURE)
    arrays = [joined * (2 + index) for index in range(len(names))]
    parts = split(usual, names, arrays, SIGNATURE)
    planned_outputs = PlannedOutputs(template, SIGNATURE, 1)
    assert planned_outputs.names == names
    for _ in range(2):  # at first and when it knows
        answer = planned_outputs.split(requests, arrays)
        answers = [answer.response(index, "").outputs for index in range(requests)]
        for mine, theirs in zip(answers, parts, strict=True):
            assert [(t.name, t.shape) for t in mine] == [(t.name, t.shape) for t in theirs]
            assert [t.array.tolist() for t in mine] == [t.array.tolist() for t in theirs]


def test_outputs_that_look_otherwise_than_before():
    template, _, _ = planned([[1, 2]], [[3, 4]], outputs=("y",))
    outputs = PlannedOutputs(template, SIGNATURE, 1)

    def first_of(array):
        (tensor,) = outputs.split(2, [array]).response(0, "").outputs
        return tensor.array.tolist(), tensor.shape

    narrow = np.array([[1, 2], [3, 4]], np.int32)
    wide = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    for _ in range(2):
        assert first_of(narrow) == ([[1, 2]], (1, 2))
        layout = outputs.split(2, [narrow]).layout
        assert outputs.split(2, [narrow + 1]).layout is layout
        assert first_of(wide) == ([[1, 2, 3]], (1, 3))
        assert first_of(narrow.astype(np.int64)) == ([[1, 2]], (1, 2))  # another type: converted
        assert first_of(np.asfortranarray(narrow)) == ([[1, 2]], (1, 2))
        large = np.arange(2 * 40_000, dtype=np.int32).reshape(2, -1)
        assert first_of(large) == (large[:1].tolist(), (1, 40_000))


def test_an_output_without_bytes_is_not_for_all_at_once():
    template, together, _ = planned([[1, 2]], [[3, 4]], outputs=("y",))
    empty = np.zeros((2, 0), np.int32)
    assert PlannedOutputs(template, SIGNATURE, 1).split(2, [empty]) is None
    assert len(together) == 2


def test_a_wrong_output_of_requests_of_one_plan():
    template, _, _ = planned([[1, 2]], [[3, 4]], outputs=("y",))
    with pytest.raises(BackendFailure, match="for a batch of 2"):
        PlannedOutputs(template, SIGNATURE, 1).split(2, [np.zeros((3, 2), np.int32)])


class Reply:
    def send(self, response):
        raise AssertionError("no response is sent here")


def numbered(template, number):
    """A planned request with an id, to be recognised by."""
    return PlannedRequest(template, b"", (), str(number), Reply(), None, 0)


def template_of(replies=None):
    replies = replies or Replies()
    replies.reply_types = (Reply,)
    return RequestTemplate("m", -1, (), (), {}, 0, 0, 1, (), replies)


def test_requests_of_one_template():
    template = template_of()
    batch = [numbered(template, number) for number in range(3)]
    assert shared_template(batch) is template
    assert group_by_template(batch) == {template: [0, 1, 2]}


def test_each_template_is_a_group_and_so_are_full_requests():
    one, other = template_of(), template_of()
    full = [make_request(rows=1)[0] for _ in range(2)]
    batch = [full[0], numbered(one, 1), numbered(other, 2), full[1], numbered(one, 4)]
    assert shared_template(batch) is None
    assert group_by_template(batch) == {None: [0, 3], one: [1, 4], other: [2]}
    assert group_by_template(full) == {None: [0, 1]}


@pytest.mark.parametrize("why", ["reply", "inputs"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_planned_request_that_was_changed_counts_as_a_full_one(why, position):
    template = template_of()
    batch = [numbered(template, number) for number in range(3)]
    if why == "reply":
        batch[position].reply = object()
    else:
        batch[position].inputs = {}
    others = [number for number in range(3) if number != position]
    assert shared_template(batch) is None
    assert group_by_template(batch) == {template: others, None: [position]}


@pytest.mark.parametrize(
    ("starts", "rows", "index"),
    [
        ([3], 2, slice(3, 5)),
        ([0, 1, 2], 1, slice(0, 3)),
        ([2, 4], 2, slice(2, 6)),
        ([0, 2], 1, [0, 2]),
        ([1, 4], 2, [1, 2, 4, 5]),
    ],
)
def test_the_rows_of_a_group(starts, rows, index):
    assert rows_at(starts, rows) == index
