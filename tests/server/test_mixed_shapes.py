"""Requests of different shapes in one batch: padded, ragged, or put together by shape.

The queue is held until all of a test's requests wait, so what each batch holds is known, on the
event loop as on threads.
"""

from __future__ import annotations

import numpy as np
import pytest

from shoal.testing.server import running_server
from tests.support.client import Infer, outputs
from tests.support.fakes import FakeBackend, RequestBackend
from tests.support.repositories import (
    EXECUTION_MODES,
    add_fake,
    add_model,
    execution,
    parameter,
)

BATCHING = "dynamic_batching { }\ninstance_group { kind: KIND_CPU count: 1 }\n"
PADDED = parameter("padding", "INPUT0=-1")
BY_SHAPE = parameter("batch_by_shape", "true")


@pytest.fixture
def fake():
    return FakeBackend(
        lambda inputs, names: [inputs["INPUT0"] * 2 for _ in names], may_run_on_loop=True
    )


@pytest.fixture(params=EXECUTION_MODES)
def mode(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["plans", "no plans"])
def serve(request, tmp_path, fake, mode):
    """Start a server with one model, whose config ends with what the test says."""

    def start(config, **options):
        add_fake(tmp_path, "m", BATCHING + execution(mode) + config, dims="-1", **options)
        backends = fake.registry()
        return running_server(tmp_path, backends=backends, plans=request.param)

    return start


def ask(length, rows=1, start=0):
    array = np.arange(start, start + rows * length, dtype=np.int32).reshape(rows, length)
    infer = Infer().add("INPUT0", array, binary=True).want("OUTPUT0", binary_data=True)
    return infer, array


def together(running, fake, requests):
    """Send them so that they wait in this order; the shapes of the batches they ran in."""
    fake.batches.clear()
    batcher = running.model("m")._batcher
    batcher._cutter._hold_until = len(requests)
    calls = []
    for number, (infer, _) in enumerate(requests, 1):
        calls.append(infer.call(running, "m"))
        if number < len(requests):
            running.wait_for_pending("m", number)
    for call, (_, array) in zip(calls, requests, strict=True):
        answer = outputs(call.response())["OUTPUT0"]
        assert answer.dtype == np.int32
        assert np.array_equal(answer, array * 2)
    return [batch["INPUT0"].shape for batch in fake.batches]


# ---- padding


def test_requests_of_different_lengths_share_a_padded_batch(serve, fake):
    with serve(PADDED) as running:
        for _ in range(3):  # from the second time on with plans
            requests = [ask(2), ask(5, rows=2, start=100), ask(3, start=200)]
            assert together(running, fake, requests) == [(4, 5)]
            assert fake.batches[0]["INPUT0"].tolist() == [
                [0, 1, -1, -1, -1],
                [100, 101, 102, 103, 104],
                [105, 106, 107, 108, 109],
                [200, 201, 202, -1, -1],
            ]
        at = {"model": "m", "version": "1"}
        assert running.metric("shoal_padded_input_elements_total", **at) == 60
        assert running.metric("shoal_padding_elements_total", **at) == 15


def test_requests_of_one_length_are_not_padded(serve, fake):
    with serve(PADDED) as running:
        assert together(running, fake, [ask(3), ask(3, start=7)]) == [(2, 3)]
        assert running.metric("shoal_padding_elements_total", model="m", version="1") == 0


def test_lengths_are_rounded_up_to_the_multiple(serve, fake):
    with serve(PADDED + parameter("padding_multiple", "4")) as running:
        assert together(running, fake, [ask(3), ask(5)]) == [(2, 8)]
        assert together(running, fake, [ask(3)]) == [(1, 4)]
        assert together(running, fake, [ask(8)]) == [(1, 8)]


def test_one_bad_request_of_a_padded_batch_fails_alone(serve, fake):
    def compute(inputs, names):
        if (inputs["INPUT0"] == 666).any():
            raise ValueError("the number of the beast")
        return [inputs["INPUT0"] * 2 for _ in names]

    fake.compute = compute
    with serve(PADDED) as running:
        running.model("m")._batcher._cutter._hold_until = 3
        requests = [ask(2), ask(4, start=665), ask(3)]
        calls = [infer.call(running, "m") for infer, _ in requests]
        answers = [call.response() for call in calls]
        assert [answer.status for answer in answers] == [200, 500, 200]
        assert "the number of the beast" in answers[1].error
        assert outputs(answers[2])["OUTPUT0"].tolist() == [[0, 2, 4]]


# ---- by shape


def test_equal_shapes_are_taken_together_past_others(serve, fake):
    with serve(BY_SHAPE) as running:
        requests = [ask(2), ask(3), ask(2, start=5), ask(4), ask(3, start=9), ask(2, start=20)]
        assert together(running, fake, requests) == [(3, 2), (2, 3), (1, 4)]


def test_without_it_no_request_overtakes(serve, fake):
    with serve("") as running:
        requests = [ask(2), ask(3), ask(2, start=5)]
        assert together(running, fake, requests) == [(1, 2), (1, 3), (1, 2)]


def test_both_together_pad_within_buckets(serve, fake):
    with serve(PADDED + BY_SHAPE) as running:
        requests = [ask(3), ask(100), ask(4), ask(70), ask(1), ask(2)]
        assert together(running, fake, requests) == [(2, 4), (2, 100), (1, 1), (1, 2)]


def test_buckets_of_ones_own(serve, fake):
    with serve(PADDED + BY_SHAPE + parameter("batch_by_shape_bucket", "4,64")) as running:
        requests = [ask(3), ask(100), ask(4), ask(70), ask(1), ask(5)]
        assert together(running, fake, requests) == [(3, 4), (2, 100), (1, 5)]


def test_batches_are_never_larger_than_allowed(serve, fake):
    with serve(PADDED + BY_SHAPE, max_batch_size=4) as running:
        requests = [ask(3), ask(9), *(ask(4, start=n) for n in range(5)), ask(9)]
        assert together(running, fake, requests) == [(4, 4), (2, 9), (2, 4)]


# ---- ragged

RAGGED = """
backend: "fake"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
batch_input { kind: BATCH_ITEM_SHAPE target_name: "SHAPES" data_type: TYPE_FP32
              source_input: "INPUT0" }
batch_output { target_name: "OUTPUT0" source_input: "INPUT0" }
model_warmup { name: "w" batch_size: 2 inputs { key: "INPUT0" value {
    data_type: TYPE_INT32 dims: [ 3 ] zero_data: true } } inputs { key: "SHAPES" value {
    data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } } }
"""


def test_ragged_requests_reach_the_model_one_after_the_other(tmp_path, fake, mode):
    add_model(tmp_path, "m", RAGGED + BATCHING + execution(mode))
    with running_server(tmp_path, backends=fake.registry()) as running:
        assert [batch["INPUT0"].shape for batch in fake.batches][:1] == [(6,)]  # the warm-up
        for _ in range(3):
            requests = [ask(2), ask(4, rows=2), ask(1)]
            assert together(running, fake, requests) == [(11,)]
            (batch,) = fake.batches
            assert batch["INPUT0"].tolist() == [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 0]
            assert batch["SHAPES"].tolist() == [[2.0], [4.0], [4.0], [1.0]]
        assert together(running, fake, [ask(3)]) == [(3,)]


def test_a_model_that_takes_requests_gets_them_unpadded(tmp_path):
    seen = []

    def execute(batch):
        seen.append([pending.request.inputs["INPUT0"].shape for pending in batch])
        for pending in batch:
            given = pending.request.inputs["INPUT0"]
            pending.send([type(given).from_array("OUTPUT0", given.array * 2)])

    add_model(tmp_path, "m", RAGGED.replace('"fake"', '"requests"') + BATCHING)
    backends = RequestBackend(execute).registry()
    with running_server(tmp_path, backends=backends) as running:
        seen.clear()
        running.model("m")._batcher._cutter._hold_until = 2
        calls = []
        for number, length in enumerate((2, 4), 1):
            calls.append(ask(length)[0].call(running, "m"))
            if number == 1:
                running.wait_for_pending("m", 1)
        assert [outputs(call.response())["OUTPUT0"].shape for call in calls] == [(1, 2), (1, 4)]
        assert seen == [[(1, 2), (1, 4)]]


# ---- wrong uses

TWO = """
backend: "fake"
max_batch_size: 8
dynamic_batching { }
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
input { name: "INPUT1" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
"""


def test_a_request_whose_inputs_disagree_is_refused_at_the_door(tmp_path, fake):
    add_model(tmp_path, "m", TWO + parameter("padding", "true"))
    with running_server(tmp_path, backends=fake.registry()) as running:
        infer = Infer(id="7")
        for name, length in (("INPUT0", 3), ("INPUT1", 4)):
            infer.add(name, np.zeros((1, length), np.int32))
        answer = infer.send(running, "m")
        assert answer.status == 400
        assert answer.error == (
            "[request id: 7] the inputs disagree about the length 'length', which must be equal "
            "in all of them: 'INPUT0' 3, 'INPUT1' 4"
        )
        assert not fake.batches


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (parameter("padding", "INPUT9=0"), "m has no input 'INPUT9'"),
        (
            parameter("padding", "true") + parameter("padding_axes", "INPUT0[n], INPUT1[k]"),
            "it is not clear which length dimension 1 of output 'OUTPUT0' of m follows",
        ),
        (parameter("padding_multiple", "8"), "has no effect without 'padding'"),
    ],
)
def test_a_wrong_config_is_refused_with_a_sentence(tmp_path, fake, more, sentence):
    add_model(tmp_path, "m", TWO + more)
    backends = fake.registry()
    with running_server(tmp_path, backends=backends, model_control_mode="explicit") as running:
        assert sentence in running.post("/v2/repository/models/m/load").error
