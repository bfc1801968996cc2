"""`pb_utils.MetricFamily`: a model's own metrics, beside the server's.

They exist as long as a model references them: a family is removed with its last object.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeVar

from shoal.backends.python.api import arguments, host
from shoal.backends.python.api.errors import TritonModelException
from shoal.backends.python.api.host import FamilyHandle, MetricHandle
from shoal.errors import ShoalError

Result = TypeVar("Result")

_GONE = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
    "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been "
    "deleted."
)


class MetricKind(enum.IntEnum):
    """What a family's metrics do."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricFamily:
    """Metrics of one name with different labels."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    _handle: FamilyHandle | None = None

    def __init__(self, name: str | bytes, description: str | bytes, kind: MetricKind) -> None:
        """A family of this name; an existing one is shared."""
        name = arguments.text("a MetricFamily's name", name)
        description = arguments.text("a MetricFamily's description", description)
        if not isinstance(kind, MetricKind):
            raise TypeError(f"a MetricFamily's kind must be COUNTER, GAUGE or HISTOGRAM: {kind!r}")
        self._kind = kind
        server = host.current().host
        self._metrics: list[Metric] = []
        self._handle = _attempt(
            "Error when creating MetricFamily",
            lambda: server.metric_family(name, description, kind.name.lower()),
        )

    def Metric(  # noqa: N802 - Triton's name
        self, labels: dict[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """The metric with these labels; a histogram needs the upper bounds of its `buckets`."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if buckets is not None and self._kind is not MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        if buckets is None and self._kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        handle = self._handle
        assert handle is not None
        bounds = None if buckets is None else [float(bound) for bound in buckets]
        made = _attempt(
            "Error when creating Metric", lambda: handle.metric(dict(labels or {}), bounds)
        )
        metric = Metric(made)
        self._metrics = [known for known in self._metrics if known._handle is not None]
        self._metrics.append(metric)
        return metric

    def __del__(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            for metric in self._metrics:
                metric._close()
            handle.close()


class Metric:
    """One number that Prometheus scrapes. Made by `MetricFamily.Metric`."""

    def __init__(self, handle: MetricHandle) -> None:
        self._handle: MetricHandle | None = handle

    def increment(self, value: float) -> None:
        """Add `value`; a counter never decreases."""
        _attempt("Failed to increment metric value", lambda: self._open().increment(float(value)))

    def set(self, value: float) -> None:
        """Let a gauge show `value`."""
        _attempt("Failed to set metric value", lambda: self._open().set(float(value)))

    def observe(self, value: float) -> None:
        """Count `value` into a histogram."""
        _attempt("Failed to observe metric value", lambda: self._open().observe(float(value)))

    def value(self) -> float:
        """What a counter or gauge shows."""
        return _attempt("Failed to get metric value", lambda: self._open().value())

    def _open(self) -> MetricHandle:
        if self._handle is None:
            raise ValueError(_GONE)
        return self._handle

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()


def _attempt(what: str, action: Callable[[], Result]) -> Result:
    try:
        return action()
    except (ValueError, ShoalError) as error:
        raise TritonModelException(f"{what}: {error}") from None
