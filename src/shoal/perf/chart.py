"""A chart for terminals: latency over throughput, in characters.

4.2 ms |          *16
       |     *4
0.3 ms | *1
       +--------------
"""

from __future__ import annotations

from shoal.perf.options import PerfOptions
from shoal.perf.profiler import Profile
from shoal.perf.text import number

_HEIGHT = 12
_NARROWEST, _WIDEST = 40, 100
_MARGIN = 11


def curve(options: PerfOptions, profile: Profile, width: int) -> list[str]:
    """The lines to print; each star is a level, labelled with its concurrency or rate."""
    points = [
        (
            result.summary.per_second,
            result.summary.latency_us(options.only_percentile) / 1000,
            number(result.value),
        )
        for result in sorted(profile.results, key=lambda result: result.value)
    ]
    if not points:
        return []
    columns = max(_NARROWEST, min(width, _WIDEST)) - _MARGIN - 2
    fastest = max(rate for rate, _, _ in points) or 1.0
    slowest = max(latency for _, latency, _ in points) or 1.0
    longest = max(len(label) for _, _, label in points)
    room = columns - longest - 1
    grid = [[" "] * columns for _ in range(_HEIGHT)]
    for rate, latency, label in points:
        row = _HEIGHT - 1 - round((_HEIGHT - 1) * latency / slowest)
        column = round(room * rate / fastest)
        for offset, character in enumerate(f"*{label}"):
            if offset == 0 or grid[row][column + offset] == " ":
                grid[row][column + offset] = character
    kind = "mean" if options.percentile < 0 else f"p{options.percentile}"
    label = "request rate" if options.by_rate else "concurrency"
    lines = [f"{kind} latency over throughput (each star is a {label})"]
    for index, cells in enumerate(grid):
        value = slowest * (_HEIGHT - 1 - index) / (_HEIGHT - 1)
        title = f"{value:.3g} ms" if index % 4 == 0 or index == _HEIGHT - 1 else ""
        lines.append(f"{title:>{_MARGIN - 1}} |{''.join(cells).rstrip()}")
    lines.append(f"{'':>{_MARGIN - 1}} +{'-' * columns}")
    end = f"{fastest:,.0f} infer/sec"
    lines.append(f"{'':>{_MARGIN}} 0{end:>{columns - 1}}")
    return lines
