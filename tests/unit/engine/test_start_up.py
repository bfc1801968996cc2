"""Requests that come before the models of the start are loaded."""

from __future__ import annotations

import pytest

from shoal.engine.start_up import StartPending, StartUp
from shoal.errors import Unavailable

EXITING = Unavailable("Server exiting")


@pytest.mark.parametrize("error", [None, EXITING])
def test_they_wait_for_its_end(error):
    start, told, left = StartUp(), [], []
    pending = StartPending(start)
    pending.then(told.append)
    pending.then(left.append)()  # its client has gone
    assert told == []
    start.end(error)
    assert (told, left) == ([error], [])
    pending.then(told.append)  # one that comes too late
    assert told == [error, error]


def test_the_first_end_counts():
    start, told = StartUp(), []
    start.end()
    start.end(EXITING)
    start.wait(told.append)
    assert told == [None]


def test_a_callback_that_fails_does_not_keep_others_waiting(caplog):
    start, told = StartUp(), []
    start.wait(lambda _: 1 / 0)
    start.wait(told.append)
    start.end()
    assert told == [None]
    assert "ZeroDivisionError" in caplog.text
