"""Turns of the loop, work on threads, and the memory that all connections share."""

from __future__ import annotations

import asyncio
import threading

from shoal.core.buffers import BufferPool
from shoal.frontends.grpc.turns import Turns
from shoal.frontends.memory_budget import MemoryBudget


def test_work_of_one_owner_runs_in_order_one_at_a_time():
    async def run():
        turns = Turns()
        turns.loop = asyncio.get_running_loop()
        release, other_done = threading.Event(), asyncio.Event()
        all_done = asyncio.Event()
        seen = []

        def done(future):
            seen.append(future.result())
            if len(seen) == 4:
                all_done.set()

        turns.on_thread("a", lambda: release.wait() and 1, done)
        turns.on_thread("a", lambda: 2, done)
        turns.on_thread("a", lambda: 3, done)
        turns.on_thread("b", lambda: 4, lambda future: (done(future), other_done.set()))
        await other_done.wait()
        before = list(seen)
        release.set()
        await all_done.wait()
        turns.close()
        return before, seen

    assert asyncio.run(run()) == ([4], [4, 1, 2, 3])


def test_failures_on_threads_arrive_as_such():
    async def run():
        turns = Turns()
        turns.loop = asyncio.get_running_loop()
        failed = turns.loop.create_future()
        turns.on_thread("a", lambda: 1 / 0, lambda future: failed.set_result(future.exception()))
        error = await failed
        turns.close()
        return error

    assert isinstance(asyncio.run(run()), ZeroDivisionError)


def test_a_message_counts_until_nothing_refers_to_it():
    memory = MemoryBudget(1_000, BufferPool())
    message = memory.pool.take(600)
    memory.hold(message)
    assert memory.held_bytes == 600
    assert memory.has_room(400)
    assert not memory.has_room(401)
    part = message[10:20]
    del message
    assert memory.held_bytes == 600
    del part
    assert memory.held_bytes == 0
    assert memory.has_room(1_000)


def test_what_waits_to_be_sent_counts_too():
    memory = MemoryBudget(1_000, BufferPool())
    memory.queued_bytes, memory.unfinished_bytes = 300, 300
    assert memory.has_room(400)
    assert not memory.has_room(401)
