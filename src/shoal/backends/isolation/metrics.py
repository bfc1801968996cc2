"""Metrics that a model in another process defines; the server keeps them.

    child: RemoteMetrics.family --> messages, none of which is answered --> server: MetricCalls

Counting never waits for the server, because some models count at every step.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import Unsupported
from shoal.link.link import Link
from shoal.statistics.custom import CustomFamily, CustomMetric, CustomMetrics

logger = logging.getLogger(__name__)


class MetricCalls:
    """The metrics of one process, on the server. Called by the thread that reads the link."""

    def __init__(self, metrics: CustomMetrics) -> None:
        self._metrics = metrics
        self._held: dict[int, Any] = {}

    def handlers(self) -> dict[str, Callable[..., None]]:
        """The handlers by kind of message."""
        return {
            "family": self._on_family,
            "metric": self._on_metric,
            "count": self._on_count,
            "release": self._on_release,
        }

    def _on_family(self, number: int, name: str, description: str, kind: str) -> None:
        try:
            self._held[number] = self._metrics.family(name, description, kind)
        except ValueError as error:
            logger.error("%s", error)  # noqa: TRY400 - a sentence, not a traceback

    def _on_metric(
        self, number: int, family: int, labels: dict[str, str], buckets: list[float] | None
    ) -> None:
        held: CustomFamily | None = self._held.get(family)
        if held is None:
            return
        try:
            self._held[number] = held.metric(labels, buckets)
        except ValueError as error:
            logger.error("%s", error)  # noqa: TRY400 - as above

    def _on_count(self, number: int, operation: str, value: float) -> None:
        held: CustomMetric | None = self._held.get(number)
        if held is None:
            return
        try:
            getattr(held, operation)(value)
        except ValueError as error:
            logger.error("%s", error)  # noqa: TRY400 - as above

    def _on_release(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            held.close()

    def close(self) -> None:
        """The process has ended: release its metrics, the last made ones first."""
        for number in sorted(self._held, reverse=True):
            self._on_release(number)


class RemoteMetrics(CustomMetrics):
    """The server's metrics, in a child."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link
        self.numbers = itertools.count(1)

    def family(self, name: str, description: str, kind: str) -> CustomFamily:
        """A handle to the family `name`. The server logs an error for a bad name."""
        number = next(self.numbers)
        self.link.send("family", number, name, description, kind)
        return _RemoteFamily(self, number)


class _RemoteFamily(CustomFamily):
    def __init__(self, owner: RemoteMetrics, number: int) -> None:
        self._remote = owner
        self._number = number

    def metric(self, labels: Mapping[str, str], buckets: list[float] | None) -> CustomMetric:
        number = next(self._remote.numbers)
        self._remote.link.send("metric", number, self._number, dict(labels), buckets)
        return _RemoteMetric(self._remote.link, number)

    def close(self) -> None:
        self._remote.link.send("release", self._number)


class _RemoteMetric(CustomMetric):
    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number

    def increment(self, value: float) -> None:
        self._link.send("count", self._number, "increment", value)

    def set(self, value: float) -> None:
        self._link.send("count", self._number, "set", value)

    def observe(self, value: float) -> None:
        self._link.send("count", self._number, "observe", value)

    def value(self) -> float:
        raise Unsupported("the value of a metric cannot be read in a model's own process")

    def close(self) -> None:
        self._link.send("release", self._number)
