"""The room of a step: calls start when there is some, and a producer waits when there is none."""

from __future__ import annotations

import asyncio
import sys
import threading

from shoal.scheduler.ensemble_limit import StepLimit
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS


class LimitedCall:
    def __init__(self, then=None):
        self.started = threading.Event()
        self._then = then

    def start(self):
        self.started.set()
        if self._then is not None:
            self._then()


def test_calls_beyond_the_limit_wait_in_order():
    limit = StepLimit(2)
    calls = [LimitedCall() for _ in range(4)]
    for call in calls:
        limit.submit(call)
    assert [call.started.is_set() for call in calls] == [True, True, False, False]
    assert limit.waiting == 2
    limit.release()
    assert [call.started.is_set() for call in calls] == [True, True, True, False]
    limit.release()
    limit.release()
    assert calls[3].started.is_set()
    assert limit.waiting == 0


def test_a_call_that_waits_can_be_taken_back():
    limit = StepLimit(1)
    first, second, third = LimitedCall(), LimitedCall(), LimitedCall()
    for call in (first, second, third):
        limit.submit(call)
    assert not limit.discard(first)
    assert limit.discard(second)
    assert not limit.discard(second)
    limit.release()
    assert third.started.is_set()
    assert not second.started.is_set()


def test_calls_that_end_at_once_do_not_make_the_stack_grow():
    limit = StepLimit(1)
    held = LimitedCall()
    limit.submit(held)
    count = sys.getrecursionlimit() * 2
    calls = [LimitedCall(then=limit.release) for _ in range(count)]
    for call in calls:
        limit.submit(call)
    limit.release()  # each of them makes room for the next
    assert all(call.started.is_set() for call in calls)


def test_a_producer_waits_until_its_call_has_started():
    limit = StepLimit(1)
    limit.submit(LimitedCall())
    waiting = LimitedCall()
    limit.submit(waiting)
    passed = threading.Event()
    thread = threading.Thread(target=lambda: (limit.wait(waiting), passed.set()))
    thread.start()
    wait_until(lambda: limit._changed._waiters, "it waits")
    assert not passed.is_set()
    limit.release()
    assert passed.wait(WAIT_SECS)
    thread.join()


def test_a_producer_does_not_wait_for_a_call_that_was_taken_back():
    limit = StepLimit(1)
    limit.submit(LimitedCall())
    waiting = LimitedCall()
    limit.submit(waiting)
    thread = threading.Thread(target=limit.wait, args=(waiting,))
    thread.start()
    limit.discard(waiting)
    thread.join(WAIT_SECS)
    assert not thread.is_alive()


def test_a_producer_that_waited_too_long_goes_on(caplog):
    limit = StepLimit(1)
    limit.submit(LimitedCall())
    waiting = LimitedCall()
    limit.submit(waiting)
    limit.wait(waiting, timeout_secs=0.01)
    assert "has been at its limit" in caplog.text


def test_an_event_loop_is_never_made_to_wait():
    limit = StepLimit(1)
    limit.submit(LimitedCall())
    waiting = LimitedCall()
    limit.submit(waiting)

    async def produce():
        limit.wait(waiting)

    asyncio.run(asyncio.wait_for(produce(), WAIT_SECS))
    assert limit.waiting == 1
