"""What may be tried: a grid of configs, and how many clients ask at once.

Space(batches, delays_us, instances, threads) x levels  -->  Point(8, 200, 2, 1), 32 clients
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

AXES = ("batch", "delay_us", "instances", "threads")
DELAYS_US = (0, 200, 1000, 5000)
MOST_ROWS = 64


class Point(NamedTuple):
    """One config, as far as it is searched for.

    `batch` is how many rows are merged into one execution at most; the rows of a single request
    mean that requests are not merged, and 0 that the model does not batch. `threads` is 0 where
    the backend has no such setting.
    """

    batch: int
    delay_us: int
    instances: int
    threads: int

    def at(self, axis: str, value: int) -> Point:
        """The same but for one axis."""
        return self._replace(**{axis: value})


@dataclass(frozen=True, slots=True)
class Space:
    """Every value of each axis, from small to large, and the numbers of clients."""

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
        """How many measurements the whole grid takes: every config with every number of clients.

        What is the same config counts once: where requests are not merged, no delay matters.
        """
        return sum(1 for _ in self.points()) * len(self.levels)

    def points(self) -> Iterator[Point]:
        """Every config of the grid, once."""
        every = itertools.product(self.batches, self.delays_us, self.instances, self.threads)
        for values in every:
            point = Point(*values)
            if self.plain(point) == point:
                yield point

    def plain(self, point: Point) -> Point:
        """The point that stands for all configs that behave as this one does."""
        if point.batch <= self.rows:  # nothing is waited for
            return point._replace(delay_us=self.delays_us[0])
        return point


def doubling(first: int, last: int) -> tuple[int, ...]:
    """`first`, twice that, and so on; `last` is the end, whether or not it is among them."""
    values = [first]
    while values[-1] * 2 <= last:
        values.append(values[-1] * 2)
    return (*values, last) if values[-1] < last else tuple(values)


def with_value(values: Sequence[int], value: int) -> tuple[int, ...]:
    """`values` in order, with one more where it is not among them."""
    return tuple(sorted({*values, value}))
