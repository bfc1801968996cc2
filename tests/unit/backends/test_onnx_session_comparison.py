"""Whether executions gain by a second session: series of executions and cycles, compared."""

from __future__ import annotations

from itertools import groupby

import pytest

from shoal.backends.onnx_session_comparison import SessionComparison

MS = 1_000_000
CHECK_NS = 15_000 * MS
ELEMENTS = 100


class Series:
    """Executions one after the other. They take so long with the own session, or the second."""

    def __init__(self, *, of_cycles=False):
        self.comparison = SessionComparison(of_cycles=of_cycles)
        self.own_ns, self.second_ns = MS, MS // 2
        self.cpu_ns = MS
        self.now_ns = 0

    def run(self, times=1, elements=ELEMENTS):
        """The numbers of the sessions that ran them, each with how often in a row."""
        return [(number, len(list(runs))) for number, runs in groupby(self._run(times, elements))]

    def _run(self, times, elements):
        for _ in range(times):
            is_second = self.comparison.may_gain(self.now_ns) and self.comparison.takes_second
            took_ns = self.second_ns if is_second else self.own_ns
            took_ns = took_ns * elements // ELEMENTS
            self.now_ns += took_ns
            if not is_second:
                self.comparison.ran_with_own(min(self.cpu_ns, took_ns))
            if self.comparison.gains is not False:
                self.comparison.observe(elements, took_ns, self.now_ns, is_second=is_second)
            yield 2 if is_second else 1

    @property
    def gains(self):
        return self.comparison.gains


@pytest.fixture(params=[False, True], ids=["executions", "cycles"])
def series(request):
    return Series(of_cycles=request.param)


def test_the_second_session_is_compared_with_the_own_before_and_after(series):
    assert series.run(239) == [(1, 20), (2, 200), (1, 19)]
    assert series.gains is None
    assert series.run() == [(1, 1)]
    assert series.gains


def test_it_is_used_while_it_is_compared_again_and_again(series):
    """For 16, 32 and 64 times as long as the 20 executions with the own session take."""
    series.run(240)
    assert series.run(820) == [(2, 160 + 640), (1, 20)]
    assert series.run(1_460) == [(2, 160 + 1_280), (1, 20)]
    assert series.run(5 * 2_740) == [(2, 160 + 2_560), (1, 20)] * 5
    assert series.gains


def test_what_gains_again_is_compared_again_soon(series):
    series.run(240 + 820 + 1_460)
    series.second_ns = 2 * MS
    series.run(1_000)
    assert series.gains is False
    series.now_ns += CHECK_NS
    series.second_ns = MS // 2
    series.run(240)
    assert series.run(820) == [(2, 160 + 640), (1, 20)]


def test_what_gains_nothing_uses_it_no_longer(series):
    series.second_ns = MS
    assert series.run(10_000) == [(1, 20), (2, 100), (1, 9_880)]
    assert series.gains is False


def test_at_least_eight_are_compared():
    series = Series()
    series.own_ns, series.second_ns = 100 * MS, 50 * MS
    assert series.run(27) == [(1, 8), (2, 2 + 8), (1, 8), (2, 1)]


@pytest.mark.parametrize(
    ("of_cycles", "second_ns", "gains"),
    [
        (False, 840_000, True),
        (False, 860_000, False),
        (True, 890_000, True),
        (True, 910_000, False),
    ],
)
def test_the_gain_must_be_worth_it(of_cycles, second_ns, gains):
    """It costs the machine threads that spin. Of a cycle, the execution is a part."""
    series = Series(of_cycles=of_cycles)
    series.second_ns = second_ns
    series.run(200)
    assert series.gains is gains


def test_a_slow_start_of_the_client_is_no_gain(series):
    """The first cycles may be slow for other reasons. Those after the second session show it."""
    series.own_ns, series.second_ns = 2 * MS, MS
    series.run(10)
    series.own_ns = MS
    assert series.run(1_000) == [(2, 100), (1, 900)]
    assert series.gains is False


def test_a_slow_moment_afterwards_is_no_gain(series):
    series.second_ns = MS
    series.run(120)
    series.own_ns = 2 * MS
    assert series.run(100) == [(1, 100)]
    assert series.gains is False


def test_what_is_slower_than_before_ends_its_use_early(series):
    """After a quarter of the time. Whether it gains, what follows with the own session says."""
    series.run(240)
    series.second_ns = 2 * MS
    assert series.run(40 + 40 + 20) == [(2, 80), (1, 20)]
    assert series.gains is False


def test_what_became_slower_with_both_is_compared_once_more(series):
    """Another client has come, or others' requests: the time before that says nothing now."""
    series.run(240)
    series.own_ns, series.second_ns = 2 * MS, 1_250_000
    assert series.run(64 + 64 + 10) == [(2, 128), (1, 10)]
    assert series.gains is None
    assert series.run(64 + 16 + 10) == [(2, 80), (1, 10)]
    assert series.gains


@pytest.mark.parametrize(("second_ns", "gains"), [(940_000, True), (960_000, False)])
def test_less_gain_is_enough_to_go_on(series, second_ns, gains):
    """Figures of 20 ms differ by some percent from time to time."""
    series.run(240)
    series.second_ns = second_ns
    series.run(500)
    assert series.gains is gains


def test_a_slow_moment_while_it_is_used_does_not_end_it(series):
    series.run(240 + 300)
    series.second_ns = 3 * MS
    series.run(20)
    series.second_ns = MS // 2
    series.run(500)
    assert series.gains


def test_one_slow_execution_on_threads_does_not_decide():
    series = Series()
    series.run(190)
    series.second_ns = 10 * MS
    series.run()
    series.second_ns = MS // 2
    series.run(100)
    assert series.gains


def test_slow_responses_to_a_lone_client_decide():
    """Its client waits for them: in each fourth cycle, the threads have its core."""
    series = Series(of_cycles=True)
    series.run(20)
    for _ in range(40):
        series.second_ns = MS // 2
        series.run(3)
        series.second_ns = 2_250_000
        series.run()
    series.run(100)
    assert series.gains is False


def test_a_pause_counts_as_the_longest_cycle():
    """2.25 ms: 0.25, and twice the execution."""
    series = Series(of_cycles=True)
    series.run(190)
    series.second_ns = 10_000 * MS
    series.run()
    series.second_ns = MS // 2
    assert series.run(49)[0] == (2, 26)
    assert series.gains


def test_a_client_that_always_pauses_gains_nothing():
    series = Series(of_cycles=True)
    series.own_ns = series.second_ns = 100 * MS
    assert series.run(100) == [(1, 9), (2, 36 + 9), (1, 46)]


def test_sizes_that_are_nearly_the_same_are_compared_by_the_element():
    series = Series()
    assert series.run(20) == [(1, 20)]
    assert series.run(100, 2 * ELEMENTS) == [(2, 100)]
    assert series.run(20) == [(1, 20)]
    assert series.gains


def test_what_began_before_the_session_changed_is_not_compared():
    """Cycles of requests that overlap, as on threads."""
    series = Series()
    series.run(20)
    assert series.comparison.takes_second
    for _ in range(1_000):
        series.comparison.observe(ELEMENTS, 100 * MS, series.now_ns, is_second=False)
    series.run(220)
    assert series.gains


def test_what_gains_nothing_is_compared_again_later_and_later(series):
    """Other programs come and go."""
    series.second_ns = MS
    series.run(140)
    for check in range(7):
        wait_ns = CHECK_NS * min(2**check, 16)
        series.now_ns += wait_ns - 2 * MS
        assert series.run(1) == [(1, 1)]
        assert series.gains is False
        series.now_ns += 2 * MS
        assert series.run(141) == [(1, 20), (2, 100), (1, 21)]
        assert series.gains is False


def test_what_gained_for_a_while_is_compared_again_soon(series):
    series.second_ns = MS
    series.run(140)
    series.now_ns += CHECK_NS
    series.second_ns = MS // 2
    series.run(240 + 820)
    assert series.gains
    series.second_ns = 1_100_000
    series.run(400)
    assert series.gains is False
    series.now_ns += CHECK_NS
    series.run()
    assert series.gains is None


def test_the_cpu_time_is_a_minimum_that_rises_slowly():
    """Nearly all that disturbs an execution makes it longer."""
    comparison = SessionComparison(of_cycles=True)
    comparison.ran_with_own(300)
    comparison.ran_with_own(80)
    assert comparison.own_ns == 80
    comparison.ran_with_own(160)
    assert comparison.own_ns == 90
    comparison.ran_with_own(70)
    assert comparison.own_ns == 70
    for _ in range(40):
        comparison.ran_with_own(160)
    assert comparison.own_ns == pytest.approx(160, abs=1)
