"""The response cache's part of what Prometheus scrapes, under Triton's names where it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shoal.statistics.cache import CacheCounts, CacheReading
from shoal.statistics.exposition import Exposition, Number, labels_text
from shoal.statistics.metrics_settings import MetricsSettings
from shoal.statistics.model import ModelReading, ModelSummaries
from shoal.statistics.summary import SummaryReading

# For models whose answers are cached.
_COUNTS: tuple[tuple[str, str, Callable[[CacheCounts], int]], ...] = (
    (
        "nv_cache_num_hits_per_model",
        "Requests that the response cache answered",
        lambda cache: cache.hit_count,
    ),
    (
        "nv_cache_num_misses_per_model",
        "Requests that the model answered because the response cache could not",
        lambda cache: cache.miss_count,
    ),
)
_DURATIONS: tuple[tuple[str, str, Callable[[CacheCounts], int]], ...] = (
    (
        "nv_cache_hit_duration_per_model",
        "Total time spent finding cached answers, in microseconds",
        lambda cache: cache.hit_ns,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total time spent looking in vain for cached answers and keeping new ones, in microseconds",
        lambda cache: cache.miss_ns,
    ),
)
_SUMMARIES: tuple[tuple[str, str, Callable[[ModelSummaries], SummaryReading]], ...] = (
    (
        "nv_cache_hit_summary_per_model",
        "Time spent finding a cached answer, in microseconds",
        lambda summaries: summaries.cache_hit_ns,
    ),
    (
        "nv_cache_miss_summary_per_model",
        "Time spent looking in vain for a cached answer and keeping the new one, in microseconds",
        lambda summaries: summaries.cache_miss_ns,
    ),
)
# Of the cache as a whole: name, kind, help, value (None where the cache does not know it).
_CACHE: tuple[tuple[str, str, str, Callable[[CacheReading], Number | None]], ...] = (
    (
        "nv_cache_num_entries",
        "gauge",
        "Answers in the response cache",
        lambda reading: reading.entries,
    ),
    (
        "nv_cache_num_lookups",
        "counter",
        "Times the response cache was asked",
        lambda reading: reading.lookups,
    ),
    (
        "nv_cache_num_hits",
        "counter",
        "Times the response cache had the answer",
        lambda reading: reading.hits,
    ),
    (
        "nv_cache_num_misses",
        "counter",
        "Times the response cache did not have the answer",
        lambda reading: reading.misses,
    ),
    (
        "nv_cache_num_evictions",
        "counter",
        "Answers that made room for others in the response cache",
        lambda reading: reading.evictions,
    ),
    (
        "nv_cache_lookup_duration",
        "counter",
        "Total time of asking the response cache, in microseconds",
        lambda reading: reading.lookup_ns // 1000,
    ),
    (
        "nv_cache_insertion_duration",
        "counter",
        "Total time of putting answers into the response cache, in microseconds",
        lambda reading: reading.insertion_ns // 1000,
    ),
    (
        "nv_cache_util",
        "gauge",
        "Used share of the response cache, 0 to 1",
        lambda reading: reading.utilization,
    ),
)
# Why an answer is not in the cache though it could be.
_NOT_DONE: tuple[tuple[str, Callable[[CacheReading], int]], ...] = (
    ("too_large", lambda reading: reading.too_large),
    ("failed", lambda reading: reading.failures),
    ("skipped", lambda reading: reading.skipped),
)


def add_models(
    text: Exposition,
    readings: Sequence[tuple[Mapping[str, str], ModelReading]],
    settings: MetricsSettings,
) -> None:
    """Add what was counted for each model whose answers are cached."""
    cached = [(labels_text(labels), r.cache) for labels, r in readings if r.cache is not None]
    for name, help_text, pick in _COUNTS:
        text.family(name, "counter", help_text, [(at, pick(cache)) for at, cache in cached])
    if settings.counter_latencies:
        for name, help_text, pick in _DURATIONS:
            samples = [(at, pick(cache) // 1000) for at, cache in cached]
            text.family(name, "counter", help_text, samples)
    summaries = [(labels, r.summaries) for labels, r in readings if r.cache and r.summaries]
    for name, help_text, choose in _SUMMARIES:
        chosen = [(labels, choose(summary)) for labels, summary in summaries]
        text.summary(name, help_text, 1000, settings.summary_quantiles, chosen)


def add_cache(text: Exposition, reading: CacheReading) -> None:
    """Add what was counted for the cache as a whole."""
    for name, kind, help_text, pick in _CACHE:
        text.family(name, kind, help_text, [("", pick(reading))])
    text.family(
        "shoal_cache_not_done",
        "counter",
        "Lookups and insertions that the response cache did not do, by reason",
        [(labels_text({"reason": reason}), count(reading)) for reason, count in _NOT_DONE],
    )
