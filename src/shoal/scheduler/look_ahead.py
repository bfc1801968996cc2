"""Look-ahead batching: requests of equal shape are taken together, past those between them.

    waiting  a b a c b a     plain: [a] [b] [a] …     look-ahead: [a a a] [b b] [c]

The oldest request is never passed for long. Its own batch goes as soon as it is full or its delay
is over; only while it waits for company may the batch of another shape, which is full already, go
first. A pure function, as `policy.cut` is: it reads no clock and takes no lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from shoal.scheduler.policy import BatchPolicy, Reason

DEFAULT_WINDOW = 256  # requests looked at: a decision takes some 50 ns for each


@dataclass(frozen=True, slots=True)
class Choice:
    """Take the requests at `positions` now, or (where there are none) keep waiting."""

    positions: tuple[int, ...]
    reason: Reason


_WAIT = Choice((), Reason.WAITING)


@dataclass(frozen=True, slots=True)
class LookAhead:
    """A batch policy that picks requests of one key out of the queue."""

    policy: BatchPolicy
    window: int = DEFAULT_WINDOW  # no request beyond this many is looked at

    @property
    def max_delay_ns(self) -> int:
        """The longest a request is held back for company."""
        return self.policy.max_delay_ns

    def choose(self, waiting: Iterable[tuple[int, object]], waited_ns: int, leading: int) -> Choice:
        """Which requests to take, by their place in the queue, and why.

        `waiting` is each queued request's rows and batch key, in the order they would run;
        `waited_ns` is how long the oldest of them has been there. The first `leading` have the
        highest priority that waits: one of them is in every batch.
        """
        seen: list[tuple[int, object]] = []
        oldest: list[int] = []  # the places of those with the key of the first
        total = 0
        for rows, key in islice(waiting, self.window):
            if not seen or key == seen[0][1]:
                oldest.append(len(seen))
                total += rows
            seen.append((rows, key))
            if total >= self.policy.max_rows:
                break
        choice = self._cut(seen, oldest, waited_ns)
        if choice is not _WAIT:
            return choice
        # The oldest waits for company: meanwhile only what is complete may go before it.
        groups: dict[object, list[int]] = {}
        for place, (_, key) in enumerate(seen):
            groups.setdefault(key, []).append(place)
        for places in islice(groups.values(), 1, None):  # in the order of their first requests
            if places[0] >= leading:
                break
            choice = self._cut(seen, places, 0)
            if choice is not _WAIT:
                return choice
        return _WAIT

    def _cut(self, seen: list[tuple[int, object]], places: list[int], waited_ns: int) -> Choice:
        """What the policy makes of these alone: what has another shape is not in their way."""
        cut = self.policy.cut([(seen[place][0], None) for place in places], waited_ns)
        return Choice(tuple(places[: cut.count]), cut.reason) if cut.count else _WAIT
