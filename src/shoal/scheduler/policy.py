"""The batch decision, on its own: given what waits, how much goes now, and why.

`cut` reads no clock and takes no lock, so its test is a table. The rule is Triton's: the largest
preferred size that can be reached goes at once; a request that does not fit, or has another
shape, closes the batch; otherwise the batch waits until the delay of its oldest request is over.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


class Reason(enum.Enum):
    """Why a batch was closed, or why it is still growing."""

    PREFERRED = "a preferred size was reached"
    FULL = "the next request would not fit"
    SHAPE = "the next request has other shapes or inputs"
    DELAY = "the delay of the oldest request was over"
    NO_DELAY = "no queue delay is configured"
    SHARED = "the rest is computed sooner in other batches"
    SINGLE = "the model runs one request at a time"
    SLOTS = "enough sequences had requests"
    WAITING = "waiting for more requests"


_PREFERRED, _NO_DELAY = Reason.PREFERRED, Reason.NO_DELAY  # looked up for every batch


@dataclass(slots=True)  # not frozen: that takes three times as long to make
class BatchCut:
    """Take `count` requests now, or (count 0) keep waiting.

    They are the first ones in the queue, unless `positions` (rising) says which ones.
    """

    count: int
    reason: Reason
    positions: tuple[int, ...] | None = None


class Policy(Protocol):
    """Decides when a batch leaves the queue, and which requests it has."""

    @property
    def max_delay_ns(self) -> int:
        """The longest time for which a request waits for others to batch with."""

    @property
    def batches_grow(self) -> bool:
        """Whether a batch can become larger while it waits for an instance."""

    @property
    def divisible_rows(self) -> int:
        """The rows of the largest batch, if instances may divide batches; 0 if they stay whole."""

    def cut(self, waiting: Iterable[tuple[int, object]], waited_ns: int, leading: int) -> BatchCut:
        """Which requests to take from the queue.

        `waiting` is each queued request's rows and batch key, in the order they would run;
        `waited_ns` is how long the oldest of them has been there. The first `leading` of them
        have the highest priority in the queue.
        """


@dataclass(frozen=True, slots=True)
class SingleRequestPolicy:
    """Without `dynamic_batching` every request runs alone, first come first served."""

    max_delay_ns: int = 0
    batches_grow: bool = False
    divisible_rows: int = 0

    def cut(
        self, waiting: Iterable[tuple[int, object]], waited_ns: int = 0, leading: int = 0
    ) -> BatchCut:
        """One request, at once."""
        del waited_ns, leading
        for _ in waiting:
            return BatchCut(1, Reason.SINGLE)
        return BatchCut(0, Reason.WAITING)


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The `dynamic_batching` block of a config, in rows and nanoseconds."""

    max_rows: int
    preferred_rows: frozenset[int] = frozenset()
    max_delay_ns: int = 0
    batches_grow: bool = True
    _largest_preferred: int = field(init=False)

    def __post_init__(self) -> None:
        largest = max(self.preferred_rows, default=self.max_rows)
        object.__setattr__(self, "_largest_preferred", largest)

    @property
    def divisible_rows(self) -> int:
        """Batches may be divided, unless the config prefers sizes other than the default."""
        return self.max_rows if self.preferred_rows <= {self.max_rows} else 0

    def cut(
        self,
        waiting: Iterable[tuple[int, object]],
        waited_ns: int,
        leading: int = 0,  # noqa: ARG002 - the first ones go first, whatever their priority
    ) -> BatchCut:
        """How many requests to take from the head of the queue, and why."""
        total = taken = mark = 0
        largest_preferred, max_rows = self._largest_preferred, self.max_rows
        preferred_rows = self.preferred_rows
        first_key: object = None
        closed_by: Reason | None = None
        for rows, key in waiting:
            total += rows
            if taken:
                if total > largest_preferred and not mark:
                    mark = taken  # beyond every preferred size: the batch cannot improve
                if total > max_rows:
                    closed_by = Reason.FULL
                elif key is not first_key and key != first_key:
                    closed_by = Reason.SHAPE
                if closed_by is not None:
                    total -= rows
                    break
            else:
                first_key = key
            taken += 1
            if preferred_rows and total in preferred_rows:
                mark = taken
            if total >= max_rows:
                break
        if taken == 0:
            return BatchCut(0, Reason.WAITING)
        delay_over = self.max_delay_ns != 0 and waited_ns >= self.max_delay_ns
        if mark and not delay_over:
            return BatchCut(mark, _PREFERRED)
        if closed_by is not None:
            return BatchCut(taken, closed_by)
        if total >= largest_preferred:
            return BatchCut(taken, _PREFERRED)
        if delay_over:
            return BatchCut(taken, Reason.DELAY)
        if self.max_delay_ns == 0:
            return BatchCut(taken, _NO_DELAY)
        return BatchCut(0, Reason.WAITING)
