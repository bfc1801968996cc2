"""What a cluster of 1,000 replicas and a million requests a second would do, simulated.

    python -m benchmarks.ray_many [--replicas 1000] [--rate 1000000] [--secs 1] [--name ray_many]

Two parts. Requests: a discrete-event model in which balancers send requests to replicas, each of
which serves one after another; how long requests wait by the way they are balanced. Control: how
much of a core the ingress needs for heartbeats, metrics and the console, from costs that this
program measures first, on this machine, with the code that does it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.places import RESULTS
from shoal.ray import merge
from shoal.ray.config import ClusterConfig, GroupConfig
from shoal.ray.directory import Directory, ReplicaAddress
from shoal.ray.haproxy_config import Layout, config_text

UTILISATION = 0.7
MODELS = 20  # on each replica, for the size of its metrics
SEED = 1


# ---- requests


@dataclass(frozen=True)
class Way:
    """How requests find a replica."""

    title: str
    balancers: int  # each knows only the requests that it has sent itself
    choose: str  # "random", "least", "two", "model" or "bounded"


WAYS = (
    Way("one HAProxy, least connections", 1, "least"),
    Way("16 HAProxy, least connections", 16, "least"),
    Way("200 clients with addresses, the better of two", 200, "two"),
    Way("at random", 1, "random"),
    Way("by hashing of 2,000 models", 1, "model"),
    Way("the same, at most 1.5 times the mean (hash-balance-factor)", 1, "bounded"),
)


def simulate(way: Way, replicas: int, rate: float, secs: float) -> Sequence[float]:
    """The latencies of requests, in units of the mean service time.

    Requests arrive as a Poisson process; service times are exponential, which is about what a mix
    of models with batches does.
    """
    dice = random.Random(SEED)
    service = UTILISATION * replicas / rate
    count = int(rate * secs)
    arrival = np.random.default_rng(SEED).exponential(1.0 / rate, count).cumsum().tolist()
    work = np.random.default_rng(SEED + 1).exponential(service, count).tolist()
    free_at = [0.0] * replicas
    ends: list[tuple[float, int, int]] = []
    sent = [[0] * replicas for _ in range(way.balancers)]
    buckets = [Buckets(replicas) for _ in range(way.balancers)] if way.choose == "least" else []
    popular = _popular(replicas, dice)
    latencies = []
    for at, busy in zip(arrival, work, strict=True):
        while ends and ends[0][0] <= at:
            _, balancer, replica = heapq.heappop(ends)
            if buckets:
                buckets[balancer].less(replica)
            else:
                sent[balancer][replica] -= 1
        balancer = dice.randrange(way.balancers)
        if way.choose == "least":
            replica = buckets[balancer].take(dice)
        elif way.choose == "two":
            one, other = dice.randrange(replicas), dice.randrange(replicas)
            own = sent[balancer]
            replica = one if own[one] <= own[other] else other
            own[replica] += 1
        elif way.choose in ("model", "bounded"):
            replica = popular[int(dice.paretovariate(1.2)) % len(popular)]
            if way.choose == "bounded":
                most = 1.5 * (len(ends) + 1) / replicas
                while sent[balancer][replica] + 1 > max(1.0, most):
                    replica = (replica + 1) % replicas
            sent[balancer][replica] += 1
        else:
            replica = dice.randrange(replicas)
            sent[balancer][replica] += 1
        started = max(at, free_at[replica])
        free_at[replica] = started + busy
        heapq.heappush(ends, (free_at[replica], balancer, replica))
        latencies.append((free_at[replica] - at) / service)
    return latencies


class Buckets:
    """Replicas by the number of requests they have, so that the least loaded is found at once."""

    def __init__(self, replicas: int) -> None:
        self._count = [0] * replicas
        self._place = list(range(replicas))
        self._members: list[list[int]] = [list(range(replicas))]

    def take(self, dice: random.Random) -> int:
        """One of those with the fewest, which then has one more."""
        level = next(level for level, members in enumerate(self._members) if members)
        members = self._members[level]
        replica = members[dice.randrange(len(members))]
        self._move(replica, level + 1)
        return replica

    def less(self, replica: int) -> None:
        """It has one request less."""
        self._move(replica, self._count[replica] - 1)

    def _move(self, replica: int, level: int) -> None:
        members = self._members[self._count[replica]]
        last = members.pop()
        if last != replica:
            place = self._place[replica]
            members[place] = last
            self._place[last] = place
        while len(self._members) <= level:
            self._members.append([])
        self._count[replica] = level
        self._place[replica] = len(self._members[level])
        self._members[level].append(replica)


def _popular(replicas: int, dice: random.Random) -> list[int]:
    """The replica of each of 2,000 models, the most popular first."""
    return [dice.randrange(replicas) for _ in range(2000)]


# ---- control


def timed(call: Callable[[], object], times: int) -> float:
    """Seconds of CPU that one call takes."""
    before = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - before) / times


def control_costs(replicas: int) -> list[tuple[str, str, str]]:
    """What, how it was computed, and how much: the ingress with that number of replicas."""
    directory = Directory(time.monotonic)
    addresses = [
        ReplicaAddress(f"r{number:07}", "default", "10.0.0.1", number, number, number)
        for number in range(replicas)
    ]
    load = {"utilisation": 0.7, "queue_secs": 0.01, "pending": 3.0, "rate": 1000.0}
    for address in addresses:
        directory.heartbeat(address, load)
        directory.joined(address.id)
    note = timed(lambda: directory.heartbeat(addresses[0], load), 2000)
    per_second = replicas / directory.interval_secs
    text = _metrics_text()
    one = timed(lambda: merge.metrics({"a": text}), 20)
    state = _console_state()
    page = timed(lambda: merge.console({"a": state, "b": state}), 50) / 2
    parse = timed(lambda: json.loads(json.dumps(state)), 50) / 2
    config = ClusterConfig(("/m",), (GroupConfig(max_replicas=replicas),))
    lines = config_text(Layout(config, "unix@/a", "unix@/b", "/c"), {}).count("\n")
    return [
        (
            "heartbeats",
            f"{per_second:.0f} a second, one per replica in {directory.interval_secs:.0f} s",
            f"{note * 1e6:.1f} µs each in the directory; the call through Ray Serve is on top",
        ),
        (
            "a scrape of /metrics at the ingress",
            f"{replicas} texts of {len(text) / 1000:.0f} KB, {MODELS} models",
            f"{replicas * len(text) / 1e6:.0f} MB and {replicas * one:.1f} s of CPU",
        ),
        (
            "an open console page, each second",
            f"{replicas} documents of {len(json.dumps(state)) / 1000:.0f} KB",
            f"{replicas * (page + parse):.1f} s of CPU",
        ),
        ("HAProxy's config", "4 backends with two slots for each replica", f"{lines:,} lines"),
        ("health checks of HAProxy", "one for each replica and second", f"{replicas:,} a second"),
    ]


def _metrics_text() -> str:
    lines = []
    for family in range(40):
        lines += [f"# HELP family_{family} A metric", f"# TYPE family_{family} counter"]
        lines += [f'family_{family}{{model="model_{m}",version="1"}} 12345' for m in range(MODELS)]
    for family in range(4):
        lines += [f"# HELP h_{family} A histogram", f"# TYPE h_{family} histogram"]
        for m in range(MODELS):
            lines += [
                f'h_{family}_bucket{{model="model_{m}",version="1",le="{edge}"}} 12345'
                for edge in range(19)
            ]
    return "\n".join(lines) + "\n"


def _console_state() -> dict[str, object]:
    model = {f"field_{number}": 12345 for number in range(20)}
    histograms = {name: [0] * 19 for name in ("request", "queue", "compute", "batch")}
    models = [
        {"name": f"m{m}", "version": "1", **model, "histograms": histograms} for m in range(MODELS)
    ]
    return {
        "server": {"started_ms": 1, "ready": True, "in_flight": 1},
        "models": models,
        "machine": {"cpu_utilization": 0.5, "process_cpu_secs": 1.0},
        "errors": [],
    }


def report(replicas: int, rate: float, secs: float) -> str:
    """Both tables, as Markdown."""
    service_ms = UTILISATION * replicas / rate * 1000
    about = f"{replicas:,} replicas, {rate:,.0f} requests a second, {UTILISATION:.0%} of capacity"
    lines = [
        f"{about}; latencies in times of the mean service time ({service_ms:.2f} ms):",
        "",
        "| way to a replica | p50 | p99 | p99.9 | highest |",
        "|---|---:|---:|---:|---:|",
    ]
    for way in WAYS:
        found = np.sort(np.array(simulate(way, replicas, rate, secs)))
        values = [found[int(share * (len(found) - 1))] for share in (0.5, 0.99, 0.999, 1.0)]
        lines.append(f"| {way.title} | " + " | ".join(f"{v:.1f}" for v in values) + " |")
    lines += ["", "| the ingress has to do | how much | costs |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in control_costs(replicas)]
    return "\n".join(lines)


def main() -> None:
    """Print the tables, and write them where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=1e6)
    parser.add_argument("--secs", type=float, default=1.0)
    parser.add_argument("--name", default="", help="write the tables to benchmarks/results, too")
    chosen = parser.parse_args()
    text = report(chosen.replicas, chosen.rate, chosen.secs)
    print(text)
    if chosen.name:
        head = f"`python -m benchmarks.ray_many --secs {chosen.secs:g}`: a simulation.\n\n"
        (RESULTS / f"{chosen.name}.md").write_text(head + text + "\n")


if __name__ == "__main__":
    main()
