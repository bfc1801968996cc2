"""The rate limiter: instances share named resources, and take turns when there are not enough.

    instance --acquire--> [ waiting, by executions x priority ] --> run --release--> the next

An instance that runs holds what its config says it needs. How much there is of a resource is set
on the command line, or else is the most that one instance needs, so that every instance can run
some time. Who has run least, weighed by its priority, goes first; what it needs is kept for it
while it waits, so that many small ones cannot starve a large one. Those that need nothing it needs
go on meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.backends.base import Placement
from shoal.config.model import ModelInstanceGroup, ModelRateLimiter
from shoal.errors import ConfigError
from shoal.scheduler.base import Puller

logger = logging.getLogger(__name__)

GLOBAL = -2  # the device of a resource that there is only one of
_FIELD = "instance_group.rate_limiter.resources"


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """How much there is of a resource, as the command line says; no device means each of them."""

    name: str
    count: int
    device_id: int | None = None


class Resource(NamedTuple):
    """A resource in its place. CPU instances are on device 0, as the first GPU's are."""

    device_id: int
    name: str


class RateLimiter:
    """The resources of one server. Any thread may call any method."""

    def __init__(self, explicit: Sequence[ResourceLimit] = ()) -> None:
        """With `explicit` limits there is no other resource than those they name."""
        self._explicit = tuple(explicit)
        self._lock = threading.Lock()  # guards everything below, and every seat
        self._seats: set[Seat] = set()
        self._limits: dict[Resource, int] = {}
        self._held: dict[Resource, int] = {}
        self._waiting: list[Seat] = []
        self._arrivals = itertools.count()

    def register(self, placement: Placement, wants: ModelRateLimiter | None) -> Seat:
        """Count an instance in. What it needs is there from now on, unless limits are explicit.

        Raises ConfigError, and counts nothing, when it could never run.
        """
        needs = _needs(placement, wants)
        priority = max(1, wants.priority if wants is not None else 1)
        with self._lock:
            seat = Seat(self, placement.name, needs, priority, self._least_run(priority))
            limits = self._with_limits([*self._seats, seat])
            self._seats.add(seat)
            self._set_limits(limits)
        return seat

    def limits(self) -> dict[Resource, int]:
        """How much there is of every resource that an instance names."""
        with self._lock:
            return dict(self._limits)

    def _least_run(self, priority: int) -> int:
        """Where a newcomer begins: level with whoever has run least. From nothing it would keep all
        others waiting until it had caught up with them."""
        return min((seat.scaled for seat in self._seats), default=0) // priority

    def _with_limits(self, seats: Iterable[Seat]) -> dict[Resource, int]:
        """The limits that `seats` make for; ConfigError when one of them could never run."""
        most: dict[Resource, int] = {}
        for seat in seats:
            for resource, count in seat.needs.items():
                most[resource] = max(count, most.get(resource, 0))
        for name in {resource.name for resource in most if resource.device_id == GLOBAL}:
            if any(r.name == name and r.device_id != GLOBAL for r in most):
                raise ConfigError(
                    f'Resource "{name}" is present as both global and device-specific resource in '
                    "the model configuration.",
                    field=_FIELD,
                    fix=f"Write global: true wherever '{name}' is named, or nowhere",
                )
        if not self._explicit:
            return most
        return {resource: self._explicit_limit(resource, need) for resource, need in most.items()}

    def _explicit_limit(self, resource: Resource, need: int) -> int:
        anywhere = resource.device_id == GLOBAL
        limit = max(
            [
                given.count
                for given in self._explicit
                if given.name == resource.name
                and (anywhere or given.device_id in (None, resource.device_id))
            ],
            default=0,
        )
        if limit < need:
            raise ConfigError(
                f'Resource count for "{resource.name}" is limited to {limit} which will prevent '
                "scheduling of one or more model instances, the minimum required count is "
                f"{need}",
                field=_FIELD,
                fix=f"Start the server with --rate-limit-resource={resource.name}:{need}, or lower "
                "the count",
            )
        return limit

    def _set_limits(self, limits: dict[Resource, int]) -> None:
        """Use these limits from now on. The lock is held."""
        changed = limits != self._limits
        self._limits = limits
        if changed:
            rows = [
                f"\tDevice: {'GLOBAL' if r.device_id == GLOBAL else r.device_id}"
                f"\tResource: {r.name}\t Count: {count}"
                for r, count in sorted(limits.items())
            ]
            logger.debug("%s", "\n".join(["Max Resource Map===>", *rows]))
            self._grant()

    # ---- turns, with the lock held

    def _grant(self) -> None:
        """Let those run whose turn it is."""
        kept: set[Resource] = set()  # for those who go first and cannot run yet
        for seat in sorted(self._waiting, key=lambda seat: (seat.scaled, seat.arrived)):
            if kept.isdisjoint(seat.needs) and self._is_free(seat.needs):
                for resource, count in seat.needs.items():
                    self._held[resource] = self._held.get(resource, 0) + count
                self._waiting.remove(seat)
                seat.executions += 1
                seat.holds = True
                seat.changed.notify_all()
            else:
                kept.update(seat.needs)

    def _is_free(self, needs: Mapping[Resource, int]) -> bool:
        return all(self._held.get(r, 0) + n <= self._limits.get(r, 0) for r, n in needs.items())

    def _release(self, seat: Seat) -> None:
        for resource, count in seat.needs.items():
            self._held[resource] -= count
        seat.holds = False


class Seat:
    """One instance's place at the limiter."""

    def __init__(
        self,
        limiter: RateLimiter,
        name: str,
        needs: Mapping[Resource, int],
        priority: int,
        executions: int,
    ) -> None:
        self.name = name
        self.needs = needs
        self.priority = priority
        self.executions = executions
        self.arrived = 0  # when it began to wait, among all
        self.holds = False
        self.changed = threading.Condition(limiter._lock)
        self._limiter = limiter

    @property
    def scaled(self) -> int:
        """Its executions weighed by its priority: the least goes first."""
        return self.executions * self.priority

    def acquire(self) -> None:
        """Wait until it is this instance's turn and take what it needs. Blocks.

        One that still holds what it needs gives it back first, and is one of those who wait when
        it is decided who goes next: otherwise somebody else would come in between every time,
        whatever the priorities.
        """
        limiter = self._limiter
        with limiter._lock:
            if self.holds:
                limiter._release(self)
            self.arrived = next(limiter._arrivals)
            limiter._waiting.append(self)
            limiter._grant()
            self.changed.wait_for(lambda: self.holds)

    def release(self) -> None:
        """Give back what `acquire` took, if it did; somebody else's turn may have come."""
        limiter = self._limiter
        with limiter._lock:
            if self.holds:
                limiter._release(self)
                limiter._grant()

    def leave(self) -> None:
        """The instance ends: what only it needed so much of shrinks. A second call does nothing."""
        limiter = self._limiter
        with limiter._lock:
            if self not in limiter._seats:
                return
            limiter._seats.discard(self)
            limiter._set_limits(limiter._with_limits(limiter._seats))


class Turn:
    """An instance's turn to take its model's next batch; see `Line`."""

    __slots__ = ("_worker", "revoked", "seat")

    def __init__(self, seat: Seat, worker: Puller) -> None:
        self.seat = seat
        self.revoked = False
        self._worker = worker

    @property
    def stopping(self) -> bool:
        """For the queue: whether to go without a batch."""
        return self.revoked or self._worker.stopping


class Line:
    """The idle instances of one model: of those, the one that has run least takes the next batch.

    leave <-- batch <-- [ the first in line ] <-- [ the others, waiting to be first ]
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards everything here
        self._idle: list[Seat] = []
        self._first: Turn | None = None

    def enter(self, seat: Seat, worker: Puller, wake: Callable[[], None]) -> Turn:
        """Wait to be first, or until the instance is to stop. Blocks.

        One that has run less than the first takes its place; `wake` makes that one look up.
        """
        turn = Turn(seat, worker)
        with self._changed:
            self._idle.append(seat)
            first = self._first
            overtakes = first is not None and seat.scaled < first.seat.scaled
            if first is not None and overtakes:
                first.revoked = True
        if overtakes:
            wake()
        with self._changed:
            self._changed.wait_for(lambda: self._may_lead(turn) or turn.stopping)
            if self._first is None:
                self._first = turn
        return turn

    def _may_lead(self, turn: Turn) -> bool:
        return self._first is None and turn.seat is min(self._idle, key=lambda seat: seat.scaled)

    def leave(self, turn: Turn) -> None:
        """The instance has a batch, or ends, or was overtaken: the next one is first."""
        with self._changed:
            self._idle.remove(turn.seat)
            if self._first is turn:
                self._first = None
            self._changed.notify_all()

    def wake(self) -> None:
        """Make all look again: one of them may have been told to stop."""
        with self._changed:
            self._changed.notify_all()


def is_limited(groups: Sequence[ModelInstanceGroup]) -> bool:
    """Whether a model's instances have anything to say to the limiter."""
    wanted = [group.rate_limiter for group in groups if group.rate_limiter is not None]
    return any(wants.resources or wants.priority for wants in wanted)


def _needs(placement: Placement, wants: ModelRateLimiter | None) -> dict[Resource, int]:
    needs: dict[Resource, int] = {}
    for resource in wants.resources if wants is not None else ():
        place = GLOBAL if resource.global_ else placement.device_id
        needs[Resource(place, resource.name)] = resource.count
    return needs
