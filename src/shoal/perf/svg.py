"""Charts as SVG for report pages, which load nothing from other files.

    lines(…)   bars(…)   stacked(…)   scatter(…)  -->  "<svg …>…</svg>"

Colours are CSS classes (s0, s1, …) that the style sheet in `page` defines for both themes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 34, 46
_TICKS = 5
_TIMES_LIMIT = 4  # how far above a limit the axis of a scatter chart reaches


class Point(NamedTuple):
    """A point of a chart; its label is drawn beside it, its hint is shown on hover."""

    x: float
    y: float
    label: str = ""
    hint: str = ""


class Series(NamedTuple):
    """Points connected by a line."""

    name: str
    points: Sequence[Point]


class Dot(NamedTuple):
    """A point of a scatter chart; `kind` is the CSS class that colours it."""

    x: float
    y: float
    kind: str
    hint: str


class Bar(NamedTuple):
    """One row of a stacked chart, one value per part."""

    label: str
    values: Sequence[float]


def ticks(highest: float, count: int = _TICKS) -> list[float]:
    """Round numbers from 0 to at least `highest`, about `count` of them."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / count
    power: float = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return [step * index for index in range(math.ceil(highest / step - 1e-9) + 1)]


def short(value: float) -> str:
    """A number for an axis: 1200 is 1.2k."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 1e3:
        return f"{value / 1e3:.3g}k"
    return f"{value:.3g}"


def lines(series: Sequence[Series], x_title: str, y_title: str) -> str:
    """Lines over two linear axes that start at 0."""
    points = [point for each in series for point in each.points]
    across = ticks(max((point.x for point in points), default=0))
    up = ticks(max((point.y for point in points), default=0))
    frame = _Frame(across[-1], up[-1])
    parts = [*frame.grid(across, up), *frame.titles(x_title, y_title)]
    parts += _legend([(f"s{index}", each.name) for index, each in enumerate(series)])
    for index, each in enumerate(series):
        parts.append(frame.path(each.points, f"line s{index}"))
        for point in each.points:
            x, y = frame.x(point.x), frame.y(point.y)
            parts.append(_circle(x, y, 4, f"s{index}", point.hint))
            if point.label:
                parts.append(_text(x + 7, y - 7, point.label, "label"))
    return _svg(parts, f"{y_title} over {x_title}")


def front(dots: Sequence[Dot]) -> list[Dot]:
    """The Pareto front: dots with no other dot both further right and lower, from left to right."""
    kept: list[Dot] = []
    for dot in sorted(dots, key=lambda each: (-each.x, each.y)):
        if not kept or dot.y < kept[-1].y:
            kept.append(dot)
    return kept[::-1]


def scatter(
    dots: Sequence[Dot], names: Mapping[str, str], limit: float, x_title: str, y_title: str
) -> str:
    """Dots and their Pareto front. `names` are the legend by kind, the most important kind first;
    `limit` is a horizontal line, 0 for none."""
    across = ticks(max((dot.x for dot in dots), default=0))
    # Clip the axis: one dot far above the limit would press all others onto the bottom.
    highest = max((dot.y for dot in dots), default=0)
    up = ticks(max(limit, min(highest, _TIMES_LIMIT * limit)) if limit else highest)
    frame = _Frame(across[-1], up[-1])
    parts = [*frame.grid(across, up), *frame.titles(x_title, y_title)]
    if limit:
        y = frame.y(limit)
        parts.append(_rule(_LEFT, _WIDTH - _RIGHT, y, y, "limit"))
    parts.append(frame.path(front(dots), "front"))
    order = list(names)
    for dot in sorted(dots, key=lambda each: -order.index(each.kind)):
        radius = 7 if order.index(dot.kind) < 2 else 4
        parts.append(_circle(frame.x(dot.x), frame.y(dot.y), radius, dot.kind, dot.hint))
    kinds = {dot.kind for dot in dots}
    parts += _legend([(kind, name) for kind, name in names.items() if kind in kinds])
    return _svg(parts, f"{y_title} over {x_title}")


def bars(
    edges: Sequence[tuple[float, int]],
    marks: Sequence[tuple[float, str]],
    x_title: str,
    y_title: str,
) -> str:
    """A histogram on a logarithmic axis; each entry is the right edge of a bar and its count.

    `marks` are vertical lines with a label.
    """
    if len(edges) < 2:
        return _svg([], x_title)
    ratio = edges[1][0] / edges[0][0]
    low, high = edges[0][0] / ratio, edges[-1][0]
    up = ticks(max(count for _, count in edges))
    frame = _Frame(math.log(high / low), up[-1])
    parts = frame.grid([], up)
    for value in _decades(low, high):
        x = frame.x(math.log(value / low))
        parts.append(_rule(x, x, _TOP, _HEIGHT - _BOTTOM))
        parts.append(_text(x, _HEIGHT - _BOTTOM + 16, short(value), "tick", "middle"))
    parts += frame.titles(x_title, y_title)
    for right, count in edges:
        x0, x1 = frame.x(math.log(right / ratio / low)), frame.x(math.log(right / low))
        y = frame.y(count)
        parts.append(
            f'<rect class="bar s0" x="{x0:.1f}" y="{y:.1f}" width="{max(0.5, x1 - x0 - 1):.1f}" '
            f'height="{_HEIGHT - _BOTTOM - y:.1f}">'
            f"<title>up to {short(right)}: {count}</title></rect>"
        )
    for index, (value, label) in enumerate(marks):
        x = frame.x(math.log(min(high, max(low, value)) / low))
        parts.append(_rule(x, x, _TOP, _HEIGHT - _BOTTOM, "mark"))
        anchor = "end" if x > _WIDTH - 90 else "start"
        shift = -4 if anchor == "end" else 4
        parts.append(_text(x + shift, _TOP + 10 + 14 * index, label, "label", anchor))
    return _svg(parts, x_title)


def stacked(rows: Sequence[Bar], names: Sequence[str], x_title: str) -> str:
    """Horizontal bars, each stacked from its parts."""
    height = _TOP + 30 * len(rows) + _BOTTOM + 18
    across = ticks(max((sum(row.values) for row in rows), default=0))
    left = 90
    scale = (_WIDTH - left - _RIGHT) / across[-1]
    top = _TOP + 18
    bottom = top + 30 * len(rows)
    parts = []
    for value in across:
        x = left + value * scale
        parts.append(_rule(x, x, top, bottom))
        parts.append(_text(x, bottom + 16, short(value), "tick", "middle"))
    for index, row in enumerate(rows):
        y = top + 30 * index + 4
        parts.append(_text(left - 8, y + 15, row.label, "tick", "end"))
        x = float(left)
        for part, (name, value) in enumerate(zip(names, row.values, strict=True)):
            width = value * scale
            parts.append(
                f'<rect class="bar s{part}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="22">'
                f"<title>{escape(name)}: {value:,.0f} µs</title></rect>"
            )
            x += width
    parts.append(_text((left + _WIDTH - _RIGHT) / 2, bottom + 36, x_title, "title", "middle"))
    parts += _legend([(f"s{index}", name) for index, name in enumerate(names)])
    return _svg(parts, x_title, height)


class _Frame:
    """Maps values to pixels; both axes start at 0. Values above the y axis are clipped."""

    def __init__(self, highest_x: float, highest_y: float) -> None:
        self._highest_y = highest_y
        self._per_x = (_WIDTH - _LEFT - _RIGHT) / (highest_x or 1)
        self._per_y = (_HEIGHT - _TOP - _BOTTOM) / (highest_y or 1)

    def x(self, value: float) -> float:
        return _LEFT + value * self._per_x

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - min(value, self._highest_y) * self._per_y

    def path(self, points: Sequence[Point] | Sequence[Dot], kind: str) -> str:
        pairs = " ".join(f"{self.x(point.x):.1f},{self.y(point.y):.1f}" for point in points)
        return f'<polyline class="{kind}" points="{pairs}"/>'

    def grid(self, across: Sequence[float], up: Sequence[float]) -> list[str]:
        parts = []
        for value in up:
            y = self.y(value)
            parts.append(_rule(_LEFT, _WIDTH - _RIGHT, y, y))
            parts.append(_text(_LEFT - 8, y + 4, short(value), "tick", "end"))
        for value in across:
            x = self.x(value)
            parts.append(_rule(x, x, _TOP, _HEIGHT - _BOTTOM))
            parts.append(_text(x, _HEIGHT - _BOTTOM + 16, short(value), "tick", "middle"))
        return parts

    def titles(self, x_title: str, y_title: str) -> list[str]:
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        upright = (_TOP + _HEIGHT - _BOTTOM) / 2
        turned = f'transform="translate(14 {upright:.0f}) rotate(-90)"'
        return [
            _text(middle, _HEIGHT - 8, x_title, "title", "middle"),
            f'<text class="title" text-anchor="middle" {turned}>{escape(y_title)}</text>',
        ]


def _rule(x0: float, x1: float, y0: float, y1: float, kind: str = "grid") -> str:
    return f'<line class="{kind}" x1="{x0:.1f}" x2="{x1:.1f}" y1="{y0:.1f}" y2="{y1:.1f}"/>'


def _decades(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, … between two numbers; powers of 10 alone for wide ranges."""
    factors = (1, 2, 5) if high / low < 1000 else (1,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    return [value for value in values if low <= value <= high]


def _legend(entries: Sequence[tuple[str, str]]) -> list[str]:
    """CSS classes and names, wrapped to the width of the chart."""
    parts = []
    x, y = float(_LEFT), 8
    for kind, name in entries:
        width = 34 + 6.2 * len(name)
        if x + width > _WIDTH - _RIGHT:
            x, y = float(_LEFT), y + 16
        parts.append(
            f'<rect class="bar {kind}" x="{x:.0f}" y="{y}" width="11" height="11" rx="2"/>'
        )
        parts.append(_text(x + 16, y + 10, name, "tick"))
        x += width
    return parts


def _circle(x: float, y: float, radius: int, kind: str, hint: str) -> str:
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{title}</circle>'


def _text(x: float, y: float, content: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(content)}</text>"
    )


def _svg(parts: Sequence[str], title: str, height: int = _HEIGHT) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">\n'
        f"{inside}\n</svg>"
    )
