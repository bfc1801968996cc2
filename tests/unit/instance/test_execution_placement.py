"""Which models run on the loop, and when they leave it."""

from __future__ import annotations

from shoal.instance.execution_placement import (
    QUICK_NS,
    SLOW_NS,
    STALL_NS,
    ExecutionMode,
    ExecutionPlacement,
)
from tests.support.fakes import FakeClock

QUICK, MIDDLE, SLOW = 20_000, (QUICK_NS + SLOW_NS) // 2, 2 * SLOW_NS


def feed(placement, *times):
    for elapsed in times:
        placement.observe(elapsed)
    return placement.mode


def test_a_model_starts_on_threads_and_moves_once_it_has_shown_to_be_quick():
    placement = ExecutionPlacement()
    assert placement.mode is ExecutionMode.THREADS
    assert feed(placement, *[QUICK] * 7) is ExecutionMode.THREADS
    assert feed(placement, QUICK) is ExecutionMode.LOOP
    assert "under 200 µs" in placement.reason


def test_a_slow_model_stays_on_threads():
    placement = ExecutionPlacement()
    assert feed(placement, *[1_000_000] * 100) is ExecutionMode.THREADS
    assert "1000 µs" in placement.reason


def test_the_first_slow_execution_does_not_count_for_ever():
    placement = ExecutionPlacement()
    feed(placement, 50_000_000)  # the first run allocates
    assert feed(placement, *[QUICK] * 8) is ExecutionMode.LOOP


def test_one_stall_sends_it_back_at_once():
    placement = ExecutionPlacement()
    feed(placement, *[QUICK] * 8)
    assert feed(placement, STALL_NS + 1) is ExecutionMode.THREADS
    assert "on the loop" in placement.reason


def test_a_model_that_became_slow_is_sent_back():
    placement = ExecutionPlacement()
    feed(placement, *[QUICK] * 8)
    assert feed(placement, SLOW, SLOW) is ExecutionMode.LOOP  # a busy machine, perhaps
    assert feed(placement, SLOW) is ExecutionMode.THREADS


def test_a_slow_execution_now_and_then_is_the_machine():
    placement = ExecutionPlacement()
    feed(placement, *[QUICK] * 8)
    assert feed(placement, *([SLOW] + [QUICK] * 7) * 50) is ExecutionMode.LOOP


def test_in_between_nothing_changes():
    placement = ExecutionPlacement()
    feed(placement, *[QUICK] * 8)
    assert feed(placement, *[MIDDLE] * 100) is ExecutionMode.LOOP


def test_coming_back_takes_longer_each_time():
    placement = ExecutionPlacement()
    needed = []
    for _ in range(3):
        count = 0
        while placement.mode is ExecutionMode.THREADS:
            placement.observe(QUICK)
            count += 1
        needed.append(count)
        placement.observe(STALL_NS + 1)
    assert needed == [8, 32, 128]


def test_a_good_while_on_the_loop_is_worth_something():
    clock = FakeClock()
    placement = ExecutionPlacement(clock=clock)
    needed = []
    for _ in range(3):
        count = 0
        while placement.mode is ExecutionMode.THREADS:
            placement.observe(QUICK)
            count += 1
        needed.append(count)
        clock.now_ns += 61_000_000_000
        placement.observe(STALL_NS + 1)
    assert needed == [8, 32, 32]


def test_a_busy_machine_does_not_keep_a_quick_model_from_the_loop():
    placement = ExecutionPlacement()
    feed(placement, *[QUICK] * 8, STALL_NS + 1)
    assert feed(placement, *([QUICK] * 30 + [SLOW]) * 3) is ExecutionMode.LOOP


def test_a_model_that_is_slow_now_and_then_stays_on_threads():
    placement = ExecutionPlacement()
    feed(placement, *[QUICK] * 8, STALL_NS + 1)
    assert feed(placement, *([QUICK] * 7 + [STALL_NS + 1]) * 100) is ExecutionMode.THREADS


def test_the_config_may_decide():
    forced = ExecutionPlacement(forced=ExecutionMode.LOOP)
    assert feed(forced, *[STALL_NS * 2] * 10) is ExecutionMode.LOOP
    assert (
        feed(ExecutionPlacement(forced=ExecutionMode.THREADS), *[QUICK] * 100)
        is ExecutionMode.THREADS
    )


def test_a_backend_that_may_block_never_runs_on_the_loop():
    placement = ExecutionPlacement(allowed=False, forced=ExecutionMode.LOOP)
    assert feed(placement, *[QUICK] * 100) is ExecutionMode.THREADS
    assert placement.reason
