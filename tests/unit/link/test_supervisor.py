"""When a process is restarted and who waits for it, with processes and rests of the test's."""

from __future__ import annotations

import queue
import threading

import pytest

from shoal.errors import Internal
from shoal.link import supervisor as module
from shoal.link.supervisor import ProcessState, Supervisor
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS


class Process:
    gone = False
    ending = "it exited with status 3"


class Starts:
    """Starts that wait until the test says how they end."""

    def __init__(self):
        self.asked = threading.Semaphore(0)
        self.outcomes = queue.SimpleQueue()

    def __call__(self):
        self.asked.release()
        outcome = self.outcomes.get(timeout=WAIT_SECS)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def wait(self):
        assert self.asked.acquire(timeout=WAIT_SECS)


@pytest.fixture
def starts():
    return Starts()


@pytest.fixture
def supervised(starts):
    """A supervisor whose first process runs."""
    starts.outcomes.put(Process())
    made = Supervisor("model 'm'", starts)
    made.start()
    starts.wait()
    yield made
    made.close()


def rests(monkeypatch, secs):
    monkeypatch.setattr(module, "_FIRST_REST_SECS", secs)
    monkeypatch.setattr(module, "_LONGEST_REST_SECS", secs)


def in_background(function):
    results = queue.SimpleQueue()
    threading.Thread(target=lambda: results.put(function()), daemon=True).start()
    return results


def test_callers_wait_for_a_restart_and_get_the_new_process(supervised, starts):
    first = supervised.process
    supervised.ended(first, "signal 11 (segmentation fault)")
    starts.wait()
    assert supervised.process is None
    assert supervised.state is ProcessState.STARTING
    assert supervised.last_ending == "signal 11 (segmentation fault)"
    waiting = in_background(supervised.running)
    second = Process()
    starts.outcomes.put(second)
    assert waiting.get(timeout=WAIT_SECS) is second


def end_twice(supervised, starts):
    supervised.ended(supervised.process, "one")
    starts.outcomes.put(Process())
    starts.wait()
    wait_until(lambda: supervised.process, "it runs again")
    supervised.ended(supervised.process, "two")


def test_a_process_that_keeps_ending_rests_and_callers_are_refused(supervised, starts, monkeypatch):
    rests(monkeypatch, 1000.0)
    end_twice(supervised, starts)
    assert supervised.state is ProcessState.RESTING
    assert supervised.running() is None


def test_callers_wait_for_a_short_rest(supervised, starts, monkeypatch):
    rests(monkeypatch, 0.01)
    end_twice(supervised, starts)
    waiting = in_background(supervised.running)
    third = Process()
    starts.outcomes.put(third)
    assert waiting.get(timeout=WAIT_SECS) is third


def test_a_process_that_lived_long_is_restarted_at_once(supervised, starts, monkeypatch):
    rests(monkeypatch, 1000.0)
    monkeypatch.setattr(module, "_LONG_LIFE_SECS", 0.0)
    end_twice(supervised, starts)
    starts.wait()
    assert supervised.state is ProcessState.STARTING
    starts.outcomes.put(Process())


def test_a_start_that_fails_is_tried_again(supervised, starts, monkeypatch, caplog):
    rests(monkeypatch, 0.01)
    supervised.ended(supervised.process, "one")
    for error in (Internal("no such file"), ValueError("a bug")):
        starts.outcomes.put(error)
    last = Process()
    starts.outcomes.put(last)
    assert supervised.running() is last
    assert "does not start: no such file; next try in 0.01 s" in caplog.text
    assert "a bug" in caplog.text


def test_a_stand_in_does_the_work_meanwhile(supervised, starts):
    other = Process()
    supervised.stand_in = lambda: other
    assert supervised.running() is not other
    supervised.ended(supervised.process, "one")
    starts.wait()
    assert supervised.running() is other
    starts.outcomes.put(Process())


def test_a_process_that_ends_at_once_was_not_started(starts):
    process = Process()
    process.gone = True
    starts.outcomes.put(process)
    with pytest.raises(Internal, match="ended after it was started: it exited with status 3"):
        Supervisor("model 'm'", starts).start()


def test_closing_ends_a_rest(supervised, starts, monkeypatch):
    rests(monkeypatch, 1000.0)
    end_twice(supervised, starts)
    assert supervised.close() is None
    assert supervised.state is ProcessState.CLOSED
    assert supervised.running() is None


def test_the_end_of_an_earlier_process_changes_nothing(supervised):
    supervised.ended(Process(), "another")
    assert supervised.state is ProcessState.RUNNING
