"""What the instances of a model have generated, for statistics and metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from shoal.statistics.custom import COUNTER, GAUGE, CustomFamily, CustomMetric, CustomMetrics

_FAMILIES = (
    ("steps", "shoal_generation_steps_total", "Runs of the decoder", COUNTER),
    (
        "rows",
        "shoal_generation_rows_total",
        "Rows of all runs of the decoder; divided by the runs this is the mean batch",
        COUNTER,
    ),
    ("encoded", "shoal_generation_encoded_total", "Photos that were encoded", COUNTER),
    ("texts", "shoal_generation_texts", "Texts under way", GAUGE),
)


class Counts:
    """The counts of one model version. Any thread may call any method."""

    def __init__(self, labels: Mapping[str, str], metrics: CustomMetrics | None) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._sizes: dict[int, int] = {}  # runs of the decoder, by number of rows
        self._encoder_sizes: dict[int, int] = {}
        self.texts: Callable[[], int] = lambda: 0  # in progress; set by the model
        self._holds: list[CustomFamily] = []
        self._metrics: dict[str, CustomMetric] = {}
        if metrics is not None:
            for key, name, description, kind in _FAMILIES:
                hold = metrics.family(name, description, kind)
                self._holds.append(hold)
                self._metrics[key] = hold.metric(labels, None)

    def decoded(self, rows: int) -> None:
        """The decoder ran with `rows` rows."""
        with self._lock:
            self._sizes[rows] = self._sizes.get(rows, 0) + 1
        if self._metrics:
            self._metrics["steps"].increment(1)
            self._metrics["rows"].increment(rows)

    def texts_changed(self) -> None:
        """The number of texts in progress has changed."""
        if self._metrics:
            self._metrics["texts"].set(self.texts())

    def encoded(self, size: int) -> None:
        """The encoder ran with `size` photos."""
        with self._lock:
            self._encoder_sizes[size] = self._encoder_sizes.get(size, 0) + 1
        if self._metrics:
            self._metrics["encoded"].increment(size)

    def snapshot(self) -> dict[str, Any]:
        """The counts as the model's statistics contain them."""
        with self._lock:
            decoder, encoder = dict(self._sizes), dict(self._encoder_sizes)
        return {
            "texts": self.texts(),
            "decoder": _described(decoder),
            "encoder": _described(encoder),
        }

    def close(self) -> None:
        """Release the metrics."""
        for metric in self._metrics.values():
            metric.close()
        for hold in self._holds:
            hold.close()


def _described(sizes: Mapping[int, int]) -> dict[str, Any]:
    return {
        "execution_count": sum(sizes.values()),
        "row_count": sum(size * count for size, count in sizes.items()),
        "batch_stats": [{"batch_size": size, "count": sizes[size]} for size in sorted(sizes)],
    }
