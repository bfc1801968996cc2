"""Instances whose executions hang: every request has one response, and the instance is replaced."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from shoal.backends.base import Executor, Placement, RequestExecutor
from shoal.config.model import ModelRateLimiter
from shoal.core.dtypes import BY_NAME
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import DeadlineExceeded, Internal, Unavailable
from shoal.instance.execution import Execution
from shoal.instance.health import ModelHealth, abandoned_instances
from shoal.instance.rate_limiter import RateLimiter
from shoal.instance.watched_worker import WatchedWorker
from shoal.scheduler.batcher import Batcher
from shoal.scheduler.policy import BatchPolicy
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from shoal.statistics.model import FailureReason, ModelStatistics
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS, make_request

INT32 = BY_NAME["INT32"]
SIGNATURE = Signature(
    "m", 8, {"x": TensorSpec("x", INT32, (1,))}, {"y": TensorSpec("y", INT32, (1,))}
)
HANG = -1


class ManualTimer:
    """Calls everything at once when the test says so."""

    def __init__(self):
        self.callbacks = []

    def at(self, when_ns, callback):
        self.callbacks.append(callback)

    def fire(self):
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


class Hanging:
    """What all executors of a test share."""

    def __init__(self):
        self.gate = threading.Event()
        self.hangs = threading.Semaphore(0)
        self.batches = []
        self.made = []
        self.closed = []
        self.fails_to_make = False

    def wait(self):
        self.hangs.release()
        assert self.gate.wait(WAIT_SECS)


class HangingExecutor(Executor):
    def __init__(self, owner):
        self.owner = owner
        owner.made.append(self)

    def run(self, inputs, outputs):
        x = inputs["x"]
        self.owner.batches.append(x.reshape(-1).tolist())
        if (x == HANG).any():
            self.owner.wait()
        if (x == -2).any():
            raise ValueError("bad")
        return [x]

    def close(self):
        self.owner.closed.append(self)


class HangingRequests(RequestExecutor):
    """Answers the first request of each batch before it may hang."""

    def __init__(self, owner):
        self.owner = owner
        self.refused = []
        owner.made.append(self)

    def execute(self, batch):
        numbers = [int(one.request.inputs["x"].array[0, 0]) for one in batch]
        for one, number in zip(batch, numbers, strict=True):
            if number == HANG:
                self.owner.wait()
            try:
                one.send([Tensor.from_array("y", one.request.inputs["x"].array)])
            except Internal as error:
                self.refused.append(error)

    def close(self):
        self.owner.closed.append(self)


class Killable(HangingRequests):
    """Ends its execution when it is told to."""

    def end_execution(self, reason):
        self.owner.gate.set()
        return True


class World:
    def __init__(self, kind=HangingExecutor, *, replacements=4, count=1, limit_ms=60_000):
        self.kind = kind
        self.owner = Hanging()
        self.timer = ManualTimer()
        self.health = ModelHealth("m", limit_ms, replacements)
        self.statistics = ModelStatistics("m", 1)
        self.execution = Execution(SIGNATURE, 1, self.statistics)
        self.batcher = Batcher(
            BatchPolicy(8), RequestQueue(QueuePolicy()), on_dropped=lambda request, error: None
        )
        self.limiter = RateLimiter()
        self.workers = [self.worker(f"m_0_{index}") for index in range(count)]
        self.sent = []

    def make(self):
        if self.owner.fails_to_make:
            raise Internal("no memory")
        return self.kind(self.owner)

    def worker(self, name, **options):
        placement = Placement("KIND_CPU", name=name)
        made = WatchedWorker(
            placement,
            self.make(),
            self.batcher,
            self.execution,
            health=self.health,
            make_executor=self.make,
            timer=self.timer,
            **options,
        )
        made.start()
        return made

    def send(self, *numbers):
        """Requests that are queued as a group, so that they share a batch."""
        pairs = []
        for number in numbers:
            array = np.array([[number]], np.int32)
            pairs.append(make_request(Tensor.from_array("x", array), rows=1))
        assert self.batcher.enqueue_group([request for request, _ in pairs])
        collectors = [collector for _, collector in pairs]
        self.sent += collectors
        return collectors

    def hang(self, *numbers):
        """Send requests of which one hangs, and let the limit pass."""
        collectors = self.send(*(numbers or (HANG,)))
        assert self.owner.hangs.acquire(timeout=WAIT_SECS)
        self.let_the_limit_pass()
        return collectors

    def let_the_limit_pass(self, workers=None):
        for worker in workers or self.workers:
            watched = worker._watched
            if watched is not None and watched.watch._due_ns:
                watched.watch._due_ns = time.monotonic_ns()
        self.timer.fire()

    def check_counts(self):
        """Every request has exactly one final response, and is counted once."""
        assert [collector.finals for collector in self.sent] == [1] * len(self.sent)
        good = sum(collector.responses[-1].error is None for collector in self.sent)
        reading = self.statistics.read()
        assert reading.success_count == good
        assert sum(reading.failures.values()) == len(self.sent) - good
        assert reading.queue_ns >= 0

    def end(self, *workers):
        for worker in workers:
            worker.join()
            self.workers.remove(worker)

    def close(self):
        self.batcher.close()
        self.end(*self.workers)
        self.owner.gate.set()
        wait_until(lambda: self.health.read().abandoned_threads == 0)


@pytest.fixture
def start():
    worlds = []

    def make(*args, **options):
        worlds.append(World(*args, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def error_of(collector, kind):
    error = collector.wait().error
    assert isinstance(error, kind), error
    return error.message


def values(collectors):
    return [int(collector.wait().outputs[0].array[0, 0]) for collector in collectors]


@pytest.mark.parametrize("kind", [HangingExecutor, HangingRequests])
def test_the_batch_fails_and_a_new_executor_serves_the_next(start, kind):
    world = start(kind)
    text = (
        "model 'm', instance 'm_0_0': an execution took longer than 60000 ms "
        "(execution_timeout_ms). Raise that limit if the model needs longer; otherwise find out "
        "where it hangs: the server's log shows it"
    )
    assert {error_of(one, DeadlineExceeded) for one in world.hang(HANG, 2, 3)} == {text}
    assert values(world.send(4, 5)) == [4, 5]
    assert len(world.owner.made) == 2
    assert world.owner.closed == []  # its thread may still use it
    assert world.health.read() == (1, 1, 0)
    assert world.health.serves()
    assert abandoned_instances() == ["m_0_0"]
    assert world.statistics.read().failures[FailureReason.BACKEND] == 3
    world.check_counts()


def test_a_late_result_is_discarded_and_its_executor_closed(start):
    world = start()
    hung = world.hang(HANG, 2)
    assert [error_of(one, DeadlineExceeded) for one in hung]
    world.owner.gate.set()
    wait_until(lambda: world.health.read().abandoned_threads == 0)
    assert world.owner.closed == world.owner.made[:1]
    assert abandoned_instances() == []
    assert values(world.send(7)) == [7]
    world.check_counts()


def test_requests_that_were_answered_before_stay_answered(start):
    world = start(HangingRequests)
    first, second, third = world.hang(1, HANG, 3)
    assert values([first]) == [1]
    for one in (second, third):
        error_of(one, DeadlineExceeded)
    world.owner.gate.set()
    wait_until(lambda: world.health.read().abandoned_threads == 0)
    assert len(world.owner.made[0].refused) == 2  # its late responses
    assert values(world.send(4)) == [4]
    world.check_counts()


def test_the_rest_of_a_batch_whose_requests_run_one_by_one(start):
    world = start()

    class Picky(HangingExecutor):
        def run(self, inputs, outputs):
            if len(inputs["x"]) > 1:
                raise ValueError("too many")
            return super().run(inputs, outputs)

    world.kind = Picky
    world.hang()  # replaces the executor by a picky one
    first, second, third = world.hang(1, HANG, 3)
    assert values([first]) == [1]
    for one in (second, third):
        error_of(one, DeadlineExceeded)
    world.check_counts()


class Streaming(HangingRequests):
    """Sends one response, hangs, and then tries to send more."""

    def execute(self, batch):
        for one in batch:
            one.send([Tensor.from_array("y", one.request.inputs["x"].array)], final=False)
        super().execute(batch)


def test_a_stream_ends_with_the_error(start):
    world = start(Streaming)
    (hung,) = world.hang()
    error_of(hung, DeadlineExceeded)
    world.owner.gate.set()
    wait_until(lambda: world.health.read().abandoned_threads == 0)
    assert [response.final for response in hung.responses] == [False, True]
    world.check_counts()


def test_over_the_limit_requests_are_refused_at_once(start):
    world = start(replacements=1)
    world.hang()
    assert values(world.send(1)) == [1]
    world.hang()
    (refused,) = world.send(2)
    assert error_of(refused, Unavailable) == (
        "model 'm' has no healthy instance: instance 'm_0_0' is unhealthy: threads that hang in "
        "executions of more than 60000 ms (execution_timeout_ms): 2; instances are replaced while "
        "there are at most 1 (execution_timeout_replacements). Load the model again or restart the "
        "server"
    )
    assert not world.health.serves()
    assert world.health.read() == (2, 2, 1)
    world.check_counts()


def test_a_thread_that_returns_makes_an_unhealthy_instance_healthy(start):
    world = start(replacements=0)
    world.hang()
    (refused,) = world.send(1)
    error_of(refused, Unavailable)
    world.owner.gate.set()
    wait_until(world.health.serves)
    assert values(world.send(2)) == [2]
    assert world.health.read() == (1, 0, 0)
    assert world.health.problems() == []
    world.check_counts()


def test_another_instance_takes_the_work_of_an_unhealthy_one(start):
    world = start(replacements=0, count=2)
    world.hang()
    wait_until(lambda: world.health.read().unhealthy_instances == 1)
    assert values(world.send(1)) == [1]
    assert values(world.send(2)) == [2]
    assert world.health.serves()
    world.hang()  # the other one
    wait_until(lambda: not world.health.serves())
    (refused,) = world.send(3)
    error_of(refused, Unavailable)
    world.owner.gate.set()
    wait_until(lambda: world.health.read().unhealthy_instances == 0)
    assert values(world.send(4)) == [4]
    world.check_counts()


def test_when_the_healthy_instance_is_removed_the_other_one_refuses(start):
    world = start(replacements=0, count=2)
    world.hang()
    wait_until(lambda: "is unhealthy" in "".join(world.health.problems()))
    healthy = next(worker for worker in world.workers if worker._watched is not None)
    healthy.stop()
    world.end(healthy)
    (refused,) = world.send(1)
    error_of(refused, Unavailable)


def test_an_instance_that_cannot_be_replaced(start, caplog):
    world = start()
    world.owner.fails_to_make = True
    world.hang()
    (refused,) = world.send(1)
    assert "is unhealthy: it cannot be replaced: no memory" in error_of(refused, Unavailable)
    world.owner.fails_to_make = False
    world.owner.gate.set()
    wait_until(world.health.serves)
    assert values(world.send(2)) == [2]


def test_an_execution_that_can_be_ended_keeps_its_executor(start):
    world = start(Killable)
    for one in world.hang(HANG, 2):
        error_of(one, DeadlineExceeded)
    assert values(world.send(3)) == [3]
    assert len(world.owner.made) == 1
    assert world.health.read() == (1, 0, 0)
    world.check_counts()


def test_the_log_shows_where_the_thread_hangs(start, caplog):
    world = start()
    world.hang()
    wait_until(lambda: "self.owner.wait()" in caplog.text)
    assert "model 'm', instance 'm_0_0': an execution took longer" in caplog.text
    assert "_bootstrap" not in caplog.text  # only frames of the executor


def test_stopping_does_not_wait_for_abandoned_threads(start):
    world = start()
    world.hang()
    assert values(world.send(1)) == [1]
    (worker,) = world.workers
    worker.stop()
    world.end(worker)
    assert world.health.read().abandoned_threads == 1


def test_the_model_is_closed_after_its_last_thread_has_returned(start):
    world = start()
    world.hang()
    assert values(world.send(1)) == [1]
    world.batcher.close()
    world.end(*world.workers)
    closed = threading.Event()
    world.health.close(closed.set)
    assert not closed.is_set()
    world.owner.gate.set()
    assert closed.wait(WAIT_SECS)
    assert set(world.owner.closed) == set(world.owner.made)


def test_a_stop_during_an_execution_that_hangs_waits_for_its_limit(start):
    world = start()
    (hung,) = world.send(HANG)
    assert world.owner.hangs.acquire(timeout=WAIT_SECS)
    (worker,) = world.workers
    worker.stop()
    joining = threading.Thread(target=world.end, args=(worker,))
    joining.start()
    world.let_the_limit_pass([worker])
    joining.join(WAIT_SECS)
    assert not joining.is_alive()
    error_of(hung, DeadlineExceeded)
    assert len(world.owner.made) == 1  # not replaced for nothing


def test_queued_requests_are_served_by_the_replacement_although_the_model_is_closing(start):
    world = start()
    world.send(HANG)
    assert world.owner.hangs.acquire(timeout=WAIT_SECS)
    waiting = world.send(1, 2)
    world.batcher.close()
    world.let_the_limit_pass()
    assert values(waiting) == [1, 2]


def test_the_resources_of_a_hung_execution_are_given_back(start):
    world = start(count=0)
    wants = ModelRateLimiter(resources=(ModelRateLimiter.Resource(name="R", count=1),))
    placements = [Placement("KIND_CPU", name=f"m_0_{index}") for index in range(2)]
    grants = [world.limiter.register(placement, wants) for placement in placements]
    world.workers = [world.worker("m_0_0", grant=grants[0])]
    world.hang()
    grants[1].acquire()  # blocks if the hung one still holds it
    grants[1].release()
    assert values(world.send(1)) == [1]
