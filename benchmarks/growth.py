"""How Shoal's cost grows: with connections, with loaded models, and with idle connections.

    1, 8, 64, 512 connections     throughput and CPU per request, HTTP and gRPC
    1, 10, 100 models loaded      the same, all requests to one of them, or distributed over all
    1000 idle connections         memory, per connection

The steps are measured alternately, as peers are elsewhere; the medians are kept.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.loads import h2load, wrk
from benchmarks.measures import Load, quietest
from benchmarks.peers.base import Peer, Running, Target, serving
from benchmarks.peers.shoal import Shoal
from benchmarks.processes import metered
from benchmarks.workloads import WORKLOADS, Workload

CONNECTIONS = (1, 8, 64, 512)
MODELS = (1, 10, 100)
MODELS_CONNECTIONS = 64
IDLE = 1000
HTTP_REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
HTTP2_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@dataclass
class Cost:
    """One step's figures."""

    figures: dict[str, float]
    others_cores: float | None


def run(turns: int, seconds: float, quiet_cores: float) -> dict[str, Any]:
    """Run all three measurements."""
    _allow_many_files()
    workload = WORKLOADS["W1"]
    taken: dict[str, list[dict[str, float]]] = {}
    for turn in range(turns):
        for key, figures in _turn(workload, seconds, quiet_cores):
            taken.setdefault(key, []).append(figures)
            shown = "  ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            print(f"  {turn + 1}  {key:<28} {shown}", flush=True)
    return {key: _medians(figures) for key, figures in taken.items()}


def _turn(
    workload: Workload, seconds: float, quiet: float
) -> Iterator[tuple[str, dict[str, float]]]:
    shoal = Shoal()
    shoal.install()
    with serving(shoal, workload) as running:
        for target in running.targets:
            for connections in CONNECTIONS:
                load = _loader(target, connections)
                figures = _cost(running, load, seconds, quiet)
                yield f"connections {target.protocol} {connections}", figures
    for protocol in ("http", "grpc"):
        yield f"idle {protocol}", _idle(shoal, workload, protocol)
    for count in MODELS:
        yield from _models(shoal, count, seconds, quiet)


def _models(
    peer: Peer, count: int, seconds: float, quiet: float
) -> Iterator[tuple[str, dict[str, float]]]:
    with serving(peer, WORKLOADS[f"models-{count}"]) as running:
        (each,) = running.targets
        one = _loader(replace(each, paths=()), MODELS_CONNECTIONS)
        yield f"models one {count}", _cost(running, one, seconds, quiet)
        in_turn = _loader(each, MODELS_CONNECTIONS)
        yield f"models each {count}", _cost(running, in_turn, seconds, quiet)


def _loader(target: Target, connections: int) -> Callable[[float], Load]:
    if target.protocol == "http":
        return lambda seconds: wrk.run(target, connections, seconds)
    return lambda seconds: h2load.run(target, connections, seconds=seconds)


def _cost(
    running: Running, load: Callable[[float], Load], seconds: float, quiet: float
) -> dict[str, float]:
    def measure() -> Cost:
        with metered(running.family) as usage:
            result = load(seconds)
        figures = {
            "per_second": result.per_second,
            "cpu_us": 1e6 * usage.server_secs / max(result.requests, 1),
            "p99_us": result.p99_us,
            "memory_mb": running.family.memory_bytes()[0] / 1e6,
            "others_cores": usage.others_cores,
            "errors": float(sum(result.errors.values())),
        }
        return Cost(figures, usage.others_cores)

    load(1.0)
    return quietest(measure, quiet).figures


def _idle(peer: Peer, workload: Workload, protocol: str) -> dict[str, float]:
    """Memory of the server for a connection that is idle after one request, in bytes."""
    with serving(peer, workload) as running, contextlib.ExitStack() as open_connections:
        target = next(one for one in running.targets if one.protocol == protocol)
        # The first ones make room in the allocator that later ones find.
        _open(open_connections, target.port, protocol, IDLE // 10)
        before = running.family.memory_bytes()[0]
        _open(open_connections, target.port, protocol, IDLE)
        after = running.family.memory_bytes()[0]
    return {"bytes_per_connection": (after - before) / IDLE, "connections": float(IDLE)}


def _open(stack: contextlib.ExitStack, port: int, protocol: str, count: int) -> None:
    opening = HTTP_REQUEST if protocol == "http" else HTTP2_OPENING
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        connection.sendall(opening)
        connection.recv(4096)


def _medians(figures: list[dict[str, float]]) -> dict[str, float]:
    middle = {name: statistics.median(one[name] for one in figures) for name in figures[0]}
    if "errors" in middle:
        middle["errors"] = sum(one["errors"] for one in figures)
    return {name: round(value, 2) for name, value in middle.items()}


def _allow_many_files() -> None:
    """A thousand connections are two thousand open files; the server inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * IDLE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
