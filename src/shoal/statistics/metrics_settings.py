"""Which metrics are shown, from the command line."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shoal.errors import InvalidArgument
from shoal.statistics.model import StatisticsOptions

logger = logging.getLogger(__name__)

_DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Which metrics are shown: the `--metrics-…` and `--allow-…-metrics` options."""

    interval_ms: int = 2000  # machine and GPU figures may be this old
    cpu: bool = True
    gpu: bool = True
    counter_latencies: bool = True  # the nv_inference_*_duration_us counters
    summary_latencies: bool = False  # the nv_inference_*_summary_us summaries
    summary_quantiles: tuple[float, ...] = _DEFAULT_QUANTILES
    histogram_latencies: bool = False  # nv_inference_first_response_histogram_ms

    @property
    def counted(self) -> StatisticsOptions:
        """What has to be counted in addition for these metrics."""
        return StatisticsOptions(self.summary_latencies, self.histogram_latencies)

    def configured(self, entries: Iterable[str]) -> MetricsSettings:
        """These settings with each `<setting>=<value>` of `--metrics-config` applied.

        Raises InvalidArgument for an unknown setting or an invalid value.
        """
        settings = self
        for entry in entries:
            name, separator, value = entry.partition("=")
            if not (name and separator and value):
                raise InvalidArgument(
                    f"--metrics-config '{entry}' is not of the form <setting>=<value>; "
                    f"write for example --metrics-config=counter_latencies=false"
                )
            if name in ("counter_latencies", "summary_latencies", "histogram_latencies"):
                settings = replace(settings, **{name: _truth(name, value)})  # type: ignore[arg-type]
            elif name == "summary_quantiles":
                settings = replace(settings, summary_quantiles=_quantiles(value))
            else:
                raise InvalidArgument(
                    f"--metrics-config has no setting '{name}'; its settings are "
                    "counter_latencies, histogram_latencies, summary_latencies and "
                    "summary_quantiles"
                )
        return settings


def _truth(name: str, value: str) -> bool:
    word = value.lower()
    if word in ("true", "1"):
        return True
    if word in ("false", "0"):
        return False
    raise InvalidArgument(f"--metrics-config {name}={value}: write {name}=true or {name}=false")


def _quantiles(text: str) -> tuple[float, ...]:
    """The quantiles of `<quantile>:<error>,...`, read as Triton does: what follows a number is
    ignored, and a wrong pair is left out with an error in the log. The errors have no effect, as
    ranks are exact."""
    quantiles = []
    for pair in text.split(","):
        quantile, _, error = pair.partition(":")
        share = _NUMBER.match(quantile)
        if share is None or _NUMBER.match(error) is None or not 0 <= float(share[0]) <= 1:
            logger.error(
                "--metrics-config summary_quantiles takes <quantile>:<error>[,...] with quantiles "
                "from 0 to 1, such as 0.5:0.05,0.99:0.001; '%s' is left out",
                pair,
            )
        else:
            quantiles.append(float(share[0]))
    return tuple(quantiles) or _DEFAULT_QUANTILES
