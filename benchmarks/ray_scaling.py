"""The autoscaling policy of `shoal.ray` beside Ray Serve's default one, simulated.

    python -m benchmarks.ray_scaling [--name ray_scaling]

Arrivals follow a pattern; each replica serves one request after another, in a measured time, and
the least loaded one gets the next. A new replica serves after START_SECS. Ray's policy is Ray's own
code, on its own context, with a clock of the simulation. For every pattern: how long the p99 of a
second was above the target, the share of requests above it, and the replica-seconds that were paid.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.places import RESULTS
from shoal.ray.config import ScalingConfig
from shoal.ray.policy import wanted
from shoal.ray.readings import Reading

SERVICE_SECS = 0.02  # of one request: 50 a second for a replica
START_SECS = 8.0  # measured: 1 to 3 replicas took 11 s, with a start of the server of 1.5 to 6 s
TARGET_SECS = 0.5
TICK_SECS = 1.0
LIMITS = (1, 40)
COLUMNS = ("seconds out of target", "requests out of target", "p99, ms")
COLUMNS += ("replica-seconds", "most replicas")

Pattern = Callable[[float], float]  # requests a second at a time
Policy = Callable[["Moment"], int]


# ---- arrivals


def steps(at: float) -> float:
    """Four times the load after two minutes, and back after eight."""
    return 400.0 if 120 <= at < 480 else 100.0


def day(at: float) -> float:
    """A day in half an hour: quiet nights, a peak of seven times that."""
    return 60.0 + 360.0 * max(0.0, math.sin(math.pi * (at / 1800.0))) ** 2


def bursts(at: float) -> float:
    """Ten seconds of eight times the load at the end of every minute and a half."""
    return 400.0 if at % 90 >= 80 else 50.0


def ramp(at: float) -> float:
    """Up by one request a second each second, for seven minutes; then gone."""
    return 50.0 + at if at < 420 else 50.0


PATTERNS: Mapping[str, tuple[Pattern, float]] = {
    "steps": (steps, 900.0),
    "daily curve": (day, 1800.0),
    "bursts": (bursts, 900.0),
    "ramp": (ramp, 600.0),
}


def arrivals(pattern: Pattern, secs: float, seed: int) -> Iterator[float]:
    """Times of requests, as a Poisson process whose rate follows the pattern."""
    dice = random.Random(seed)
    at, highest = 0.0, 1000.0
    while at < secs:
        at += dice.expovariate(highest)
        if dice.random() * highest < pattern(at):
            yield at


# ---- the cluster


@dataclass
class Replica:
    """One server: when it is ready, and when it has done what it was given."""

    ready_at: float
    free_at: float = 0.0
    busy_secs: float = 0.0  # since the last reading
    waiting: list[float] = field(default_factory=list)  # when its requests end


class Moment(NamedTuple):
    """What a policy is told."""

    now: float
    readings: Sequence[Reading]
    target: int
    running: int
    requests: float  # that run or wait


class Result(NamedTuple):
    """Of one pattern and policy."""

    seconds_out: int
    requests_out: float
    replica_secs: float
    highest: int
    p99_ms: float


def simulate(pattern: Pattern, secs: float, policy: Policy, seed: int = 1) -> Result:
    """Serve a pattern of arrivals with the replicas that a policy asks for."""
    replicas = [Replica(0.0) for _ in range(math.ceil(pattern(0.0) * SERVICE_SECS / 0.7))]
    target, tick, paid, highest = len(replicas), TICK_SECS, 0.0, len(replicas)
    by_second: dict[int, list[float]] = {}
    latencies: list[float] = []
    for at in arrivals(pattern, secs, seed):
        while at >= tick:
            paid += len(replicas) * TICK_SECS
            target = policy(_moment(replicas, tick, target))
            _resize(replicas, target, tick)
            highest = max(highest, len(replicas))
            tick += TICK_SECS
        ready = [one for one in replicas if one.ready_at <= at]
        chosen = min(ready, key=lambda one: one.free_at)
        started = max(at, chosen.free_at)
        chosen.free_at = started + SERVICE_SECS
        chosen.busy_secs += SERVICE_SECS
        heapq.heappush(chosen.waiting, chosen.free_at)
        latency = chosen.free_at - at
        latencies.append(latency)
        by_second.setdefault(int(at), []).append(latency)
    latencies.sort()
    return Result(
        sum(_p99(sorted(values)) > TARGET_SECS for values in by_second.values()),
        sum(latency > TARGET_SECS for latency in latencies) / len(latencies),
        paid,
        highest,
        _p99(latencies) * 1000,
    )


def _moment(replicas: Sequence[Replica], now: float, target: int) -> Moment:
    readings, requests = [], 0
    for one in replicas:
        while one.waiting and one.waiting[0] <= now:
            heapq.heappop(one.waiting)
        requests += len(one.waiting)
        if one.ready_at > now:
            continue
        queue_secs = max(0.0, one.free_at - now)
        # Work that was given but not done belongs to the queue, not to the time that has passed.
        used = min(1.0, max(0.0, (one.busy_secs - queue_secs) / TICK_SECS))
        one.busy_secs = min(one.busy_secs, queue_secs)
        readings.append(Reading(used, queue_secs, len(one.waiting), 0.0))
    return Moment(now, readings, target, len(readings), requests)


def _resize(replicas: list[Replica], target: int, now: float) -> None:
    while len(replicas) < target:
        replicas.append(Replica(now + START_SECS, now + START_SECS))
    if len(replicas) > target:  # those that are not ready yet first, then the least loaded
        replicas.sort(key=lambda one: (one.ready_at > now, -one.free_at))
        kept = max(target, 1)
        del replicas[kept:]


def _p99(ordered: Sequence[float]) -> float:
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


# ---- policies


def of_shoal(scaling: ScalingConfig) -> Policy:
    """The policy of `shoal.ray`."""
    state: dict[str, Any] = {}

    def decide(moment: Moment) -> int:
        nonlocal state
        count, state = wanted(moment.readings, moment.target, LIMITS, state, moment.now, scaling)
        return count

    return decide


def of_ray(**options: float) -> Policy:
    """Ray Serve's default policy, by the requests that each replica has."""
    from ray.serve import autoscaling_policy
    from ray.serve.config import AutoscalingConfig, AutoscalingContext

    config = AutoscalingConfig(min_replicas=LIMITS[0], max_replicas=LIMITS[1], **options)
    state: dict[str, Any] = {}
    seen: list[tuple[float, float]] = []
    clock = types.SimpleNamespace(time=lambda: seen[-1][0] if seen else 0.0)

    def decide(moment: Moment) -> int:
        nonlocal state
        seen.append((moment.now, moment.requests))
        lately = [n for at, n in seen if at > moment.now - config.look_back_period_s]
        context = AutoscalingContext(
            deployment_id=None,  # type: ignore[arg-type]
            deployment_name="m",
            app_name="a",
            current_num_replicas=moment.running,
            target_num_replicas=moment.target,
            running_replicas=[],
            total_num_requests=sum(lately) / len(lately),
            total_queued_requests=0.0,
            aggregated_metrics=None,
            raw_metrics=None,
            capacity_adjusted_min_replicas=LIMITS[0],
            capacity_adjusted_max_replicas=LIMITS[1],
            policy_state=state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=moment.now,
            config=config,
        )
        real = autoscaling_policy.time
        autoscaling_policy.time = clock
        try:
            desired, _ = autoscaling_policy.replica_queue_length_autoscaling_policy(context)
            # What the controller does with the result of every policy.
            count, state = autoscaling_policy._apply_default_params(desired, context, dict(state))
        finally:
            autoscaling_policy.time = real
        return min(LIMITS[1], max(LIMITS[0], count))

    return decide


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "Shoal": lambda: of_shoal(ScalingConfig()),
    "Ray, its defaults": of_ray,
    "Ray, with Shoal's delays": lambda: of_ray(
        upscale_delay_s=0.0, downscale_delay_s=300.0, look_back_period_s=2.0, metrics_interval_s=1.0
    ),
}


def table(seeds: Sequence[int]) -> str:
    """All patterns and policies, as Markdown; means of the seeds."""
    lines = [
        f"| arrivals | policy | {' | '.join(COLUMNS)} |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, (pattern, secs) in PATTERNS.items():
        for title, make in POLICIES.items():
            found = [simulate(pattern, secs, make(), seed) for seed in seeds]
            means = [sum(values) / len(found) for values in zip(*found, strict=True)]
            lines.append(
                f"| {name} | {title} | {means[0]:.0f} of {secs:.0f} | {means[1]:.2%} | "
                f"{means[4]:,.0f} | {means[2]:,.0f} | {means[3]:.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Print the table, and write it where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="", help="write the table to benchmarks/results, too")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    text = table(range(1, chosen.seeds + 1))
    print(text)
    if chosen.name:
        head = (
            f"`python -m benchmarks.ray_scaling --seeds {chosen.seeds}`: requests of "
            f"{SERVICE_SECS * 1000:.0f} ms, one after another on each replica; a new replica "
            f"serves after {START_SECS:.0f} s; target: {TARGET_SECS:g} s.\n\n"
        )
        (RESULTS / f"{chosen.name}.md").write_text(head + text + "\n")


if __name__ == "__main__":
    main()
