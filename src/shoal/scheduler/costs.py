"""What an execution costs, estimated from those before it: time per batch and time per work.

    observe(concurrency, work, took_ns) --> estimate(concurrency, work)

Work is rows, or rows times their padded size. Executions that run at the same time may slow each
other down (they share cores, memory or a lock), so each number of concurrent executions has its
own level; how the time grows with the work is the same for all. Pure: no clock, no lock.
"""

from __future__ import annotations

import math

_DECAY = 0.9  # the weight of an observation compared with that of the next one
_RIDGE = 0.01  # squared relative spread of work below which the slope cannot be seen
_LEAST_SLOPE = 0.001  # of the time at the mean work
_PURE = 0.25  # how far a mean concurrency may be from a whole number to count for that
_FAR = 2  # times the work of any execution before: a guess
_STALE = 256  # executions after which a concurrency should be observed again
_GAIN = 0.1  # of the throughput, that a further execution has to add
_MOST_GAIN = 0.2  # of what one execution alone would give: more is not asked, however many run


class _Level:
    """The executions of one concurrency; recent ones count more."""

    __slots__ = ("last", "least", "mean_ns", "mean_work", "most", "product", "square", "weight")

    def __init__(self) -> None:
        self.weight = 0.0
        self.mean_work = 0.0
        self.mean_ns = 0.0
        self.square = 0.0  # mean of squared deviations of the work
        self.product = 0.0  # mean of products of the deviations of work and time
        self.least = math.inf  # work that was observed
        self.most = 0.0
        self.last = 0  # the number of the last execution

    def observe(self, work: float, took_ns: float, number: int) -> None:
        self.last = number
        self.least = min(work, self.least)
        self.most = max(work, self.most)
        self.weight = self.weight * _DECAY + 1
        gain = 1 / self.weight
        by_work, by_ns = work - self.mean_work, took_ns - self.mean_ns
        self.mean_work += gain * by_work
        self.mean_ns += gain * by_ns
        self.square = (1 - gain) * (self.square + gain * by_work * by_work)
        self.product = (1 - gain) * (self.product + gain * by_work * by_ns)


class ExecutionCosts:
    """The costs of one model's executions, by how many ran at the same time.

    The time of an execution is proportional to its work plus a fixed amount of work. While all
    executions have the same work, the fixed amount stays what it was.
    """

    def __init__(self, fixed_work: float = 0.0) -> None:
        """`fixed_work` is the first guess of the fixed amount."""
        self._levels: dict[int, _Level] = {}
        self._fixed_work = fixed_work
        self._executions = 0

    def observe(self, concurrency: float, work: float, took_ns: float) -> None:
        """An execution took so long while, on average, `concurrency` ran, itself included.

        It is ignored if that number changed too much meanwhile.
        """
        self._executions += 1
        whole = max(1, round(concurrency))
        if abs(concurrency - whole) > _PURE or work <= 0 or took_ns <= 0:
            return
        level = self._levels.get(whole)
        if level is None:
            level = self._levels[whole] = _Level()
        level.observe(work, took_ns, self._executions)
        mean = level.mean_work
        spread = _RIDGE * mean * mean
        before = level.mean_ns / (mean + self._fixed_work)
        slope = (level.product + spread * before) / (level.square + spread)
        growing = min(1.0, max(_LEAST_SLOPE, slope * mean / level.mean_ns))
        self._fixed_work = mean * (1 / growing - 1)

    def estimate(self, concurrency: int, work: float) -> float | None:
        """The nanoseconds expected of an execution; None while nothing is known.

        Where none was observed with that concurrency, they are taken not to slow down each other
        more than those with the nearest lower one.
        """
        level = self._levels.get(concurrency)
        if level is None:
            if not self._levels:
                return None
            lower = [number for number in self._levels if number < concurrency]
            level = self._levels[max(lower) if lower else min(self._levels)]
        fixed = self._fixed_work
        return level.mean_ns * (work + fixed) / (level.mean_work + fixed)

    def knows(self, concurrency: int, work: float) -> bool:
        """Whether executions lately had that concurrency, and some had about that much work."""
        level = self._levels.get(concurrency)
        if level is None or self._executions - level.last > _STALE:
            return False
        return level.least / _FAR <= work <= level.most * _FAR

    def is_worth_another(self, concurrency: int, work: float) -> bool:
        """Whether one more execution beside that many raises the throughput.

        To know, both have to be observed: first without it, then with it.
        """
        if not concurrency or not self._levels:
            return True
        if not self.knows(concurrency, work):
            return False
        if not self.knows(concurrency + 1, work):
            return True
        slowdown = self.slowdown(concurrency, work)
        return (concurrency + 1) / slowdown > concurrency + min(_GAIN * concurrency, _MOST_GAIN)

    def slowdown(self, concurrency: int, work: float) -> float:
        """How many times as long executions take with one more beside them."""
        without, beside = self.estimate(concurrency, work), self.estimate(concurrency + 1, work)
        return beside / without if without and beside else 1.0
