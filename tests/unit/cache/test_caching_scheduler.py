"""Between a model and its queue: what is known is answered, what is not is kept on its way back."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from shoal.cache import caching_scheduler as scheduler_module
from shoal.cache.base import ResponseCache
from shoal.cache.caching_scheduler import CachingScheduler
from shoal.cache.local import LocalCache
from shoal.cache.store import CacheStore
from shoal.core.request import State
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure, QueueRejected, Unavailable
from shoal.scheduler.base import BatcherClosed
from shoal.statistics.model import ModelStatistics, Moments
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS, Collector, FakeClock, make_request


class Queue:
    """The model behind the scheduler: requests wait here until a test answers them."""

    def __init__(self):
        self.waiting = []
        self.arrived = threading.Semaphore(0)
        self.refuses = None

    def enqueue(self, request):
        if self.refuses is not None:
            raise self.refuses
        self.waiting.append(request)
        self.arrived.release()

    def take(self):
        assert self.arrived.acquire(timeout=WAIT_SECS)
        return self.waiting.pop(0)

    def answer(self, value=7, **options):
        request = self.take()
        tensor = Tensor.from_array("Y", np.array([value], np.int32))
        request.reply.send(Response("m", 1, request.id, [tensor], **options))

    def fail(self):
        request = self.take()
        request.reply.send(Response("m", 1, request.id, error=BackendFailure("broken")))


class Loop:
    """An event loop that a test turns by hand."""

    def __init__(self):
        self.soon = []
        self.thread = threading.get_ident()
        self.gone = False

    def here(self):
        return threading.get_ident() == self.thread

    def call_soon(self, callback):
        if self.gone:
            return False
        self.soon.append(callback)
        return True

    def turn(self):
        for callback in self.soon:
            callback()
        self.soon.clear()


class Remote(LocalCache):
    """A cache that waits: for its gate."""

    waits = True

    def __init__(self):
        super().__init__(1 << 20)
        self.gate = threading.Event()
        self.gate.set()
        self.inserted = threading.Semaphore(0)
        self.threads_seen = set()

    def lookup(self, key):
        self.threads_seen.add(threading.current_thread().name)
        assert self.gate.wait(WAIT_SECS)
        return super().lookup(key)

    def insert(self, key, entry):
        kept = super().insert(key, entry)
        self.inserted.release()
        return kept


class World:
    """A scheduler with everything around it."""

    def __init__(self, cache=None, **options):
        self.store = CacheStore("c", cache or LocalCache(1 << 20))
        self.queue = Queue()
        self.statistics = ModelStatistics("m", 1)
        self.identity = b"model"
        self.scheduler = CachingScheduler(
            self.store, lambda: self.identity, self.queue.enqueue, self.statistics, **options
        )

    def ask(self, value=1, **options):
        tensor = Tensor.from_array("X", np.array([value], np.int32))
        request, collector = make_request(tensor, rows=1, **options)
        self.scheduler.enqueue(request)
        return collector

    def counts(self):
        cache = self.statistics.read().cache
        return cache.hit_count, cache.miss_count


@pytest.fixture
def make():
    made = []

    def world(*arguments, **options):
        made.append(World(*arguments, **options))
        return made[-1]

    yield world
    for one in made:
        one.scheduler.close()
        one.store.close()


@pytest.fixture
def world(make):
    return make()


def value(collector: Collector):
    response = collector.wait()
    assert response.error is None, response.error
    return response.outputs[0].array.tolist()[0]


def test_the_second_time_the_model_is_not_asked(world):
    first = world.ask(id="a")
    world.queue.answer(7)
    second = world.ask(id="b")
    assert value(first) == value(second) == 7
    assert (first.wait().request_id, second.wait().request_id) == ("a", "b")
    assert (second.wait().model_name, second.wait().model_version) == ("m", 1)
    assert not world.queue.waiting
    assert world.counts() == (1, 1)


def test_another_question_is_another_answer(world):
    world.ask(1)
    world.queue.answer(7)
    other = world.ask(2)
    world.queue.answer(8)
    assert value(other) == 8
    assert value(world.ask(1)) == 7
    assert value(world.ask(2)) == 8


def test_equal_requests_at_the_same_time_all_go_to_the_model(world):
    collectors = [world.ask() for _ in range(3)]
    for number in range(3):
        world.queue.answer(number)
    assert [value(one) for one in collectors] == [0, 1, 2]
    assert world.counts() == (0, 3)


def test_errors_are_not_kept(world):
    failed = world.ask()
    world.queue.fail()
    assert failed.wait().error is not None
    again = world.ask()
    world.queue.answer(7)
    assert value(again) == 7
    assert world.counts() == (0, 1)  # as with Triton, a miss is counted where there is an answer


def test_an_answer_in_several_parts_is_not_kept(world):
    collector = world.ask()
    request = world.queue.take()
    request.reply.send(Response("m", 1, final=False))
    request.reply.send(Response("m", 1))
    assert len(collector.responses) == 2
    world.ask()
    assert world.queue.take()
    assert world.counts() == (0, 1)


@pytest.mark.parametrize("options", [{"correlation_id": 5}, {"correlation_id": "x"}, {"flags": 1}])
def test_requests_of_sequences_pass_by(world, options):
    for _ in range(2):
        collector = world.ask(**options)
        world.queue.answer(7)
        assert value(collector) == 7
    assert world.counts() == (0, 0)
    assert world.store.read().lookups == 0


def test_another_model_has_other_answers(world):
    world.ask()
    world.queue.answer(7)
    world.identity = b"loaded again"
    changed = world.ask()
    world.queue.answer(8)
    assert value(changed) == 8


def test_an_answer_of_a_model_that_was_replaced_meanwhile_is_not_kept(world):
    world.ask()
    world.identity = b"a step of it was loaded again"
    world.queue.answer(8)
    world.identity = b"model"
    world.ask()
    assert world.queue.take()


def test_an_answer_too_large_is_given_and_not_kept(make):
    world = make(LocalCache(10))
    for _ in range(2):
        collector = world.ask()
        world.queue.answer(7)
        assert value(collector) == 7
    assert world.store.read().too_large == 2
    assert world.counts() == (0, 2)


def test_a_refused_request_is_the_callers_again(world):
    tensor = Tensor.from_array("X", np.array([1], np.int32))
    request, collector = make_request(tensor)
    world.queue.refuses = QueueRejected("full")
    with pytest.raises(QueueRejected):
        world.scheduler.enqueue(request)
    assert request.reply is collector
    assert not collector.responses
    assert world.scheduler.pending == 0
    world.queue.refuses = None
    world.scheduler.enqueue(request)
    world.queue.answer(7)
    assert value(collector) == 7


def test_hits_are_counted_as_successes_that_were_not_executed(world):
    world.ask()
    request = world.queue.take()
    world.statistics.executed([request], 1, Moments(10, 20, 30, 40), end_ns=request.start_ns + 5)
    tensor = Tensor.from_array("Y", np.array([1], np.int32))
    request.reply.send(Response("m", 1, "", [tensor]))
    hit = world.ask()
    assert hit.answered
    snapshot = world.statistics.snapshot()
    assert (snapshot["inference_count"], snapshot["execution_count"]) == (1, 1)
    counts = {name: entry["count"] for name, entry in snapshot["inference_stats"].items()}
    assert counts == {
        "success": 2,
        "fail": 0,
        "queue": 2,
        "compute_input": 1,
        "compute_infer": 1,
        "compute_output": 1,
        "cache_hit": 1,
        "cache_miss": 1,
    }
    stats = snapshot["inference_stats"]
    assert stats["cache_hit"]["ns"] > 0
    assert stats["cache_miss"]["ns"] > 0
    reading = world.statistics.read()
    assert reading.histograms.request_duration_ns.count == 2
    assert reading.histograms.compute_duration_ns.count == 1


def test_on_the_loop_an_answer_comes_after_the_question(make):
    loop = Loop()
    world = make(loop=loop)
    world.ask()
    world.queue.answer(7)
    hit = world.ask()
    assert not hit.answered  # the frontend is still busy with pending
    loop.turn()
    assert value(hit) == 7
    loop.gone = True
    assert value(world.ask()) == 7


def test_much_to_hash_is_hashed_elsewhere(make, monkeypatch):
    monkeypatch.setattr(scheduler_module, "_HASH_ON_LOOP_BYTES", 3)
    loop = Loop()
    world = make(loop=loop)
    gate, asked = threading.Event(), threading.Event()
    lookup = world.store.lookup

    def slow(key):
        asked.set()
        assert gate.wait(WAIT_SECS)
        return lookup(key)

    monkeypatch.setattr(world.store, "lookup", slow)
    collector = world.ask()
    assert asked.wait(WAIT_SECS)
    assert world.scheduler.pending == 1
    gate.set()
    world.queue.answer(7)
    assert value(collector) == 7
    assert value(world.ask()) == 7
    wait_until(lambda: world.scheduler.pending == 0, "both threads have done their pending")


def test_a_cache_that_waits_is_never_asked_here(make):
    cache = Remote()
    world = make(cache)
    first = world.ask()
    world.queue.answer(7)
    assert value(first) == 7
    assert cache.inserted.acquire(timeout=WAIT_SECS)
    assert value(world.ask()) == 7
    assert threading.current_thread().name not in cache.threads_seen
    assert world.counts() == (1, 1)


def test_a_refusal_on_another_thread_is_an_answer(make):
    world = make(Remote())
    world.queue.refuses = QueueRejected("full")
    assert isinstance(world.ask().wait().error, QueueRejected)
    world.queue.refuses = Unavailable("odd")
    assert isinstance(world.ask().wait().error, Unavailable)
    world.queue.refuses = RuntimeError("a fault of ours")
    assert "a fault of ours" in world.ask().wait().error.message
    rejected = sum(world.statistics.read().failures.values())
    assert rejected == 1  # the other two are counted nowhere, as without a cache


def test_a_cancelled_request_reaches_the_queue_which_sees_it(make):
    cache = Remote()
    cache.gate.clear()
    world = make(cache)
    tensor = Tensor.from_array("X", np.array([1], np.int32))
    request, _ = make_request(tensor)
    world.scheduler.enqueue(request)
    request.cancel()
    cache.gate.set()
    assert world.queue.take() is request
    assert request.cancelled


def test_closing_waits_for_those_that_are_asking(make):
    cache = Remote()
    cache.gate.clear()
    world = make(cache)
    collector = world.ask()
    closing = threading.Thread(target=world.scheduler.close)
    closing.start()
    wait_until(lambda: world.scheduler._closed)
    with pytest.raises(BatcherClosed):
        world.ask(2)
    cache.gate.set()
    closing.join(WAIT_SECS)
    assert not closing.is_alive()
    assert world.scheduler.pending == 0
    world.queue.waiting[0].reply.send(Response("m", 1))
    assert collector.answered


def test_too_many_for_a_slow_cache_go_past_it(make):
    cache = Remote()
    cache.threads = 1
    cache.gate.clear()
    world = make(cache)
    world.store._most_waiting = 1
    waiting = [world.ask(1)]
    while world.queue.arrived._value == 0:
        waiting.append(world.ask(1))
    world.queue.answer(5)  # one that did not wait for the cache
    assert value(waiting[-1]) == 5
    assert world.counts() == (0, 1)
    cache.gate.set()
    for _ in waiting[:-1]:
        world.queue.answer(6)
    for collector in waiting[:-1]:
        assert value(collector) == 6


class Down(ResponseCache):
    """Never there."""

    waits = True

    def lookup(self, key):
        raise ConnectionError("down")

    def insert(self, key, entry):
        raise ConnectionError("down")


def test_while_the_cache_is_down_every_request_is_a_miss(make):
    world = make(Down())
    world.store._clock = FakeClock()  # so that it is left alone all the while
    for _ in range(4):
        collector = world.ask()
        world.queue.answer(7)
        assert value(collector) == 7
    assert world.counts() == (0, 4)
    assert world.store.read().lookups == 1  # then it was left alone


def test_order_is_kept_whoever_answers(make):
    world = make(preserve_ordering=True)
    world.ask(1)
    world.queue.answer(7)
    slow = world.ask(2)
    hit = world.ask(1)
    assert not hit.answered  # the one before it is not answered
    world.queue.answer(8)
    assert (value(slow), value(hit)) == (8, 7)


def test_with_order_a_refusal_is_an_answer_too(make):
    world = make(preserve_ordering=True)
    slow = world.ask(1)
    world.queue.refuses = QueueRejected("full")
    refused = world.ask(2)
    assert not refused.answered
    world.queue.refuses = None
    last = world.ask(3)
    world.queue.answer(7)
    world.queue.answer(9)
    assert value(slow) == 7
    assert isinstance(refused.wait().error, QueueRejected)
    assert value(last) == 9


def test_an_answered_request_is_done(world):
    world.ask()
    world.queue.answer(7)
    tensor = Tensor.from_array("X", np.array([1], np.int32))
    request, collector = make_request(tensor)
    world.scheduler.enqueue(request)
    assert collector.answered
    assert request.state is State.DONE
    assert request.moments is None  # it was not executed
