"""The report of `benchmarks.overload`: a table and a chart of goodput over offered load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.perf import svg

LONG_SECS = 30.0  # runs from this length on are shown separately, with memory
COLOURS = ("#868e96", "#1971c2", "#0b7285", "#c2a100", "#e8590c")
STYLE = (
    "svg { background: #ffffff; font-family: system-ui, sans-serif; } "
    "text { fill: #24292f; } .tick, .title { fill: #57606a; font-size: 11.5px; } "
    ".grid { stroke: #d8dee4; } .line { fill: none; stroke-width: 2.2; } "
)


def write_report(
    kept: Mapping[str, Any], names: Mapping[str, str], folder: Path, name: str
) -> None:
    """Write NAME.md and NAME.svg."""
    levels: Sequence[Mapping[str, Any]] = kept["levels"]
    short = [one for one in levels if one["seconds"] < LONG_SECS]
    long = [one for one in levels if one["seconds"] >= LONG_SECS]
    machine = ", ".join(f"{key} {value}" for key, value in kept["machine"].items())
    setting = (
        f"Capacity {kept['capacity']:.0f} requests a second; answers within "
        f"{kept['limit_ms']:.0f} ms count as good. Rates are per second. {machine}"
    )
    lines = [setting, "", *_table(short, names)]
    if long:
        lines += ["", f"**For {long[0]['seconds']:.0f} seconds**", "", *_long_table(long, names)]
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
    (folder / f"{name}.svg").write_text(chart(short, names, kept["capacity"]))


def _table(levels: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[str]:
    return [
        "| | offered | good | late | refused | unanswered | p50 | p99 | p99 of refusals |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"{_rates(title, one)} {one['unanswered']:,.0f} | {_ms(one['p50_ms'])} | "
            f"{_ms(one['p99_ms'])} | {_ms(one['refusal_p99_ms'])} |"
            for variant, title in names.items()
            for one in _of(levels, variant)
        ),
    ]


def _long_table(levels: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[str]:
    return [
        "| | offered | good | late | refused | p99 | memory after 5 s | at the end |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"{_rates(title, one)} {_ms(one['p99_ms'])} | "
            f"{one['memory_mb'][5]:.0f} MB | {one['memory_mb'][-1]:.0f} MB |"
            for variant, title in names.items()
            for one in _of(levels, variant)
        ),
    ]


def _rates(title: str, one: Mapping[str, Any]) -> str:
    return (
        f"| {title} | {one['times_capacity']:g} x | {one['goodput']:,.0f} | {one['late']:,.0f} | "
        f"{one['refused']:,.0f} |"
    )


def _of(levels: Sequence[Mapping[str, Any]], variant: str) -> list[Mapping[str, Any]]:
    found = [one for one in levels if one["variant"] == variant]
    return sorted(found, key=lambda one: float(one["times_capacity"]))


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms" if value else ""


def chart(levels: Sequence[Mapping[str, Any]], names: Mapping[str, str], capacity: float) -> str:
    """Goodput over offered load, as a file of its own."""
    series = []
    for variant, title in names.items():
        points = [
            svg.Point(one["offered_per_second"] / capacity, one["goodput"])
            for one in _of(levels, variant)
        ]
        if points:
            series.append(svg.Series(title, points))
    drawn = svg.lines(series, "offered load, in multiples of the capacity", "good answers a second")
    colours = "".join(
        f".s{index} {{ stroke: {colour}; fill: {colour}; }} .line.s{index} {{ fill: none; }} "
        for index, colour in enumerate(COLOURS)
    )
    head, rest = drawn.split(">", 1)
    opening = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg" width="720"', 1)
    return f"{opening}><style>{STYLE}{colours}</style>{rest}\n"
