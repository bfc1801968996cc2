"""Work beside the loop: who gets which result, how many are allowed, what is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from shoal.tasks.workers import ThreadStage, Workers
from tests.support.fakes import WAIT_SECS


@pytest.fixture
def workers():
    made = Workers(2)
    yield made
    made.close()


class Gate:
    """Work that waits to be let go; `turns` are the items of each piece of work."""

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.turns = []

    def work(self, items):
        self.turns.append(list(items))
        self.begun.release()
        assert self.go.acquire(timeout=WAIT_SECS)
        return [item * 2 for item in items]

    async def wait_begun(self):
        assert await asyncio.to_thread(self.begun.acquire, timeout=WAIT_SECS)


def counting():
    counted = []
    return counted, lambda items, elapsed_ns: counted.append((items, elapsed_ns >= 0))


def test_each_gets_its_own_result_and_its_own_error(workers):
    counted, count = counting()

    def work(items):
        return [ValueError(f"{item} is odd") if item % 2 else item // 2 for item in items]

    async def ask():
        stage = ThreadStage(workers, work, count, most=4)
        return await asyncio.gather(*(stage(item) for item in range(6)), return_exceptions=True)

    results = asyncio.run(ask())
    assert [results[i] for i in (0, 2, 4)] == [0, 1, 2]
    assert [str(results[i]) for i in (1, 3, 5)] == ["1 is odd", "3 is odd", "5 is odd"]
    assert sum(items for items, _ in counted) == 6


def test_work_that_raises_fails_those_it_was_for(workers):
    def work(items):
        raise RuntimeError("no")

    async def ask():
        stage = ThreadStage(workers, work, lambda *_: None)
        with pytest.raises(RuntimeError, match="no"):
            await stage(1)
        with pytest.raises(RuntimeError, match="no"):
            await stage(2)

    asyncio.run(ask())


def test_what_waits_meanwhile_is_taken_together():
    workers = Workers(1)
    gate = Gate()

    async def ask():
        stage = ThreadStage(workers, gate.work, lambda *_: None, most=3)
        calls = [asyncio.ensure_future(stage(0))]
        await gate.wait_begun()
        calls += [asyncio.ensure_future(stage(item)) for item in (1, 2, 3, 4)]
        await asyncio.sleep(0)  # they are all in line
        for _ in range(3):
            gate.go.release()
        return await asyncio.gather(*calls)

    assert asyncio.run(ask()) == [0, 2, 4, 6, 8]
    assert gate.turns == [[0], [1, 2, 3], [4]]
    workers.close()


def test_several_threads_work_at_once(workers):
    gate = Gate()

    async def ask():
        stage = ThreadStage(workers, gate.work, lambda *_: None)
        calls = [asyncio.ensure_future(stage(item)) for item in range(2)]
        await gate.wait_begun()
        await gate.wait_begun()  # the second began while the first was held
        gate.go.release()
        gate.go.release()
        return await asyncio.gather(*calls)

    assert asyncio.run(ask()) == [0, 2]


def test_what_was_cancelled_while_it_waited_is_not_worked_on():
    workers = Workers(1)
    gate = Gate()

    async def ask():
        stage = ThreadStage(workers, gate.work, lambda *_: None)
        first = asyncio.ensure_future(stage(0))
        await gate.wait_begun()
        dropped, last = asyncio.ensure_future(stage(1)), asyncio.ensure_future(stage(2))
        await asyncio.sleep(0)
        dropped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropped
        gate.go.release()
        gate.go.release()
        return await asyncio.gather(first, last)

    assert asyncio.run(ask()) == [0, 4]
    assert gate.turns == [[0], [2]]
    workers.close()


def test_a_caller_that_goes_away_during_the_work_harms_nobody():
    workers = Workers(1)
    gate = Gate()

    async def ask():
        stage = ThreadStage(workers, gate.work, lambda *_: None)
        left = asyncio.ensure_future(stage(0))
        await gate.wait_begun()
        left.cancel()
        gate.go.release()
        gate.go.release()
        return await stage(1)

    assert asyncio.run(ask()) == 2
    workers.close()


def test_how_many_wait(workers):
    gate = Gate()

    async def ask():
        stage = ThreadStage(workers, gate.work, lambda *_: None)
        calls = [asyncio.ensure_future(stage(item)) for item in range(5)]
        for _ in range(workers.threads):
            await gate.wait_begun()
        assert stage.waiting == 3
        for _ in calls:
            gate.go.release()
        assert await asyncio.gather(*calls) == [0, 2, 4, 6, 8]
        assert stage.waiting == 0

    asyncio.run(ask())
