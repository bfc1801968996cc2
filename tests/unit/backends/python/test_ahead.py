"""How many batches at a time a model's process is given: the decision, without a process."""

from __future__ import annotations

import pytest

from shoal.backends.python.process.executor import ProcessExecutor

QUICK, SLOW = 50_000, 5_000_000


@pytest.fixture
def executor():
    """An executor that only judges."""
    made = ProcessExecutor.__new__(ProcessExecutor)
    made._usual_ns = 500_000
    made._slow_among_recent = made._quick_in_a_row = 0
    made._needed_in_a_row = 32
    return made


def judged(executor, *took):
    executor._judge(took)
    return executor.ahead


def test_a_new_model_gets_one_at_a_time(executor):
    assert ProcessExecutor.ahead == 0
    assert judged(executor, *[QUICK] * 20) == 0


def test_a_quick_one_gets_what_half_a_millisecond_holds(executor):
    assert 5 <= judged(executor, *[QUICK] * 60) <= 10
    assert judged(executor, *[1_000] * 60) == 15


def test_a_slow_one_never_does(executor):
    assert judged(executor, *[SLOW] * 200) == 0


def test_one_slow_batch_is_forgiven_soon(executor):
    judged(executor, *[QUICK] * 60)
    assert judged(executor, SLOW) == 0
    assert judged(executor, *[QUICK] * 40) > 0


def test_one_that_turns_slow_has_to_be_quick_for_longer(executor):
    judged(executor, *[QUICK] * 60)
    judged(executor, *[SLOW] * 3)
    assert judged(executor, *[QUICK] * 60) == 0
    assert judged(executor, *[QUICK] * 100) > 0
