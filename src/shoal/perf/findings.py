"""The numbers of a run that HTML and PNG reports both show."""

from __future__ import annotations

import os
from dataclasses import dataclass

from shoal.perf.options import PerfOptions
from shoal.perf.profiler import LevelResult, Profile
from shoal.perf.server_side import ServerSide, Tally
from shoal.perf.text import number

PARTS = (
    "client send",
    "network and protocol",
    "queue",
    "compute input",
    "compute infer",
    "compute output",
    "cache",
    "client receive",
)


@dataclass(frozen=True, slots=True)
class LevelFinding:
    """One level. Times are in microseconds."""

    value: str  # the concurrency or rate
    per_second: float
    average_us: float
    percentiles_us: dict[int, float]
    parts_us: tuple[float, ...]  # by PARTS; they add up to the mean
    histogram: tuple[tuple[float, int], ...]
    busiest: float
    workers: int
    client_bound: bool


def findings(profile: Profile) -> list[LevelFinding]:
    """All levels, the lowest first."""
    ordered = sorted(profile.results, key=lambda result: result.value)
    return [_finding(result) for result in ordered]


def label(options: PerfOptions) -> str:
    """The name of a level's value."""
    return "request rate" if options.by_rate else "concurrency"


def verdict(options: PerfOptions, profile: Profile) -> list[str]:
    """The conclusions, in sentences."""
    results = profile.results
    if not results:
        return ["Nothing was measured."]
    best = max(results, key=lambda result: result.summary.per_second)
    kind = "mean" if options.percentile < 0 else f"p{options.percentile}"
    latency = best.summary.latency_us(options.only_percentile) / 1000
    highest = (
        f"The highest throughput is {best.summary.per_second:,.0f} inferences a second, at a "
        f"{label(options)} of {number(best.value)}; {kind} latency is {latency:.3g} ms there."
    )
    lines = [highest]
    finding = _finding(best)
    if best.server is not None and finding.average_us:
        largest = max(range(len(PARTS)), key=lambda index: finding.parts_us[index])
        share = finding.parts_us[largest] / finding.average_us
        lines.append(f"The largest part of a request's time is {PARTS[largest]} ({share:.0%}).")
    if profile.over is not None:
        lines.append(
            f"At a {label(options)} of {number(profile.over.value)} latency exceeded the limit of "
            f"{options.latency_threshold:g} ms."
        )
    lines += [client_bound(result) for result in results if result.client_bound]
    if not any(result.client_bound for result in results):
        busiest = max(result.summary.busiest for result in results)
        lines.append(
            f"The client was not the bottleneck: it was busy {busiest:.0%} of the time at most."
        )
    return lines


def client_bound(result: LevelResult) -> str:
    """The warning that the client was the bottleneck, and what to do."""
    summary = result.summary
    what = "rate" if result.by_rate else "concurrency"
    processes = f"its {summary.workers} processes were" if summary.workers > 1 else "it was"
    advice = (
        "this machine has no more CPUs, so send from another machine"
        if summary.workers >= (os.cpu_count() or 1)
        else "use more processes with --workers"
    )
    return (
        f"At {what} {number(result.value)} the client was the bottleneck: {processes} busy "
        f"{summary.busiest:.0%} of the time, so the server can do more than is shown; {advice}."
    )


def _finding(result: LevelResult) -> LevelFinding:
    summary = result.summary
    server = result.server or ServerSide(Tally())
    inside = [
        server.part_us("queue"),
        server.part_us("compute_input"),
        server.part_us("compute_infer"),
        server.part_us("compute_output"),
        server.part_us("cache_hit") + server.part_us("cache_miss"),
    ]
    network = max(0.0, summary.average_us - summary.send_us - summary.receive_us - sum(inside))
    return LevelFinding(
        value=number(result.value),
        per_second=summary.per_second,
        average_us=summary.average_us,
        percentiles_us=summary.percentiles_us,
        parts_us=(summary.send_us, network, *inside, summary.receive_us),
        histogram=summary.histogram,
        busiest=summary.busiest,
        workers=summary.workers,
        client_bound=result.client_bound,
    )
