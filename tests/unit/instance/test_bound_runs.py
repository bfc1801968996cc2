"""Small batches of one template run from bytes to bytes, where the executor can bind them."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest

from shoal.backends.base import Executor
from shoal.core import dtypes
from shoal.core.planned import PlannedRequest, RequestTemplate
from shoal.core.signature import Signature, TensorSpec
from shoal.instance import bound_runs
from shoal.instance.execution import Execution
from shoal.instance.own_time import SHORT_NS
from shoal.statistics.model import ModelStatistics
from tests.support.fakes import Collector

OUTPUTS = ("double", "negative")
SIGNATURE = Signature(
    "m",
    64,
    {"a": TensorSpec("a", dtypes.INT32, (2,))},
    {name: TensorSpec(name, dtypes.INT32, (2,)) for name in OUTPUTS},
)


class Model(Executor):
    """Doubles and negates. Values from 1,000 on it refuses; a bound run takes some less."""

    def __init__(self, bound_below=1000, *, binds=True):
        self.log = []
        self._bound_below = bound_below
        self._binds = binds

    def run(self, inputs, outputs):
        self.log.append("run")
        return self._compute(inputs["a"], outputs, 1000)

    def bind(self, inputs, outputs):
        if not self._binds:
            return None
        (form,) = inputs
        self.log.append(("bind", form.shape, [output.name for output in outputs]))

        def run(contents):
            self.log.append("bound")
            self.frame = sys._getframe().f_code.co_name
            array = np.frombuffer(contents, form.dtype).reshape(form.shape)
            names = [output.name for output in outputs]
            made = self._compute(array, names, self._bound_below)
            return b"".join([one.tobytes() for one in made])

        return run

    def _compute(self, array, outputs, below):
        if (array >= below).any():
            raise ValueError("too large")
        made = {"double": array * 2, "negative": -array}
        return [made[name] for name in outputs]


class Replies:
    reply_types = (Collector,)

    def send_all(self, responses, requests):
        for index, request in enumerate(requests):
            request.reply.send(responses.response(index, request.id))


class Ordered(Collector):
    """A reply that stands in for another."""


class Stage:
    def __init__(self, model, outputs=OUTPUTS, rows=1):
        self.statistics = ModelStatistics("m", 1)
        self.execution = Execution(SIGNATURE, 1, self.statistics)
        self.model = model
        inputs = (("a", dtypes.INT32, (rows, 2)),)
        self.template = RequestTemplate("m", -1, inputs, outputs, {}, 0, 0, rows, (), Replies())
        self.rows = rows

    def run(self, *numbers):
        """Execute a batch of requests with these values; what each was answered."""
        batch = self._batch(numbers)
        self.execution.run(self.model, batch)
        return [self._answer(request.reply.responses) for request in batch]

    def run_alone(self, number, start_ns=2):
        """Execute a request with this value; what it was answered."""
        (request,) = self._batch([number])
        self.execution.run_alone(self.model, request, start_ns)
        assert request.moments[0] == start_ns
        return self._answer(request.reply.responses)

    def time_of(self, *numbers):
        """Execute a batch; what it took to compute."""
        return self.execution.run(self.model, self._batch(numbers))

    def run_one_by_one(self, *numbers):
        """Execute requests with these values; how many at a time, and what each was answered."""
        rest = batch = self._batch(numbers)
        counts = []
        while rest:
            counts.append(self.execution.run_one_by_one(self.model, rest)[0])
            rest = rest[counts[-1] :]
        return counts, [self._answer(request.reply.responses) for request in batch]

    @property
    def executions(self):
        """Of each batch size, how many were counted."""
        reading = self.statistics.read()
        assert reading.success_count == reading.histograms.request_duration_ns.count
        return {rows: batch.count for rows, batch in reading.batches.items()}

    def _batch(self, numbers):
        batch = []
        for number in numbers:
            message = np.full((self.rows, 2), number, np.int32).tobytes()
            places = (slice(0, len(message)),)
            batch.append(PlannedRequest(self.template, message, places, "", Collector(), None, 1))
        return batch

    def _answer(self, responses):
        (response,) = responses
        if response.error is not None:
            return str(response.error)
        return [(tensor.name, tensor.array.tolist()) for tensor in response.outputs]


def expected(number, rows=1, outputs=OUTPUTS):
    made = {"double": 2 * number, "negative": -number}
    return [(name, [[made[name]] * 2] * rows) for name in outputs]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("outputs", [OUTPUTS, OUTPUTS[::-1], OUTPUTS[1:]])
def test_later_batches_are_bound(rows, outputs):
    stage = Stage(Model(), outputs, rows)
    for number in range(3):
        assert stage.run(number) == [expected(number, rows, outputs)]
    assert stage.model.log == ["run", ("bind", (rows, 2), [*outputs]), "bound", "bound"]


def test_each_small_size_is_bound():
    stage = Stage(Model())
    for _ in range(2):
        for count in (1, 2, 4):
            assert stage.run(*range(count)) == [expected(number) for number in range(count)]
    assert stage.model.log.count("run") == stage.model.log.count("bound") == 3


def test_large_batches_and_large_inputs_are_not():
    many = Stage(Model())
    large = Stage(Model(), rows=3000)
    for _ in range(3):
        many.run(*range(65))
        large.run(1)
    assert many.model.log == large.model.log == ["run"] * 3


def test_there_is_a_limit_for_batches_of_more_than_a_few_requests(monkeypatch):
    monkeypatch.setattr(bound_runs, "_bound_batches", weakref.WeakSet())
    monkeypatch.setattr(bound_runs, "_MOST_BATCHES", 2)
    first, second = Stage(Model()), Stage(Model())
    for count in (5, 6, 7):
        for _ in range(2):
            first.run(*range(count))
    assert first.model.log.count("bound") == 2
    for count in (4, 5):
        for _ in range(2):
            second.run(*range(count))
    assert second.model.log.count("bound") == 1
    first.execution.close(first.model)
    for _ in range(2):
        second.run(*range(6))
    assert second.model.log.count("bound") == 2


def test_an_executor_that_cannot_bind():
    stage = Stage(Model(binds=False))
    assert [stage.run(7) for _ in range(3)] == [[expected(7)]] * 3
    assert stage.model.log == ["run"] * 3


def test_a_failing_model_stays_bound():
    stage = Stage(Model())
    stage.run(1)
    assert stage.run(1000) == ["ValueError: too large"]
    assert stage.run(2) == [expected(2)]
    assert stage.model.log[2:] == ["bound", "run", "bound"]


def test_a_request_alone():
    stage = Stage(Model())
    assert [stage.run_alone(number) for number in (1, 2)] == [expected(1), expected(2)]
    assert stage.run_alone(1000) == "ValueError: too large"
    assert stage.run_alone(3) == expected(3)
    assert stage.model.log[2:] == ["bound", "bound", "run", "bound"]  # a failure is tried once more
    assert stage.executions == {1: 3}
    assert stage.model.frame == "model 'm' version 1 was running"  # if it crashes


def test_a_request_alone_whose_reply_is_another_one():
    """One that keeps responses in order, for instance: it is answered by itself."""
    stage = Stage(Model())
    stage.run_alone(1)
    (request,) = stage._batch([2])
    request.reply = Ordered()
    stage.execution.run_alone(stage.model, request, 2)
    assert stage._answer(request.reply.responses) == expected(2)
    assert stage.model.log[2:] == ["run"]


def test_of_a_failing_batch_only_one_request_fails():
    stage = Stage(Model())
    stage.run(1, 2)
    assert stage.run(1000, 2) == ["ValueError: too large", expected(2)]


def test_where_only_the_bound_run_fails_it_ends():
    stage = Stage(Model(bound_below=100))
    stage.run(1)
    assert stage.run(500) == [expected(500)]
    assert stage.run(2) == [expected(2)]
    assert stage.model.log[2:] == ["bound", "run", "run"]


def test_the_cpu_time_of_a_long_run_counts(monkeypatch):
    """It is read only after a run that was long by the clock."""
    stage = Stage(Model())
    stage.run(1)
    clock = iter(range(0, 10**12, 10**6))  # each reading a millisecond later
    monkeypatch.setattr(bound_runs.time, "monotonic_ns", lambda: next(clock))
    monkeypatch.setattr(bound_runs, "own_ns", lambda *given: given)
    monkeypatch.setattr(bound_runs, "thread_cpu_ns", lambda: 5)
    assert stage.time_of(1) == (1, SHORT_NS, 10**6)  # not known
    assert stage.time_of(1) == (1, (10**6, 5), 10**6)


def test_a_closed_executor_is_freed():
    stage = Stage(Model())
    stage.run(1)
    stage.execution.close(stage.model)
    freed = weakref.ref(stage.model)
    stage.model = None
    gc.collect()
    assert freed() is None


def test_one_by_one_each_is_an_execution_and_they_are_answered_together():
    stage = Stage(Model())
    stage.run(0)
    counts, answers = stage.run_one_by_one(1, 2, 3)
    assert counts == [3]
    assert answers == [expected(1), expected(2), expected(3)]
    assert stage.model.log[2:] == ["bound"] * 3
    assert stage.executions == {1: 4}


def test_one_by_one_before_anything_is_bound():
    stage = Stage(Model())
    counts, answers = stage.run_one_by_one(1, 2, 3)
    assert counts == [1, 2]
    assert answers == [expected(1), expected(2), expected(3)]


@pytest.mark.parametrize("bad", range(3))
def test_one_by_one_only_the_request_that_fails_fails(bad):
    stage = Stage(Model())
    stage.run(0)
    numbers = [1, 2, 3]
    numbers[bad] = 1000
    _, answers = stage.run_one_by_one(*numbers)
    right = [expected(number) for number in numbers]
    right[bad] = "ValueError: too large"
    assert answers == right
    assert stage.executions == {1: 3}


def test_one_by_one_a_long_execution_is_judged_by_itself(monkeypatch):
    """The longest of a series counts; after a long one, each is measured by its CPU time."""
    stage = Stage(Model())
    stage.run(0)
    clock = iter([*range(8), 10**6, *range(10**7, 10**9, 10**6)])
    monkeypatch.setattr(bound_runs.time, "monotonic_ns", lambda: next(clock))
    monkeypatch.setattr(bound_runs, "own_ns", lambda *given: given)
    monkeypatch.setattr(bound_runs, "thread_cpu_ns", lambda: 5)
    batch = stage._batch([1, 2, 3, 4, 5, 6])
    count, (rows, own_ns, elapsed_ns) = stage.execution.run_one_by_one(stage.model, batch)
    assert (count, rows, own_ns, elapsed_ns) == (4, 1, SHORT_NS, 10**6 - 7)
    assert stage.execution.run_one_by_one(stage.model, batch[4:]) == (1, (1, (10**6, 5), 10**6))


def test_one_by_one_with_summaries():
    stage = Stage(Model())
    stage.statistics = ModelStatistics("m", 1, summaries=True)
    stage.execution = Execution(SIGNATURE, 1, stage.statistics)
    stage.run(0)
    stage.run_one_by_one(1, 2, 3)
    assert stage.executions == {1: 4}
    assert stage.statistics.read().summaries.request_ns.count == 4


@pytest.mark.parametrize("gap", [0, 1])
def test_inputs_in_one_piece_of_the_message_or_apart(gap):
    """HTTP has them one behind the other; gRPC has other fields between them."""
    seen = []

    class Two(Executor):
        def run(self, inputs, outputs):
            return [inputs["a"] + inputs["b"]]

        def bind(self, inputs, outputs):
            def run(contents):
                seen.append(bytes(contents))
                a, b = np.frombuffer(contents, np.int32).reshape(2, -1)
                return (a + b).tobytes()

            return run

    spec = {name: TensorSpec(name, dtypes.INT32, (1,)) for name in ("a", "b")}
    sums = {"sum": TensorSpec("sum", dtypes.INT32, (1,))}
    execution = Execution(Signature("m", 8, spec, sums), 1, ModelStatistics("m", 1))
    inputs = tuple((name, dtypes.INT32, (1, 1)) for name in spec)
    template = RequestTemplate("m", -1, inputs, ("sum",), {}, 0, 0, 1, (), Replies())
    places = (slice(2, 6), slice(6 + gap, 10 + gap))
    model = Two()
    for numbers in ([(1, 2)], [(3, 4)], [(1, 10), (2, 20)], [(3, 30), (4, 40)]):
        batch = [
            PlannedRequest(
                template,
                b"--" + np.int32(a).tobytes() + b"-" * gap + np.int32(b).tobytes(),
                places,
                "",
                Collector(),
                None,
                1,
            )
            for a, b in numbers
        ]
        execution.run(model, batch)
        sums = [request.reply.responses[0].outputs[0].array.item() for request in batch]
        assert sums == [a + b for a, b in numbers]
    assert [np.frombuffer(one, np.int32).tolist() for one in seen] == [[3, 4], [3, 4, 30, 40]]
