"""Adaptive admission, against a simulated service: no thread, no clock but the simulation's."""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from shoal.errors import QueueRejected
from shoal.scheduler.admission import LEAST_SHARE, MOST_SHARE, AdmissionControl
from tests.support.fakes import make_request

MS = 1_000_000
SECOND = 1000 * MS
TARGET = 40 * MS


@dataclass
class Service:
    """Instances that take batches from one queue, oldest first, highest priority first."""

    max_rows: int = 8  # 0: each request alone
    instances: int = 1
    batch_ns: int = 3 * MS
    row_ns: int = MS // 4
    noise: float = 0.0
    target_ns: int = TARGET
    slowdown: float = 1.0  # times as long, with several instances
    seed: int = 1
    now_ns: int = SECOND
    latencies: list[int] = field(default_factory=list)
    by_level: dict[int, list[bool]] = field(default_factory=dict)  # whether each was admitted

    def __post_init__(self) -> None:
        self.admission = AdmissionControl(self.target_ns, self.max_rows)
        self.admission.instances = self.instances
        self.random = random.Random(self.seed)
        self.queues: dict[int, deque] = {}
        self.ends: list[tuple[int, int, list]] = []
        self.batches = 0

    def cost_ns(self, rows: int) -> int:
        spread = 1 + self.noise * self.random.uniform(-1, 1)
        slow = self.slowdown if self.instances > 1 else 1.0
        return int((self.batch_ns + rows * self.row_ns) * spread * slow)

    def capacity(self) -> float:
        """Requests of one row each second, with full batches."""
        rows = self.max_rows or 1
        slow = self.slowdown if self.instances > 1 else 1.0
        return self.instances * rows * SECOND / (self.batch_ns + rows * self.row_ns) / slow

    def offer(self, level: int = 1, rows: int = 1, **options: object) -> bool:
        """A request arrives; whether it is admitted."""
        request = make_request(rows=rows)[0]
        for name, value in options.items():
            setattr(request, name, value)
        expected = self.admission.expectation(request, level, self.now_ns)
        idle = len(self.ends) + self.waiting() < self.instances
        try:
            self.admission.check(request, level, self.now_ns)
        except QueueRejected:
            self.by_level.setdefault(level, []).append(False)
            assert not expected.in_time
            return False
        assert expected.in_time
        assert idle or expected.latency_ns <= self.target_ns
        self.by_level.setdefault(level, []).append(True)
        request.queued_ns = self.now_ns
        self.admission.joined((request,), level)
        self.queues.setdefault(level, deque()).append(request)
        self.start_batches()
        return True

    def waiting(self) -> int:
        return sum(map(len, self.queues.values()))

    def start_batches(self) -> None:
        while len(self.ends) < self.instances and self.waiting():
            batch: list = []
            for level in sorted(self.queues):
                line = self.queues[level]
                while line and (not batch or len(batch) < self.max_rows):
                    request = line.popleft()
                    self.admission.left(request, level)
                    batch.append(request)
            self.admission.started(batch, self.now_ns)
            self.batches += 1
            end_ns = self.now_ns + self.cost_ns(sum(request.rows for request in batch))
            heapq.heappush(self.ends, (end_ns, self.batches, batch))

    def run_until(self, when_ns: int) -> None:
        while self.ends and self.ends[0][0] <= when_ns:
            self.now_ns, _, batch = heapq.heappop(self.ends)
            self.latencies += [self.now_ns - request.queued_ns for request in batch]
            self.admission.finished(batch, self.now_ns)
            self.start_batches()
        self.now_ns = when_ns

    def load(
        self, rate: float, seconds: float, level: int = 1, **options: object
    ) -> tuple[int, int]:
        """Poisson arrivals; how many were offered and how many admitted."""
        offered = admitted = 0
        end_ns = self.now_ns + int(seconds * SECOND)
        at_ns = self.now_ns
        while True:
            at_ns += int(self.random.expovariate(rate) * SECOND)
            if at_ns > end_ns:
                self.run_until(end_ns)
                return offered, admitted
            self.run_until(at_ns)
            offered += 1
            admitted += self.offer(level, **options)


SERVICES = {
    "batches": {},
    "noisy": {"noise": 0.4},
    "fixed cost": {"row_ns": 0},
    "cost by row": {"batch_ns": 0, "row_ns": 2 * MS},
    "alone": {"max_rows": 0, "batch_ns": 2 * MS},
    "instances": {"instances": 3, "noise": 0.2},
    "instances that share cores": {"instances": 2, "slowdown": 1.9},
    "large batches": {"max_rows": 32, "batch_ns": 10 * MS, "row_ns": MS // 10},
}


@pytest.mark.parametrize("kind", SERVICES)
def test_three_times_the_capacity(kind):
    service = Service(**SERVICES[kind])
    service.load(3 * service.capacity(), 0.3)  # it learns what batches cost
    service.latencies.clear()
    _, admitted = service.load(3 * service.capacity(), 1.0)
    late = sum(latency > TARGET for latency in service.latencies)
    good = len(service.latencies) - late
    assert late <= 0.02 * len(service.latencies)
    assert good >= 0.9 * service.capacity()
    assert admitted <= 1.1 * service.capacity()


@pytest.mark.parametrize("kind", SERVICES)
def test_below_the_capacity_hardly_any_request_is_refused(kind):
    service = Service(**SERVICES[kind])
    service.load(0.6 * service.capacity(), 0.3)
    offered, admitted = service.load(0.6 * service.capacity(), 1.0)
    assert admitted >= 0.98 * offered


def test_it_recovers_after_an_overload():
    service = Service(noise=0.3)
    service.load(5 * service.capacity(), 0.5)
    service.run_until(service.now_ns + SECOND)
    offered, admitted = service.load(0.5 * service.capacity(), 1.0)
    assert admitted >= 0.99 * offered


def test_a_model_that_becomes_slower_is_followed():
    service = Service()
    service.load(2 * service.capacity(), 1.0)
    service.batch_ns *= 4
    service.load(2 * service.capacity(), 0.5)
    service.latencies.clear()
    service.load(2 * service.capacity(), 2.0)
    assert sum(latency > TARGET for latency in service.latencies) <= 0.02 * len(service.latencies)


def test_a_target_that_cannot_be_met_does_not_starve_the_model():
    """Each batch takes longer than the target: an idle instance still gets work."""
    service = Service(target_ns=MS, instances=2)
    service.load(2 * service.capacity(), 1.0)
    assert len(service.latencies) >= 2 * 0.8 * SECOND / service.cost_ns(1)


def test_batches_grow_although_only_small_ones_were_seen():
    """A batch costs the same for 8 rows as for one: that is found out in time."""
    service = Service(row_ns=0, target_ns=9 * MS)
    service.load(0.1 * service.capacity(), 1.0)
    _, admitted = service.load(2 * service.capacity(), 2.0)
    assert admitted >= 0.8 * 2.0 * service.capacity()


def test_higher_priorities_are_refused_last():
    service = Service()
    service.load(service.capacity(), 0.5)
    service.by_level.clear()
    rate = 2 * service.capacity()
    end_ns = service.now_ns + 2 * SECOND
    while service.now_ns < end_ns:
        service.run_until(service.now_ns + int(service.random.expovariate(rate) * SECOND))
        service.offer(service.random.choice((1, 2, 2, 2)))  # level 1: half of the capacity
    admitted = {level: sum(found) / len(found) for level, found in service.by_level.items()}
    assert admitted[1] >= 0.99
    assert 0.05 < admitted[2] < 0.6


def test_what_a_client_allows_counts_if_it_is_less_than_the_target():
    service = Service()
    service.load(3 * service.capacity(), 1.0)
    assert service.admission.expectation(make_request()[0], 1, service.now_ns).latency_ns > 5 * MS
    service.run_until(service.now_ns + SECOND)
    for _ in range(2 * service.max_rows + 1):
        assert service.offer()
    assert not service.offer(timeout_us=2000)
    assert not service.offer(answer_by_ns=service.now_ns + 2 * MS)
    assert not service.offer(answer_by_ns=service.now_ns - 1)
    assert service.offer(timeout_us=1_000_000)


def test_a_refusal_says_what_to_do():
    service = Service(target_ns=20 * MS, batch_ns=2 * SECOND)
    service.offer()
    service.run_until(service.now_ns + 3 * SECOND)
    service.offer()
    with pytest.raises(QueueRejected) as caught:
        service.admission.check(make_request(id="7")[0], 1, service.now_ns)
    assert caught.value.message == (
        "[request id: 7] the model is overloaded and cannot answer within its target latency of "
        "20 ms; try again later"
    )
    assert caught.value.retry_secs in (4, 5)  # the batch that runs, and its own
    with pytest.raises(QueueRejected, match="within the time that the request allows"):
        service.admission.check(make_request(timeout_us=5)[0], 1, service.now_ns)
    assert service.admission.reading(service.now_ns).refused == 2


def test_a_batch_that_is_overdue_stops_the_queue():
    service = Service()
    service.load(service.capacity(), 1.0)
    service.run_until(service.now_ns + SECOND)
    service.offer()
    service.now_ns += 10 * TARGET  # it hangs
    assert not service.offer()


def test_a_group_is_admitted_as_far_as_there_is_room():
    service = Service()
    service.load(3 * service.capacity(), 1.0)
    service.run_until(service.now_ns + SECOND)
    service.offer()
    group = [make_request()[0] for _ in range(500)]
    room = service.admission.room_for(group, 1, service.now_ns)
    admitted = 0
    while service.offer():
        admitted += 1
    assert 8 < admitted < 200
    assert room == admitted


def test_nothing_is_refused_before_the_first_batch_was_measured():
    service = Service()
    assert all(service.offer() for _ in range(1000))


def test_the_share_of_the_target_stays_within_its_bounds():
    service = Service(batch_ns=2 * TARGET)
    service.load(100, 3.0)
    assert service.admission._share == LEAST_SHARE
    service.batch_ns = MS
    for _ in range(100):
        service.run_until(service.now_ns + 2 * SECOND)
        service.offer()
    assert service.admission._share == MOST_SHARE
