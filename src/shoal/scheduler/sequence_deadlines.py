"""When sequences run out of time: idle ones, and those that wait for a slot.

No lock and no clock: the batcher tells the time and asks when to look again.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.request import Request
from shoal.scheduler.sequence_table import SequenceRun


class IdleWatch:
    """Sequences with nothing waiting and nothing running, those that rest longest first."""

    def __init__(self, max_idle_ns: int) -> None:
        self._max_idle_ns = max_idle_ns
        self._since: dict[SequenceRun, int] = {}  # the time allowed is the same for all

    def rest(self, run: SequenceRun, now_ns: int) -> None:
        """`run` has nothing to do from now on."""
        self._since[run] = now_ns

    def stir(self, run: SequenceRun) -> None:
        """`run` has something to do again, or is over."""
        self._since.pop(run, None)

    def resting(self) -> list[SequenceRun]:
        """All of them."""
        return list(self._since)

    def over(self, now_ns: int) -> list[SequenceRun]:
        """Those that have rested for too long."""
        found = []
        for run, since_ns in self._since.items():
            if since_ns + self._max_idle_ns > now_ns:
                break
            found.append(run)
        return found

    def next_ns(self) -> int | None:
        """When the first of them will have rested for too long."""
        since_ns = next(iter(self._since.values()), None)
        return None if since_ns is None else since_ns + self._max_idle_ns


def limit_wait(run: SequenceRun, request: Request) -> int | None:
    """A request's own timeout ends its whole sequence's wait for a slot; returns when.

    The earliest of a sequence's requests decides. None where the request changes nothing.
    """
    if not request.timeout_us:
        return None
    expires_ns = request.queued_ns + request.timeout_us * 1000
    if run.expires_ns is not None and run.expires_ns <= expires_ns:
        return None
    run.expires_ns = expires_ns
    return expires_ns


def expired(backlog: Sequence[SequenceRun], now_ns: int) -> list[SequenceRun]:
    """Those of the backlog whose wait is over."""
    return [run for run in backlog if run.expires_ns is not None and run.expires_ns <= now_ns]


def next_expiry_ns(backlog: Sequence[SequenceRun]) -> int | None:
    """When the wait of the first of the backlog will be over."""
    return min((run.expires_ns for run in backlog if run.expires_ns is not None), default=None)
