"""What waits for a model: priority levels, each with its own limit and time-out.

Not thread-safe; the batcher guards it. `prune` removes expired and cancelled requests and returns
them with the error that answers them: they never reach the model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from shoal.core.request import Request
from shoal.errors import Cancelled, QueueRejected, ShoalError
from shoal.scheduler.admission import AdmissionControl

_FULL = "Exceeds maximum queue size"
_LEVELS_KEPT = 64  # more than that only while requests wait in them


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """One level's `ModelQueuePolicy`. Zero means no time-out and no limit."""

    default_timeout_ns: int = 0
    allow_override: bool = False
    delay_expired: bool = False  # timeout_action: DELAY instead of REJECT
    max_size: int = 0
    timeout_from_request: bool = False  # beyond Triton: honour `timeout` with no default at all

    def deadline(self, request: Request, now_ns: int) -> int | None:
        """When the request expires, if ever. A request may shorten the default, never extend it."""
        timeout_ns = self.default_timeout_ns
        asked_ns = request.timeout_us * 1000
        if asked_ns and (
            (self.allow_override and timeout_ns and asked_ns < timeout_ns)
            or (self.timeout_from_request and (not timeout_ns or asked_ns < timeout_ns))
        ):
            timeout_ns = asked_ns
        return now_ns + timeout_ns if timeout_ns else None


class _PriorityLevel:
    """One priority level: requests in time first, then those that are late but may stay."""

    __slots__ = ("late", "on_time", "policy")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.on_time: deque[Request] = deque()
        self.late: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self.on_time) + len(self.late)


class RequestQueue:
    """Requests in the order they will run: level by level, oldest first."""

    __slots__ = (
        "_count",
        "_default",
        "_levels",
        "_most",
        "_most_kept",
        "_next_deadline_ns",
        "_numbers",
        "_plain",
        "_policies",
        "_policy",
        "size",
    )

    admission: AdmissionControl | None = None  # which decides what is queued; none here

    def __init__(
        self,
        policy: QueuePolicy,
        *,
        levels: int = 1,
        default_level: int = 1,
        level_policies: Mapping[int, QueuePolicy] | None = None,
    ) -> None:
        """`levels` may be any number: only those in use take memory."""
        self._policy = policy
        self._policies = dict(level_policies or {})
        self._count = levels
        self._default = default_level
        # Level 1 and the others in use, by number and in the order in which they run.
        self._numbers = [1]
        self._most_kept = _LEVELS_KEPT
        self._levels = [_PriorityLevel(self._policies.get(1, policy))]
        only = self._levels[0].policy
        self._plain = levels == 1 and not only.default_timeout_ns
        self._most = only.max_size if levels == 1 else 0  # requests; 0 if that is not limited
        self.size = 0  # requests: `len` takes longer
        self._next_deadline_ns: int | None = None

    def __len__(self) -> int:
        return self.size

    def push(self, request: Request, now_ns: int) -> None:
        """Queue the request. If this raises QueueRejected it was not queued."""
        number = self.level_of(request)
        level = self._levels[0] if number == 1 else self._level(number)
        policy = level.policy
        if policy.max_size and len(level) >= policy.max_size:
            raise QueueRejected(_FULL, prefix=request.log_prefix())
        request.queued_ns = now_ns
        deadline = request.deadline_ns = policy.deadline(request, now_ns)
        if deadline is not None and (
            self._next_deadline_ns is None or deadline < self._next_deadline_ns
        ):
            self._next_deadline_ns = deadline
        level.on_time.append(request)
        self.size += 1

    @property
    def takes_any_number(self) -> bool:
        """Whether it refuses none, and none expires unless the request says so."""
        return self._plain and not self._most

    @property
    def may_refuse(self) -> bool:
        """Whether `refusal` may return an error; with levels it does not know."""
        return self._most > 0

    def refusal(self, rows: int, count: int, now_ns: int) -> QueueRejected | None:  # noqa: ARG002
        """The error for `count` requests of `rows` rows each, if none would be queued now, whatever
        its priority."""
        return QueueRejected(_FULL) if 0 < self._most <= self.size else None

    def level_of(self, request: Request) -> int:
        """The number of the request's priority level; 1 is the highest."""
        number = request.priority
        return number if 1 <= number <= self._count else self._default

    def _level(self, number: int) -> _PriorityLevel:
        """The level of that number, which is made if it is not in use."""
        place = bisect_left(self._numbers, number)
        if place < len(self._numbers) and self._numbers[place] == number:
            return self._levels[place]
        if len(self._numbers) >= self._most_kept:
            self._drop_empty_levels()
            place = bisect_left(self._numbers, number)
        level = _PriorityLevel(self._policies.get(number, self._policy))
        self._numbers.insert(place, number)
        self._levels.insert(place, level)
        return level

    def _drop_empty_levels(self) -> None:
        """Keep level 1 and those in which requests wait."""
        kept = [n for n, level in enumerate(self._levels) if n == 0 or len(level)]
        self._numbers = [self._numbers[n] for n in kept]
        self._levels = [self._levels[n] for n in kept]
        self._most_kept = max(_LEVELS_KEPT, 2 * len(kept))

    def push_all(self, requests: Sequence[Request], now_ns: int) -> int:
        """Queue as many as there is room for, from the first on; none where there are priority
        levels or some could expire. Returns how many."""
        level = self._levels[0]
        policy = level.policy
        if not self._plain or (
            policy.timeout_from_request and any(request.timeout_us for request in requests)
        ):
            return 0
        if self._most:
            requests = requests[: max(0, self._most - self.size)]
        for request in requests:
            request.queued_ns = now_ns
            request.deadline_ns = None
        level.on_time += requests
        self.size += len(requests)
        return len(requests)

    @property
    def next_deadline_ns(self) -> int | None:
        """No queued request expires before this; `prune` is worth calling then."""
        return self._next_deadline_ns

    def prune(self, now_ns: int, *, cancelled: bool) -> list[tuple[Request, ShoalError]]:
        """Remove what must not run: expired requests and, with `cancelled`, cancelled ones.

        Calling it often is cheap: it returns at once when neither is possible.
        """
        expired = self._next_deadline_ns is not None and now_ns >= self._next_deadline_ns
        if not expired and not cancelled:
            return []
        dropped: list[tuple[Request, ShoalError]] = []
        next_deadline: int | None = None
        for level in self._levels:
            keep: deque[Request] = deque()
            for request in level.on_time:
                deadline = request.deadline_ns
                if request.cancelled:
                    dropped.append((request, Cancelled(request.log_prefix() + "Request cancelled")))
                elif deadline is not None and now_ns >= deadline:
                    if level.policy.delay_expired:
                        level.late.append(request)
                    else:
                        # Without the prefix: clients compare the whole text.
                        dropped.append((request, QueueRejected("Request timeout expired")))
                else:
                    keep.append(request)
                    if deadline is not None and (next_deadline is None or deadline < next_deadline):
                        next_deadline = deadline
            level.on_time = keep
            if cancelled:
                for request in [r for r in level.late if r.cancelled]:
                    level.late.remove(request)
                    dropped.append((request, Cancelled(request.log_prefix() + "Request cancelled")))
        self._next_deadline_ns = next_deadline
        self.size -= len(dropped)
        return dropped

    def __iter__(self) -> Iterator[Request]:
        if len(self._levels) == 1:  # runs no Python code for each request
            level = self._levels[0]
            return chain(level.on_time, level.late)
        return chain.from_iterable(
            line for level in self._levels for line in (level.on_time, level.late)
        )

    def oldest_ns(self) -> int:
        """When the request that has waited longest was queued; the queue must not be empty."""
        first = self._levels[0]
        if len(self._levels) == 1 and not first.late:
            return first.on_time[0].queued_ns
        heads = [q[0].queued_ns for x in self._levels for q in (x.on_time, x.late) if q]
        return min(heads)

    def leading(self) -> int:
        """How many of the requests, from the first on, have the highest priority that waits."""
        if len(self._levels) == 1:
            return self.size
        return next((len(level) for level in self._levels if len(level)), 0)

    def take_at(self, positions: Sequence[int]) -> list[Request]:
        """Remove and return the requests at these positions (rising) in the queue's order."""
        batch: list[Request] = []
        start = 0
        for level in self._levels:
            for line in (level.on_time, level.late):
                size = len(line)
                wanted = [place - start for place in positions if start <= place < start + size]
                start += size
                if wanted:
                    passed = [line.popleft() for _ in range(wanted[-1] + 1)]
                    batch += [passed[place] for place in wanted]
                    for place in reversed(wanted):
                        del passed[place]
                    line.extendleft(reversed(passed))
        self.size -= len(batch)
        if not self.size:
            self._next_deadline_ns = None
        return batch

    def take(self, count: int) -> list[Request]:
        """Remove and return the first `count` requests."""
        first = self._levels[0]
        if count == self.size == len(first.on_time):  # all of it, and it is one line
            batch = list(first.on_time)
            first.on_time.clear()
            self.size = 0
            self._next_deadline_ns = None
            return batch
        batch = []
        for level in self._levels:
            for line in (level.on_time, level.late):
                if len(line) <= count - len(batch):
                    batch += line
                    line.clear()
                else:
                    batch += [line.popleft() for _ in range(count - len(batch))]
            if len(batch) == count:
                break
        self.size -= len(batch)
        if not self.size:
            self._next_deadline_ns = None
        return batch
