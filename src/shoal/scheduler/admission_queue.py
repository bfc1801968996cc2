"""A queue that refuses requests which could not be answered in time.

It tells the admission control which requests wait: all that join and all that leave, to run or
unanswered. Not thread-safe; the batcher guards it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shoal.core.request import Request
from shoal.errors import QueueRejected, ShoalError
from shoal.scheduler.admission import AdmissionControl
from shoal.scheduler.queue import QueuePolicy, RequestQueue


class AdmissionQueue(RequestQueue):
    """A `RequestQueue` behind an admission control."""

    __slots__ = ("admission",)

    takes_any_number = False
    may_refuse = True

    def __init__(
        self,
        admission: AdmissionControl,
        policy: QueuePolicy,
        *,
        levels: int = 1,
        default_level: int = 1,
        level_policies: Mapping[int, QueuePolicy] | None = None,
    ) -> None:
        super().__init__(
            policy, levels=levels, default_level=default_level, level_policies=level_policies
        )
        self.admission: AdmissionControl = admission

    def push(self, request: Request, now_ns: int) -> None:
        """Queue the request. If this raises QueueRejected it was not queued."""
        level = self.level_of(request)
        if not request.admitted:
            self.admission.check(request, level, now_ns)
        super().push(request, now_ns)
        self.admission.joined((request,), level)

    def push_all(self, requests: Sequence[Request], now_ns: int) -> int:
        """As `RequestQueue`; none, too, where requests have to be checked one by one."""
        if any(request.answer_by_ns is not None for request in requests):
            return 0
        level = self.level_of(requests[0])
        room = self.admission.room_for(requests, level, now_ns)
        count = super().push_all(requests[:room], now_ns) if room else 0
        if count:
            self.admission.joined(requests[:count], level)
        return count

    def refusal(self, rows: int, count: int, now_ns: int) -> QueueRejected | None:
        """As `RequestQueue`; counts the requests as refused."""
        return super().refusal(rows, count, now_ns) or self.admission.refusal(rows, count, now_ns)

    def prune(self, now_ns: int, *, cancelled: bool) -> list[tuple[Request, ShoalError]]:
        """As `RequestQueue`."""
        dropped = super().prune(now_ns, cancelled=cancelled)
        self._left(request for request, _ in dropped)
        return dropped

    def take_at(self, positions: Sequence[int]) -> list[Request]:
        """As `RequestQueue`."""
        batch = super().take_at(positions)
        self._left(batch)
        return batch

    def take(self, count: int) -> list[Request]:
        """As `RequestQueue`."""
        batch = super().take(count)
        self._left(batch)
        return batch

    def _left(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.admission.left(request, self.level_of(request))
