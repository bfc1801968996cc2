"""Small charts as SVG, for pages that must need nothing from elsewhere.

    lines(…)   bars(…)   stacked(…)  -->  "<svg …>…</svg>"

Colours are classes (s0, s1, …) that the page's style sheet fills in, so that they follow its theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 34, 46
_TICKS = 5


class Point(NamedTuple):
    """A place on a chart; its label stands beside it, its hint shows under the pointer."""

    x: float
    y: float
    label: str = ""
    hint: str = ""


class Series(NamedTuple):
    """Points that a line connects."""

    name: str
    points: Sequence[Point]


class Bar(NamedTuple):
    """What one row is made of, one value per part."""

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
    parts = [*frame.grid(across, up), *frame.titles(x_title, y_title), *_legend(series)]
    for index, each in enumerate(series):
        places = [(frame.x(point.x), frame.y(point.y), point) for point in each.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        parts.append(f'<polyline class="line s{index}" points="{path}"/>')
        for x, y, point in places:
            hint = f"<title>{escape(point.hint)}</title>" if point.hint else ""
            parts.append(
                f'<circle class="dot s{index}" cx="{x:.1f}" cy="{y:.1f}" r="4">{hint}</circle>'
            )
            if point.label:
                parts.append(_text(x + 7, y - 7, point.label, "label"))
    return _svg(parts, f"{y_title} over {x_title}")


def bars(
    edges: Sequence[tuple[float, int]],
    marks: Sequence[tuple[float, str]],
    x_title: str,
    y_title: str,
) -> str:
    """Counts between edges on a logarithmic axis: each entry is a bar's right edge and its count.

    `marks` are upright lines with a label.
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
    """Rows of parts, one below the other."""
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
    parts += _legend([Series(name, ()) for name in names])
    return _svg(parts, x_title, height)


class _Frame:
    """Where numbers lie on the paper; both axes start at 0."""

    def __init__(self, highest_x: float, highest_y: float) -> None:
        self._per_x = (_WIDTH - _LEFT - _RIGHT) / (highest_x or 1)
        self._per_y = (_HEIGHT - _TOP - _BOTTOM) / (highest_y or 1)

    def x(self, value: float) -> float:
        return _LEFT + value * self._per_x

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value * self._per_y

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
    """1, 2, 5, 10, 20, … between two numbers; fewer where they would crowd."""
    factors = (1, 2, 5) if high / low < 1000 else (1,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    return [value for value in values if low <= value <= high]


def _legend(series: Sequence[Series]) -> list[str]:
    """Names with their colours, in as many rows as they take."""
    parts = []
    x, y = float(_LEFT), 8
    for index, each in enumerate(series):
        width = 34 + 6.2 * len(each.name)
        if x + width > _WIDTH - _RIGHT:
            x, y = float(_LEFT), y + 16
        parts.append(
            f'<rect class="bar s{index}" x="{x:.0f}" y="{y}" width="11" height="11" rx="2"/>'
        )
        parts.append(_text(x + 16, y + 10, each.name, "tick"))
        x += width
    return parts


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
