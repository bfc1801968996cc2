"""The server's GPU metrics, read periodically during a measurement.

GET /metrics --> {"Avg GPU Utilization": {"GPU-uuid": 0.5}, …} of one window
"""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import NamedTuple

from shoal.errors import InvalidArgument

_METRICS = {
    "nv_gpu_utilization": "Avg GPU Utilization",
    "nv_gpu_power_usage": "Avg GPU Power Usage",
    "nv_gpu_memory_used_bytes": "Max GPU Memory Usage",
    "nv_gpu_memory_total_bytes": "Total GPU Memory",
}
COLUMNS = tuple(_METRICS.values())
_LARGEST = {"Max GPU Memory Usage", "Total GPU Memory"}
_SAMPLE = re.compile(
    r'^(?P<metric>nv_gpu_\w+)\{[^}]*gpu_uuid="(?P<uuid>[^"]*)"[^}]*\}\s+(?P<value>\S+)',
    re.MULTILINE,
)
_TIMEOUT_SECS = 5

GpuMetrics = dict[str, dict[str, float]]  # column -> device -> value


class _Stamped(NamedTuple):
    at_ns: int
    reading: GpuMetrics


def parse(text: str) -> GpuMetrics:
    """The GPU metrics in Prometheus text."""
    reading: GpuMetrics = {}
    for match in _SAMPLE.finditer(text):
        column = _METRICS.get(match["metric"])
        if column is not None:
            reading.setdefault(column, {})[match["uuid"]] = float(match["value"])
    return reading


def merged(readings: Sequence[Mapping[str, Mapping[str, float]]]) -> GpuMetrics:
    """Several readings as one: means, and maxima of memory."""
    values: dict[str, dict[str, list[float]]] = {}
    for reading in readings:
        for column, devices in reading.items():
            for device, value in devices.items():
                values.setdefault(column, {}).setdefault(device, []).append(value)
    return {
        column: {
            device: max(found) if column in _LARGEST else sum(found) / len(found)
            for device, found in devices.items()
        }
        for column, devices in values.items()
    }


class MetricsReader:
    """Reads the metrics on a thread between `start` and `stop`."""

    def __init__(self, url: str, interval_secs: float) -> None:
        self._url = url if "://" in url else f"http://{url}"
        self._interval_secs = interval_secs
        self._stop = threading.Event()
        self._lock = threading.Lock()  # guards _readings
        self._readings: list[_Stamped] = []
        self._thread = threading.Thread(target=self._run, name="shoal-perf-metrics", daemon=True)

    def start(self) -> None:
        """Start. Raises InvalidArgument when there are no metrics at the URL."""
        try:
            self._read()
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"--collect-metrics: no metrics at {self._url} ({error}); set their address with "
                f"--metrics-url"
            ) from None
        self._thread.start()

    def between(self, begin_ns: int, end_ns: int) -> GpuMetrics:
        """The metrics of a window."""
        with self._lock:
            chosen = [each.reading for each in self._readings if begin_ns <= each.at_ns <= end_ns]
        return merged(chosen)

    def stop(self) -> None:
        """Stop."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_secs):
            try:
                self._read()
            except (OSError, ValueError):
                continue  # skip this reading

    def _read(self) -> None:
        with urllib.request.urlopen(self._url, timeout=_TIMEOUT_SECS) as answer:  # noqa: S310
            reading = parse(answer.read().decode("utf-8", "replace"))
        with self._lock:
            self._readings.append(_Stamped(perf_counter_ns(), reading))
