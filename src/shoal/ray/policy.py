"""How many replicas a group should have: a policy for Ray Serve's autoscaler.

    readings of all replicas --> wanted --> at once up; down only when fewer were enough for long

Two demands add up. Work that arrives keeps replicas busy, and lets their queues grow if they are
full. Work that waits takes `queue_secs` of a replica, and is to be done within the time that the
config allows. Both are measured as time, so the policy needs no guess of how many requests a
replica can take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.ray.config import ScalingConfig
from shoal.ray.readings import Reading


def demand(
    readings: Sequence[Reading], growth: float, present: int, scaling: ScalingConfig
) -> float:
    """How many replicas the work needs, as a fraction.

    `growth` is by how much the waiting work grows, in seconds of a replica per second: full
    replicas do not show how much more arrives, but their queues do.
    """
    arriving = sum(reading.utilisation for reading in readings) + max(0.0, growth)
    needed = arriving / scaling.target_utilisation
    if len(readings) < present:
        return needed  # what waits may be for replicas that are just starting
    # What a replica finishes within half of the allowed time is no reason for another one. Work
    # that waits stays where it is: replicas beyond those for new work would not help it.
    allowed = scaling.drain_secs / 2
    waiting = sum(max(0.0, reading.queue_secs - allowed) for reading in readings)
    return needed + min(arriving, waiting / scaling.drain_secs)


def wanted(
    readings: Sequence[Reading],
    present: int,
    limits: tuple[int, int],
    state: Mapping[str, Any],
    now: float,
    scaling: ScalingConfig,
) -> tuple[int, dict[str, Any]]:
    """The number of replicas to have, and the state for the next call.

    `present` is how many there are meant to be now, `limits` the lowest and highest number. Without
    readings, as before the first replica is ready, nothing changes.
    """
    least, most = limits
    if not readings:
        return min(most, max(least, present)), dict(state)
    queued = sum(reading.queue_secs for reading in readings)
    growth = 0.0
    if "queued" in state and now > state["at"]:
        growth = (queued - state["queued"]) / (now - state["at"])
    needed = math.ceil(demand(readings, growth, present, scaling) - 1e-6)
    # One step must not be ruined by one wrong reading.
    ceiling = max(present + 1, math.floor(present * scaling.most_added))
    needed = min(most, ceiling, max(least, needed))
    known_since = state.get("known_since", now)
    lately = [one for one in state.get("lately", ()) if one[0] >= now - scaling.down_delay_secs]
    lately.append([now, needed])
    up_since = None
    chosen = present
    if needed > present:
        up_since = state.get("up_since", now)
        if now - up_since >= scaling.up_delay_secs:
            chosen, up_since = needed, None
    elif now - known_since >= scaling.down_delay_secs:
        # Down to what was enough all the time.
        chosen = min(present, max(count for _, count in lately))
    chosen = min(most, max(least, chosen))
    after: dict[str, Any] = {"known_since": known_since, "lately": lately}
    after |= {"queued": queued, "at": now}
    if up_since is not None:
        after["up_since"] = up_since
    return chosen, after


class Policy:
    """The policy as Ray Serve calls it, for one deployment."""

    def __init__(self, **scaling: float) -> None:
        """The fields of `ScalingConfig`."""
        self._scaling = ScalingConfig(**scaling)

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """From an AutoscalingContext."""
        metrics: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        readings = [
            Reading(**{name: metrics.get(name, {}).get(id_, 0.0) for name in Reading._fields})
            for id_ in metrics.get("utilisation", {})
        ]
        return wanted(
            readings,
            context.target_num_replicas,
            (context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas),
            context.policy_state or {},
            context.current_time,
            self._scaling,
        )
