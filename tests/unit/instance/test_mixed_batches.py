"""Batches of planned and full requests: the same responses and counts as if all were full, and the
planned ones of each template are answered as a group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.backends.base import DeviceExecutor, Executor
from shoal.core import dtypes
from shoal.core.device_tensor import DeviceTensor, OnDevice
from shoal.core.padding import Padding
from shoal.core.planned import PlannedRequest, RequestTemplate
from shoal.core.request import DONE, Request, StepRequest
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure
from shoal.instance.execution import Execution
from shoal.scheduler.assembly import Assembly
from shoal.scheduler.batcher import Batcher
from shoal.scheduler.policy import BatchPolicy
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from shoal.scheduler.ragged import MadeInput
from shoal.statistics.model import ModelStatistics
from tests.support.fakes import Collector

SIGNATURE = Signature(
    "m",
    64,
    {"a": TensorSpec("a", dtypes.INT32, (2,)), "b": TensorSpec("b", dtypes.INT64, (1,))},
    {
        "sum": TensorSpec("sum", dtypes.INT64, (2,)),
        "wide": TensorSpec("wide", dtypes.INT32, (4,), reshape=(2, 2)),
        "text": TensorSpec("text", dtypes.BYTES, (1,)),
    },
)
PLAIN = ("sum", "wide")  # without the one that has no bytes of its own


class Model(Executor):
    """Each output depends on the request's own rows alone."""

    def __init__(self, fails_on=None):
        self.batches = []
        self._fails_on = fails_on

    def run(self, inputs, outputs):
        a, b = inputs["a"], inputs["b"]
        self.batches.append(a.tolist())
        if self._fails_on is not None and (a == self._fails_on).any():
            raise ValueError("a value that the model does not take")
        made = {
            "sum": a.astype(np.int64) + b,
            "wide": np.stack([a, a * 2], axis=2),
            "text": np.array([[str(row).encode()] for row in a.tolist()], object),
        }
        return [made[name] for name in outputs]


class GroupReplies:
    """Answers groups as a frontend does, and keeps which requests each had."""

    reply_types = (Collector,)

    def __init__(self):
        self.groups = []

    def send_all(self, answer, requests):
        self.groups.append([request.id for request in requests])
        for index, request in enumerate(requests):
            request.reply.send(answer.response(index, request.id))


def values(number, rows):
    a = np.arange(rows * 2, dtype=np.int32).reshape(rows, 2) + 100 * number
    return a, np.full((rows, 1), number, np.int64)


def full(number, rows, outputs, *, raw=True):
    a, b = values(number, rows)
    tensors = {"a": Tensor.from_array("a", a), "b": Tensor.from_array("b", b)}
    if raw:
        tensors = {
            name: Tensor(name, tensor.datatype, tensor.shape, raw=tensor.array.tobytes())
            for name, tensor in tensors.items()
        }
    request = Request("m", tensors, Collector(), id=str(number), requested_outputs=outputs)
    request.rows = rows
    return request


class Template:
    """Makes requests of one template; `flipped` ones send their inputs the other way round."""

    def __init__(self, rows, outputs, *, flipped=False, replies=None):
        self.rows, self.outputs, self.flipped = rows, outputs, flipped
        self.replies = replies or GroupReplies()
        inputs = [("a", dtypes.INT32, (rows, 2)), ("b", dtypes.INT64, (rows, 1))]
        if flipped:
            inputs.reverse()
        self.template = RequestTemplate(
            "m", -1, tuple(inputs), outputs, {}, 0, 0, rows, (), self.replies
        )

    def request(self, number):
        parts = [part.tobytes() for part in values(number, self.rows)]
        if self.flipped:
            parts.reverse()
        cut = 3 + len(parts[0])
        places = (slice(3, cut), slice(cut, cut + len(parts[1])))
        message = b"abc" + b"".join(parts) + b"d"
        return PlannedRequest(self.template, message, places, str(number), Collector(), None, 1)


def run(batch, model=None):
    """Execute a batch; returns what each request was answered, and the counts without times."""
    statistics = ModelStatistics("m", 3)
    Execution(SIGNATURE, 3, statistics).run(model or Model(), batch)
    return [answer_of(request) for request in batch], counts(statistics)


def answer_of(request):
    assert request.state is DONE
    assert request.moments is not None
    (response,) = request.reply.responses
    assert response.final
    if response.error is not None:
        return response.request_id, type(response.error), str(response.error)
    outputs = [(t.name, t.datatype, t.shape, t.array.tolist()) for t in response.outputs]
    return response.request_id, response.model_name, response.model_version, outputs


def counts(statistics):
    reading = statistics.read()
    executions = {rows: batch.count for rows, batch in reading.batches.items()}
    return reading.success_count, reading.inference_count, executions, dict(reading.failures)


OUTPUTS = st.sampled_from([(), ("sum",), ("wide", "sum"), PLAIN, ("text",), ("sum", "text")])


@given(
    kinds=st.lists(st.tuples(st.integers(1, 3), OUTPUTS, st.booleans()), min_size=1, max_size=4),
    picks=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("tfa")), min_size=1, max_size=12),
    failing=st.none() | st.integers(0, 11),
)
def test_any_mix_is_answered_and_counted_as_full_requests_are(kinds, picks, failing):
    templates = [Template(rows, outputs, flipped=flipped) for rows, outputs, flipped in kinds]
    batch, reference = [], []
    for number, (pick, form) in enumerate(picks):
        template = templates[pick % len(templates)]
        rows, outputs = template.rows, template.outputs
        reference.append(full(number, rows, outputs))
        if form == "t":
            batch.append(template.request(number))
        else:
            batch.append(full(number, rows, outputs, raw=form == "f"))
    fails_on = None if failing is None else 100 * failing
    model, model_of_full = Model(fails_on), Model(fails_on)
    assert run(batch, model) == run(reference, model_of_full)
    assert model.batches == model_of_full.batches


def test_planned_requests_of_a_mixed_batch_are_answered_as_groups():
    one, other = Template(1, PLAIN), Template(2, ("sum",), flipped=True)
    model = Model()
    batch = [
        one.request(0),
        full(1, 3, ()),
        other.request(2),
        one.request(3),
        full(4, 1, ("text",)),
        other.request(5),
    ]
    run(batch, model)
    assert one.replies.groups == [["0", "3"]]
    assert other.replies.groups == [["2", "5"]]
    assert len(model.batches) == 1


def test_outputs_without_bytes_are_answered_one_by_one():
    one, other = Template(1, ("text",)), Template(1, ("sum",))
    run([one.request(0), other.request(1), one.request(2), full(3, 1, ())])
    assert one.replies.groups == []
    assert other.replies.groups == [["1"]]


def test_requests_whose_reply_was_replaced_are_answered_there():
    class Ordered(Collector):
        """Stands in for the reply, as the one that preserves the order of responses does."""

    template = Template(1, PLAIN)
    batch = [template.request(number) for number in range(3)]
    batch[1].reply = Ordered()
    answers, _ = run(batch)
    assert answers == run([full(number, 1, PLAIN) for number in range(3)])[0]
    assert template.replies.groups == [["0", "2"]]


def test_a_wrong_number_of_rows_fails_every_request():
    class Short(Model):
        def run(self, inputs, outputs):
            return [array[:-1] for array in super().run(inputs, outputs)]

    template = Template(1, ("sum",))
    answers, _ = run([template.request(0), full(1, 1, ("sum",)), template.request(2)], Short())
    assert [answer[1] for answer in answers] == [BackendFailure] * 3
    assert template.replies.groups == []


class OnHost(Model, DeviceExecutor):
    """A device executor; its device is the memory of this process."""

    def __init__(self):
        super().__init__()
        self.device_runs = 0

    def run_on_device(self, inputs, outputs, keep):
        self.device_runs += 1
        joined = {
            name: given
            if isinstance(given, np.ndarray)
            else np.concatenate([part.content.array for part in given])
            for name, given in inputs.items()
        }
        results = self.run(joined, outputs)
        return [
            OnDevice(array, np.array) if name in keep else array
            for name, array in zip(outputs, results, strict=True)
        ]


def step(number, keep):
    """A request of an ensemble's step, whose inputs lie on the device."""
    a, b = values(number, 1)
    tensors = {
        "a": DeviceTensor("a", dtypes.INT32, a.shape, OnDevice(a, np.array)),
        "b": DeviceTensor("b", dtypes.INT64, b.shape, OnDevice(b, np.array)),
    }
    made = StepRequest("m", tensors, Collector(), id=str(number), requested_outputs=("sum",))
    made.device_outputs = frozenset(keep)
    made.rows = 1
    return made


@pytest.mark.parametrize("keep", [(), ("sum",)])
def test_device_executors_answer_planned_requests_as_groups(keep):
    template = Template(1, ("sum",))
    batch = [template.request(0), step(1, keep), template.request(2), full(3, 1, ("sum",))]
    model = OnHost()
    execution = Execution(SIGNATURE, 3, ModelStatistics("m", 3), takes_device_tensors=True)
    execution.run(model, batch)
    expected, _ = run([full(number, 1, ("sum",)) for number in range(4)])
    assert [answer_of(request) for request in batch] == expected
    assert template.replies.groups == [["0", "2"]]
    assert model.device_runs == 0
    execution.run(model, [step(4, keep), full(5, 1, ("sum",))])
    assert model.device_runs == 1


def test_cancelled_requests_of_the_mix_are_left_out():
    template = Template(1, ("sum",))
    dropped = []
    batcher = Batcher(
        BatchPolicy(8),
        RequestQueue(QueuePolicy()),
        on_dropped=lambda request, error: dropped.append(request.id),
    )
    batcher.hand_to_loop(lambda: None)
    batch = [template.request(0), full(1, 1, ("sum",)), template.request(2), full(3, 1, ("sum",))]
    for request in batch:
        batcher.enqueue(request)
    batch[0].cancel()
    batch[3].cancel()
    taken, _ = batcher.take_now()
    answers, _ = run(taken)
    assert dropped == ["0", "3"]
    assert answers == run([full(1, 1, ("sum",)), full(2, 1, ("sum",))])[0]
    assert template.replies.groups == [["2"]]


# ---- batches that are not plain rows

ITEMS = TensorSpec("items", dtypes.INT32, (-1,))
RAGGED = TensorSpec("items", dtypes.INT32, (-1,), ragged=True)
DOUBLED = {"doubled": TensorSpec("doubled", dtypes.INT32, (-1,))}


def padded_assembly():
    axes = ((1, "n"),)
    padding = Padding(inputs={"items": axes}, fills={"items": 0}, outputs={"doubled": axes})
    signature = Signature("m", 64, {"items": ITEMS}, DOUBLED, padding=padding)
    return signature, Assembly(signature)


def ragged_assembly():
    signature = Signature("m", 64, {"items": RAGGED}, DOUBLED)
    count = MadeInput("BATCH_ACCUMULATED_ELEMENT_COUNT", ("ends",), dtypes.INT32, RAGGED)
    return signature, Assembly(signature, [count], {"doubled": "items"})


class Doubler(Executor):
    def run(self, inputs, outputs):
        return [inputs["items"] * 2]


def items_request(number, length, *, planned, replies):
    items = np.arange(length, dtype=np.int32).reshape(1, length) + 100 * number
    if not planned:
        tensor = Tensor.from_array("items", items)
        return Request("m", {"items": tensor}, Collector(), id=str(number))
    inputs = (("items", dtypes.INT32, (1, length)),)
    template = RequestTemplate("m", -1, inputs, (), {}, 0, 0, 1, (), replies)
    places = (slice(0, items.nbytes),)
    return PlannedRequest(template, items.tobytes(), places, str(number), Collector(), None, 1)


@pytest.mark.parametrize("make", [padded_assembly, ragged_assembly])
def test_padded_and_ragged_batches_take_any_mix(make):
    signature, assembly = make()
    outcomes = []
    for planned in ([False] * 4, [True, False, True, True]):
        replies = GroupReplies()
        batch = [
            items_request(number, length, planned=planned[number], replies=replies)
            for number, length in enumerate([2, 5, 2, 3])
        ]
        statistics = ModelStatistics("m", 3)
        Execution(signature, 3, statistics, assembly=assembly).run(Doubler(), batch)
        outcomes.append(([answer_of(request) for request in batch], counts(statistics)))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0][3][3][0][3] == [[600, 602, 604]]
