"""Executing sequences: fillers, states, requests that run again, and failures."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.base import Executor, RequestExecutor
from shoal.config import normalise, pbtxt
from shoal.core.dtypes import INT32
from shoal.core.request import Request
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import Internal, InvalidArgument
from shoal.instance.execution import Execution
from shoal.scheduler.sequence_setup import build
from shoal.statistics.model import FailureReason, ModelStatistics
from tests.support.fakes import make_request

START, END = Request.SEQUENCE_START, Request.SEQUENCE_END
CONFIG = """
name: "m"
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching {
  %s
  control_input {
    name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }
  }
  state { input_name: "IN" output_name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }
}
"""


class Adder(Executor):
    """SUM = IN + INPUT where READY; OUTPUT is the same. A negative INPUT breaks the batch."""

    def __init__(self):
        self.batches = []

    def run(self, inputs, outputs):
        self.batches.append({name: array.reshape(-1).tolist() for name, array in inputs.items()})
        if (inputs["INPUT"] < 0).any():
            raise ValueError("it is negative")
        results = {"SUM": inputs["IN"] + inputs["INPUT"]}
        results["OUTPUT"] = results["SUM"] * inputs["READY"]
        return [results[name] for name in outputs]


class Answering(RequestExecutor):
    """Calls a function of the test's for each request."""

    def __init__(self, answer):
        self.answer = answer

    def execute(self, batch):
        for pending in batch:
            self.answer(pending)


class World:
    """One instance whose batches the test runs one by one."""

    def __init__(self, executor, strategy="direct { }", outputs=("OUTPUT",), decoupled=False):
        text = CONFIG % strategy
        config = pbtxt.parse_pbtxt(text, "config.pbtxt")
        config = normalise.normalise(config, directory_name="m", file="config.pbtxt")
        spec = {name: TensorSpec(name, INT32, (1,)) for name in ("INPUT", "OUTPUT", "SUM")}
        signature = Signature(
            "m",
            4,
            {"INPUT": spec["INPUT"]},
            {name: spec[name] for name in outputs},
            {"SUM": spec["SUM"]},
        )
        self.stopping = False
        self.executor = executor
        self.statistics = ModelStatistics("m", 1)
        self.execution = Execution(signature, 1, self.statistics, decoupled=decoupled)
        self.batcher = build(config, None, on_dropped=lambda *_: None)
        self.batcher.attach(self)

    def ask(self, correlation_id, flags=0, value=1, **options):
        tensor = Tensor.from_array("INPUT", np.array([[value]], np.int32))
        request, collector = make_request(
            tensor, rows=1, correlation_id=correlation_id, flags=flags, **options
        )
        self.batcher.enqueue(request)
        return collector

    def run(self):
        batch = self.batcher.next_batch(self)
        self.execution.run(self.executor, batch)
        self.batcher.finished(batch)
        return batch

    def failures(self):
        return {r: n for r, n in self.statistics.read().failures.items() if n}


def outputs(collector):
    (response,) = collector.responses
    assert response.error is None, response.error
    return {tensor.name: tensor.array.reshape(-1).tolist() for tensor in response.outputs}


def test_a_sequence_adds_up():
    world = World(Adder())
    totals = []
    for value, flags in ((5, START), (6, 0), (7, END)):
        answer = world.ask(1, flags, value)
        world.run()
        totals.append(outputs(answer))
    assert totals == [{"OUTPUT": [5]}, {"OUTPUT": [11]}, {"OUTPUT": [18]}]


def test_fillers_are_run_and_neither_answered_nor_counted():
    world = World(Adder())
    for number in (1, 2, 3):
        world.ask(number, START)
    world.run()
    answer = world.ask(3, 0, 10)
    batch = world.run()
    assert len(batch) == 3
    assert world.executor.batches[-1]["READY"] == [0, 0, 1]
    assert outputs(answer) == {"OUTPUT": [11]}
    reading = world.statistics.read()
    assert (reading.success_count, reading.inference_count, reading.execution_count) == (4, 4, 2)
    assert reading.batches.keys() == {3}  # the model saw three rows both times
    assert reading.batches[3].count == 2
    # the states of those whose slots were filled up are as they were
    following = [world.ask(1), world.ask(2)]
    world.run()
    assert [outputs(answer) for answer in following] == [{"OUTPUT": [2]}, {"OUTPUT": [2]}]


def test_a_state_is_an_output_only_where_the_config_lists_it():
    world = World(Adder(), outputs=("OUTPUT", "SUM"))
    both, one = world.ask(1, START, 3), world.ask(2, START, 4, requested_outputs=("SUM",))
    world.run()
    assert outputs(both) == {"OUTPUT": [3], "SUM": [3]}
    assert outputs(one) == {"SUM": [4]}


def test_states_are_computed_whatever_a_client_asks_for():
    world = World(Adder(), outputs=("OUTPUT", "SUM"))
    world.ask(1, START, 3, requested_outputs=("OUTPUT",))
    world.run()
    answer = world.ask(1, 0, 4, requested_outputs=("OUTPUT",))
    world.run()
    assert outputs(answer) == {"OUTPUT": [7]}


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
def test_one_bad_request_does_not_cost_its_neighbours(strategy):
    world = World(Adder(), strategy)
    answers = [world.ask(1, START, 1), world.ask(2, START, -1), world.ask(3, START, 3)]
    world.run()
    assert outputs(answers[0]) == {"OUTPUT": [1]}
    assert outputs(answers[2]) == {"OUTPUT": [3]}
    assert "it is negative" in answers[1].responses[0].error.message
    assert world.failures() == {FailureReason.BACKEND: 1}
    ready = [batch["READY"] for batch in world.executor.batches]
    if strategy.startswith("direct"):  # each of them in its own slot
        assert ready == [[1, 1, 1], [1], [0, 1], [0, 0, 1]]
    else:
        assert ready == [[1, 1, 1], [1], [1], [1]]
    following = world.ask(2, 0, 5)  # the sequence goes on from the state it had
    world.run()
    assert outputs(following) == {"OUTPUT": [5]}


def test_fillers_are_not_run_on_their_own():
    world = World(Adder())
    for number in (1, 2, 3):
        world.ask(number, START)
    world.run()
    answers = [world.ask(2, 0, 2), world.ask(3, 0, -1)]
    world.run()
    ready = [batch["READY"] for batch in world.executor.batches[1:]]
    assert ready == [[0, 1, 1], [0, 1], [0, 0, 1]]
    assert outputs(answers[0]) == {"OUTPUT": [3]}
    assert world.failures() == {FailureReason.BACKEND: 1}


def test_the_only_request_of_a_filled_up_batch_fails_once():
    world = World(Adder())
    world.ask(1, START)
    world.ask(2, START)
    world.run()
    answer = world.ask(2, 0, -1)
    world.run()
    assert answer.finals == 1
    assert len(world.executor.batches) == 2
    assert world.failures() == {FailureReason.BACKEND: 1}


def test_a_state_with_the_wrong_rows_fails_the_batch():
    class Wrong(Adder):
        def run(self, inputs, outputs):
            results = super().run(inputs, outputs)
            return [a[:0] if n == "SUM" else a for n, a in zip(outputs, results, strict=True)]

    world = World(Wrong())
    answer = world.ask(1, START)
    world.run()
    assert "state output 'SUM' of model 'm' has shape [0,1]" in answer.responses[0].error.message


# ---- executors that answer requests themselves


def total(pending):
    inputs = pending.request.inputs
    return (inputs["IN"].array + inputs["INPUT"].array).astype(np.int32)


def answer_total(pending):
    result = total(pending)
    pending.send([Tensor.from_array("OUTPUT", result), Tensor.from_array("SUM", result)])


def test_such_a_model_has_implicit_state_too():
    world = World(Answering(answer_total))
    world.ask(1, START, 5)
    world.run()
    answer = world.ask(1, 0, 6)
    world.run()
    assert outputs(answer) == {"OUTPUT": [11]}  # and not SUM, which the config does not list


def test_such_a_model_sees_fillers():
    ready = []

    def answer(pending):
        ready.append(pending.request.inputs["READY"].array.item())
        answer_total(pending)

    world = World(Answering(answer))
    world.ask(1, START)
    world.ask(2, START)
    world.run()
    world.ask(2)
    world.run()
    assert ready == [1, 1, 0, 1]
    assert world.statistics.read().success_count == 3


def test_errors_for_fillers_reach_no_client():
    def answer(pending):
        if not pending.request.inputs["READY"].array.item():
            pending.send(error=InvalidArgument("not ready"))
        else:
            answer_total(pending)

    world = World(Answering(answer))
    world.ask(1, START)
    world.ask(2, START)
    world.run()
    world.ask(2)
    world.run()
    assert world.failures() == {}
    assert world.statistics.read().success_count == 3


def test_fillers_may_be_left_without_an_answer():
    def answer(pending):
        if pending.request.inputs["READY"].array.item():
            answer_total(pending)

    world = World(Answering(answer))
    world.ask(1, START)
    world.ask(2, START)
    world.run()
    world.ask(2)
    world.run()
    assert world.failures() == {}


def test_a_request_is_executed_until_its_model_is_done():
    left = [3]

    def answer(pending):
        left[0] -= 1
        pending.send([Tensor.from_array("OUTPUT", total(pending))], final=not left[0])
        if left[0]:
            pending.reschedule()

    world = World(Answering(answer), "iterative_sequence: true", decoupled=True)
    answers = world.ask(0)
    for _ in range(3):
        assert answers.finals == 0
        world.run()
    assert [response.final for response in answers.responses] == [False, False, True]
    assert world.statistics.read().success_count == 1
    assert world.batcher.pending() == 0


def test_rescheduling_without_a_response():
    calls = []

    def answer(pending):
        calls.append(1)
        if len(calls) < 3:
            pending.reschedule()
        else:
            answer_total(pending)

    world = World(Answering(answer), "iterative_sequence: true")
    answer = world.ask(0, value=4)
    for _ in range(3):
        world.run()
    assert outputs(answer) == {"OUTPUT": [4]}


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { }"])
def test_only_iterative_sequences_are_rescheduled(strategy):
    world = World(Answering(lambda pending: pending.reschedule()), strategy)
    answer = world.ask(1, START)
    world.run()
    text = answer.responses[0].error.message
    assert text.startswith(
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while"
    )
    assert "sequence_batching.iterative_sequence" in text


def test_the_end_of_a_sequence_cannot_be_rescheduled():
    world = World(Answering(lambda pending: pending.reschedule()), "iterative_sequence: true")
    answer = world.ask(1, START | END)
    world.run()
    assert "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in answer.responses[0].error.message


def test_nothing_is_sent_from_a_request_that_was_rescheduled():
    problems = []

    def answer(pending):
        if not problems:
            pending.reschedule()
            with pytest.raises(Internal, match="after the final one") as caught:
                answer_total(pending)
            problems.append(caught)
        else:
            answer_total(pending)

    world = World(Answering(answer), "iterative_sequence: true")
    answer = world.ask(0)
    world.run()
    world.run()
    assert len(problems) == 1
    assert answer.finals == 1
