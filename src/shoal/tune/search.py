"""The search: finds with few measurements what the whole grid would.

    seeds --> pattern search, large steps first --> careful measurements of the best few

Why few are enough: along each axis, performance rises and then levels off, or rises and then falls.
So steps start large, continue while they improve and are halved when they do not; a grid would
measure every value. Two settings that share the CPU are also moved together, one up and the other
down, because each alone may look like a loss. What measurements imply is not measured (`Implied`).
A config that exceeds the limit with some clients *and* has a lower throughput than the best so far
is not tried with fewer clients, because that never raises throughput. First measurements are short;
the best few are measured again for longer, so that no config is chosen by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from shoal.errors import ShoalError
from shoal.tune.goal import Goal, Measurement
from shoal.tune.space import AXES, ConfigPoint, Space

Measure = Callable[[ConfigPoint, int, bool], Measurement]  # config, clients, carefully
FIFTH = 5
_LEAST_BUDGET = 8
_FINALISTS = 3
_MOST_FINALISTS = 5  # when the first ones turn out to be over the limit
_FULL = 0.97  # of the maximum batch: a longer delay adds no rows
_NO_QUEUE = 0.05  # of the compute time: requests do not wait for an instance
_STARTS = 3  # starting points of the pattern search
# Settings that share a resource: instances share the CPU with threads, and the queued requests with
# the rows of a batch.
_TOGETHER: tuple[dict[str, int], ...] = (
    {"instances": 1, "threads": -1},
    {"instances": -1, "threads": 1},
    {"instances": 1, "batch": -1},
    {"instances": -1, "batch": 1},
    {"instances": 1, "batch": -1, "threads": -1},
    {"instances": -1, "batch": 1, "threads": 1},
    {"batch": 1, "delay_us": 1},
    {"batch": -1, "delay_us": -1},
)


class SearchListener(Protocol):
    """Receives the progress of a search."""

    def begins(self, point: ConfigPoint, clients: int, *, careful: bool) -> None:
        """A measurement begins."""

    def measured(self, measurement: Measurement, *, best: bool) -> None:
        """A measurement is complete; `best` is true if none before was better."""


@dataclass(slots=True)
class SearchResult:
    """The result of a search."""

    chosen: Measurement
    start: Measurement  # the config as it was
    tries: list[Measurement] = field(default_factory=list)  # in the order measured
    implied: int = 0  # results inferred from other measurements
    grid: int = 0  # measurements of the whole grid
    met: bool = True  # whether the limit was met


class _Spent(Exception):
    """The budget of measurements is used up."""


class Implied:
    """Infers the results of configs that were not measured."""

    def __init__(self) -> None:
        self._known: list[Measurement] = []

    def add(self, measurement: Measurement) -> None:
        """Add a measurement."""
        if not measurement.error:
            self._known.append(measurement)

    def find(self, point: ConfigPoint, clients: int) -> Measurement | None:
        """The measurement of another config that must behave the same."""
        for known in self._known:
            if known.clients == clients and self._alike(known, point):
                return known
        return None

    @staticmethod
    def _alike(known: Measurement, point: ConfigPoint) -> bool:
        one, peak = known.point, known.peak_batch
        if not peak or (one.instances, one.threads) != (point.instances, point.threads):
            return False
        if one.delay_us == point.delay_us and one.batch > peak:
            # The limit on rows was never reached. A full batch is sent without the delay, so with
            # a delay the limit must be above the peak to have no effect.
            return point.batch > peak or (point.batch == peak and not point.delay_us)
        # Batches were full already, so a longer delay adds no rows.
        full = known.mean_batch >= _FULL * one.batch
        return full and one.batch == point.batch and point.delay_us >= one.delay_us


class Search:
    """One search; `run` it once."""

    def __init__(
        self,
        space: Space,
        goal: Goal,
        measure: Measure,
        listener: SearchListener | None = None,
        budget: int | None = None,
    ) -> None:
        """`budget` is the maximum number of measurements; by default a fifth of the grid, with a
        minimum for small grids."""
        self._space = space
        self._goal = goal
        self._measure = measure
        self._listener = listener
        self._grid = space.size
        self._budget = budget or max(min(_LEAST_BUDGET, self._grid), self._grid // FIFTH)
        self._tries: list[Measurement] = []
        self._known: dict[tuple[ConfigPoint, int], Measurement] = {}
        self._implied = Implied()
        self._asked_free: set[tuple[ConfigPoint, int]] = set()
        self._standing: dict[ConfigPoint, Measurement] = {}  # the best result of each config
        self._best: Measurement | None = None
        self._center: Measurement | None = None  # the current position of the search

    def run(self, start: ConfigPoint) -> SearchResult:
        """Search from the config as it is. Raises ShoalError when it cannot be measured."""
        start = self._space.plain(start)
        first = self._look(start)
        if first.error:
            raise ShoalError(first.error)
        # Reserve measurements for the best few and the start.
        last = min(_FINALISTS + 1, self._budget // 3)
        try:
            for point in self._seeds(start):
                self._look(point, last)
            for place in self._starts():
                self._center = place
                self._pattern(last)
        except _Spent:
            pass
        chosen, begun = self._finals(start)
        return SearchResult(
            chosen=chosen,
            start=begun,
            tries=self._tries,
            implied=len(self._asked_free),
            grid=self._grid,
            met=self._goal.met(chosen),
        )

    # ---- where to measure

    def _seeds(self, start: ConfigPoint) -> Iterator[ConfigPoint]:
        """Different ways to divide CPU and clients among instances: one instance with all threads
        and large batches, up to many with few of both. Batches that the clients can just fill
        lose nothing by a delay, so each is tried with and without one."""
        space = self._space
        rows = space.levels[-1] * space.rows
        delays = dict.fromkeys((space.delays_us[0], space.delays_us[len(space.delays_us) // 2]))
        for instances in space.instances:
            threads = _at_most(space.threads, space.threads[-1] // instances)
            batch = _at_most(space.batches, rows // instances)
            for delay_us in delays:
                yield space.plain(ConfigPoint(batch, delay_us, instances, threads))
        yield space.plain(start._replace(delay_us=space.delays_us[0]))

    def _starts(self) -> Iterator[Measurement]:
        """The best starting points so far, each with another number of instances."""
        seeds = sorted(self._standing.values(), key=self._goal.rank, reverse=True)
        yield self._here(self._best)
        used = {self._here(self._best).point.instances}
        for seed in seeds:
            if len(used) < _STARTS and seed.point.instances not in used and not seed.error:
                used.add(seed.point.instances)
                yield seed

    def _pattern(self, reserved: int) -> None:
        """Step along each axis, large steps first, until no step improves."""
        strides = {axis: max(1, len(self._space.values(axis)) // 2) for axis in AXES}
        while True:
            moved = False
            for axis in self._order():
                moved |= self._walk(axis, strides[axis], reserved)
            if max(strides.values()) > 1:
                strides = {axis: max(1, stride // 2) for axis, stride in strides.items()}
            elif not moved and not self._diagonals(reserved) and not self._just_full(reserved):
                return

    def _order(self) -> list[str]:
        """The axes with several values, usually the most important first."""
        return [axis for axis in AXES if len(self._space.values(axis)) > 1]

    def _walk(self, axis: str, stride: int, reserved: int) -> bool:
        """Step up or down while that improves; returns whether it did."""
        moved = False
        for direction in self._directions(axis):
            steps = 1
            while True:
                neighbour = self._neighbour(axis, direction * stride * steps)
                if neighbour is None:
                    break
                if self._move(neighbour, reserved):
                    moved, steps = True, 1
                elif self._standing[neighbour].point == neighbour or self._is_last(axis, neighbour):
                    break
                else:
                    steps += 1  # this one was inferred; the next may differ
            if moved:
                break
        return moved

    def _is_last(self, axis: str, point: ConfigPoint) -> bool:
        values = self._space.values(axis)
        return getattr(point, axis) in (values[0], values[-1])

    def _directions(self, axis: str) -> list[int]:
        """The directions worth a step, from the current measurement."""
        best = self._here(self._center)
        counted = bool(best.compute_us) and not best.point.delay_us
        if axis == "instances" and counted and best.queue_us < _NO_QUEUE * best.compute_us:
            return [-1]  # requests do not wait for an instance
        if axis == "delay_us" and best.mean_batch:
            most = best.clients * self._space.rows
            if best.mean_batch >= _FULL * min(best.point.batch, most):
                return [-1]  # batches contain all requests
        return [1, -1]

    def _diagonals(self, reserved: int) -> bool:
        """Step along several axes at once; returns whether one improved."""
        for steps in _TOGETHER:
            point: ConfigPoint | None = self._here(self._center).point
            for axis, step in steps.items():
                point = self._neighbour(axis, step, start=point, clamp=False) if point else None
            if point is not None and self._move(point, reserved):
                return True
        return False

    def _just_full(self, reserved: int) -> bool:
        """Try batches that the clients can just fill, with each delay; returns whether one
        improved."""
        space, center = self._space, self._here(self._center)
        rows = center.clients * space.rows // center.point.instances
        full = center.point._replace(batch=_at_most(space.batches, rows))
        for delay_us in space.delays_us[:0:-1]:
            if self._move(space.plain(full._replace(delay_us=delay_us)), reserved):
                return True
        return False

    def _neighbour(
        self, axis: str, step: int, start: ConfigPoint | None = None, *, clamp: bool = True
    ) -> ConfigPoint | None:
        """The point `step` values away; clamped to the end of the axis."""
        point = start or self._here(self._center).point
        values = self._space.values(axis)
        index = values.index(getattr(point, axis))
        target = index + step
        if clamp:
            target = min(max(target, 0), len(values) - 1)
        if target == index or not 0 <= target < len(values):
            return None
        found = self._space.plain(point.at(axis, values[target]))
        return None if found == point else found

    @staticmethod
    def _here(measurement: Measurement | None) -> Measurement:
        assert measurement is not None
        return measurement

    # ---- measuring

    def _move(self, point: ConfigPoint, reserved: int) -> bool:
        """Measure a config and move there if it is better; returns whether. Raises _Spent."""
        standing = self._standing.get(point) or self._look(point, reserved)
        if standing.point != point or not self._goal.better(standing, self._center):
            return False
        self._center = standing
        return True

    def _look(self, point: ConfigPoint, reserved: int = 0) -> Measurement:
        """Measure a config with the relevant numbers of clients; returns the best result."""
        levels = self._space.levels
        begin = len(levels) - 1 if self._best is None else levels.index(self._best.clients)
        found: list[Measurement] = []
        try:
            for index in self._climb(begin, found):
                found += [self._at(point, levels[index], reserved)]
        finally:
            if found:  # also when the budget is used up
                standing = self._standing[point] = max(found, key=self._goal.rank)
                measured = standing.point == point  # not inferred
                if measured and self._goal.better(standing, self._best):
                    self._best = standing
        return standing

    def _climb(self, index: int, found: list[Measurement]) -> Iterator[int]:
        """The numbers of clients to measure, depending on the results so far."""
        levels, goal = self._space.levels, self._goal
        if not goal.limit_us or len(levels) == 1:
            yield index
            return
        yield index
        if goal.met(found[-1]):
            while index + 1 < len(levels) and goal.met(found[-1]):
                index += 1
                yield index
            return
        while index > 0 and not goal.met(found[-1]) and not found[-1].error:
            best = self._best
            if best is not None and goal.met(best) and found[-1].per_second <= best.per_second:
                return  # fewer clients never raise throughput
            index -= 1
            yield index

    def _at(self, point: ConfigPoint, clients: int, reserved: int) -> Measurement:
        known = self._known.get((point, clients))
        if known is not None:
            return known
        alike = self._implied.find(point, clients)
        if alike is not None:
            self._asked_free.add((point, clients))
            return alike
        if len(self._tries) + reserved >= self._budget:
            raise _Spent
        return self._once(point, clients, careful=False)

    def _once(self, point: ConfigPoint, clients: int, *, careful: bool) -> Measurement:
        if self._listener is not None:
            self._listener.begins(point, clients, careful=careful)
        try:
            made = self._measure(point, clients, careful)
        except ShoalError as error:
            made = Measurement(point, clients, careful=careful, error=error.message)
        self._tries.append(made)
        self._known[point, clients] = made
        if not careful:
            self._implied.add(made)
        if self._listener is not None:
            better = not made.error and self._goal.better(made, self._best)
            self._listener.measured(made, best=better)
        return made

    # ---- choosing

    def _finals(self, start: ConfigPoint) -> tuple[Measurement, Measurement]:
        """Measure the best few again, carefully; returns the chosen one and the start."""
        ranked = sorted(self._standing.values(), key=self._goal.rank, reverse=True)
        entries = list(dict.fromkeys((each.point, each.clients) for each in ranked))
        begun = self._standing[start]
        careful: list[Measurement] = []
        for point, clients in entries[:_MOST_FINALISTS]:
            enough = len(careful) >= _FINALISTS and any(map(self._goal.met, careful))
            if careful and (enough or len(self._tries) >= self._budget):
                break
            careful.append(self._once(point, clients, careful=True))
        seen = any(each.point == begun.point for each in careful)
        if not seen and len(self._tries) < self._budget:
            careful.append(self._once(begun.point, begun.clients, careful=True))
        working = [each for each in careful if not each.error]
        if not working:
            working = [begun]
        chosen = self._goal.best(working)
        if begun.point != chosen.point:
            again = [each for each in working if each.point == begun.point]
            begun = again[0] if again else begun
            if not self._goal.better(chosen, begun):
                chosen = begun  # keep the config without a measurable gain
        else:
            begun = chosen
        return chosen, begun


def _at_most(values: tuple[int, ...], limit: int) -> int:
    """The largest value up to a limit, or the smallest value."""
    return max((value for value in values if value <= limit), default=values[0])
