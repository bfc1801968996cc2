"""Time to drain: how long what waits and runs now will take, at the rate measured lately.

    counted executions --(when metrics are read)--> costs --> finish_ns(load) --> seconds

Nothing is counted for this on the path of requests: the statistics already have the time of every
execution, and each reading learns from those since the reading before. A model with a target
latency has its own measurement, of which `finish_ns` makes the same estimate (see `admission`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shoal.scheduler.costs import ExecutionCosts
from shoal.statistics.model import BatchReading

_OBSERVATIONS = 16  # that one reading makes of all executions since the one before, at most
_NOTHING = BatchReading(0, 0, 0, 0)


class Waiting(NamedTuple):
    """What waits in the queue of a model."""

    requests: int = 0
    rows: int = 0  # about, if there are many
    serial: int = 0  # the most of them that have to run one after another: those of a sequence


class Load(NamedTuple):
    """What waits for a model and what runs, in all its instances."""

    waiting: Waiting
    running: Sequence[int]  # requests of each instance that is busy
    instances: int


class TimeToDrain:
    """The estimate for one model version, from its statistics. Any thread may call any method."""

    def __init__(self, max_rows: int) -> None:
        """Batches have at most `max_rows` rows; 0 if each request runs alone."""
        self._max_rows = max_rows
        self._lock = threading.Lock()  # guards everything below
        self._costs = ExecutionCosts(fixed_work=max(1, max_rows))
        self._counted: Mapping[int, BatchReading] = {}

    def read_ns(
        self, batches: Mapping[int, BatchReading], mean_rows: float, load: Load
    ) -> float | None:
        """The nanoseconds until `load` is finished; None while no execution has been measured.

        `batches` are all executions so far, by their rows; requests had `mean_rows` rows.
        """
        waiting, running, instances = load
        with self._lock:
            self._learn(batches)
            if not waiting.requests and not running:
                return 0.0
            if self._costs.estimate(1, 1) is None:
                return None
            if waiting.requests:
                mean_rows = waiting.rows / waiting.requests
            return self._finish_ns(waiting, running, instances, max(1, round(mean_rows)))

    def _learn(self, batches: Mapping[int, BatchReading]) -> None:
        """Observe the executions since the last reading, each batch size by its share of them."""
        fresh = {}
        for rows, batch in batches.items():
            before = self._counted.get(rows, _NOTHING)
            count = batch.count - before.count
            if count > 0:
                fresh[rows] = count, (_total_ns(batch) - _total_ns(before)) / count
        self._counted = batches
        executions = sum(count for count, _ in fresh.values())
        for rows, (count, took_ns) in fresh.items():
            share = round(_OBSERVATIONS * count / executions)
            for _ in range(max(1, min(count, share))):
                self._costs.observe({1: took_ns}, rows)

    def _finish_ns(
        self, waiting: Waiting, running: Sequence[int], instances: int, own_rows: int
    ) -> float:
        # Where requests wait, as many run at the same time as can; otherwise more could.
        parallel = len(running) if waiting.requests and running else max(instances, len(running))
        busy_ns = [self._left_ns(requests * own_rows, own_rows) for requests in running]
        last_ns = finish_ns(
            waiting.rows, own_rows, self._max_rows, max(1, parallel), busy_ns, self._estimate
        )
        serial_ns = waiting.serial * self._estimate(1, own_rows)
        return max([last_ns or 0.0, serial_ns, *busy_ns])

    def _left_ns(self, rows: int, own_rows: int) -> float:
        """What an instance that has `rows` rows still needs: on average, half of the batch that it
        runs is done. It may have taken further batches."""
        batch_rows = max(self._max_rows, own_rows)
        batches, rest = divmod(rows, batch_rows)
        first_ns = self._estimate(1, batch_rows if batches else rest)
        rest_ns = self._estimate(1, rest) if rest else 0.0
        return batches * self._estimate(1, batch_rows) + rest_ns - first_ns / 2

    def _estimate(self, parallel: int, rows: float) -> float:
        """How many ran beside an execution is not known: its time has it in it."""
        del parallel
        return self._costs.estimate(1, rows) or 0.0


def finish_ns(
    rows: int,
    own_rows: int,
    max_rows: int,
    parallel: int,
    busy_ns: Sequence[float],
    estimate: Callable[[int, float], float | None],
) -> float | None:
    """After how many nanoseconds the last of `rows` waiting rows is answered, which belongs to a
    request of `own_rows`; None while nothing is known. With 0 rows, when all that runs has ended.

    Batches have at most `max_rows` rows (0: requests run alone), `parallel` run at the same time,
    `busy_ns` is what each running one still needs, and `estimate` the time of a batch by how many
    run and by its rows.
    """
    if not rows:
        return max(busy_ns, default=0.0)
    batch_rows = max(max_rows - max_rows % own_rows if max_rows else own_rows, own_rows)
    batch_ns = estimate(parallel, batch_rows)
    if batch_ns is None:
        return None
    before, last_rows = divmod(rows - 1, batch_rows)
    rounds, place = divmod(before, parallel)
    idle_ns = [*busy_ns] + [0.0] * (parallel - len(busy_ns))  # after how long each instance is idle
    start_ns = sorted(idle_ns)[place] + rounds * batch_ns
    return start_ns + (estimate(parallel, last_rows + 1) or 0.0)


def _total_ns(batch: BatchReading) -> int:
    return batch.compute_input_ns + batch.compute_infer_ns + batch.compute_output_ns
