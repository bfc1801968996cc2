"""The rate limiter: instances share named resources, and take turns when there are not enough.

    instance --acquire--> [ waiting, by executions x priority ] --> run --release--> the next

A running instance holds the resources that its config names. The amount of a resource is set on
the command line; otherwise it is the most that one instance needs, so that every instance can run
at some time. The instance with the fewest executions, weighted by its priority, goes first. What
it needs is reserved while it waits, so that many small instances cannot starve a large one;
instances that need none of its resources run meanwhile.
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

GLOBAL = -2  # the device of a resource that all devices share
_FIELD = "instance_group.rate_limiter.resources"


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """The amount of a resource from the command line; without a device, that of every device."""

    name: str
    count: int
    device_id: int | None = None


class Resource(NamedTuple):
    """A resource of a device. CPU instances are on device 0, as those of the first GPU are."""

    device_id: int
    name: str


class RateLimiter:
    """The resources of one server. Any thread may call any method."""

    def __init__(self, explicit: Sequence[ResourceLimit] = ()) -> None:
        """With `explicit` limits, only the resources that they name exist."""
        self._explicit = tuple(explicit)
        self._lock = threading.Lock()  # guards everything below and every ResourceGrant
        self._grants: set[ResourceGrant] = set()
        self._limits: dict[Resource, int] = {}
        self._held: dict[Resource, int] = {}
        self._waiting: list[ResourceGrant] = []
        self._arrivals = itertools.count()

    def register(self, placement: Placement, wants: ModelRateLimiter | None) -> ResourceGrant:
        """Register an instance; unless limits are explicit, they now suffice for it.

        Raises ConfigError, and registers nothing, when the instance could never run.
        """
        needs = _needs(placement, wants)
        priority = max(1, wants.priority if wants is not None else 1)
        with self._lock:
            grant = ResourceGrant(self, placement.name, needs, priority, self._least_run(priority))
            limits = self._with_limits([*self._grants, grant])
            self._grants.add(grant)
            self._set_limits(limits)
        return grant

    def limits(self) -> dict[Resource, int]:
        """The limit of every resource that a registered instance names."""
        with self._lock:
            return dict(self._limits)

    def _least_run(self, priority: int) -> int:
        """The executions that a new instance starts with: level with the one that has run least.
        From zero, it would keep all others waiting until it had caught up."""
        return min((grant.scaled for grant in self._grants), default=0) // priority

    def _with_limits(self, grants: Iterable[ResourceGrant]) -> dict[Resource, int]:
        """The limits that follow from `grants`; ConfigError when one could never be given."""
        most: dict[Resource, int] = {}
        for grant in grants:
            for resource, count in grant.needs.items():
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
            self._grant_waiting()

    # ---- with the lock held

    def _grant_waiting(self) -> None:
        """Let every instance run that can, in order."""
        kept: set[Resource] = set()  # reserved for instances that go first and cannot run yet
        for grant in sorted(self._waiting, key=lambda grant: (grant.scaled, grant.arrived)):
            if kept.isdisjoint(grant.needs) and self._is_free(grant.needs):
                for resource, count in grant.needs.items():
                    self._held[resource] = self._held.get(resource, 0) + count
                self._waiting.remove(grant)
                grant.executions += 1
                grant.holds = True
                grant.changed.notify_all()
            else:
                kept.update(grant.needs)

    def _is_free(self, needs: Mapping[Resource, int]) -> bool:
        return all(self._held.get(r, 0) + n <= self._limits.get(r, 0) for r, n in needs.items())

    def _release(self, grant: ResourceGrant) -> None:
        for resource, count in grant.needs.items():
            self._held[resource] -= count
        grant.holds = False


class ResourceGrant:
    """The resources of one instance: what it needs, and whether it holds them now."""

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
        self.arrived = 0  # its number in the order of arrival
        self.holds = False
        self.changed = threading.Condition(limiter._lock)
        self._limiter = limiter

    @property
    def scaled(self) -> int:
        """Its executions weighted by its priority: the lowest goes first."""
        return self.executions * self.priority

    def acquire(self) -> None:
        """Wait until the instance may run, and take what it needs. Blocks.

        An instance that still holds its resources releases them and competes for them again in
        one step: otherwise another instance would come in between every time, whatever the
        priorities.
        """
        limiter = self._limiter
        with limiter._lock:
            if self.holds:
                limiter._release(self)
            self.arrived = next(limiter._arrivals)
            limiter._waiting.append(self)
            limiter._grant_waiting()
            self.changed.wait_for(lambda: self.holds)

    def release(self) -> None:
        """Give back what `acquire` took, if anything; another instance may run then."""
        limiter = self._limiter
        with limiter._lock:
            if self.holds:
                limiter._release(self)
                limiter._grant_waiting()

    def leave(self) -> None:
        """Unregister the instance; limits may shrink. A second call does nothing."""
        limiter = self._limiter
        with limiter._lock:
            if self not in limiter._grants:
                return
            limiter._grants.discard(self)
            limiter._set_limits(limiter._with_limits(limiter._grants))


class PullPermit:
    """Permits one idle instance to take its model's next batch; see `IdleInstances`."""

    __slots__ = ("_worker", "grant", "revoked")

    def __init__(self, grant: ResourceGrant, worker: Puller) -> None:
        self.grant = grant
        self.revoked = False
        self._worker = worker

    @property
    def stopping(self) -> bool:
        """For the queue: whether to return without a batch."""
        return self.revoked or self._worker.stopping


class IdleInstances:
    """The idle instances of one model: the one that has run least takes the next batch.

    leave <-- batch <-- [ the one with a permit ] <-- [ the others, waiting for it ]
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards everything here
        self._idle: list[ResourceGrant] = []
        self._first: PullPermit | None = None

    def enter(self, grant: ResourceGrant, worker: Puller, wake: Callable[[], None]) -> PullPermit:
        """Wait for the permit, or until the instance is to stop. Blocks.

        An instance that has run less than the one with the permit revokes it; `wake` makes that
        one notice.
        """
        permit = PullPermit(grant, worker)
        with self._changed:
            self._idle.append(grant)
            first = self._first
            overtakes = first is not None and grant.scaled < first.grant.scaled
            if first is not None and overtakes:
                first.revoked = True
        if overtakes:
            wake()
        with self._changed:
            self._changed.wait_for(lambda: self._may_lead(permit) or permit.stopping)
            if self._first is None:
                self._first = permit
        return permit

    def _may_lead(self, permit: PullPermit) -> bool:
        return self._first is None and permit.grant is min(
            self._idle, key=lambda grant: grant.scaled
        )

    def leave(self, permit: PullPermit) -> None:
        """The instance has a batch, ends, or lost its permit: another one may take it."""
        with self._changed:
            self._idle.remove(permit.grant)
            if self._first is permit:
                self._first = None
            self._changed.notify_all()

    def wake(self) -> None:
        """Make all check again whether they are to stop."""
        with self._changed:
            self._changed.notify_all()


def is_limited(groups: Sequence[ModelInstanceGroup]) -> bool:
    """Whether the rate limiter concerns a model's instances."""
    wanted = [group.rate_limiter for group in groups if group.rate_limiter is not None]
    return any(wants.resources or wants.priority for wants in wanted)


def _needs(placement: Placement, wants: ModelRateLimiter | None) -> dict[Resource, int]:
    needs: dict[Resource, int] = {}
    for resource in wants.resources if wants is not None else ():
        device_id = GLOBAL if resource.global_ else placement.device_id
        needs[Resource(device_id, resource.name)] = resource.count
    return needs
