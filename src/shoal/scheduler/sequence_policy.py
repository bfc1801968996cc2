"""The direct strategy's batch decision, on its own: which slots go now, and which stay.

Each sequence keeps its position in the batch, so a batch spans the slots from the first to the
highest with a request; a slot in between without one, or with one of another shape, gets a filler.
`cut` reads no clock and takes no lock, so its test is a table.

The oldest strategy needs no decision of its own: it is dynamic batching over the next requests
of all sequences, see `shoal.scheduler.policy.BatchPolicy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.scheduler.policy import Reason


class SlotHead(NamedTuple):
    """The next request of a slot: its batch key, and since when it waits."""

    batch_key: object
    queued_ns: int


@dataclass(frozen=True, slots=True)
class DirectCut:
    """The slots that run now: `taken[slot]` is whether its request goes, or else a filler.

    With nothing taken, retry after `wait_ns` (None: when a request arrives).
    """

    taken: tuple[bool, ...]
    reason: Reason
    wait_ns: int | None = None

    @property
    def first(self) -> int:
        """A slot whose request goes; fillers get its shapes."""
        return self.taken.index(True)


@dataclass(frozen=True, slots=True)
class DirectPolicy:
    """The `direct` block of a config, in slots and nanoseconds."""

    slots: int
    max_delay_ns: int = 0
    minimum_utilization: float = 0.0

    def cut(self, heads: Sequence[SlotHead | None], now_ns: int) -> DirectCut:
        """Which of an instance's slots go into the next batch. `heads` has an entry per slot.

        The delay is honoured only together with a minimum utilisation. The request that has
        waited longest decides on the shape, so none is skipped forever.
        """
        ready = [(head.queued_ns, slot) for slot, head in enumerate(heads) if head is not None]
        if not ready:
            return DirectCut((), Reason.WAITING)
        oldest_ns, oldest = min(ready)
        reason = Reason.NO_DELAY
        if self.max_delay_ns and self.minimum_utilization:
            waited_ns = now_ns - oldest_ns
            if len(ready) / self.slots >= self.minimum_utilization:
                reason = Reason.SLOTS
            elif waited_ns > self.max_delay_ns:
                reason = Reason.DELAY
            else:
                return DirectCut((), Reason.WAITING, self.max_delay_ns - waited_ns + 1)
        model = heads[oldest]
        assert model is not None
        highest = ready[-1][1]
        taken = tuple(
            head is not None and head.batch_key == model.batch_key for head in heads[: highest + 1]
        )
        return DirectCut(taken, reason)
