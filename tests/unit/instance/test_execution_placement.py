"""Which models run on the loop, when they leave it and when they return."""

from __future__ import annotations

import pytest

from shoal.instance.execution_placement import (
    QUICK_NS,
    SLOW_NS,
    STALL_NS,
    ExecutionMode,
    ExecutionPlacement,
)
from tests.support.fakes import FakeClock

LOOP, THREADS = ExecutionMode.LOOP, ExecutionMode.THREADS
QUICK, MIDDLE, SLOW = 20_000, (QUICK_NS + SLOW_NS) // 2, 2 * SLOW_NS
MILLISECOND, SECOND = 1_000_000, 1_000_000_000


class Model:
    """A placement under a load: an execution each millisecond, wherever it happens to run."""

    def __init__(self, max_rows=64, **options):
        self.clock = FakeClock()
        self.placement = ExecutionPlacement(clock=self.clock, max_rows=max_rows, **options)
        self.switches = 0

    def feed(self, *times, rows=1, waiting_rows=0, rows_alone=0, elapsed=None, step=MILLISECOND):
        for own_ns in times:
            before = self.placement.mode
            self.clock.advance(step)
            if before is LOOP:
                self.placement.observe(rows, own_ns, elapsed or own_ns)
            else:
                self.placement.observe_on_thread(
                    rows, own_ns, waiting_rows=waiting_rows, rows_alone=rows_alone
                )
            self.switches += self.placement.mode is not before
        return self.placement.mode

    def on_loop(self):
        assert self.feed(*[QUICK] * 8) is LOOP
        return self

    def until(self, mode, own_ns, **load):
        """How long it takes until the model is there; seconds."""
        begun = self.clock.now_ns
        while self.placement.mode is not mode:
            self.feed(own_ns, **load)
            assert self.clock.now_ns - begun < 100 * SECOND
        return (self.clock.now_ns - begun) / SECOND

    @property
    def reason(self):
        return self.placement.report()["reason"]


# ---- the way to the loop


def test_a_model_starts_on_threads_and_moves_once_it_has_shown_to_be_quick():
    model = Model()
    assert model.placement.mode is THREADS
    assert model.reason == "not measured yet"
    assert model.feed(QUICK) is THREADS
    assert model.feed(QUICK) is LOOP


def test_close_to_the_limit_it_takes_more_executions():
    model = Model()
    assert model.feed(*[QUICK_NS // 2] * 7) is THREADS
    assert model.feed(QUICK_NS // 2) is LOOP


def test_after_it_has_left_the_loop_it_takes_more_executions():
    model = Model().on_loop()
    assert model.feed(STALL_NS + 1) is THREADS
    model.clock.advance(SECOND)
    assert model.feed(*[QUICK] * 7) is THREADS
    assert model.feed(QUICK) is LOOP


def test_a_slow_model_stays_on_threads():
    assert Model().feed(*[1_000_000] * 1000) is THREADS


def test_the_first_slow_execution_does_not_count_for_ever():
    model = Model()
    model.feed(50 * MILLISECOND)  # the first run allocates
    assert model.until(LOOP, QUICK) <= 0.3


def test_a_single_slow_execution_of_a_busy_machine_does_not_matter():
    model = Model()
    assert model.feed(*[QUICK, SLOW, QUICK, QUICK, SLOW, *[QUICK] * 12]) is LOOP


@pytest.mark.parametrize(
    ("waiting_rows", "max_rows", "expected"),
    [
        (0, 64, LOOP),  # 8 rows take 80 µs
        (56, 64, THREADS),  # the loop would get 64: 640 µs
        (56, 16, LOOP),  # no: batches are small
        (56, 0, LOOP),  # requests run one by one
    ],
)
def test_what_waits_would_be_in_the_same_batch_on_the_loop(waiting_rows, max_rows, expected):
    model = Model(max_rows)
    assert model.feed(*[80_000] * 100, rows=8, waiting_rows=waiting_rows) is expected


def test_time_for_a_batch_does_not_grow_with_its_rows():
    """Once batches of two sizes were seen, only the rows' part is expected to grow."""
    model = Model()
    model.feed(90_000, rows=1)
    model.feed(*[97_000] * 8, rows=8, waiting_rows=56)  # 89 µs, and 1 µs a row
    assert model.placement.mode is LOOP


def test_large_inputs_are_judged_one_by_one():
    """The loop does not join them: what a whole batch takes on a thread is no measure."""
    model = Model()
    assert model.feed(*[16 * 100_000] * 2, rows=16, rows_alone=1) is LOOP
    model = Model()
    assert model.feed(*[16 * 900_000] * 100, rows=16, rows_alone=1) is THREADS


# ---- the way back to threads


def test_one_stall_sends_it_back_at_once():
    model = Model().on_loop()
    assert model.feed(STALL_NS + 1) is THREADS
    assert "20000 µs" in model.reason


def test_a_model_that_became_slow_is_sent_back():
    model = Model().on_loop()
    assert model.feed(SLOW, SLOW) is LOOP  # a busy machine, perhaps
    assert model.feed(SLOW) is THREADS


def test_in_between_nothing_changes():
    model = Model()
    assert model.feed(*[MIDDLE] * 500) is THREADS
    model = Model().on_loop()
    assert model.feed(*[MIDDLE] * 500) is LOOP


def test_waiting_for_a_processor_does_not_count():
    model = Model().on_loop()
    assert model.feed(*[QUICK] * 500, elapsed=10 * MILLISECOND) is LOOP


def test_a_model_that_waits_for_something_each_time_is_sent_back():
    model = Model().on_loop()
    assert model.feed(QUICK, QUICK, elapsed=2 * STALL_NS) is LOOP
    assert model.feed(QUICK, elapsed=2 * STALL_NS) is THREADS
    assert "40000 µs" in model.reason


@pytest.mark.parametrize(
    ("every", "slow_ns", "leaves"),
    [
        (8, 1 * MILLISECOND, False),  # the machine, perhaps
        (8, 15 * MILLISECOND, True),  # other clients should not wait that long that often
        (20, 15 * MILLISECOND, True),
        (100, 15 * MILLISECOND, False),
        (3, 2 * MILLISECOND, True),
    ],
)
def test_slow_executions_now_and_then_are_weighed_by_their_time(every, slow_ns, leaves):
    model = Model().on_loop()
    for number in range(2000):
        if model.feed(slow_ns if number % every == 0 else QUICK) is THREADS:
            break
    assert (model.placement.mode is THREADS) == leaves
    if leaves:
        assert number < 5 * every


# ---- the way back to the loop


def test_it_returns_within_half_a_second_of_every_change():
    model = Model().on_loop()
    for _ in range(20):
        assert model.until(THREADS, SLOW) < 0.01
        model.feed(*[SLOW] * 2000)
        assert 0.2 < model.until(LOOP, QUICK) < 0.5
        model.feed(*[QUICK] * 2000)
    assert model.switches == 41


def test_also_for_few_requests():
    model = Model().on_loop()
    model.feed(*[SLOW] * 100)
    assert model.until(LOOP, QUICK, step=30 * MILLISECOND) < 0.5


def test_also_after_stalls():
    model = Model().on_loop()
    for _ in range(5):
        model.feed(*[2 * STALL_NS] * 40)
        assert model.until(LOOP, QUICK) < 0.5
        model.feed(*[QUICK] * 2000)


def test_also_when_batches_were_large():
    """15 µs a row: batches of 64 do not belong on the loop, those of 4 do."""
    model = Model()
    model.feed(*[960_000] * 500, rows=64)
    assert model.until(LOOP, 60_000, rows=4) < 0.5


def test_slow_executions_that_are_exceptions_keep_it_away_for_longer_each_time():
    """Each second one of a thousand executions stalls everybody."""
    model = Model().on_loop()
    on_loop = []
    for _ in range(40):
        on_loop.append(model.placement.mode is LOOP)
        model.feed(2 * STALL_NS, *[QUICK] * 999)
    assert on_loop[0]
    assert sum(on_loop) <= 4


def test_exceptions_are_forgotten_after_a_good_while():
    model = Model().on_loop()
    waits = []
    for good_secs in (1, 1, 30):
        model.feed(2 * STALL_NS)
        waits.append(model.until(LOOP, QUICK))
        model.feed(*[QUICK] * 1000 * good_secs)
    model.feed(2 * STALL_NS)
    waits.append(model.until(LOOP, QUICK))
    assert waits == pytest.approx([0.25, 0.5, 1.0, 0.25], abs=0.02)


def test_a_model_that_is_slow_now_and_then_stays_on_threads():
    model = Model().on_loop()
    model.feed(STALL_NS + 1)
    assert model.feed(*([QUICK] * 7 + [STALL_NS + 1]) * 500) is THREADS
    assert model.switches == 2


# ---- what is set, and what is reported


def test_the_config_may_decide():
    forced = Model(forced=LOOP)
    assert forced.feed(*[STALL_NS * 2] * 10) is LOOP
    assert Model(forced=THREADS).feed(*[QUICK] * 100) is THREADS
    assert forced.reason == "set by the configuration"


def test_a_backend_that_may_block_never_runs_on_the_loop():
    model = Model(allowed=False, forced=LOOP)
    assert model.feed(*[QUICK] * 100) is THREADS
    assert model.reason == "the backend may wait for something"


def test_executions_that_were_under_way_during_the_change_do_not_count():
    model = Model().on_loop()
    for _ in range(10):
        assert model.placement.observe_on_thread(1, SLOW) is LOOP
    model.feed(STALL_NS + 1)
    for _ in range(10):
        assert model.placement.observe(1, QUICK, QUICK) is THREADS


def test_the_reason_has_the_figures():
    model = Model()
    model.feed(12_000, rows=1)
    model.feed(*[40_000] * 7, rows=15)
    assert model.placement.mode is LOOP
    figures = "a batch of 15 rows takes 40 µs to compute, 10 µs and 2 µs for each row"
    assert model.reason == f"{figures}; over 800 µs it would move to threads"
    model.feed(*[2_000_000] * 3, rows=64)
    assert model.reason.startswith("on the event loop a batch of 64 rows took 2000 µs; now a batch")
    model.feed(2_000_000, rows=64)
    assert model.reason.startswith("a batch of 64 rows takes 2000 µs")
    assert model.reason.endswith("; up to 400 µs it would move to the event loop")
    model.feed(*[12_000] * 20, rows=1)
    assert model.reason.startswith("on the event loop a batch of 64 rows took 2000 µs; now a batch")


def test_figures_on_the_loop_follow_the_load():
    model = Model().on_loop()
    model.feed(*[300_000] * 400, rows=32)
    assert "a batch of 32 rows takes 300 µs" in model.reason
