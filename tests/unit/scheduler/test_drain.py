"""Time to drain: the estimate as a table, and against simulated services."""

from __future__ import annotations

import pytest

from shoal.scheduler.drain import Load, TimeToDrain, Waiting, finish_ns
from shoal.statistics.model import BatchReading
from tests.unit.scheduler.test_admission import SERVICES, Service

MS = 1_000_000


def reading(*executions: tuple[int, int, float]):
    """Statistics: of each batch size the executions, and what each took, in milliseconds."""
    batches = {
        rows: BatchReading(count, 0, int(count * each * MS), 0) for rows, count, each in executions
    }
    return batches, 1.0


@pytest.mark.parametrize(
    ("max_rows", "measured", "load", "expected_ms"),
    [
        # each request alone, 12 ms
        (0, [(1, 100, 12)], Load(Waiting(), [], 1), 0),
        (0, [(1, 100, 12)], Load(Waiting(), [1], 1), 6),  # on average, half of it is done
        (0, [(1, 100, 12)], Load(Waiting(100, 100), [1], 1), 1206),
        (0, [(1, 100, 12)], Load(Waiting(100, 100), [1, 1], 2), 606),
        (0, [(1, 100, 12)], Load(Waiting(100, 100), [1, 1], 8), 606),  # the limiter allows two
        (0, [(1, 100, 12)], Load(Waiting(3, 3), [], 4), 12),
        (0, [(1, 100, 12)], Load(Waiting(), [4], 1), 42),  # an instance that has taken several
        (0, [(2, 100, 12)], Load(Waiting(10, 20), [], 1), 120),  # requests of two rows
        # batches of at most 8 rows
        (8, [(8, 100, 20)], Load(Waiting(80, 80), [8], 1), 210),
        (8, [(1, 50, 6), (8, 50, 20)], Load(Waiting(81, 81), [8], 1), 216),
        (8, [(8, 100, 20)], Load(Waiting(4, 32), [], 1), 80),  # requests of eight rows
        # a sequence: its requests run one by one, although others could be in their batch
        (8, [(1, 100, 5)], Load(Waiting(10, 10, 10), [], 1), 50),
        # texts that are generated together: eight in progress, eight wait
        (0, [(1, 100, 2000)], Load(Waiting(8, 8), [1] * 8, 1), 3000),
    ],
)
def test_time_to_drain(max_rows, measured, load, expected_ms):
    drain = TimeToDrain(max_rows)
    drain_ns = drain.read_ns(*reading(*measured), load)
    assert drain_ns == pytest.approx(expected_ms * MS, rel=0.03)


def test_nothing_is_known_before_the_first_execution():
    drain = TimeToDrain(0)
    assert drain.read_ns(*reading(), Load(Waiting(), [], 1)) == 0
    assert drain.read_ns(*reading(), Load(Waiting(3, 3), [1], 1)) is None


def test_the_rate_of_late_counts():
    drain = TimeToDrain(0)
    load = Load(Waiting(100, 100), [], 1)
    assert drain.read_ns(*reading((1, 1000, 1)), load) == 100 * MS
    for more in range(1, 4):  # of 10 ms each
        slower = {1: BatchReading(1000 + 50 * more, 0, (1000 + 500 * more) * MS, 0)}
        drain_ns = drain.read_ns(slower, 1.0, load)
    assert drain_ns == pytest.approx(1000 * MS, rel=0.05)
    assert drain.read_ns(slower, 1.0, load) == drain_ns  # nothing new


def test_counts_that_another_process_took_teach_nothing():
    drain = TimeToDrain(0)
    load = Load(Waiting(1, 1), [], 1)
    assert drain.read_ns(*reading((1, 10, 4)), load) == 4 * MS
    assert drain.read_ns(*reading((1, 5, 9)), load) == 4 * MS


def test_the_last_row_waits_for_the_first_idle_instance():
    def estimate(parallel, rows):
        return 10.0 * parallel + rows

    assert finish_ns(1, 1, 4, 2, [7.0], estimate) == 0 + 21
    assert finish_ns(5, 1, 4, 2, [7.0], estimate) == 7 + 21
    assert finish_ns(9, 1, 4, 2, [7.0], estimate) == 0 + 24 + 21
    assert finish_ns(0, 1, 4, 2, [7.0, 9.0], estimate) == 9
    assert finish_ns(0, 1, 4, 2, [], estimate) == 0


@pytest.mark.parametrize("kind", [kind for kind in SERVICES if "noisy" not in kind])
def test_a_model_with_a_target_latency_uses_what_that_measures(kind):
    service = Service(**SERVICES[kind])
    admission = service.admission
    assert admission.drain_ns(service.now_ns) == 0
    service.load(3 * service.capacity(), 0.5)
    expected = admission.drain_ns(service.now_ns)
    begin_ns = service.now_ns
    while service.ends:
        service.run_until(service.ends[0][0])
    assert service.now_ns - begin_ns == pytest.approx(expected, rel=0.25)
    assert admission.drain_ns(service.now_ns) == 0
