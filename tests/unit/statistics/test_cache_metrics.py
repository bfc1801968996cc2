"""What Prometheus reads about the response cache."""

from __future__ import annotations

import pytest

from shoal.statistics.cache import CacheReading
from shoal.statistics.machine import MachineReading
from shoal.statistics.metrics_settings import MetricsSettings
from shoal.statistics.model import ModelStatistics
from shoal.statistics.prometheus import MetricsRenderer
from tests.support.fakes import FakeClock, make_request

READING = CacheReading(
    lookups=10,
    hits=4,
    lookup_ns=50_000,
    insertions=5,
    insertion_ns=7_900,
    too_large=1,
    failures=2,
    skipped=3,
    entries=5,
    evictions=6,
    utilization=0.25,
)


@pytest.fixture
def models():
    clock = FakeClock()
    cached = ModelStatistics("cached", 1, summaries=True, clock=clock)
    cached.cached = True
    request, _ = make_request(rows=1)
    request.start_ns, request.queued_ns = clock() - 9000, clock() - 5000
    cached.cache_hit(request, clock() - 4000, 3000)
    cached.cache_missed(8000, 2000)
    cached.cache_stored(1000)
    return [cached, ModelStatistics("plain", 1, summaries=True, clock=clock)]


def lines(models, reading=None, **settings):
    settings = MetricsSettings(cpu=False, gpu=False, **settings)
    machine = MachineReading(0.5, 100, 50, 10, 1.0)
    renderer = MetricsRenderer(
        lambda: models, settings, machine=lambda: machine, cache=reading and (lambda: reading)
    )
    return [line for line in renderer.render().decode().splitlines() if not line.startswith("#")]


def test_models_that_use_the_cache(models):
    shown = [line for line in lines(models) if "cache" in line.partition("{")[0]]
    at = '{model="cached",version="1"}'
    assert shown == [
        f"nv_cache_num_hits_per_model{at} 1",
        f"nv_cache_num_misses_per_model{at} 1",
        f"nv_cache_hit_duration_per_model{at} 3",
        f"nv_cache_miss_duration_per_model{at} 9",
        *[line for line in shown if "summary" in line],
    ]
    text = "\n".join(shown)
    assert f"nv_cache_hit_summary_per_model_sum{at} 3" in text
    assert f"nv_cache_miss_summary_per_model_count{at} 1" in text


def test_a_hit_is_a_success_that_waited_and_was_not_executed(models):
    reading = models[0].read()
    assert (reading.success_count, reading.inference_count, reading.execution_count) == (1, 0, 0)
    assert reading.success_ns == 9000 + 2000  # the second part: an answer that was kept first
    assert reading.queue_ns == 1000
    assert reading.last_inference_ms > 0
    assert models[1].read().cache is None


def test_durations_can_be_left_out(models):
    text = "\n".join(lines(models, counter_latencies=False))
    assert "nv_cache_num_hits_per_model" in text
    assert "nv_cache_hit_duration_per_model" not in text


def test_the_cache_as_a_whole():
    shown = [line for line in lines([], READING) if "cache" in line]
    assert shown == [
        "nv_cache_num_entries 5",
        "nv_cache_num_lookups 10",
        "nv_cache_num_hits 4",
        "nv_cache_num_misses 6",
        "nv_cache_num_evictions 6",
        "nv_cache_lookup_duration 50",
        "nv_cache_insertion_duration 7",
        "nv_cache_util 0.25",
        'shoal_cache_not_done{reason="too_large"} 1',
        'shoal_cache_not_done{reason="failed"} 2',
        'shoal_cache_not_done{reason="skipped"} 3',
    ]


def test_without_a_cache_there_is_nothing_to_say():
    assert not [line for line in lines([]) if "cache" in line]
