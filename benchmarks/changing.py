"""A load that changes every two seconds: does the server's rate follow?

    each kind of request alone --> its steady rate
    binary, JSON, gRPC, 64 rows, binary, ... two seconds each --> the rate every twentieth second

A server that chooses how to run a model by what it measured (as Shoal chooses between its event
loop and threads) has to choose again after each change. What counts is the time until the rate is
that of the steady load, and the share of it that is reached.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks import forms
from benchmarks.loads import h2load, wrk
from benchmarks.measures import Load, Measurement
from benchmarks.peers.base import Running, Target
from benchmarks.processes import metered
from benchmarks.workloads import Workload

PHASE_SECS = 2.0
STEADY_SECS = 4.0
ROUNDS = 2
SAMPLE_SECS = 0.05
WINDOW_SECS = 0.3  # over which a rate is taken
NEAR = 0.8  # of the steady rate: the server has followed
ROWS = 64


@dataclass(frozen=True)
class Phase:
    """One kind of load."""

    name: str
    target: Target
    clients: int

    def run(self, seconds: float) -> Load:
        """Send it. Raises LoadFailed."""
        if self.target.protocol == "grpc":
            return h2load.run(self.target, self.clients, seconds=seconds)
        return wrk.run(self.target, self.clients, seconds)


def phases(workload: Workload, running: Running) -> list[Phase]:
    """The kinds of requests, all to the same model, in the order in which they follow."""
    http = next(one for one in running.targets if one.protocol == "http")
    grpc = next(one for one in running.targets if one.protocol == "grpc")
    (clients,) = workload.concurrencies
    json = forms.v2_json(replace(workload, variants=16))
    rows = forms.v2_http(replace(workload, rows=ROWS))
    return [
        Phase("http", http, clients),
        Phase("json", replace(http, exchange=json), clients),
        Phase("grpc", grpc, clients),
        Phase("rows", replace(http, exchange=rows), clients // 4),
    ]


Samples = list[tuple[float, int]]  # moment, requests so far


@contextlib.contextmanager
def counted(target: Target) -> Iterator[Samples]:
    """Read the server's request count during the block, on a thread."""
    samples: Samples = []
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(SAMPLE_SECS):
            served = target.served()
            samples.append((time.perf_counter(), served))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def rates(samples: Sequence[tuple[float, int]], begin: float) -> list[tuple[float, float]]:
    """The rate over each window of WINDOW_SECS, with its start in seconds since `begin`."""
    found = []
    inside = [one for one in samples if one[0] >= begin]
    for place, (moment, count) in enumerate(inside):
        end = next((one for one in inside[place:] if one[0] >= moment + WINDOW_SECS), None)
        if end is not None:
            found.append((moment - begin, (end[1] - count) / (end[0] - moment)))
    return found


def settled_after(windows: Sequence[tuple[float, float]], steady: float) -> float:
    """When the rate was first near the steady one; the length of a phase if it never was."""
    return next((start for start, rate in windows if rate >= NEAR * steady), PHASE_SECS)


def run(peer: str, workload: Workload, turn: int, running: Running) -> Iterator[Measurement]:
    """All phases, first alone and then in turn. Raises LoadFailed."""
    every = phases(workload, running)
    with counted(every[0].target) as samples:
        steady = {}
        for phase in every:
            phase.run(STEADY_SECS / 2)
            steady[phase.name] = phase.run(STEADY_SECS / 2).per_second
        for number in range(ROUNDS):
            for phase in every:
                begin = time.perf_counter()
                with metered(running.family) as usage:
                    load = phase.run(PHASE_SECS)
                windows = rates(samples, begin)
                yield Measurement(
                    workload.name,
                    peer,
                    "h2load" if phase.target.protocol == "grpc" else "wrk",
                    phase.name,
                    phase.clients,
                    ROUNDS * turn + number,
                    load.requests,
                    load.per_second,
                    load.p50_us,
                    load.p99_us,
                    1e6 * usage.server_secs / max(load.requests, 1),
                    load_cores=usage.load_cores,
                    others_cores=usage.others_cores,
                    errors=load.errors,
                    ready_secs=running.ready_secs,
                    settle_secs=settled_after(windows, steady[phase.name]),
                    of_steady=load.per_second / steady[phase.name],
                )
