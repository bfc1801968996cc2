"""The search space: a grid of configs and numbers of clients.

Space(batches, delays_us, instances, threads) x levels  -->  ConfigPoint(8, 200, 2, 1), 32 clients
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

AXES = ("batch", "delay_us", "instances", "threads")
DELAYS_US = (0, 200, 1000, 5000)


class ConfigPoint(NamedTuple):
    """One config, reduced to the searched settings.

    `batch` is the most rows of one execution; if it equals the rows of a single request, requests
    are not merged, and 0 means that the model does not batch. `threads` is 0 where
    the backend has no such setting.
    """

    batch: int
    delay_us: int
    instances: int
    threads: int

    def at(self, axis: str, value: int) -> ConfigPoint:
        """The same with another value on one axis."""
        return self._replace(**{axis: value})


@dataclass(frozen=True, slots=True)
class Space:
    """The values of each axis in ascending order, and the numbers of clients."""

    batches: tuple[int, ...]
    delays_us: tuple[int, ...]
    instances: tuple[int, ...]
    threads: tuple[int, ...]
    levels: tuple[int, ...]
    rows: int = 1  # of one request

    def values(self, axis: str) -> tuple[int, ...]:
        """The values of an axis."""
        return {
            "batch": self.batches,
            "delay_us": self.delays_us,
            "instances": self.instances,
            "threads": self.threads,
        }[axis]

    @property
    def size(self) -> int:
        """The number of measurements of the whole grid: every config with every number of clients.

        Equivalent configs count once: where requests are not merged, the delay has no effect.
        """
        return sum(1 for _ in self.points()) * len(self.levels)

    def points(self) -> Iterator[ConfigPoint]:
        """Every config of the grid, once."""
        every = itertools.product(self.batches, self.delays_us, self.instances, self.threads)
        for values in every:
            point = ConfigPoint(*values)
            if self.plain(point) == point:
                yield point

    def plain(self, point: ConfigPoint) -> ConfigPoint:
        """The canonical point of all configs that are equivalent to this one."""
        if point.batch <= self.rows:  # the delay has no effect
            return point._replace(delay_us=self.delays_us[0])
        return point


def doubling(first: int, last: int) -> tuple[int, ...]:
    """`first`, doubled repeatedly; `last` is always included."""
    values = [first]
    while values[-1] * 2 <= last:
        values.append(values[-1] * 2)
    return (*values, last) if values[-1] < last else tuple(values)


def with_value(values: Sequence[int], value: int) -> tuple[int, ...]:
    """`values` in ascending order, with `value` added."""
    return tuple(sorted({*values, value}))
