"""The summary of windows: rates, means and percentiles on the client side.

[MeasurementWindow, …] --summarise--> LoadSummary          several windows count as one long one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shoal.perf.server_side import ServerSide
from shoal.perf.worker_pool import LevelMeasurement

PERCENTILES = (50, 90, 95, 99)
TAIL = 99.9


@dataclass(slots=True)
class MeasurementWindow:
    """One window, measured by client and server."""

    measurement: LevelMeasurement
    server: ServerSide | None = None  # None without server statistics
    devices: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """The client side of all windows. Times are in microseconds."""

    requests: int
    duration_secs: float
    per_second: float  # rows a second
    responses_per_second: float
    send_rate: float
    delayed: int
    sequences: int
    average_us: float
    deviation_us: float
    percentiles_us: dict[int, float]
    tail_us: float  # the percentile TAIL
    highest_us: float
    send_us: float
    receive_us: float
    overhead_percent: float  # share of the slots' time without a request in flight
    histogram: tuple[tuple[float, int], ...]  # upper edge in µs, and number of requests
    busiest: float  # CPU share of the busiest worker
    starved: float
    workers: int

    @property
    def sequences_per_second(self) -> float:
        """Completed sequences a second."""
        return self.sequences / self.duration_secs if self.duration_secs else 0.0

    @property
    def wait_us(self) -> float:
        """From the last byte sent to the first one received."""
        return max(0.0, self.average_us - self.send_us - self.receive_us)

    def latency_us(self, percentile: int | None) -> float:
        """The latency to compare with other windows and limits: the mean or a percentile."""
        return self.average_us if percentile is None else self.percentiles_us[percentile]


def summarise(
    measurements: Sequence[LevelMeasurement],
    *,
    batch: int,
    percentile: int | None = None,
    concurrency: int = 0,
) -> LoadSummary:
    """Summarise all windows; without requests every number is 0."""
    latencies_us = np.concatenate(
        [(measurement.ends - measurement.starts) / 1000 for measurement in measurements]
        or [np.empty(0)]
    )
    count = len(latencies_us)
    duration_ns = sum(measurement.duration_ns for measurement in measurements)
    seconds = duration_ns / 1e9
    percentiles = sorted({*PERCENTILES, *([percentile] if percentile is not None else [])})
    shares = [*percentiles, TAIL, 100]
    *found, tail, highest = np.percentile(latencies_us, shares) if count else np.zeros(len(shares))
    busy_us = float(latencies_us.sum())
    answered = max(1, count)
    return LoadSummary(
        requests=count,
        duration_secs=seconds,
        per_second=count * batch / seconds if seconds else 0.0,
        responses_per_second=_sum(measurements, "responses") / seconds if seconds else 0.0,
        send_rate=_sum(measurements, "sent") / seconds if seconds else 0.0,
        delayed=_sum(measurements, "delayed"),
        sequences=_sum(measurements, "sequence_ends"),
        average_us=busy_us / answered,
        deviation_us=float(latencies_us.std(ddof=1)) if count > 1 else 0.0,
        percentiles_us=dict(zip(percentiles, map(float, found), strict=True)),
        tail_us=float(tail),
        highest_us=float(highest),
        send_us=_sum(measurements, "send_ns") / answered / 1000,
        receive_us=_sum(measurements, "receive_ns") / answered / 1000,
        overhead_percent=(
            max(0.0, 100 * (1 - busy_us * 1000 / (duration_ns * concurrency)))
            if concurrency and duration_ns
            else 0.0
        ),
        histogram=_histogram(latencies_us),
        busiest=max((measurement.busiest for measurement in measurements), default=0.0),
        starved=max((measurement.starved for measurement in measurements), default=0.0),
        workers=max((len(measurement.cpu_ns) for measurement in measurements), default=0),
    )


def _sum(measurements: Sequence[LevelMeasurement], name: str) -> int:
    return sum(int(getattr(measurement, name)) for measurement in measurements)


def _histogram(latencies_us: np.ndarray, bars: int = 40) -> tuple[tuple[float, int], ...]:
    """Counts in logarithmic bins."""
    if not len(latencies_us):
        return ()
    low = max(1.0, float(latencies_us.min()))
    high = max(low * 1.01, float(latencies_us.max()) * 1.001)
    edges = np.geomspace(low * 0.999, high, bars + 1)
    counts, _ = np.histogram(latencies_us, edges)
    return tuple((float(edge), int(count)) for edge, count in zip(edges[1:], counts, strict=True))
