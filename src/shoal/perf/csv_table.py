"""The CSV file of -f, with the columns of perf_analyzer."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.perf.metrics import COLUMNS, merged
from shoal.perf.model_facts import ModelFacts
from shoal.perf.options import PerfOptions
from shoal.perf.profiler import LevelResult
from shoal.perf.server_side import Key, ServerSide, Tally
from shoal.perf.text import number

_COMPUTE = ("compute_input", "compute_infer", "compute_output")
_COMPUTE_TITLES = ("Server Compute Input", "Server Compute Infer", "Server Compute Output")
_CACHE_TITLES = ("Server Cache Hit", "Server Cache Miss")


def write(
    path: str, options: PerfOptions, facts: ModelFacts, results: Sequence[LevelResult]
) -> list[str]:
    """Write the table, and another file for each composing model; returns the file names."""
    file = Path(path)
    ordered = sorted(results, key=lambda result: result.summary.per_second)
    _save(file, header(options, facts, results), [_row(options, facts, r) for r in ordered])
    written = [str(file)]
    for key in _composing(ordered):
        name, version = key
        beside = file.with_name(f"{name}_v{version}.{file.name}")
        rows = [_composing_row(options, facts, result, key) for result in ordered]
        _save(beside, _head(options, facts, decoupled=False), rows)
        written.append(str(beside))
    return written


def header(options: PerfOptions, facts: ModelFacts, results: Sequence[LevelResult]) -> list[str]:
    """The columns of a run."""
    percentiles = results[0].summary.percentiles_us if results else {}
    columns = _head(options, facts, decoupled=facts.decoupled)
    columns += [f"p{percentile} latency" for percentile in percentiles]
    if options.verbose_csv:
        columns += ["Avg latency"] if options.percentile < 0 else []
        columns += ["request/response", "response wait"]
        columns += list(COLUMNS) if options.collect_metrics else []
    return columns


def _head(options: PerfOptions, facts: ModelFacts, *, decoupled: bool) -> list[str]:
    return [
        "Request Rate" if options.by_rate else "Concurrency",
        "Inferences/Second",
        *(["Response Throughput"] if decoupled else []),
        "Client Send",
        "Network+Server Send/Recv",
        "Server Queue",
        *_COMPUTE_TITLES,
        *(_CACHE_TITLES if facts.cached else ()),
        "Client Recv",
    ]


def _row(options: PerfOptions, facts: ModelFacts, result: LevelResult) -> list[str]:
    summary = result.summary
    server = result.server or ServerSide(Tally())
    parts = ["queue", *_COMPUTE, *(("cache_hit", "cache_miss") if facts.cached else ())]
    times = [int(server.part_us(part)) for part in parts]
    send, receive = int(summary.send_us), int(summary.receive_us)
    network = max(0, int(summary.average_us) - send - receive - sum(times))
    row = [_level(options, result), number(summary.per_second)]
    if facts.decoupled:
        row.append(number(summary.responses_per_second))
    row += [str(value) for value in (send, network, *times, receive)]
    row += [str(int(value)) for value in summary.percentiles_us.values()]
    if options.verbose_csv:
        row += [str(int(summary.average_us))] if options.percentile < 0 else []
        row += [str(int(summary.send_us + summary.receive_us)), str(int(summary.wait_us))]
        if options.collect_metrics:
            row += _devices(merged([window.devices for window in result.windows]))
    return row


def _composing_row(
    options: PerfOptions, facts: ModelFacts, result: LevelResult, key: Key
) -> list[str]:
    tally = result.server.composing.get(key, Tally()) if result.server else Tally()
    rate = tally.successes * options.batch_size / max(1e-9, result.summary.duration_secs)
    parts = ["queue", *_COMPUTE, *(("cache_hit", "cache_miss") if facts.cached else ())]
    times = [int(tally.part_us(part)) for part in parts]
    network = max(0, int(tally.request_us) - sum(times))
    values = [0, network, *times, 0]
    return [_level(options, result), number(rate), *map(str, values)]


def _level(options: PerfOptions, result: LevelResult) -> str:
    return f"{result.value:.0f}" if options.request_intervals else number(result.value)


def _devices(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A cell per metric: `uuid:value;` for each device."""
    return [
        "".join(f"{device}:{number(value)};" for device, value in found.get(column, {}).items())
        for column in COLUMNS
    ]


def _composing(results: Sequence[LevelResult]) -> list[Key]:
    return list(dict.fromkeys(key for r in results if r.server for key in r.server.composing))


def _save(path: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
