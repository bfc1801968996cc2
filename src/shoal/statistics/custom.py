"""Metrics that models define: counters, gauges and histograms with names of their own.

    model --family(name)--> CustomMetrics --render--> after the server's own metrics

A family lives as long as there is a handle to it. A request for an existing name returns the same
family, and for existing labels the same metric, so several instances of a model count together.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate, pairwise

from shoal.statistics.exposition import Exposition, Number, labels_text, number_text

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_KINDS = {
    "increment": (COUNTER, GAUGE),
    "set": (GAUGE,),
    "observe": (HISTOGRAM,),
    "value": (COUNTER, GAUGE),
}
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def check_change(kind: str, operation: str, value: float) -> None:
    """Raise ValueError if a metric of this kind does not support that: no call may fail later."""
    if kind not in _KINDS[operation]:
        raise ValueError(f"a {kind} does not support '{operation}'")
    if kind == COUNTER and value < 0:
        raise ValueError(f"a counter can only be incremented by a non-negative value: {value}")


class CustomMetrics:
    """All families of one server. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards everything below it, values included
        self._families: dict[str, _Family] = {}

    def family(self, name: str, description: str, kind: str) -> CustomFamily:
        """A handle to the family `name`. ValueError for a bad name, or one of another kind."""
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"'{name}' is not a metric name: use letters, digits, underscores and colons"
            )
        if kind not in (COUNTER, GAUGE, HISTOGRAM):
            raise ValueError(f"a metric is a counter, a gauge or a histogram, not a '{kind}'")
        with self._lock:
            family = self._families.get(name)
            if family is None:
                family = self._families[name] = _Family(name, description, kind)
            elif family.kind != kind:
                raise ValueError(f"the metric '{name}' exists already, and is a {family.kind}")
            family.holds += 1
        return CustomFamily(self, family)

    def render(self, text: Exposition) -> None:
        """Add every family that has a metric to `text`."""
        with self._lock:
            for name in sorted(self._families):
                self._families[name].render(text)


class _Metric:
    """One value, or the counts of one histogram."""

    def __init__(self, labels: Mapping[str, str], buckets: tuple[float, ...]) -> None:
        self.labels = dict(labels)
        self.holds = 0
        self.value = 0.0  # of a counter or gauge; the sum of a histogram
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)


class _Family:
    """One name; guarded by the lock of CustomMetrics."""

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name = name
        self.description = " ".join(description.split()).replace("\\", "\\\\")
        self.kind = kind
        self.holds = 0
        self.metrics: dict[tuple[tuple[str, str], ...], _Metric] = {}

    def render(self, text: Exposition) -> None:
        if not self.metrics:
            return
        samples: list[tuple[str, str, Number]] = []
        for metric in self.metrics.values():
            at = labels_text(metric.labels) if metric.labels else ""
            if self.kind != HISTOGRAM:
                samples.append(("", at, metric.value))
                continue
            samples.append(("_count", at, sum(metric.counts)))
            samples.append(("_sum", at, metric.value))
            start = f"{at[:-1]}," if at else "{"
            bounds = [*map(number_text, metric.buckets), "+Inf"]
            for bound, count in zip(bounds, accumulate(metric.counts), strict=True):
                samples.append(("_bucket", f'{start}le="{bound}"}}', count))
        text.grouped(self.name, self.kind, self.description, samples)


class CustomFamily:
    """A handle to a family. Close it exactly once."""

    def __init__(self, owner: CustomMetrics, family: _Family) -> None:
        self._owner = owner
        self._family = family

    def metric(self, labels: Mapping[str, str], buckets: list[float] | None) -> CustomMetric:
        """A handle to the metric with these labels. ValueError for bad labels or buckets."""
        for name, value in labels.items():
            if not isinstance(name, str) or not _LABEL.fullmatch(name):
                raise ValueError(f"{name!r} is not a label name: use letters, digits and _")
            if not isinstance(value, str):
                raise ValueError(f"the value of label '{name}' must be a str, not {type(value)}")  # noqa: TRY004
        bounds = tuple(float(bound) for bound in buckets or ())
        if any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"the buckets of a histogram must rise strictly, found {buckets}")
        key = tuple(sorted(labels.items()))
        with self._owner._lock:
            metric = self._family.metrics.get(key)
            if metric is None:
                metric = self._family.metrics[key] = _Metric(labels, bounds)
            metric.holds += 1
        return CustomMetric(self._owner, self._family, metric)

    def close(self) -> None:
        """Release the handle; the last one removes the family."""
        with self._owner._lock:
            self._family.holds -= 1
            if not self._family.holds:
                self._owner._families.pop(self._family.name, None)


class CustomMetric:
    """A handle to a metric. Close it exactly once."""

    def __init__(self, owner: CustomMetrics, family: _Family, metric: _Metric) -> None:
        self._owner = owner
        self._family = family
        self._metric = metric

    def increment(self, value: float) -> None:
        """Add to a counter or gauge; ValueError when a counter would go down."""
        check_change(self._family.kind, "increment", value)
        with self._owner._lock:
            self._metric.value += value

    def set(self, value: float) -> None:
        """Set a gauge."""
        check_change(self._family.kind, "set", value)
        with self._owner._lock:
            self._metric.value = value

    def observe(self, value: float) -> None:
        """Count a value into a histogram."""
        check_change(self._family.kind, "observe", value)
        metric = self._metric
        with self._owner._lock:
            metric.counts[bisect_left(metric.buckets, value)] += 1
            metric.value += value

    def value(self) -> float:
        """The value of a counter or gauge."""
        check_change(self._family.kind, "value", 0)
        return self._metric.value

    def close(self) -> None:
        """Release the handle; the last one removes the metric."""
        with self._owner._lock:
            self._metric.holds -= 1
            if not self._metric.holds:
                self._family.metrics.pop(tuple(sorted(self._metric.labels.items())), None)


local = CustomMetrics()  # of code that runs outside a server
