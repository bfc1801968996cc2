"""How many replicas a group should have: a policy for Ray Serve's autoscaler.

    readings of all replicas --> wanted --> at once up; down only when fewer were enough for long

Two demands add up. Work that arrives keeps `utilisation` of so many replicas busy. Work that waits
takes `queue_secs` of a replica, and is to be done within the time that the config allows. Both are
measured as time, so the policy needs no guess of how many requests a replica can take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.ray.config import ScalingConfig
from shoal.ray.readings import Reading

_LATELY = "lately"  # in the policy's state: [time, wanted], those that may still matter
_UP_SINCE = "up_since"


def demand(readings: Sequence[Reading], scaling: ScalingConfig) -> float:
    """How many replicas the work needs, as a fraction."""
    arriving = sum(reading.utilisation for reading in readings) / scaling.target_utilisation
    # What a replica finishes within half of the allowed time is no reason for another one.
    allowed = scaling.drain_secs / 2
    waiting = sum(max(0.0, reading.queue_secs - allowed) for reading in readings)
    return arriving + waiting / scaling.drain_secs


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
    needed = math.ceil(demand(readings, scaling) - 1e-6)
    # Replicas that are starting have no reading yet; the work that they will take is not known.
    ceiling = max(present + 1, math.floor(present * scaling.most_added))
    needed = min(most, ceiling, max(least, needed))
    keep_from = now - scaling.down_delay_secs
    lately = [entry for entry in state.get(_LATELY, ()) if entry[0] >= keep_from]
    lately.append([now, needed])
    since = state.get(_UP_SINCE)
    if needed > present:
        since = now if since is None else since
        chosen = needed if now - since >= scaling.up_delay_secs else present
    else:
        since = None
        # Down to what was enough all the time; the present number counts until that time is over.
        known_for = now - state.get("known_since", now)
        chosen = present
        if known_for >= scaling.down_delay_secs:
            chosen = min(present, max(count for _, count in lately))
    chosen = min(most, max(least, chosen))
    new_state: dict[str, Any] = {
        _LATELY: lately,
        "known_since": state.get("known_since", now),
    }
    if since is not None and chosen == present:
        new_state[_UP_SINCE] = since
    return chosen, new_state


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
