"""The window of a cell: from the first question to the last answer."""

from __future__ import annotations

import numpy as np

from shoal.perf.worker_pool import LevelMeasurement
from shoal.stress import load


class LatePool:
    """A pool that reads its clock when all of its requests have been answered."""

    def start(self, level):
        self.level = level

    def count(self):
        return 2, True

    def end_window(self):
        starts, ends = np.array([100, 150]), np.array([300, 500])
        return LevelMeasurement(900, 1000, starts, ends, np.zeros(2, np.int64))


def test_the_window_contains_requests_that_were_quicker_than_the_clock():
    sample = load.ask(LatePool(), clients=2, times=1, tick=lambda _: None)
    assert (sample.begin_ns, sample.end_ns) == (100, 500)
