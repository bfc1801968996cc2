"""Quick models on the event loop: gathered batches, delays, and the way back to threads."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from shoal.core import dtypes
from shoal.core.planned import LARGE_BYTES
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.instance import busy_poll, inline
from shoal.instance.execution import Execution
from shoal.instance.execution_placement import STALL_NS, ExecutionMode, ExecutionPlacement
from shoal.instance.inline import LoopHandle, LoopInstance
from shoal.instance.worker import InstanceWorker
from shoal.scheduler.batcher import Batcher
from shoal.scheduler.policy import BatchPolicy, SingleRequestPolicy
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from shoal.statistics.model import ModelStatistics
from tests.support.fakes import WAIT_SECS, FakeBackend, FakeClock, make_request

SIGNATURE = Signature(
    "m", 8, {"x": TensorSpec("x", dtypes.INT32, (1,))}, {"y": TensorSpec("y", dtypes.INT32, (1,))}
)


class Stage:
    """A batcher with the loop and one worker thread behind it; `threads` notes who executed."""

    def __init__(self, placement, policy=None, clock=time.monotonic_ns):
        self.threads = []
        self.backend = FakeBackend(self._compute)
        self.batcher = Batcher(
            policy or BatchPolicy(8, frozenset({8})),
            RequestQueue(QueuePolicy()),
            on_dropped=lambda request, error: request.fail(error),
            clock=clock,
        )
        self.execution_placement = placement
        self.handle = LoopHandle()
        loaded = self.backend.load(None)
        execution = Execution(SIGNATURE, 1, ModelStatistics("m", 1))
        self.on_loop = LoopInstance(
            self.handle, self.batcher, execution, loaded.executor(None), placement
        )
        self.worker = InstanceWorker(
            type("P", (), {"name": "m_0"}),
            loaded.executor(None),
            self.batcher,
            execution,
            observe=self.on_loop.observe,
        )
        self.worker.start()

    def _compute(self, inputs, outputs):
        self.threads.append(threading.current_thread())
        return [inputs["x"]]

    def ask(self, value=1):
        request, collector = self.request(value)
        self.batcher.enqueue(request)
        return collector

    def request(self, value=1):
        raw = int(value).to_bytes(4, "little")
        return make_request(Tensor("x", dtypes.INT32, (1, 1), raw=raw), rows=1)

    async def run_group(self, *requests):
        """Offer requests to the loop, once its sockets are read; whether they ran."""
        (ran,) = await self.run_groups(requests)
        return ran

    async def run_groups(self, *groups):
        """Offer groups to the loop in one iteration; whether each of them ran."""
        ran = asyncio.get_running_loop().create_future()
        self.handle.after_reading(
            lambda: ran.set_result([self.on_loop.run_group(group) for group in groups])
        )
        return await ran

    def close(self):
        self.batcher.close()
        self.on_loop.stop()
        self.worker.join()


@pytest.fixture
def run():
    """Run a coroutine with a stage on a fresh loop, and close the stage whatever happens."""

    def run(placement, scenario, policy=None, **options):
        stage = Stage(placement, policy, **options)

        async def main():
            stage.handle.bind(asyncio.get_running_loop())
            stage.on_loop.start()
            await scenario(stage)
            await asyncio.get_running_loop().run_in_executor(None, stage.close)

        asyncio.run(asyncio.wait_for(main(), WAIT_SECS))
        return stage

    return run


async def until(condition):
    for _ in range(10_000_000):
        if condition():
            return
        await asyncio.sleep(0)


def test_what_one_turn_brought_is_one_batch(run):
    async def scenario(stage):
        collectors = [stage.ask(n) for n in range(3)]
        assert not any(c.answered for c in collectors)
        await until(lambda: all(c.answered for c in collectors))
        assert [c.wait().outputs[0].array.tolist() for c in collectors] == [[[0]], [[1]], [[2]]]

    stage = run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario)
    assert [batch["x"].shape[0] for batch in stage.backend.batches] == [3]
    assert stage.threads == [threading.main_thread()]


def test_threads_run_the_rest_of_what_the_loop_took(run):
    """Where requests run one by one, the loop takes several; the first shows that it is slow."""
    placement = ExecutionPlacement()
    placement.mode = ExecutionMode.LOOP
    placement._ready_ns = 1 << 62  # it does not return

    def leave(*_took):
        placement.mode = ExecutionMode.THREADS
        return placement.mode

    placement.observe = leave

    async def scenario(stage):
        collectors = [stage.ask(n) for n in range(5)]
        await until(lambda: all(one.answered for one in collectors))
        assert [one.wait().outputs[0].array.item() for one in collectors] == list(range(5))
        assert stage.on_loop.busy_with == stage.batcher.pending() == 0

    stage = run(placement, scenario, SingleRequestPolicy())
    assert [thread is threading.main_thread() for thread in stage.threads] == [True] + [False] * 4


def test_a_lone_request_runs_at_once(run):
    async def scenario(stage):
        for value in range(3):
            request, collector = stage.request(value)
            assert await stage.run_group(request)
            assert collector.wait().outputs[0].array.tolist() == [[value]]
            assert request.queued_ns > 0
        assert [reason.name for reason, _ in stage.batcher.recent] == ["NO_DELAY"] * 3
        assert stage.on_loop.busy_with == 0

    run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario)


def test_a_group_runs_at_once_as_one_batch(run):
    async def scenario(stage):
        requests, collectors = zip(*[stage.request(value) for value in range(3)], strict=True)
        assert await stage.run_group(*requests)
        assert [one.wait().outputs[0].array.tolist() for one in collectors] == [
            [[value]] for value in range(3)
        ]
        assert stage.on_loop.busy_with == 0

    stage = run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario)
    assert [batch["x"].shape[0] for batch in stage.backend.batches] == [3]


def test_groups_of_one_iteration_are_joined_in_the_queue(run):
    """Two kinds of requests for one model: the first time they are two batches, then one."""

    async def scenario(stage):
        def group():
            return [stage.request()[0] for _ in range(2)]

        assert await stage.run_groups(group(), group()) == [True, False]
        for _ in range(2 * inline._QUEUED_GROUPS):
            assert await stage.run_groups(group(), group()) == [False, False]
        for _ in range(inline._QUEUED_GROUPS - 1):
            assert await stage.run_groups(group()) == [False]
        assert await stage.run_groups(group()) == [True]  # it is tried again
        assert await stage.run_groups(group()) == [True]

    run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario)


def test_a_large_request_runs_before_all_sockets_are_read(run):
    async def scenario(stage):
        def large():
            return make_request(Tensor("x", dtypes.UINT8, (1, LARGE_BYTES), raw=bytes(LARGE_BYTES)))

        request, collector = large()
        assert stage.on_loop.run_group([request])
        assert collector.answered
        assert stage.handle.early_ns > 0
        stage.handle.early_ns = inline._MOST_EARLY_NS + 1  # from now on the others come first
        request, _ = large()
        assert not stage.on_loop.run_group([request])
        assert await stage.run_group(request)  # in the next iteration
        assert stage.handle.early_ns == 0

    run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario)


def test_a_lone_request_that_has_to_wait_its_turn(run):
    async def scenario(stage):
        first = stage.ask()
        await until(lambda: first.answered)

        request, _ = stage.request()
        assert not stage.on_loop.run_group([request])  # in the middle of reading sockets
        waits = stage.ask()
        assert not await stage.run_group(request)  # behind another, which runs after this
        await until(lambda: waits.answered)
        cancelled, _ = stage.request()
        cancelled.cancel()
        assert not await stage.run_group(cancelled)
        stage.batcher.hand_to_instances()
        assert not await stage.run_group(request)

    run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario)


def test_a_slow_lone_request_moves_its_model_to_threads(run):
    async def scenario(stage):
        first = stage.ask()
        await until(lambda: first.answered)
        stage.execution_placement.observe = lambda *_: ExecutionMode.THREADS
        assert await stage.run_group(stage.request()[0])
        second = stage.ask()
        await until(lambda: second.answered)

    stage = run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario)
    assert stage.threads[:2] == [threading.main_thread()] * 2
    assert stage.threads[2] is not threading.main_thread()


def test_large_queues_run_in_several_turns(run):
    async def scenario(stage):
        collectors = [stage.ask(n) for n in range(50)]
        await until(lambda: all(c.answered for c in collectors))

    stage = run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario)
    assert sum(batch["x"].shape[0] for batch in stage.backend.batches) == 50
    assert max(batch["x"].shape[0] for batch in stage.backend.batches) == 8


def test_a_queue_delay_is_kept_on_the_loop_too(run):
    clock = FakeClock()

    async def scenario(stage):
        first = stage.ask()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not first.answered
        second = stage.ask()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not second.answered
        clock.advance(20_000_000)
        await until(lambda: first.answered and second.answered)

    policy = BatchPolicy(8, frozenset({8}), 20_000_000)
    stage = run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario, policy, clock=clock)
    assert [batch["x"].shape[0] for batch in stage.backend.batches] == [2]


def test_a_model_that_shows_to_be_quick_moves_to_the_loop(run):
    async def scenario(stage):
        while stage.execution_placement.mode is ExecutionMode.THREADS:
            collector = stage.ask()
            await until(lambda c=collector: c.answered)
        last = stage.ask()
        await until(lambda: last.answered)

    stage = run(ExecutionPlacement(), scenario)
    assert stage.threads[0] is not threading.main_thread()
    assert stage.threads[-1] is threading.main_thread()


def test_a_model_that_turns_slow_leaves_the_loop(run, monkeypatch):
    real = Execution.run
    taken_ns = [1000]

    def as_if(self, executor, batch):
        real(self, executor, batch)
        return len(batch), taken_ns[-1], taken_ns[-1]  # as if it had taken that long

    monkeypatch.setattr(Execution, "run", as_if)

    async def scenario(stage):
        before = stage.ask()
        await until(lambda: before.answered)
        taken_ns.append(STALL_NS + 1)
        turning = stage.ask()
        await until(lambda: turning.answered)
        assert stage.execution_placement.mode is ExecutionMode.THREADS
        after = stage.ask()
        await until(lambda: after.answered)

    placement = ExecutionPlacement()
    for _ in range(8):
        placement.observe_on_thread(1, 1000)
    stage = run(placement, scenario)
    main = threading.main_thread()
    assert [thread is main for thread in stage.threads] == [True, True, False]


def test_a_slow_model_on_threads_does_not_hold_the_loop_up(run):
    async def scenario(stage):
        stage.backend.gate.clear()
        slow = stage.ask()
        assert await asyncio.get_running_loop().run_in_executor(
            None, lambda: stage.backend.started.acquire(timeout=WAIT_SECS)
        )
        turns = 0
        while turns < 100:  # the loop is free while the model computes
            await asyncio.sleep(0)
            turns += 1
        assert not slow.answered
        stage.backend.gate.set()
        await until(lambda: slow.answered)

    run(ExecutionPlacement(forced=ExecutionMode.THREADS), scenario)


def test_closing_answers_what_is_queued(run):
    async def scenario(stage):
        stage.late = [stage.ask(n) for n in range(20)]

    stage = run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario)
    assert [c.wait().error for c in stage.late] == [None] * 20


def test_requests_from_other_threads_run_on_the_loop(run):
    async def scenario(stage):
        loop = asyncio.get_running_loop()
        collector = await loop.run_in_executor(None, stage.ask)
        await until(lambda: collector.answered)

    stage = run(ExecutionPlacement(forced=ExecutionMode.LOOP), scenario)
    assert stage.threads == [threading.main_thread()]


def test_without_a_loop_the_instances_serve():
    stage = Stage(ExecutionPlacement())
    for _ in range(30):
        assert stage.ask().wait().error is None
    stage.close()
    assert threading.main_thread() not in stage.threads


# ---- the end of a turn


def test_what_was_read_is_handed_over_before_batches_run():
    handle, order = LoopHandle(), []

    async def scenario():
        loop = asyncio.get_running_loop()
        handle.bind(loop)
        handle.call_soon(lambda: order.append("batch"))
        handle.after_reading(lambda: (order.append("read"), handle.call_soon(late)))
        handle.after_reading(lambda: order.append("read too"))
        loop.call_soon(lambda: order.append("next"))
        await asyncio.sleep(0)
        assert order == ["read", "read too", "batch", "late", "next"]
        handle.call_soon(lambda: order.append("again"))
        await asyncio.sleep(0)

    def late():
        order.append("late")
        handle.call_soon(lambda: order.append("a turn later"))

    asyncio.run(asyncio.wait_for(scenario(), WAIT_SECS))
    assert order[5:] == ["a turn later", "again"]


class CountedLoop:
    """A loop that only counts what it is to call, and calls it when it is told to."""

    def __init__(self):
        self.ready = []

    def call_soon(self, callback):
        self.ready.append(callback)

    def iterate(self):
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()


def test_responses_are_written_in_the_iteration_of_their_batch():
    handle, loop, order = LoopHandle(), CountedLoop(), []
    handle.bind(loop)

    def batch():
        order.append("batch")
        handle.after_batches(lambda: order.append("write"))

    handle.after_reading(lambda: handle.call_soon(batch))
    assert len(loop.ready) == 1
    loop.iterate()
    assert order == ["batch", "write"]
    assert loop.ready == []  # another iteration would poll the sockets without a reason


def test_what_is_written_later_has_an_iteration_of_its_own():
    handle, loop, order = LoopHandle(), CountedLoop(), []
    handle.bind(loop)
    handle.after_batches(lambda: handle.after_batches(lambda: order.append("second")))
    loop.iterate()
    assert order == []
    assert len(loop.ready) == 1
    loop.iterate()
    assert order == ["second"]
    assert loop.ready == []


class OneClient:
    """A loop that polls for lone clients, by a clock of the test's."""

    def __init__(self, monkeypatch):
        self.now_ns = 0
        monkeypatch.setattr(inline.time, "monotonic_ns", lambda: self.now_ns)
        self.handle, self.loop = LoopHandle(polls_for_lone_client=True), CountedLoop()
        self.handle.bind(self.loop)

    def ask(self, *clients, after_ns=10_000):
        """Requests of these clients arrive in one iteration, as one batch; whether the loop
        polls afterwards."""
        self.now_ns += after_ns
        batch = [SimpleNamespace(reply=SimpleNamespace(connection=client)) for client in clients]

        def run():
            self.handle.ran_count += len(batch)
            self.handle.last_ran = batch[0]

        self.handle.after_reading(run)
        self.loop.iterate()
        return bool(self.loop.ready)


def test_a_quick_lone_client_is_polled_for(monkeypatch):
    one, client = OneClient(monkeypatch), object()
    assert [one.ask(client) for _ in range(9)] == [False] * 8 + [True]
    one.now_ns += busy_poll.LIMIT_NS - 1
    one.loop.iterate()
    assert one.loop.ready  # it polls on
    assert one.ask(client, after_ns=0)
    assert one.handle.lone_client.is_there
    one.now_ns += busy_poll.LIMIT_NS
    one.loop.iterate()
    assert not one.loop.ready  # without success: it sleeps
    assert not one.handle.lone_client.is_there
    assert [one.ask(client) for _ in range(8)] == [False] * 8


@pytest.mark.parametrize(
    "disturb",
    [
        lambda one, client: one.ask(client, object()),  # several requests in one iteration
        lambda one, client: one.ask(object()),
        lambda one, client: one.ask(client, after_ns=busy_poll.LIMIT_NS),
        lambda one, client: one.ask(None),  # a reply without a connection
    ],
)
def test_other_requests_end_it(monkeypatch, disturb):
    one, client = OneClient(monkeypatch), object()
    for _ in range(8):
        one.ask(client)
    disturb(one, client)
    assert not one.loop.ready
    assert not one.handle.lone_client.is_there
    assert not one.ask(client)


def test_one_that_fails_keeps_nobody_else_from_it(caplog):
    handle, order = LoopHandle(), []

    def fail():
        raise ValueError("no")

    async def scenario():
        handle.bind(asyncio.get_running_loop())
        handle.after_reading(fail)
        handle.call_soon(fail)
        handle.call_soon(lambda: order.append("done"))
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(scenario(), WAIT_SECS))
    assert order == ["done"]
    assert len(caplog.records) == 2
