"""Responses reach the event loop in order, and a flood of them leaves it time for other work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from shoal.core import inbox as inbox_module
from shoal.core.inbox import LoopInbox
from shoal.testing import WAIT_SECS


def on_thread(function, *arguments):
    """Call it on another thread, and wait until it has returned."""
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join(WAIT_SECS)


async def iterations(count):
    """Let the loop run so often."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_responses_arrive_in_order():
    async def run():
        inbox = LoopInbox(asyncio.get_running_loop())
        found = []
        for number in range(1000):
            if number % 10 == 1:
                on_thread(inbox.post, found.append, number)
            else:
                inbox.post(found.append, number)
        await iterations(1000)
        return found

    assert asyncio.run(run()) == list(range(1000))


def test_a_stream_that_never_ends_leaves_the_loop_its_turn():
    """Each response is followed by the next before it has been delivered."""

    async def run():
        inbox = LoopInbox(asyncio.get_running_loop())
        ended = False
        delivered = 0

        def deliver(_response):
            nonlocal delivered
            delivered += 1
            if not ended:
                assert delivered < 100, "the loop does nothing else"
                on_thread(inbox.post, deliver, None)

        on_thread(inbox.post, deliver, None)
        await iterations(3)
        ended = True

    asyncio.run(run())


def test_many_responses_are_delivered_in_parts(monkeypatch):
    monkeypatch.setattr(inbox_module, "_MOST_DELIVERED", 10)

    async def run():
        inbox = LoopInbox(asyncio.get_running_loop())
        found = []
        on_thread(lambda: [inbox.post(found.append, number) for number in range(25)])
        seen = []
        for _ in range(25):
            await iterations(1)
            seen.append(len(found))
        return found, seen

    found, seen = asyncio.run(run())
    assert found == list(range(25))
    assert 10 in seen
    assert 20 in seen


@pytest.mark.parametrize(("most", "slowed"), [(5, True), (100, False)])
def test_threads_that_send_faster_than_the_loop_are_slowed_down(monkeypatch, most, slowed):
    pauses = []
    monkeypatch.setattr(inbox_module, "_MOST_WAITING", most)
    monkeypatch.setattr(inbox_module.time, "sleep", pauses.append)

    async def run():
        inbox = LoopInbox(asyncio.get_running_loop())
        found = []
        on_thread(lambda: [inbox.post(found.append, number) for number in range(20)])
        await iterations(20)

    asyncio.run(run())
    assert bool(pauses) is slowed
