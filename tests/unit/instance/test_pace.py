"""Which models run on the loop, and when they leave it."""

from __future__ import annotations

from shoal.instance.pace import QUICK_NS, SLOW_NS, STALL_NS, Mode, Pace
from tests.support.fakes import FakeClock

QUICK, MIDDLE, SLOW = 20_000, (QUICK_NS + SLOW_NS) // 2, 2 * SLOW_NS


def feed(pace, *times):
    for elapsed in times:
        pace.observe(elapsed)
    return pace.mode


def test_a_model_starts_on_threads_and_moves_once_it_has_shown_to_be_quick():
    pace = Pace()
    assert pace.mode is Mode.THREADS
    assert feed(pace, *[QUICK] * 7) is Mode.THREADS
    assert feed(pace, QUICK) is Mode.LOOP
    assert "under 200 µs" in pace.reason


def test_a_slow_model_stays_on_threads():
    pace = Pace()
    assert feed(pace, *[1_000_000] * 100) is Mode.THREADS
    assert "1000 µs" in pace.reason


def test_the_first_slow_execution_does_not_count_for_ever():
    pace = Pace()
    feed(pace, 50_000_000)  # the first run allocates
    assert feed(pace, *[QUICK] * 8) is Mode.LOOP


def test_one_stall_sends_it_back_at_once():
    pace = Pace()
    feed(pace, *[QUICK] * 8)
    assert feed(pace, STALL_NS + 1) is Mode.THREADS
    assert "on the loop" in pace.reason


def test_a_model_that_became_slow_is_sent_back():
    pace = Pace()
    feed(pace, *[QUICK] * 8)
    assert feed(pace, SLOW, SLOW) is Mode.LOOP  # a busy machine, perhaps
    assert feed(pace, SLOW) is Mode.THREADS


def test_a_slow_execution_now_and_then_is_the_machine():
    pace = Pace()
    feed(pace, *[QUICK] * 8)
    assert feed(pace, *([SLOW] + [QUICK] * 7) * 50) is Mode.LOOP


def test_in_between_nothing_changes():
    pace = Pace()
    feed(pace, *[QUICK] * 8)
    assert feed(pace, *[MIDDLE] * 100) is Mode.LOOP


def test_coming_back_takes_longer_each_time():
    pace = Pace()
    needed = []
    for _ in range(3):
        count = 0
        while pace.mode is Mode.THREADS:
            pace.observe(QUICK)
            count += 1
        needed.append(count)
        pace.observe(STALL_NS + 1)
    assert needed == [8, 32, 128]


def test_a_good_while_on_the_loop_is_worth_something():
    clock = FakeClock()
    pace = Pace(clock=clock)
    needed = []
    for _ in range(3):
        count = 0
        while pace.mode is Mode.THREADS:
            pace.observe(QUICK)
            count += 1
        needed.append(count)
        clock.now_ns += 61_000_000_000
        pace.observe(STALL_NS + 1)
    assert needed == [8, 32, 32]


def test_a_busy_machine_does_not_keep_a_quick_model_from_the_loop():
    pace = Pace()
    feed(pace, *[QUICK] * 8, STALL_NS + 1)
    assert feed(pace, *([QUICK] * 30 + [SLOW]) * 3) is Mode.LOOP


def test_a_model_that_is_slow_now_and_then_stays_on_threads():
    pace = Pace()
    feed(pace, *[QUICK] * 8, STALL_NS + 1)
    assert feed(pace, *([QUICK] * 7 + [STALL_NS + 1]) * 100) is Mode.THREADS


def test_the_config_may_decide():
    forced = Pace(forced=Mode.LOOP)
    assert feed(forced, *[STALL_NS * 2] * 10) is Mode.LOOP
    assert feed(Pace(forced=Mode.THREADS), *[QUICK] * 100) is Mode.THREADS


def test_a_backend_that_may_block_never_runs_on_the_loop():
    pace = Pace(allowed=False, forced=Mode.LOOP)
    assert feed(pace, *[QUICK] * 100) is Mode.THREADS
    assert pace.reason
