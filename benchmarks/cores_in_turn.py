"""CPU time of a request with one process and with front ends, in turn, on the same cores.

    taskset -c 0,1 python -m benchmarks.cores_in_turn [--processes 2] [--rounds 8] [--loads tiny]

Both servers run at the same time and get the same load one after the other, so that both see the
same machine, whatever else it does. Models have the parameter `run_in_frontends`. Prints medians,
and the ratio of each pair.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cores import KINDS, MARK, Times, resident_mb, send, target, write_models
from benchmarks.machine import describe
from benchmarks.measures import Load
from benchmarks.places import WORK
from benchmarks.serving import Server, serve

SECONDS = 1


def one_turn(name: str, server: Server) -> tuple[Load, float]:
    """The load, and the CPU time of the server for each request."""
    kind = KINDS[name]
    before = Times.of(server)
    load = send(target(kind, server), 1, max(1, kind.least), SECONDS)
    if load.errors:
        raise SystemExit(f"{name}: {load.errors}")
    after = Times.of(server)
    secs = after.engine + after.frontends - before.engine - before.frontends
    return load, secs / load.requests * 1e6


def compare(name: str, servers: Sequence[Server], rounds: int) -> None:
    """Send a load to each server in turn, and print what it costs."""
    for server in servers:
        one_turn(name, server)  # to warm up
    turns = [[one_turn(name, server) for server in servers] for _ in range(rounds)]
    for index, title in enumerate(("one process", "front ends")):
        loads, costs = zip(*[turn[index] for turn in turns], strict=True)
        rate = statistics.median([load.per_second for load in loads])
        p50_us = statistics.median([load.p50_us for load in loads])
        cost = statistics.median(costs)
        print(f"{name}, {title}: {rate:,.0f}/s, p50 {p50_us:.0f} µs, CPU {cost:.1f} µs a request")
    ratios = [second[1] / first[1] for first, second in turns]
    print(f"{name}: median {statistics.median(ratios):.2f} of", *[f"{r:.2f}" for r in ratios])


def main(words: Sequence[str] | None = None) -> None:
    """Compare each load."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--loads", default="tiny,tiny-grpc,lone,lone-grpc")
    asked = parser.parse_args(words)
    print(", ".join(f"{key} {value}" for key, value in describe().items()))
    WORK.mkdir(parents=True, exist_ok=True)
    several = f"--frontend-processes={asked.processes}"
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder), MARK)
        with serve(folder, grpc=True) as one, serve(folder, several, grpc=True) as more:
            for name in asked.loads.split(","):
                compare(name, (one, more), asked.rounds)
            print(f"Resident MB: {resident_mb(more)}")


if __name__ == "__main__":
    main()
