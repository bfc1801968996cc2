"""What an execution costs, estimated from those before it: time per batch and time per work.

    observe({1: 10 ms, 2: 25 ms}, work) --> estimate(concurrency, work)

Work is rows, or rows times their padded size. Executions that run at the same time may slow each
other down (they share cores, memory or a lock), so each number of concurrent executions has its
own level; how the time grows with the work is the same for all. Pure: no clock, no lock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_DECAY = 0.9  # the weight of an observation compared with that of the next one
_SLOW_DECAY = 0.97  # the same for how the time grows, which is harder to see
_RIDGE = 0.01  # squared relative spread of work below which the slope cannot be seen
_LEAST_SLOPE = 0.001  # of the time at the mean work
_PURE = 0.95  # share of the time with one concurrency, from which the slope may be learnt
_LEAST_SHARE = 0.05  # of the time, below which a concurrency tells nothing
_MOST_SCALE = 2  # times what is not explained, for a level that had only a part of the time
_EXCEPTION = 2  # times the usual time: what is above that may be an exception
_KNOWN = 1.5  # executions that a level needs before it is believed
_FAR = 2  # times the mean work: the time is a guess, unless it is known how it grows,
_GUESSED = 0.1  # and to be observed so much sooner
_WELL_KNOWN = 8.0  # executions from which a level is as good as it gets
_STALE = 256  # executions after which a level that is well known should be observed again
_NEARLY = 0.95  # of the best throughput: fewer executions at the same time are preferred then
_OWN_SHARE = 0.75  # of an execution: what one more has to add, if it has cores of its own
_DIFFERENT = 4  # times the work, or a part of it: how it grows can be seen
_MORE_THAN_NOISE = 0.2  # the logarithm of how much longer or shorter than expected
_ALIKE = 0.05  # the square of the logarithm: about 1.4 times the work
_SPREAD_KEPT = 0.985  # of what is known about different sizes, after each execution
_MOST_SPREAD = 2.0  # so that it is forgotten in time
_ENOUGH_SPREAD = 0.5  # executions of different sizes, to believe how the time grows


class _Level:
    """The executions of one concurrency; recent ones count more."""

    __slots__ = ("growth", "last", "mean_ns", "mean_work", "weight")

    def __init__(self, work: float, ns: float) -> None:
        self.weight = 0.0
        self.mean_work = work
        self.mean_ns = ns  # expected of the mean work
        self.last = 0  # the number of the last execution
        self.growth = _Growth()


class _Growth:
    """How the time grows with the work, from executions that all ran beside as many others."""

    __slots__ = ("mean_ns", "mean_work", "product", "square", "weight")

    def __init__(self) -> None:
        self.weight = 0.0
        self.mean_work = 0.0
        self.mean_ns = 0.0
        self.square = 0.0  # mean of squared deviations of the work
        self.product = 0.0  # mean of products of the deviations of work and time

    def observe(self, work: float, took_ns: float) -> None:
        self.weight = self.weight * _SLOW_DECAY + 1
        gain = 1 / self.weight
        by_work, by_ns = work - self.mean_work, took_ns - self.mean_ns
        self.mean_work += gain * by_work
        self.mean_ns += gain * by_ns
        self.square = (1 - gain) * (self.square + gain * by_work * by_work)
        self.product = (1 - gain) * (self.product + gain * by_work * by_ns)

    def fixed_work(self, before: float) -> float:
        """The fixed amount of work; while all have the same work, what it was `before`."""
        mean = self.mean_work
        spread = _RIDGE * mean * mean
        slope = self.product + spread * self.mean_ns / (mean + before)
        slope /= self.square + spread
        growing = min(1.0, max(_LEAST_SLOPE, slope * mean / self.mean_ns))
        return mean * (1 / growing - 1)


class ExecutionCosts:
    """The costs of one model's executions, by how many ran at the same time.

    The time of an execution is proportional to its work plus a fixed amount of work. While all
    executions have the same work, the fixed amount stays what it was.
    """

    def __init__(self, fixed_work: float = 0.0) -> None:
        """`fixed_work` is the first guess of the fixed amount."""
        self._levels: dict[int, _Level] = {}
        self._fixed_work = fixed_work
        self._spread = 0.0  # recent executions whose work differed from the mean
        self._executions = 0

    def observe(self, times_ns: Mapping[int, float], work: float, certainty: float = 1.0) -> None:
        """An execution ended: its nanoseconds at each number of executions, itself included.

        Where that may not be so for all of the time, `certainty` is less than 1. What the levels do
        not explain is divided among them, by time and by how little is known about each.
        """
        took_ns = sum(times_ns.values())
        if work <= 0 or took_ns <= 0:
            return
        self._executions += 1
        levels, gains = {}, {}
        for concurrency, ns in times_ns.items():
            if ns >= _LEAST_SHARE * took_ns:
                level = levels[concurrency] = self._level(concurrency, work, took_ns)
                share = (certainty * ns / took_ns) ** 2  # the less, the more is due to others
                level.weight = level.weight * (1 - share * (1 - _DECAY)) + share
                gains[concurrency] = share / level.weight
        fixed = self._fixed_work
        expected = sum(
            [
                times_ns[number] * (level.mean_work + fixed) / level.mean_ns
                for number, level in levels.items()
            ]
        )
        unexplained = math.log(expected / (work + fixed))
        shares = {number: times_ns[number] / took_ns for number in levels}
        scale = sum(gains.values()) / sum([shares[one] * gains[one] for one in levels])
        factor = math.exp(unexplained * min(scale, _MOST_SCALE))
        for number, level in levels.items():
            gain = gains[number]
            alike_ns = level.mean_ns * (work + fixed) / (level.mean_work + fixed) * factor
            if level.weight > _KNOWN:
                alike_ns = min(alike_ns, _EXCEPTION * max(took_ns, level.mean_ns))
            growth = level.growth
            differs = math.log(work / (growth.mean_work or work), _DIFFERENT) ** 2
            level.mean_work += gain * (work - level.mean_work)
            level.mean_ns += gain * (alike_ns - level.mean_ns)
            level.last = self._executions
            steady = certainty * shares[number] >= _PURE
            if steady and differs < _ALIKE and abs(unexplained) > _MORE_THAN_NOISE:
                # Other programs that come or go change all levels, also those not seen then.
                self._scale(math.exp(unexplained * gain * (1 - gain)), levels)
            if steady:
                growth.observe(work, took_ns)
                self._fixed_work = growth.fixed_work(self._fixed_work)
                self._spread = min(_MOST_SPREAD, self._spread * _SPREAD_KEPT + min(1.0, differs))

    def _scale(self, factor: float, observed: Mapping[int, _Level]) -> None:
        for number, level in self._levels.items():
            if number not in observed:
                level.mean_ns *= factor

    def _level(self, concurrency: int, work: float, took_ns: float) -> _Level:
        level = self._levels.get(concurrency)
        if level is None:
            expected = self.estimate(concurrency, work)
            level = _Level(work, took_ns if expected is None else expected)
            self._levels[concurrency] = level
        elif self._executions - level.last > _STALE:
            level.weight = min(level.weight, _KNOWN / 3)
        return level

    @property
    def fixed_work(self) -> float:
        """The work that would take as long as what every execution costs, whatever its work."""
        return self._fixed_work

    @property
    def knows_growth(self) -> bool:
        """Whether executions lately had different work, so that the fixed amount is known."""
        return self._spread >= _ENOUGH_SPREAD

    @property
    def usual_work(self) -> float:
        """The mean work of recent executions; 0 while nothing is known."""
        if not self._levels:
            return 0.0
        return max(self._levels.values(), key=lambda level: level.last).mean_work

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

    def _is_stale(self, level: _Level, work: float) -> bool:
        """Whether it should be observed again, with about that work."""
        known = min(1.0, (level.weight / _WELL_KNOWN) ** 2)
        if not self.knows_growth and not 1 / _FAR < work / level.mean_work < _FAR:
            known = min(known, _GUESSED)
        return self._executions - level.last > _STALE * known

    def is_known(self, concurrency: int) -> bool:
        """Whether some executions had that concurrency."""
        level = self._levels.get(concurrency)
        return level is not None and level.weight >= _KNOWN

    def best_concurrency(self, total_work: float, most_work: float, limit: int) -> int:
        """How many executions at the same time, `limit` at most, answer the most requests, if they
        share `total_work` and none has more than `most_work`.

        Of several that are nearly as good, the lowest. One that is not known well is assumed to
        be good, so that it is tried; but not two steps above what is known.
        """
        levels = self._levels
        rates: list[float] = []
        for concurrency in range(1, limit + 1):
            work = min(total_work / concurrency, most_work)
            ns = self.estimate(concurrency, work)
            if ns is None:
                return limit
            known = self.is_known(concurrency)
            if not known and concurrency > 1:
                if rates[1:] and _NEARLY * rates[-1] < max(rates[:-1]):  # the last gained nothing
                    break
                ns = min(ns, self.estimate(concurrency - 1, work) or ns)
            rates.append(concurrency * work / ns)
            if not known:
                break
        enough = _NEARLY * max(rates)
        best = next(number for number, rate in enumerate(rates, 1) if rate >= enough)
        for neighbour in (best - 1, best + 1) if self.is_known(best) else ():
            if 1 <= neighbour <= limit and neighbour in levels:
                work = min(total_work / neighbour, most_work)
                if self._is_stale(levels[neighbour], work):
                    return neighbour
        return best

    def slowdown(self, concurrency: int, work: float) -> float:
        """How many times as long executions take with one more beside them."""
        without, beside = self.estimate(concurrency, work), self.estimate(concurrency + 1, work)
        return beside / without if without and beside else 1.0

    def hinders(self, concurrency: int, work: float) -> bool:
        """Whether one more beside that many takes most of its time from them."""
        if not self.is_known(concurrency):
            return True  # observed first without it
        if not self.is_known(concurrency + 1):
            return concurrency > 1 and self.hinders(concurrency - 1, work)
        alike = (concurrency + 1) / self.slowdown(concurrency, work)
        return alike < concurrency + _OWN_SHARE
