"""The tables of metrics: complete, without repetition, and documented."""

from __future__ import annotations

from pathlib import Path

from shoal.statistics import metrics

DOCS = Path(__file__).parents[3] / "docs"
NAMES = [
    metric.name
    for table in (
        metrics.MODEL,
        metrics.HISTOGRAMS,
        metrics.SUMMARIES,
        metrics.CACHE,
        metrics.KEYS,
        metrics.SERVER,
        metrics.REPOSITORY,
        metrics.PROCESS,
        metrics.ALWAYS,
        metrics.MACHINE,
        metrics.GPU,
    )
    for metric in table
]


def test_each_name_is_there_once():
    assert len(NAMES) == len(set(NAMES))


def test_every_metric_is_documented():
    text = "".join((DOCS / page).read_text() for page in ("metrics.md", "response-cache.md"))
    written_out = text.replace("`…_", "`nv_inference_")  # a row may shorten all names but the first
    assert [name for name in NAMES if f"`{name}`" not in written_out] == []
