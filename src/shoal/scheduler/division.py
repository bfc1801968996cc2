"""How waiting requests are divided among instances so that all end at about the same time.

    waiting  1 1 1 1 1 1 1 1 1 1     two idle instances     --> 1 1 1 1 1 | 1 1 1 1 1

Pure functions of rows, sizes and expected costs. They keep the order of the requests and split
none. A division must pay: where one batch costs hardly more than a part of it, or where parts
that run at the same time slow each other down, the batch stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# The nanoseconds of an execution, by how many run at the same time and its work.
Cost = Callable[[int, float], float | None]

WORTHWHILE_NS = 1_000_000  # a smaller gain does not pay for waking another thread
_ENOUGH_GAIN = 0.1  # of the expected time: estimates are no better than that
_EXTRA_COST = 0.1  # that dividing may add to the total, where other instances are busy
_PRECISION = 1.02
_NEARLY = 0.97  # of the best efficiency: smaller batches are preferred then, which end sooner,
_MOST = 0.7  # but not if they would have more than that many of the requests


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order: the rows of each, and the size of a row (elements)."""

    rows: Sequence[int]
    sizes: Sequence[float]
    padded: bool = False  # whether rows are padded to the largest of their batch

    def work(self, start: int, end: int) -> float:
        """The work of a batch of the requests from `start` to `end`."""
        rows, sizes = self.rows[start:end], self.sizes[start:end]
        if self.padded:
            return sum(rows) * max(sizes, default=0)
        return sum([count * size for count, size in zip(rows, sizes, strict=True)])

    def pieces(self, most_work: float, max_rows: int) -> list[int]:
        """The fewest batches in order with at most that much work each: their last positions + 1.

        A request with more work than that is a batch of its own.
        """
        ends: list[int] = []
        total_rows, total, largest = 0, 0.0, 0.0
        for position, (rows, size) in enumerate(zip(self.rows, self.sizes, strict=True)):
            total_rows += rows
            largest = max(largest, size)
            total = total_rows * largest if self.padded else total + rows * size
            if total_rows > rows and (total > most_work or total_rows > max_rows):
                ends.append(position)
                total_rows, largest, total = rows, size, rows * size
        ends.append(len(self.rows))
        return ends


def efficient(load: Workload, fixed_work: float) -> int:
    """The fewest requests, from the first on, that make nearly the best batch.

    Each execution costs `fixed_work`. Fillers cost as much as rows: where there are some, what
    counts is how much sooner requests are computed together than one after another.
    """
    gains: list[float] = []
    apart, total_rows, own, largest = 0.0, 0, 0.0, 0.0
    for rows, size in zip(load.rows, load.sizes, strict=True):
        apart += fixed_work + rows * size
        total_rows += rows
        own += rows * size
        largest = max(largest, size)
        if load.padded:
            gains.append(apart / (fixed_work + total_rows * largest))
        else:
            gains.append(own / (fixed_work + own))
    enough = _NEARLY * max(gains)
    fewest = next(count for count, gain in enumerate(gains, 1) if gain >= enough)
    most = len(gains)
    return most if fewest > _MOST * most and gains[-1] >= enough else fewest


def share(load: Workload, max_rows: int, parts: int) -> int:
    """How many requests the first of `parts` batches has, if all end at about the same time."""
    return _balanced(load, max_rows, parts)[0]


def portion(load: Workload, busy: int, soonest_ns: float, cost: Cost) -> int:
    """How many requests the only idle instance takes, if others end soon and can take the rest.

    The first of the `busy` ones is expected to end in `soonest_ns`.
    """
    count = len(load.rows)
    running = busy + 1
    whole_ns = cost(running, load.work(0, count))
    if whole_ns is None or soonest_ns >= whole_ns:
        return count
    low, high = 1, count  # the fewest requests with which this instance ends last
    while low < high:
        middle = (low + high) // 2
        own_ns = cost(running, load.work(0, middle)) or 0.0
        rest_ns = cost(running, load.work(middle, count)) or 0.0
        if own_ns >= soonest_ns + rest_ns:
            high = middle
        else:
            low = middle + 1
    if low >= count:
        return count
    own_ns = cost(running, load.work(0, low)) or 0.0
    rest_ns = cost(running, load.work(low, count)) or 0.0
    cheap = own_ns + rest_ns <= (1 + _EXTRA_COST) * whole_ns
    return low if cheap and _is_gain(whole_ns, max(own_ns, soonest_ns + rest_ns)) else count


def is_better_later(
    waiting_rows: int, alone_ns: float, running_rows: int, left_ns: float, slowdown: float
) -> bool:
    """Whether waiting requests had better wait until the running ones end, in `left_ns`.

    Alone they would take `alone_ns`; at the same time, both take `slowdown` times as long. What
    counts is the sum of the times until each request is answered.
    """
    both_ns = min(alone_ns, left_ns)  # of progress, until one of them has ended
    lost_ns = running_rows * both_ns * (slowdown - 1)
    gained_ns = waiting_rows * (left_ns - both_ns * (slowdown - 1))
    return lost_ns > gained_ns


def _is_gain(before_ns: float, after_ns: float) -> bool:
    return before_ns - after_ns >= max(WORTHWHILE_NS, _ENOUGH_GAIN * before_ns)


def _balanced(load: Workload, max_rows: int, parts: int) -> list[int]:
    """At most that many batches in order, the largest as small as possible."""
    works = [rows * size for rows, size in zip(load.rows, load.sizes, strict=True)]
    low = max(*works, sum(works) / parts)  # no division can have less in its largest part
    best = load.pieces(low, max_rows)
    if len(best) <= parts:
        return best
    high = load.work(0, len(works))
    best = load.pieces(high, max_rows)
    while high > low * _PRECISION:
        middle = (low + high) / 2
        found = load.pieces(middle, max_rows)
        if len(found) <= parts:
            best, high = found, middle
        else:
            low = middle
    return best
