"""Charts of a run: throughput and CPU time per request by workload, and how Shoal's cost grows.

The README shows the summary, one endpoint of the first workload, in light and dark.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from benchmarks.claims import LIMIT, OURS
from benchmarks.loads import open_loop
from benchmarks.measures import summarise
from benchmarks.report import PROTOCOLS, number

Row = dict[str, Any]
OUR_COLOUR, THEIR_COLOUR, LIMIT_COLOUR = "#0b7285", "#adb5bd", "#c92a2a"
DOTS_PER_INCH = 100
INKS = {"": "#24292f", "-dark": "#e6edf3"}  # of the summary, on a background that shows through
SUMMARY_INCHES = (10.4, 3.7)
WIDE = 30  # from this ratio on, bars of equal scale show nothing of the small ones


def draw(run: dict[str, Any], folder: Path, name: str) -> list[str]:
    """Write the charts next to the report; their file names."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    pictures = {}
    rows = summarise(run["measurements"])
    for workload in run["workloads"]:
        here = [row for row in rows if row["workload"] == workload["name"]]
        if any(row["peer"] != LIMIT for row in here):
            pictures[f"{name}-{workload['name']}.png"] = _workload(plt, run, workload, here)
    if run.get("growth"):
        pictures[f"{name}-growth.png"] = _growth(plt, run["growth"])
    for file, figure in pictures.items():
        figure.tight_layout()
        figure.savefig(folder / file, dpi=DOTS_PER_INCH)
        plt.close(figure)
    for ending, ink in INKS.items():
        _summary(plt, run, rows, ink, folder / f"{name}-summary{ending}.png")
    return list(pictures)


def _summary(plt: Any, run: dict[str, Any], rows: list[Row], ink: str, file: Path) -> None:
    """The endpoint of the first workload that most servers have, at its highest concurrency."""
    endpoints: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        if row["peer"] != LIMIT and row["workload"] == run["workloads"][0]["name"]:
            key = (row["tool"], row["protocol"], row["concurrency"])
            endpoints.setdefault(key, []).append(row)
    if not endpoints:
        return
    (_, protocol, level), chosen = max(
        endpoints.items(), key=lambda each: (len(each[1]), each[0][2])
    )
    chosen.sort(key=lambda row: row["per_second"])
    figure, (left, right) = plt.subplots(1, 2, figsize=SUMMARY_INCHES, sharey=True)
    shown = "gRPC" if protocol == "grpc" else "HTTP"
    rate = f"Requests per second ({shown}, {level} clients)"
    _summary_bars(left, chosen, "per_second", rate, ink)
    _summary_bars(right, chosen, "cpu_us", "Server CPU time per request, µs (less is better)", ink)
    left.set_yticks(range(len(chosen)), [_named(run, row["peer"]) for row in chosen])
    left.tick_params(axis="y", length=0, labelsize=9, labelcolor=ink)
    for row, label in zip(chosen, left.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if row["peer"] == OURS else "normal")
    figure.tight_layout(w_pad=1.5)
    figure.savefig(file, dpi=2 * DOTS_PER_INCH, transparent=True)
    plt.close(figure)


def _summary_bars(axis: Any, rows: list[Row], figure: str, title: str, ink: str) -> None:
    """Bars on a logarithmic scale, which begins a little below the smallest, and their figures."""
    figures = [row[figure] or 0 for row in rows]
    colours = [OUR_COLOUR if row["peer"] == OURS else THEIR_COLOUR for row in rows]
    least, most = min(value for value in figures if value), max(figures)
    axis.set_xscale("log")
    axis.set_xlim(10 ** (math.ceil(math.log10(least)) - 1), most * 6)  # room for the figures
    bars = axis.barh(range(len(rows)), figures, height=0.68, color=colours)
    labels = [number(value) if value else "" for value in figures]
    axis.bar_label(bars, labels, color=ink, fontsize=9, padding=3)
    axis.set_title(title, color=ink, fontsize=10, loc="left")
    axis.set_xlabel("logarithmic scale", color=ink, fontsize=7.5, loc="right")
    axis.tick_params(axis="x", labelsize=7.5, labelcolor=ink, color=ink)
    axis.tick_params(axis="x", which="minor", length=0)
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_axisbelow(True)
    axis.grid(axis="x", color=ink, alpha=0.15, linewidth=0.7)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(ink)


def _named(run: dict[str, Any], peer: str) -> str:
    """A server with its version."""
    described = run["peers"].get(peer, {})
    title = described.get("title", peer)
    package, version = next(iter(described.get("versions", {}).items()), ("", ""))
    if package == "nvidia-pytriton":  # the wheel that brings Triton, whose version is another
        return title.replace(")", f", pytriton {version})")
    name = re.split(r"(?= [(+])|(?=,)", title, maxsplit=1)[0]
    version = version.partition("+")[0]  # the commit is in the report, and too long for a label
    return f"{name} {version}".rstrip() + title.removeprefix(name)


def _workload(plt: Any, run: dict[str, Any], workload: dict[str, Any], rows: list[Row]) -> Any:
    """Bars at the highest concurrency, one row of two panels per endpoint."""
    level = max(row["concurrency"] for row in rows)
    endpoints: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["peer"] != LIMIT and row["concurrency"] == level:
            endpoints.setdefault((row["tool"], row["protocol"]), []).append(row)
    heights = [0.28 * len(chosen) + 0.6 for chosen in endpoints.values()]
    figure, axes = plt.subplots(
        len(endpoints),
        2,
        figsize=(9.5, sum(heights) + 0.5),
        squeeze=False,
        sharey="row",
        height_ratios=heights,
    )
    limits = [row["per_second"] for row in rows if row["peer"] == LIMIT]
    for (left, right), ((tool, protocol), chosen) in zip(axes, endpoints.items(), strict=True):
        if tool in {open_loop.NAME, open_loop.EQUAL}:  # the rate is chosen there, not measured
            _bars(left, run, chosen, "p999_us", "p99.9 in ms", 1e-3)
        else:
            _bars(left, run, chosen, "per_second", "requests a second")
        _bars(right, run, chosen, "cpu_us", "server CPU µs a request")
        if limits and workload["compute_bound"]:
            left.axvline(limits[0], color=LIMIT_COLOUR, linestyle="--", linewidth=1)
        shown = PROTOCOLS.get(protocol, "HTTP")
        left.set_title(f"{shown}, {tool}, {level} clients", fontsize=9, loc="left")
    figure.suptitle(f"{workload['name']}: {workload['title']}", fontsize=11)
    return figure


def _bars(
    axis: Any, run: dict[str, Any], rows: list[Row], figure: str, label: str, factor: float = 1.0
) -> None:
    """A bar for each server, with `figure` times `factor`."""
    known = sorted(
        (row for row in rows if row[figure] is not None), key=lambda row: row["per_second"]
    )
    titles = [run["peers"].get(row["peer"], {}).get("title", row["peer"]) for row in known]
    colours = [OUR_COLOUR if row["peer"] == OURS else THEIR_COLOUR for row in known]
    lengths = [factor * row[figure] for row in known]
    bars = axis.barh(titles, lengths, color=colours)
    axis.bar_label(bars, list(map(number, lengths)), fontsize=7, padding=2)
    if known and max(lengths) > WIDE * min(lengths):
        axis.set_xscale("log")
        axis.set_xlim(left=1)
        label += " (logarithmic)"
    axis.set_xlabel(label, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.set_xticks([])  # the bars carry their figures
    axis.set_xticks([], minor=True)
    axis.margins(x=0.15)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)


def _growth(plt: Any, growth: dict[str, Any]) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.2))
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for key, figures in growth.items():
        kind, *rest = key.split()
        if kind in {"connections", "models"}:
            series.setdefault((kind, rest[0]), []).append((int(rest[1]), figures["per_second"]))
    words = {
        "one": "all to one model",
        "each": "one to each in turn",
        "http": "HTTP",
        "grpc": "gRPC",
    }
    for (kind, how), points in series.items():
        axis = axes[0 if kind == "connections" else 1]
        axis.plot(*zip(*sorted(points), strict=True), marker="o", label=words[how])
    for axis, label in zip(axes, ("connections", "models loaded, 64 connections"), strict=True):
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_xlabel(label, fontsize=8)
        axis.set_ylabel("requests a second", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.legend(fontsize=8)
    return figure
