"""Running an ensemble: who is asked what and when, and exactly one final response whatever happens."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.core.request import Request, State
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.errors import (
    BackendFailure,
    Cancelled,
    Internal,
    InvalidArgument,
    QueueRejected,
    Unavailable,
)
from shoal.scheduler.base import BatcherClosed
from shoal.scheduler.ensemble import EnsembleScheduler
from shoal.statistics.model import FailureReason, ModelStatistics, Moments
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS, FakeClock, make_request


def tensor(number, name="IN"):
    return Tensor.from_array(name, np.full((1, 1), number, np.int32))


class Models:
    """Stands in for the models: keeps what they are asked until the test answers."""

    def __init__(self):
        self.asked = []
        self.refuse = {}

    def __call__(self, request):
        error = self.refuse.get(request.model_name)
        if error is not None:
            raise error
        self.asked.append(request)

    def names(self):
        return [request.model_name for request in self.asked]

    def take(self, name):
        request = next(one for one in self.asked if one.model_name == name)
        self.asked.remove(request)
        return request


def answer(request, *, final=True, moments=None, parameters=None, **numbers):
    """Respond to a step with its outputs."""
    request.moments = moments
    outputs = [tensor(number, name) for name, number in numbers.items()]
    request.reply.send(
        Response(request.model_name, 1, outputs=outputs, parameters=parameters or {}, final=final)
    )


def fail(request, error):
    request.reply.send(Response(request.model_name, 1, error=error))


def outputs_of(response):
    return {one.name: int(one.array.reshape(-1)[0]) for one in response.outputs}


class World:
    def __init__(self, graph, signature):
        self.models = Models()
        self.clock = FakeClock()
        self.statistics = ModelStatistics("pipe", 1, clock=self.clock)
        self.scheduler = EnsembleScheduler(
            graph, signature, 1, self.models, self.statistics, clock=self.clock
        )

    def ask(self, number=1, **options):
        request, collector = make_request(tensor(number), model="pipe", rows=1, **options)
        request.start_ns = self.clock()
        self.scheduler.enqueue(request)
        return request, collector


@pytest.fixture
def make_world(kit):
    def make(steps, inputs=("IN",), outputs=("OUT",), **options):
        graph = kit.pipe(steps, inputs=inputs, outputs=outputs, **options)
        return World(graph, kit.signature("pipe", inputs, outputs))

    return make


@pytest.fixture
def chain(kit, make_world):
    return make_world(
        [
            (kit.model("first"), {"x": "IN"}, {"y": "mid"}),
            (kit.model("second"), {"x": "mid"}, {"y": "OUT"}),
        ]
    )


@pytest.fixture
def fork(kit, make_world):
    """Two steps side by side, each with an output of the ensemble."""
    return make_world(
        [
            (kit.model("left"), {"x": "IN"}, {"y": "A"}),
            (kit.model("right"), {"x": "IN"}, {"y": "B"}),
        ],
        outputs=("A", "B"),
    )


def streaming_steps(kit):
    return [
        (kit.model("stream", decoupled=True), {"x": "IN"}, {"y": "word"}),
        (kit.model("format"), {"x": "word"}, {"y": "OUT"}),
    ]


@pytest.fixture
def stream(kit, make_world):
    return make_world(streaming_steps(kit))


class TestSteps:
    def test_each_step_starts_the_next(self, chain):
        _, collector = chain.ask()
        assert chain.models.names() == ["first"]
        answer(chain.models.take("first"), y=2)
        assert chain.models.names() == ["second"]
        assert chain.scheduler.in_flight() == 1
        answer(chain.models.take("second"), y=3)
        response = collector.wait()
        assert outputs_of(response) == {"OUT": 3}
        assert response.final
        assert (response.model_name, response.model_version) == ("pipe", 1)
        assert len(collector.responses) == 1
        assert chain.scheduler.in_flight() == 0

    def test_steps_side_by_side(self, fork):
        _, collector = fork.ask()
        assert fork.models.names() == ["left", "right"]
        answer(fork.models.take("right"), y=2)
        assert not collector.answered
        answer(fork.models.take("left"), y=1)
        assert outputs_of(collector.wait()) == {"A": 1, "B": 2}

    def test_what_was_not_asked_for_is_not_run(self, fork):
        _, collector = fork.ask(requested_outputs=("B",))
        assert fork.models.names() == ["right"]
        answer(fork.models.take("right"), y=2)
        assert outputs_of(collector.wait()) == {"B": 2}

    def test_a_step_is_asked_as_the_ensemble_was(self, kit, make_world):
        world = make_world([(kit.model("m", version=3), {"x": "IN"}, {"y": "OUT"})])
        world.ask(
            id="r7",
            priority=2,
            timeout_us=500,
            correlation_id="chat",
            flags=Request.SEQUENCE_START,
            parameters={"temperature": 0.5},
        )
        step = world.models.take("m")
        assert (step.model_version, step.id, step.priority, step.timeout_us) == (3, "r7", 2, 500)
        assert (step.correlation_id, step.flags) == ("chat", Request.SEQUENCE_START)
        assert step.parameters == {"temperature": 0.5}
        assert step.requested_outputs == ("y",)
        assert list(step.inputs) == ["x"]

    def test_a_traced_request_has_its_steps_traced(self, chain):
        attached = []

        class Trace:
            def attach(self, request):
                attached.append(request.model_name)

        request, _ = make_request(tensor(1), model="pipe", rows=1)
        request.trace = Trace()
        chain.scheduler.enqueue(request)
        answer(chain.models.take("first"), y=1)
        assert attached == ["first", "second"]

    def test_tensors_are_handed_on_without_a_copy(self, chain):
        sent = np.arange(4096, dtype=np.int32).reshape(1, 4096)
        request, collector = make_request(Tensor.from_array("IN", sent), model="pipe", rows=1)
        chain.scheduler.enqueue(request)
        first = chain.models.take("first")
        assert np.shares_memory(first.inputs["x"].array, sent)
        made = np.arange(4096, dtype=np.int32).reshape(1, 4096)
        first.reply.send(Response("first", 1, outputs=[Tensor.from_array("y", made)]))
        second = chain.models.take("second")
        assert np.shares_memory(second.inputs["x"].array, made)
        second.reply.send(Response("second", 1, outputs=[Tensor.from_array("y", made)]))
        assert np.shares_memory(collector.wait().outputs[0].array, made)

    def test_an_optional_tensor_that_is_not_there(self, kit, make_world):
        optional = kit.spec("bias", optional=True)
        world = make_world(
            [
                (kit.model("first", outputs=("y", "z")), {"x": "IN"}, {"y": "mid", "z": "extra"}),
                (
                    kit.model("second", inputs=("x", optional)),
                    {"x": "mid", "bias": "extra"},
                    {"y": "OUT"},
                ),
            ]
        )
        _, collector = world.ask()
        answer(world.models.take("first"), y=2)  # z is left out
        second = world.models.take("second")
        assert list(second.inputs) == ["x"]
        answer(second, y=3)
        assert outputs_of(collector.wait()) == {"OUT": 3}

    def test_a_sequence_opened_by_a_step(self, chain):
        _, collector = chain.ask()
        told = {"sequence_id": 5, "sequence_start": True}
        answer(chain.models.take("first"), y=2, parameters=told)
        second = chain.models.take("second")
        assert (second.correlation_id, second.flags) == (5, Request.SEQUENCE_START)
        answer(second, y=3)
        assert collector.wait().parameters == {
            "sequence_id": 5,
            "sequence_start": True,
            "sequence_end": False,
        }


class TestDecoupled:
    def test_every_response_goes_its_own_way(self, stream):
        _, collector = stream.ask()
        source = stream.models.take("stream")
        for number in range(3):
            answer(source, y=number, final=False)
        answer(source)  # nothing more
        assert stream.models.names() == ["format"] * 3
        for number in range(3):
            assert not collector.answered
            answer(stream.models.take("format"), y=number * 10)
        assert [outputs_of(response) for response in collector.responses] == [
            {"OUT": 0},
            {"OUT": 10},
            {"OUT": 20},
        ]
        assert [response.final for response in collector.responses] == [False, False, True]

    def test_responses_leave_in_the_order_of_the_stream(self, stream):
        _, collector = stream.ask()
        source = stream.models.take("stream")
        for number in range(3):
            answer(source, y=number, final=False)
        waiting = list(stream.models.asked)
        answer(waiting[2], y=2)
        answer(waiting[1], y=1)
        assert collector.responses == []
        answer(waiting[0], y=0)
        assert [outputs_of(one)["OUT"] for one in collector.responses] == [0, 1, 2]
        assert not collector.answered
        answer(source)
        assert collector.wait().outputs == []

    def test_the_last_word_may_come_with_outputs(self, stream):
        _, collector = stream.ask()
        answer(stream.models.take("stream"), y=1)
        answer(stream.models.take("format"), y=2)
        assert outputs_of(collector.wait()) == {"OUT": 2}
        assert len(collector.responses) == 1

    def test_no_response_at_all(self, stream):
        _, collector = stream.ask()
        answer(stream.models.take("stream"))
        assert collector.wait().outputs == []
        assert collector.responses[0].error is None

    def test_an_error_in_the_middle_ends_the_stream(self, stream):
        _, collector = stream.ask()
        source = stream.models.take("stream")
        answer(source, y=1, final=False)
        answer(stream.models.take("format"), y=1)
        answer(source, y=2, final=False)
        fail(stream.models.take("format"), BackendFailure("no"))
        assert source.cancelled  # it need not go on
        assert not collector.answered  # but it may still read what the client sent
        answer(source, y=3, final=False)
        answer(source)
        assert stream.models.asked == []
        assert outputs_of(collector.responses[0]) == {"OUT": 1}
        assert collector.wait().error.message == "in ensemble 'pipe', no"
        assert collector.finals == 1


class TestFailures:
    def test_the_first_error_is_the_ensembles(self, fork):
        _, collector = fork.ask()
        left, right = fork.models.take("left"), fork.models.take("right")
        fail(left, BackendFailure("too hot"))
        assert right.cancelled
        assert not collector.answered  # the other step may still read what the client sent
        fail(right, BackendFailure("too cold"))
        error = collector.wait().error
        assert error.message == "in ensemble 'pipe', too hot"
        assert isinstance(error, BackendFailure)
        assert collector.finals == 1
        assert fork.statistics.read().failures[FailureReason.OTHER] == 1

    def test_no_step_follows_an_error(self, chain):
        _, collector = chain.ask()
        fail(chain.models.take("first"), InvalidArgument("bad shape"))
        assert chain.models.asked == []
        assert isinstance(collector.wait().error, InvalidArgument)

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (QueueRejected("full"), QueueRejected),
            (Unavailable("gone"), Unavailable),
            (RuntimeError("oops"), Internal),
        ],
    )
    def test_a_model_that_refuses(self, fork, error, kind):
        fork.models.refuse["left"] = error
        _, collector = fork.ask()
        assert fork.models.names() == []  # the other one is not even asked
        told = collector.wait().error
        assert isinstance(told, kind)
        assert told.message.startswith("in ensemble 'pipe', ")
        assert fork.statistics.read().failures[FailureReason.OTHER] == 1
        assert fork.scheduler.in_flight() == 0

    def test_nonsense_in_a_steps_parameters(self, chain):
        _, collector = chain.ask()
        answer(chain.models.take("first"), y=1, parameters={"sequence_start": "yes"})
        assert "expected parameter 'sequence_start'" in collector.wait().error.message

    def test_responses_after_the_last_one_are_ignored(self, chain):
        _, collector = chain.ask()
        first = chain.models.take("first")
        answer(first, y=1)
        answer(first, y=2)
        assert chain.models.names() == ["second"]
        answer(chain.models.take("second"), y=3)
        assert collector.finals == 1

    def test_our_own_fault_is_told_too(self, chain, monkeypatch):
        def broken(*_args):
            raise ValueError("a bug")

        monkeypatch.setattr("shoal.scheduler.ensemble.response_values", broken)
        _, collector = chain.ask()
        answer(chain.models.take("first"), y=1)
        assert collector.wait().error.message == "in ensemble 'pipe', ValueError: a bug"


class TestCancelling:
    def test_between_two_steps(self, chain):
        request, collector = chain.ask(id="r1")
        first = chain.models.take("first")
        request.cancel()
        assert first.cancelled
        assert not collector.answered  # the step is executing: it ends first
        answer(first, y=1)
        assert chain.models.asked == []
        error = collector.wait().error
        assert isinstance(error, Cancelled)
        assert error.message == "in ensemble 'pipe', [request id: r1] Request cancelled"
        assert chain.statistics.read().failures[FailureReason.OTHER] == 1

    def test_before_it_began(self, chain):
        request, collector = make_request(tensor(1), model="pipe", rows=1)
        request.cancel()
        chain.scheduler.enqueue(request)
        first = chain.models.take("first")
        assert first.cancelled
        fail(first, Cancelled("dropped by the queue"))
        assert isinstance(collector.wait().error, Cancelled)

    def test_after_the_answer_it_changes_nothing(self, chain):
        request, collector = chain.ask()
        answer(chain.models.take("first"), y=1)
        answer(chain.models.take("second"), y=1)
        assert request.state is State.DONE
        request.cancel()
        assert collector.finals == 1
        assert collector.responses[-1].error is None

    def test_steps_that_wait_for_room_end_at_once(self, kit, make_world):
        world = make_world([(kit.model("m"), {"x": "IN"}, {"y": "OUT"})], max_inflight=1)
        _, first = world.ask()
        request, second = world.ask()
        request.cancel()
        assert isinstance(second.wait().error, Cancelled)
        answer(world.models.take("m"), y=1)
        assert outputs_of(first.wait()) == {"OUT": 1}
        assert world.models.asked == []


class TestBackpressure:
    def test_a_step_has_so_many_in_flight_over_all_requests(self, kit, make_world):
        world = make_world(
            [
                (kit.model("first"), {"x": "IN"}, {"y": "mid"}),
                (kit.model("second"), {"x": "mid"}, {"y": "OUT"}),
            ],
            max_inflight=2,
        )
        collectors = [world.ask(number)[1] for number in range(5)]
        assert world.models.names() == ["first"] * 2
        answer(world.models.take("first"), y=0)
        assert world.models.names() == ["first", "first", "second"]  # each step has its own room
        while world.models.asked:
            answer(world.models.asked.pop(0), y=7)
        assert [outputs_of(collector.wait()) for collector in collectors] == [{"OUT": 7}] * 5

    def test_a_step_that_fails_makes_room(self, kit, make_world):
        world = make_world([(kit.model("m"), {"x": "IN"}, {"y": "OUT"})], max_inflight=1)
        _, first = world.ask()
        _, second = world.ask()
        fail(world.models.take("m"), BackendFailure("no"))
        assert first.wait().error is not None
        answer(world.models.take("m"), y=1)
        assert second.wait().error is None

    def test_a_model_that_refuses_makes_room(self, kit, make_world):
        world = make_world([(kit.model("m"), {"x": "IN"}, {"y": "OUT"})], max_inflight=1)
        _, held = world.ask()
        collectors = [world.ask()[1] for _ in range(50)]
        world.models.refuse["m"] = QueueRejected("full")
        answer(world.models.take("m"), y=1)
        assert held.wait().error is None
        assert all(collector.wait().error is not None for collector in collectors)

    def test_a_stream_does_not_run_ahead(self, kit, make_world):
        world = make_world(streaming_steps(kit), max_inflight=1)
        _, collector = world.ask()
        source = world.models.take("stream")
        sent = threading.Semaphore(0)

        def produce():
            for number in range(3):
                answer(source, y=number, final=False)
                sent.release()
            answer(source)

        thread = threading.Thread(target=produce)
        thread.start()
        assert sent.acquire(timeout=WAIT_SECS)  # the first finds room
        limit = world.scheduler.limits[1]
        for number in range(2):
            wait_until(lambda: limit.waiting, "the next one waits")
            assert not sent.acquire(blocking=False)
            answer(world.models.take("format"), y=number)
            assert sent.acquire(timeout=WAIT_SECS)
        thread.join(WAIT_SECS)
        answer(world.models.take("format"), y=2)
        collector.wait()
        assert [outputs_of(one).get("OUT") for one in collector.responses][:3] == [0, 1, 2]

    def test_a_stream_that_waits_is_let_go_when_its_client_leaves(self, kit, make_world):
        world = make_world(streaming_steps(kit), max_inflight=1)
        request, collector = world.ask()
        source = world.models.take("stream")
        answer(source, y=0, final=False)
        thread = threading.Thread(target=answer, args=(source,), kwargs={"y": 1, "final": False})
        thread.start()
        limit = world.scheduler.limits[1]
        wait_until(lambda: limit.waiting, "the stream waits")
        request.cancel()
        thread.join(WAIT_SECS)
        assert not thread.is_alive()
        answer(world.models.take("format"), y=0)
        answer(source)
        assert isinstance(collector.wait().error, Cancelled)


class TestStatistics:
    def test_compute_is_the_sum_over_the_steps(self, fork):
        start = fork.clock()
        fork.ask(number=1)
        answer(
            fork.models.take("left"),
            y=1,
            moments=Moments(start + 10, start + 11, start + 31, start + 35),
        )
        fork.clock.advance(40)
        answer(
            fork.models.take("right"),
            y=1,
            moments=Moments(start + 10, start + 12, start + 37, start + 38),
        )
        reading = fork.statistics.read()
        assert reading.compute_input_ns == 1 + 2
        assert reading.compute_infer_ns == 20 + 25
        assert reading.compute_output_ns == 4 + 1
        assert reading.success_ns == 40  # side by side: less than the sum
        assert reading.queue_ns == 0
        assert (reading.success_count, reading.inference_count, reading.execution_count) == (
            1,
            1,
            1,
        )

    def test_a_step_that_answers_while_it_executes(self, chain):
        start = chain.clock()
        chain.ask()
        chain.clock.advance(30)
        answer(chain.models.take("first"), y=1, moments=Moments(start + 10, start + 10, 0, 0))
        answer(chain.models.take("second"), y=1, moments=None)  # e.g. from a cache: it never ran
        assert chain.statistics.read().compute_infer_ns == 20

    def test_an_ensemble_in_an_ensemble_adds_up(self, chain):
        start = chain.clock()
        request, _ = chain.ask()
        answer(
            chain.models.take("first"), y=1, moments=Moments(start, start + 1, start + 3, start + 6)
        )
        answer(
            chain.models.take("second"),
            y=1,
            moments=Moments(start, start + 1, start + 3, start + 6),
        )
        begin, input_end, output_start, end = request.moments
        assert (input_end - begin, output_start - input_end, end - output_start) == (2, 4, 6)

    def test_counted_before_the_client_hears(self, chain):
        seen = []

        class Reply:
            def send(self, response):
                seen.append(chain.statistics.read().success_count)

        request = Request("pipe", {"IN": tensor(1)}, Reply())
        chain.scheduler.enqueue(request)
        answer(chain.models.take("first"), y=1)
        answer(chain.models.take("second"), y=1)
        assert seen == [1]


def test_tensors_are_freed_without_the_garbage_collector(chain):
    """Requests refer to their replies and replies to requests: neither may keep the tensors."""
    arrays = [np.ones((1, 1), np.int32) for _ in range(3)]
    alive = [weakref.ref(array) for array in arrays]
    gc.disable()
    try:
        request, collector = make_request(Tensor.from_array("IN", arrays[0]), model="pipe", rows=1)
        chain.scheduler.enqueue(request)
        for name, array in (("first", arrays[1]), ("second", arrays[2])):
            step = chain.models.take(name)
            step.reply.send(Response(name, 1, outputs=[Tensor.from_array("y", array)]))
        collector.wait()
        del request, collector, step, array, arrays
        assert [reference() for reference in alive] == [None] * 3
    finally:
        gc.enable()


class TestClosing:
    def test_requests_at_hand_are_finished(self, chain):
        _, collector = chain.ask()
        thread = threading.Thread(target=chain.scheduler.close)
        thread.start()
        answer(chain.models.take("first"), y=1)
        answer(chain.models.take("second"), y=1)
        thread.join(WAIT_SECS)
        assert not thread.is_alive()
        assert collector.answered

    def test_new_ones_are_refused(self, chain):
        chain.scheduler.close()
        with pytest.raises(BatcherClosed, match="unloading"):
            chain.ask()


def test_many_threads_and_one_final_response_each(kit, make_world):
    """Steps that answer from many threads, fail now and then, or are withdrawn: always one end."""
    world = make_world(
        [
            (kit.model("stream", decoupled=True), {"x": "IN"}, {"y": "a"}),
            (kit.model("left"), {"x": "a"}, {"y": "b"}),
            (kit.model("right"), {"x": "a"}, {"y": "c"}),
            (kit.model("join", inputs=("p", "q")), {"p": "b", "q": "c"}, {"y": "OUT"}),
        ],
        max_inflight=3,
    )
    dice = random.Random(7)
    pool = ThreadPoolExecutor(8)

    def serve(request):
        if request.model_name == "stream":
            for number in range(5):
                answer(request, y=number, final=False)
            answer(request)
        elif dice.random() < 0.02:
            fail(request, BackendFailure("bad luck"))
        else:
            number = int(next(iter(request.inputs.values())).array[0, 0])
            answer(request, y=number)

    producers = ThreadPoolExecutor(4)  # they may be held back by the steps behind
    world.scheduler.infer = lambda request: (
        producers if request.model_name == "stream" else pool
    ).submit(serve, request)
    asked = [world.ask(number) for number in range(100)]
    for request, _ in asked[::7]:
        request.cancel()
    for _, collector in asked:
        last = collector.wait()
        if last.error is None:
            rows = [outputs_of(one)["OUT"] for one in collector.responses if one.outputs]
            assert rows == [0, 1, 2, 3, 4]
    world.scheduler.close()
    producers.shutdown()
    pool.shutdown()
    assert all(collector.finals == 1 for _, collector in asked)
    reading = world.statistics.read()
    assert reading.success_count + sum(reading.failures.values()) == 100
    assert reading.success_count > 20
    assert all(limit.waiting == 0 and limit._free == 3 for limit in world.scheduler.limits)
