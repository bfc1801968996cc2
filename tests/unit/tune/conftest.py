"""Models that never ran: what they do follows from their config, with some noise."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import pytest

from shoal.tune.goal import Measurement
from shoal.tune.space import Space

CORES = 4


@dataclass(frozen=True)
class Simulated:
    """A model by its costs, on a machine with `CORES` cores and clients that always ask again."""

    fixed_us: float = 500  # of an execution
    row_us: float = 200  # of each of its rows
    serial: float = 0.2  # the part that further threads do not help
    crowd: float = 0.15  # what each thread beyond the cores costs
    bend: int = 1000  # beyond so many rows memory is too slow
    arrival_us: float = 100  # between requests of clients that were answered together
    tail: float = 1.3  # p99 over the mean
    noise: float = 0.0
    counted: bool = True  # whether the server says how large batches were

    def measure(self, point, clients, careful=False, rng=None):
        rows = max(1, point.batch)
        threads = max(1, point.threads)
        busy = min(point.instances, clients)
        waiting = clients / busy
        # A delay gathers those who come a little later.
        gathered = waiting * 0.6 + point.delay_us / self.arrival_us
        batch = max(1.0, min(rows, waiting, gathered))
        full = batch >= min(rows, waiting) * 0.999
        waited_us = 0.0
        if rows > 1 and point.delay_us:
            filled = rows <= waiting and full
            waited_us = (
                min(point.delay_us, batch * self.arrival_us * 0.3) if filled else point.delay_us
            )
        speed = 1 / (self.serial + (1 - self.serial) / min(threads, CORES))
        crowd = max(0.0, busy * threads - CORES)
        share = max(1.0, busy * min(threads, CORES) / CORES)
        slow = 1.0 if batch <= self.bend else (batch / self.bend) ** 1.2
        compute_us = (self.fixed_us + self.row_us * batch * slow / speed) * share
        compute_us *= 1 + self.crowd * crowd
        per_second = busy * batch / (compute_us + waited_us) * 1e6
        average_us = clients / per_second * 1e6
        if rng is not None and self.noise:
            spread = self.noise * (0.5 if careful else 1)
            per_second *= math.exp(rng.gauss(0, spread))
            average_us *= math.exp(rng.gauss(0, spread))
        return Measurement(
            point,
            clients,
            per_second=per_second,
            latency_us=average_us * self.tail,
            average_us=average_us,
            percentiles_us={50: average_us, 99: average_us * self.tail},
            mean_batch=batch if self.counted else 0.0,
            peak_batch=math.ceil(batch) if self.counted else 0,
            queue_us=max(0.0, average_us - compute_us) if self.counted else 0.0,
            compute_us=compute_us if self.counted else 0.0,
            careful=careful,
        )


class Bench:
    """Measures a simulated model and counts how often."""

    def __init__(self, model, seed=1):
        self.model = model
        self.rng = random.Random(seed)
        self.count = 0

    def __call__(self, point, clients, careful):
        self.count += 1
        return self.model.measure(point, clients, careful, self.rng)

    def true(self, measurement):
        return replace(self.model, noise=0.0).measure(measurement.point, measurement.clients)

    def grid(self, space, goal):
        """The best of everything, measured once each and told without the noise."""
        every = [self(point, level, False) for point in space.points() for level in space.levels]
        return self.true(max(every, key=goal.rank))


def make_space(levels=(32,), **changes):
    return replace(
        Space(
            batches=(1, 2, 4, 8, 16, 32, 64),
            delays_us=(0, 200, 1000, 5000),
            instances=(1, 2, 4, 8),
            threads=(1, 2, 4),
            levels=tuple(levels),
        ),
        **changes,
    )


@pytest.fixture
def simulated():
    return Simulated


@pytest.fixture
def bench():
    return Bench


@pytest.fixture
def space():
    return make_space
