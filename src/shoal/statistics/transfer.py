"""Moves what one process has counted for a model to another process, as plain values.

    front end: take --> counts so far, which are zero again --> add: engine

What is added counts as if it had been counted there, so that there is one truth about a model, and
a process that ends takes with it only what it has counted since the last time.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from shoal.statistics.histogram import Histogram
from shoal.statistics.model import FailureReason, ModelStatistics
from shoal.statistics.summary import DurationSummary

Counts = tuple[Any, ...]  # plain values

_SUMS = (
    "_inference_count",
    "_success_count",
    "_success_ns",
    "_queue_ns",
    "_compute_input_ns",
    "_compute_infer_ns",
    "_compute_output_ns",
    "_fail_ns",
)


def take(statistics: ModelStatistics) -> Counts | None:
    """Everything that was counted since the last time; None if that is nothing. For models without
    a response cache."""
    with statistics._lock:
        statistics._count_ledger()
        failures = [statistics._failures[reason] for reason in FailureReason]
        if not statistics._success_count and not any(failures):
            return None
        counts = (
            statistics._last_inference_ns,
            statistics._last_end_ns,
            [getattr(statistics, name) for name in _SUMS],
            failures,
            statistics._batches,
            [histogram.take() for histogram in _histograms(statistics)],
            [summary.take() for summary in _summaries(statistics)],
        )
        for name in _SUMS:
            setattr(statistics, name, 0)
        statistics._failures = dict.fromkeys(FailureReason, 0)
        statistics._batches = {}
        return counts


def add(statistics: ModelStatistics, counts: Counts) -> None:
    """Add what `take` has returned for the same model in another process."""
    last_inference_ns, last_end_ns, sums, failures, batches, histograms, summaries = counts
    with statistics._lock:
        statistics._count_ledger()
        statistics._last_inference_ns = max(statistics._last_inference_ns, last_inference_ns)
        statistics._last_end_ns = max(statistics._last_end_ns, last_end_ns)
        for name, value in zip(_SUMS, sums, strict=True):
            setattr(statistics, name, getattr(statistics, name) + value)
        for reason, count in zip(FailureReason, failures, strict=True):
            statistics._failures[reason] += count
        for rows, more in batches.items():
            known = statistics._batches.setdefault(rows, [0, 0, 0, 0])
            known[:] = [one + other for one, other in zip(known, more, strict=True)]
        for histogram, taken in zip(_histograms(statistics), histograms, strict=True):
            histogram.add_taken(*taken)
        for summary, taken in zip(_summaries(statistics), summaries, strict=True):
            summary.add_taken(*taken)


def _histograms(statistics: ModelStatistics) -> list[Histogram]:
    live = statistics._histograms
    found = [] if live is None else [getattr(live, field.name) for field in fields(live)]
    return found if statistics._first_response is None else [*found, statistics._first_response]


def _summaries(statistics: ModelStatistics) -> list[DurationSummary]:
    live = statistics._summaries
    return [] if live is None else [getattr(live, field.name) for field in fields(live)]
