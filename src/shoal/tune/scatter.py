"""A chart of dots as SVG: throughput to the right, latency upwards.

Colours are classes (tried, over, start, chosen) that the page's style sheet fills in.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from shoal.perf.svg import short, ticks

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 34, 46
_TIMES_LIMIT = 4
_NAMES = {"chosen": "chosen", "start": "as it was", "tried": "tried", "over": "over the limit"}


class Dot(NamedTuple):
    """A measurement."""

    per_second: float
    latency_ms: float
    kind: str
    hint: str


def front(dots: Sequence[Dot]) -> list[Dot]:
    """Those that no other beats in both, by throughput."""
    kept: list[Dot] = []
    for dot in sorted(dots, key=lambda each: (-each.per_second, each.latency_ms)):
        if not kept or dot.latency_ms < kept[-1].latency_ms:
            kept.append(dot)
    return kept[::-1]


def scatter(dots: Sequence[Dot], limit_ms: float, y_title: str) -> str:
    """The chart; `limit_ms` is a line across it, 0 is none."""
    across = ticks(max((dot.per_second for dot in dots), default=0))
    # One try far over the limit must not press all others onto the axis.
    slowest = max((dot.latency_ms for dot in dots), default=0)
    up = ticks(max(limit_ms, min(slowest, _TIMES_LIMIT * limit_ms)) if limit_ms else slowest)
    per_x = (_WIDTH - _LEFT - _RIGHT) / across[-1]
    per_y = (_HEIGHT - _TOP - _BOTTOM) / up[-1]

    def x(value: float) -> float:
        return _LEFT + value * per_x

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - min(value, up[-1]) * per_y

    parts = []
    for value in up:
        parts.append(_line("grid", _LEFT, _WIDTH - _RIGHT, y(value), y(value)))
        parts.append(_text(_LEFT - 8, y(value) + 4, short(value), "tick", "end"))
    for value in across:
        parts.append(_line("grid", x(value), x(value), _TOP, _HEIGHT - _BOTTOM))
        parts.append(_text(x(value), _HEIGHT - _BOTTOM + 16, short(value), "tick", "middle"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(_text(middle, _HEIGHT - 8, "inferences a second", "title", "middle"))
    turned = f'transform="translate(14 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)"'
    parts.append(f'<text class="title" text-anchor="middle" {turned}>{escape(y_title)}</text>')
    if limit_ms:
        parts.append(_line("limit", _LEFT, _WIDTH - _RIGHT, y(limit_ms), y(limit_ms)))
    path = " ".join(f"{x(dot.per_second):.1f},{y(dot.latency_ms):.1f}" for dot in front(dots))
    parts.append(f'<polyline class="front" points="{path}"/>')
    for dot in sorted(dots, key=lambda each: list(_NAMES)[::-1].index(each.kind)):
        radius = 7 if dot.kind in ("chosen", "start") else 4
        parts.append(
            f'<circle class="{dot.kind}" cx="{x(dot.per_second):.1f}" '
            f'cy="{y(dot.latency_ms):.1f}" r="{radius}"><title>{escape(dot.hint)}</title></circle>'
        )
    parts += _legend({dot.kind for dot in dots})
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(y_title)} over inferences a second">\n{inside}\n</svg>'
    )


def _legend(kinds: set[str]) -> list[str]:
    parts = []
    at = float(_LEFT)
    for kind, name in _NAMES.items():
        if kind in kinds:
            parts.append(f'<circle class="{kind}" cx="{at + 5:.0f}" cy="14" r="5"/>')
            parts.append(_text(at + 15, 18, name, "tick"))
            at += 36 + 6.2 * len(name)
    return parts


def _line(kind: str, x0: float, x1: float, y0: float, y1: float) -> str:
    return f'<line class="{kind}" x1="{x0:.1f}" x2="{x1:.1f}" y1="{y0:.1f}" y2="{y1:.1f}"/>'


def _text(x: float, y: float, content: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(content)}</text>"
    )
