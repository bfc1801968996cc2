"""A model is judged by the time it takes itself, not by that which it has to wait for a processor."""

from __future__ import annotations

import time

import pytest

from shoal.backends.base import Executor
from shoal.core import dtypes
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.instance import own_time
from shoal.instance.execution import Execution
from shoal.scheduler.assembly import Assembly
from shoal.statistics.model import ModelStatistics
from tests.support.fakes import FakeClock, make_request

MILLISECOND = 1_000_000


@pytest.mark.parametrize(
    ("elapsed_ns", "cpu_ns", "own_ns"),
    [
        (80 * MILLISECOND, 3 * MILLISECOND, 3 * MILLISECOND),  # it was not scheduled
        (MILLISECOND, 2 * MILLISECOND, MILLISECOND),  # never more than has elapsed
        (MILLISECOND, MILLISECOND // 2, MILLISECOND // 2),
        (50_000, 10_000, 50_000),  # too short to ask for the CPU time
    ],
)
def test_time_for_which_the_thread_did_not_run_does_not_count(
    monkeypatch, elapsed_ns, cpu_ns, own_ns
):
    monkeypatch.setattr(own_time, "thread_cpu_ns", lambda: 7 * MILLISECOND + cpu_ns)
    assert own_time.own_ns(elapsed_ns, 7 * MILLISECOND) == own_ns


def test_time_for_which_a_device_blocked_the_thread_counts(monkeypatch):
    monkeypatch.setattr(own_time, "thread_cpu_ns", lambda: 8 * MILLISECOND)
    assert own_time.own_ns(80 * MILLISECOND, 7 * MILLISECOND, 4 * MILLISECOND) == 5 * MILLISECOND
    assert own_time.own_ns(3 * MILLISECOND, 7 * MILLISECOND, 4 * MILLISECOND) == 3 * MILLISECOND


def test_half_a_millisecond_of_computing_is_seen():
    """Counters of the system that advance with its ticks would report none or several."""
    before_ns, begun_ns = own_time.thread_cpu_ns(), time.thread_time_ns()
    while (burnt_ns := time.thread_time_ns() - begun_ns) < MILLISECOND // 2:
        pass
    own_ns = own_time.own_ns(60_000 * MILLISECOND, before_ns)
    assert burnt_ns <= own_ns <= time.thread_time_ns() - before_ns


SIGNATURE = Signature(
    "m", 8, {"x": TensorSpec("x", dtypes.INT32, (1,))}, {"y": TensorSpec("y", dtypes.INT32, (1,))}
)


class SlowAssembly(Assembly):
    """Joining and splitting take long; `clock` is that of the execution."""

    def __init__(self, clock):
        super().__init__(SIGNATURE)
        self._clock = clock

    def join(self, batch):
        self._clock.advance(5 * MILLISECOND)
        return super().join(batch)

    def split(self, batch, names, arrays):
        self._clock.advance(7 * MILLISECOND)
        return super().split(batch, names, arrays)


class Quick(Executor):
    def __init__(self, clock):
        self._clock = clock

    def run(self, inputs, outputs):
        self._clock.advance(50_000)
        return [inputs["x"]]


def test_joining_and_splitting_is_not_the_models_time(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(own_time.time, "monotonic_ns", clock)
    running = Execution(SIGNATURE, 1, ModelStatistics("m", 1), assembly=SlowAssembly(clock))
    requests = [
        make_request(Tensor("x", dtypes.INT32, (1, 1), raw=bytes(4)), rows=1) for _ in range(3)
    ]
    took = running.run(Quick(clock), [request for request, _ in requests])
    assert took == (3, 50_000, 50_000)
    assert [collector.wait().error for _, collector in requests] == [None] * 3
