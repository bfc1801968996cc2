"""Convert a run's JSON to Markdown: tables, goals, how cost grows, what was not measured."""

from __future__ import annotations

import json
import statistics
from typing import Any

from benchmarks.claims import LIMIT, OURS, judge
from benchmarks.loads import open_loop
from benchmarks.measures import ratio, summarise
from benchmarks.workloads import WORKLOADS

Row = dict[str, Any]
NOTHING = "-"
PROTOCOLS = {"grpc": "gRPC", "json": "HTTP with JSON", "rows": "HTTP with 64 rows a request"}
TOOLS = {
    open_loop.NAME: "open_loop, Poisson arrivals at 70 % of each server's own peak rate",
    open_loop.EQUAL: "open_loop, Poisson arrivals at 70 % of the lowest peak rate for all",
}
MORE = {  # columns of workloads that have these figures
    "p999_us": ("p99.9 ms", 1e-3),
    "max_us": ("maximum ms", 1e-3),
    "late_share": ("sent late %", 100.0),
    "settle_secs": ("steady after s", 1.0),
    "of_steady": ("share of the steady rate", 1.0),
}


def markdown(run: dict[str, Any], plots: list[str]) -> str:
    """The whole report; `plots` are the file names of plots beside it."""
    parts = [_machine(run)]
    rows = summarise(run["measurements"])
    for workload in run["workloads"]:
        here = [row for row in rows if row["workload"] == workload["name"]]
        if here:
            parts.append(f"## {workload['name']}: {workload['title']}")
            taken = workload["taken"]
            if taken["commit"] != run["machine"]["commit"]:
                parts.append(f"From an earlier run: {taken['when']}, commit `{taken['commit']}`.")
            parts += _workload(run, workload["name"], here)
            parts += [f"![{name}]({name})" for name in plots if f"-{workload['name']}." in name]
    if run.get("growth"):
        parts.append("## How Shoal's cost grows")
        parts += _growth(run["growth"])
        parts += [f"![{name}]({name})" for name in plots if "-growth." in name]
    parts.append("## Goals")
    parts.append(_claims(run["measurements"]))
    if run["left_out"]:
        parts.append("## Not measured")
        lines = [
            f"- **{one['peer']}**, {one['workload']}: {_one_line(one['reason'])}"
            for one in run["left_out"]
        ]
        parts.append("\n".join(lines))
    parts.append("## Versions and settings")
    parts.append(_settings(run))
    return "\n\n".join(parts) + "\n"


def as_json(run: dict[str, Any]) -> str:
    """The run as JSON, one measurement per line, so that two runs can be compared with diff."""
    fields = []
    for name, value in run.items():
        if name in {"measurements", "left_out"}:
            lines = ",\n".join(f"  {json.dumps(one)}" for one in value)
            fields.append(f"{json.dumps(name)}: [\n{lines}\n]")
        else:
            fields.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def merged(earlier: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """`run`, with the workloads of an earlier one that it did not measure itself, and its growth.

    A workload is always taken from one run, so that its ratios are of servers measured alternately.
    """
    own = {one["name"] for one in run["workloads"]}
    together = {**earlier["peers"], **run["peers"]}
    kept = [one for one in earlier["workloads"] if one["name"] not in own]
    return {
        **run,
        "command": f"{earlier['command']}, then {run['command']}",
        "workloads": sorted([*kept, *run["workloads"]], key=_place),
        "peers": together,
        "measurements": [
            *(one for one in earlier["measurements"] if one["workload"] not in own),
            *run["measurements"],
        ],
        "growth": run["growth"] or earlier["growth"],
        "left_out": [
            *(one for one in earlier["left_out"] if one["workload"].split()[0] not in own),
            *run["left_out"],
        ],
    }


def _place(workload: dict[str, Any]) -> int:
    """In the order in which workloads are declared; unknown ones last."""
    names = list(WORKLOADS)
    return names.index(workload["name"]) if workload["name"] in names else len(names)


def _machine(run: dict[str, Any]) -> str:
    machine = run["machine"]
    others = [
        one["others_cores"] for one in run["measurements"] if one.get("others_cores") is not None
    ]
    quiet = sum(one < 0.2 for one in others) / len(others) if others else 1.0
    return (
        f"Taken {machine['when']} on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, {machine['system']}, Python {machine['python']}; "
        f"commit `{machine['commit']}`.\n"
        f"Median of {run['turns']} rounds. Load average {machine['load_average']} at the start, "
        f"{run.get('load_average_after', '?')} at the end (including the benchmark itself); "
        f"in {quiet:.0%} of the measurements other programs used less than a fifth of a core."
    )


def _workload(run: dict[str, Any], name: str, rows: list[Row]) -> list[str]:
    limits = [row for row in rows if row["peer"] == LIMIT]
    parts = [
        f"The limit, a plain ONNX Runtime loop without a server: "
        f"**{number(row['per_second'])} per second**, {number(row['cpu_us'])} µs of CPU each "
        f"({row['note']})."
        for row in limits
    ]
    loads = dict.fromkeys((row["tool"], row["protocol"]) for row in rows if row["peer"] != LIMIT)
    for tool, protocol in loads:
        here = [row for row in rows if (row["tool"], row["protocol"]) == (tool, protocol)]
        title = PROTOCOLS.get(protocol, "HTTP")
        parts.append(f"**{title}, load from {TOOLS.get(tool, tool)}**")
        parts.append(_table(run, name, tool, protocol, here))
    return parts


def _table(run: dict[str, Any], name: str, tool: str, protocol: str, rows: list[Row]) -> str:
    levels = sorted({row["concurrency"] for row in rows})
    heads = " / ".join(str(level) for level in levels)
    more = [name for name in MORE if any(row.get(name) is not None for row in rows)]
    columns = (
        "server",
        f"requests/s at {heads}",
        "p50 ms",
        "p99 ms",
        *(MORE[name][0] for name in more),
        "server CPU µs per request",
        "errors",
        "memory MB",
        "throughput: Shoal / this server",
        "CPU: Shoal / this server",
    )
    lines = [f"| {' | '.join(columns)} |", f"|---|{'---:|' * (len(columns) - 1)}"]
    best = {row["peer"]: row["per_second"] for row in rows if row["concurrency"] == levels[-1]}
    peers = sorted({row["peer"] for row in rows}, key=lambda peer: -best.get(peer, 0.0))
    for peer in peers:
        by_level = {row["concurrency"]: row for row in rows if row["peer"] == peer}
        mine = [by_level.get(level) for level in levels]
        cells = [
            _series(mine, "per_second"),
            _series(mine, "p50_us", 1e-3),
            _series(mine, "p99_us", 1e-3),
            *(_series(mine, name, MORE[name][1]) for name in more),
            _series(mine, "cpu_us"),
            str(sum(row["errors"] for row in mine if row)),
            number(max((row["memory_mb"] or 0.0) for row in mine if row) or None),
        ]
        for figure in ("per_second", "cpu_us"):
            ratios = [
                ratio(run["measurements"], (name, tool, protocol, level), OURS, peer, figure)
                for level in levels
            ]
            cells.append(
                "" if peer == OURS else " / ".join(number(one, small=True) for one in ratios)
            )
        title = run["peers"].get(peer, {}).get("title", peer)
        shown = f"**{title}**" if peer == OURS else title
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _growth(growth: dict[str, Any]) -> list[str]:
    parts = []
    lines = [
        "| connections | requests/s | server CPU µs | p99 ms | errors |",
        "|---|---:|---:|---:|---:|",
    ]
    for key, figures in growth.items():
        kind, *rest = key.split()
        if kind == "connections":
            protocol, count = rest
            lines.append(f"| {protocol}, {count} | {_growth_cells(figures)} |")
    parts.append("\n".join(lines))
    words = {"one": "all requests to one", "each": "one request to each in turn"}
    lines = [
        "| models loaded (64 connections) | requests/s | server CPU µs | p99 ms | errors |",
        "|---|---:|---:|---:|---:|",
    ]
    for key, figures in growth.items():
        kind, *rest = key.split()
        if kind == "models":
            how, count = rest
            lines.append(f"| {count}, {words[how]} | {_growth_cells(figures)} |")
    parts.append("\n".join(lines))
    for key, figures in growth.items():
        kind, *rest = key.split()
        if kind == "idle":
            parts.append(
                f"An idle {'gRPC' if rest[0] == 'grpc' else 'HTTP'} connection uses "
                f"**{figures['bytes_per_connection'] / 1000:,.1f} KB** "
                f"(over {figures['connections']:,.0f} connections)."
            )
    return parts


def _growth_cells(figures: dict[str, float]) -> str:
    return " | ".join(
        [
            number(figures["per_second"]),
            number(figures["cpu_us"]),
            number(figures["p99_us"] * 1e-3),
            f"{figures['errors']:.0f}",
        ]
    )


def _claims(records: list[dict[str, Any]]) -> str:
    lines = ["| goal | measured | target | met |", "|---|---:|---:|---|"]
    for claim in judge(records):
        sign = "≥" if claim.at_least else "≤"
        measured = number(claim.measured, small=True)
        lines.append(f"| {claim.sentence} | {measured} | {sign} {claim.bar:g} | {claim.verdict} |")
    return "\n".join(lines)


def _settings(run: dict[str, Any]) -> str:
    lines = ["| server | versions | how it was set up | ready after s |", "|---|---|---|---:|"]
    for name, peer in run["peers"].items():
        versions = ", ".join(f"{key} {value}" for key, value in peer["versions"].items())
        ready = [
            one["ready_secs"]
            for one in run["measurements"]
            if one["peer"] == name and one["workload"] == "W1" and one["ready_secs"] is not None
        ]
        shown = number(statistics.median(ready)) if ready else NOTHING
        lines.append(f"| {peer['title']} | {versions} | {peer['settings']} | {shown} |")
    tools = ", ".join(f"{name} {version}" for name, version in run["tools"].items())
    return "\n".join(lines) + f"\n\nLoad generators: {tools}. Command: `{run['command']}`."


def _series(rows: list[Row | None], figure: str, scale: float = 1.0) -> str:
    values = [None if row is None or row[figure] is None else row[figure] * scale for row in rows]
    return " / ".join(number(value) for value in values)


def number(value: float | None, *, small: bool = False) -> str:
    """Three significant digits."""
    if value is None:
        return NOTHING
    if small or abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
