"""Look-ahead batching: requests of equal shape are taken together, past those between them.

    waiting  a b a c b a     plain: [a] [b] [a] …     look-ahead: [a a a] [b b] [c]

The oldest request is never overtaken for long. Its own batch goes as soon as it is full or its
delay is over; only while it waits for others may a batch of another shape, which is full already,
go first. A pure function, as `policy.cut` is: it reads no clock and takes no lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from shoal.scheduler.policy import BatchCut, BatchPolicy, Reason

DEFAULT_WINDOW = 256  # requests considered: a decision takes some 50 ns for each


@dataclass(frozen=True, slots=True)
class LookAhead:
    """A batch policy that picks requests of one key out of the queue."""

    policy: BatchPolicy
    window: int = DEFAULT_WINDOW  # requests beyond this many are not considered
    batches_grow: bool = True

    @property
    def max_delay_ns(self) -> int:
        """The longest time for which a request waits for others to batch with."""
        return self.policy.max_delay_ns

    @property
    def divisible_rows(self) -> int:
        """As for the policy without look-ahead."""
        return self.policy.divisible_rows

    def cut(self, waiting: Iterable[tuple[int, object]], waited_ns: int, leading: int) -> BatchCut:
        """Which requests to take; at least one of the first `leading` is in every batch."""
        seen: list[tuple[int, object]] = []
        oldest: list[int] = []  # the positions of those with the key of the first
        total = 0
        for rows, key in islice(waiting, self.window):
            if not seen or key == seen[0][1]:
                oldest.append(len(seen))
                total += rows
            seen.append((rows, key))
            if total >= self.policy.max_rows:
                break
        cut = self._cut(seen, oldest, waited_ns)
        if cut.count:
            return cut
        # The oldest waits for more of its shape: meanwhile only complete batches may go first.
        groups: dict[object, list[int]] = {}
        for position, (_, key) in enumerate(seen):
            groups.setdefault(key, []).append(position)
        for positions in islice(groups.values(), 1, None):  # in the order of their first requests
            if positions[0] >= leading:
                break
            cut = self._cut(seen, positions, 0)
            if cut.count:
                return cut
        return BatchCut(0, Reason.WAITING, ())

    def _cut(
        self, seen: list[tuple[int, object]], positions: list[int], waited_ns: int
    ) -> BatchCut:
        """The policy's decision for these requests alone, all of one shape."""
        cut = self.policy.cut([(seen[position][0], None) for position in positions], waited_ns)
        cut.positions = tuple(positions[: cut.count])
        return cut
