"""`tritonserver.MetricFamily` and `Metric`: metrics of the program, which every server reports."""

from __future__ import annotations

from shoal.statistics.custom import CustomFamily, CustomMetric, local
from shoal.statistics.exposition import Exposition
from shoal.tritonserver.enums import MetricKind
from shoal.tritonserver.errors import InvalidArgumentError, UnsupportedError


class MetricFamily:
    """Metrics of one name with different labels. It is reported as long as the program has it."""

    _handle: CustomFamily | None = None

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        self.kind = MetricKind(kind)
        try:
            self._handle = local.family(name, description, self.kind.name.lower())
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None

    def __del__(self) -> None:
        if self._handle is not None:
            self._handle.close()


class Metric:
    """One number."""

    _handle: CustomMetric | None = None

    def __init__(self, family: MetricFamily, labels: dict[str, str] | None = None) -> None:
        self._family = family
        assert family._handle is not None
        try:
            self._handle = family._handle.metric(labels or {}, None)
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None

    @property
    def kind(self) -> MetricKind:
        """What it does."""
        return self._family.kind

    @property
    def value(self) -> float:
        """Its value."""
        return self._open().value()

    def increment(self, value: float) -> None:
        """Add to it; a counter never decreases."""
        try:
            self._open().increment(value)
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None

    def set_value(self, value: float) -> None:
        """Set a gauge."""
        try:
            self._open().set(value)
        except ValueError as error:
            raise UnsupportedError(str(error)) from None

    def _open(self) -> CustomMetric:
        assert self._handle is not None
        return self._handle

    def __del__(self) -> None:
        if self._handle is not None:
            self._handle.close()


def render() -> str:
    """The metrics of the program as text for Prometheus."""
    text = Exposition()
    local.render(text)
    return text.encode().decode()
