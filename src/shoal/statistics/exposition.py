"""Prometheus' text format, version 0.0.4: families of samples with a head of two lines each.

    # HELP shoal_batch_size Rows per execution of the model
    # TYPE shoal_batch_size histogram
    shoal_batch_size_bucket{model="simple",version="1",le="1"} 12

Any label value is allowed if it is escaped; invalid characters in label names are replaced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from shoal.statistics.histogram import HistogramReading
from shoal.statistics.summary import SummaryReading

Number = int | float
_LINES_AT_ONCE = 2_000


class Exposition:
    """Collects lines of the text format."""

    def __init__(self, pause: Callable[[], None] = lambda: None) -> None:
        """`pause` is called again and again: the text of many models takes a while."""
        self._lines: list[str] = []
        self._pause = pause

    def family(
        self, name: str, kind: str, help_text: str, samples: Iterable[tuple[str, Number | None]]
    ) -> None:
        """Add a metric with one sample per labels text; None is no sample."""
        present = [(at, value) for at, value in samples if value is not None]
        self._pause()
        if present:
            self._head(name, kind, help_text)
            self._lines += [f"{name}{at} {number_text(value)}" for at, value in present]

    def grouped(
        self, name: str, kind: str, help_text: str, samples: Iterable[tuple[str, str, Number]]
    ) -> None:
        """Add a metric whose samples have a suffix to its name, then labels and value."""
        self._head(name, kind, help_text)
        self._lines += [f"{name}{suffix}{at} {number_text(value)}" for suffix, at, value in samples]

    def histogram(
        self,
        name: str,
        help_text: str,
        unit: int,
        readings: Sequence[tuple[Mapping[str, str], HistogramReading]],
    ) -> None:
        """Add a histogram per label set, its values divided by `unit`."""
        if not readings:
            return
        self._head(name, "histogram", help_text)
        for labels, reading in readings:
            self._pause()
            bounds = [number_text(edge / unit) for edge in reading.edges] + ["+Inf"]
            inner = labels_text(labels)[1:-1]
            self._lines += [
                f'{name}_bucket{{{inner},le="{bound}"}} {count}'
                for bound, count in zip(bounds, reading.cumulative, strict=True)
            ]
            self._lines.append(f"{name}_sum{{{inner}}} {number_text(reading.total / unit)}")
            self._lines.append(f"{name}_count{{{inner}}} {reading.count}")

    def summary(
        self,
        name: str,
        help_text: str,
        unit: int,
        quantiles: Sequence[float],
        readings: Sequence[tuple[Mapping[str, str], SummaryReading]],
    ) -> None:
        """Add a summary per label set, its values divided by `unit`."""
        if not readings:
            return
        self._head(name, "summary", help_text)
        for labels, reading in readings:
            self._pause()
            at = labels_text(labels)
            self._lines += [
                f'{name}{at[:-1]},quantile="{share:g}"}} '
                f"{number_text(reading.quantile(share) / unit)}"
                for share in quantiles
            ]
            self._lines.append(f"{name}_sum{at} {number_text(reading.total / unit)}")
            self._lines.append(f"{name}_count{at} {reading.count}")

    def encode(self) -> bytes:
        """The text; invalid Unicode (in the name of a folder) becomes question marks."""
        parts = []
        for begin in range(0, len(self._lines), _LINES_AT_ONCE):
            self._pause()
            lines = self._lines[begin : begin + _LINES_AT_ONCE]
            parts.append("\n".join([*lines, ""]).encode("utf-8", "replace"))
        return b"".join(parts)

    def _head(self, name: str, kind: str, help_text: str) -> None:
        self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def labels_text(labels: Mapping[str, str]) -> str:
    """`{a="1",b="2"}`, sorted by name as Triton writes them, values escaped."""
    pairs = (f'{name}="{_escape(labels[name])}"' for name in sorted(labels))
    return "{" + ",".join(pairs) + "}"


def number_text(value: Number) -> str:
    """A number without exponent, with 9 decimals, for scripts that match digits only."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    return f"{value:.9f}".rstrip("0").rstrip(".")


def label_name(name: str) -> str:
    """`name` with an underscore for each character that Prometheus does not allow."""
    cleaned = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
