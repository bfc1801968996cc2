"""A run as a PNG image, drawn by matplotlib: curve, distribution, where the time went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.errors import Unsupported
from shoal.perf.findings import PARTS, LevelFinding, findings, label
from shoal.perf.model_facts import ModelFacts
from shoal.perf.options import PerfOptions
from shoal.perf.profiler import Profile

_COLOURS = (
    *("#0b7285", "#e8590c", "#9c36b5", "#2b8a3e"),
    *("#1971c2", "#c2a100", "#868e96", "#e64980"),
)
_DOTS_PER_INCH = 130


def draw(file: Path, options: PerfOptions, facts: ModelFacts, profile: Profile) -> None:
    """Write a PNG. Raises Unsupported when matplotlib is missing, and OSError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported(
            "a PNG image needs matplotlib: pip install 'shoal[report]', or write a page with "
            "--report FILE.html"
        ) from None
    found = findings(profile)
    figure = Figure(figsize=(9, 9.5 + 0.28 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [3.6, 0.9 + 0.32 * len(found), 3]
    curve, parts, distribution = figure.subplots(3, 1, height_ratios=heights)
    _curve(curve, found, label(options))
    _parts(parts, found, label(options))
    _distribution(distribution, found[-1], label(options))
    figure.suptitle(f"{facts.name} under load", fontsize=13)
    figure.savefig(file, dpi=_DOTS_PER_INCH)


def _curve(axis: Any, found: list[LevelFinding], level: str) -> None:
    rates = [finding.per_second for finding in found]
    kinds: list[tuple[str, list[float]]] = [
        ("mean", [finding.average_us / 1000 for finding in found]),
        ("p95", [finding.percentiles_us[95] / 1000 for finding in found]),
        ("p99", [finding.percentiles_us[99] / 1000 for finding in found]),
    ]
    for (name, values), colour in zip(kinds, _COLOURS, strict=False):
        axis.plot(rates, values, marker="o", color=colour, label=name)
    for finding, value in zip(found, kinds[0][1], strict=True):
        axis.annotate(
            finding.value,
            (finding.per_second, value),
            textcoords="offset points",
            xytext=(6, 5),
            fontsize=8,
        )
    axis.set(xlabel=f"inferences a second, by {level}", ylabel="latency in ms")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)


def _parts(axis: Any, found: list[LevelFinding], level: str) -> None:
    labels = [finding.value for finding in found]
    starts = [0.0] * len(found)
    for index, name in enumerate(PARTS):
        widths = [finding.parts_us[index] for finding in found]
        axis.barh(labels, widths, left=starts, color=_COLOURS[index], label=name, height=0.7)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axis.invert_yaxis()
    axis.set(xlabel="mean time of a request in µs", ylabel=level)
    axis.legend(frameon=False, ncols=4, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1))


def _distribution(axis: Any, finding: LevelFinding, level: str) -> None:
    edges = [edge for edge, _ in finding.histogram]
    counts = [count for _, count in finding.histogram]
    ratio = edges[1] / edges[0]
    lefts = [edge / ratio for edge in edges]
    widths = [(edge - left) * 0.95 for edge, left in zip(edges, lefts, strict=True)]
    axis.bar(lefts, counts, widths, align="edge", color=_COLOURS[0])
    axis.set_xscale("log")
    for name, value in finding.percentiles_us.items():
        axis.axvline(value, color=_COLOURS[1], linestyle="--", linewidth=1)
        axis.annotate(f"p{name}", (value, max(counts)), fontsize=8, rotation=90, va="top")
    axis.set(xlabel=f"latency in µs at {level} {finding.value}", ylabel="requests")
