from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

import triton_python_backend_utils as pb_utils
from shoal.backends.python.process.remote_host import RemoteHost, RemoteMetric
from shoal.statistics.custom import local
from shoal.statistics.exposition import Exposition

COUNTER = pb_utils.MetricFamily.COUNTER
GAUGE = pb_utils.MetricFamily.GAUGE
HISTOGRAM = pb_utils.MetricFamily.HISTOGRAM


def rendered():
    text = Exposition()
    local.render(text)
    return text.encode().decode()


def test_a_counter_counts():
    family = pb_utils.MetricFamily("unit_requests", "Requests so far", COUNTER)
    metric = family.Metric(labels={"b": "2", "a": "1"})
    metric.increment(2)
    metric.increment(0.5)
    assert metric.value() == 2.5
    assert '# TYPE unit_requests counter\nunit_requests{a="1",b="2"} 2.5\n' in rendered()
    with pytest.raises(pb_utils.TritonModelException, match=r"Failed to increment.*non-negative"):
        metric.increment(-1)
    with pytest.raises(pb_utils.TritonModelException, match=r"Failed to set.*'set'"):
        metric.set(1)
    with pytest.raises(pb_utils.TritonModelException, match="Failed to observe"):
        metric.observe(1)


def test_a_gauge_goes_both_ways():
    family = pb_utils.MetricFamily("unit_level", "Level", GAUGE)
    metric = family.Metric()
    metric.set(5)
    metric.increment(-2)
    assert metric.value() == 3
    assert "unit_level 3\n" in rendered()


def test_a_histogram_sorts_into_buckets():
    family = pb_utils.MetricFamily("unit_sizes", "Sizes", HISTOGRAM)
    metric = family.Metric(labels={"model": "m"}, buckets=[0.1, 1, 2.5])
    for value in (0.05, 1.0, 6.0):
        metric.observe(value)
    expected = [
        'unit_sizes_count{model="m"} 3',
        'unit_sizes_sum{model="m"} 7.05',
        'unit_sizes_bucket{model="m",le="0.1"} 1',
        'unit_sizes_bucket{model="m",le="1"} 2',
        'unit_sizes_bucket{model="m",le="2.5"} 2',
        'unit_sizes_bucket{model="m",le="+Inf"} 3',
    ]
    assert "\n".join(expected) in rendered()
    for operation in (lambda: metric.increment(1), lambda: metric.set(1), metric.value):
        with pytest.raises(pb_utils.TritonModelException):
            operation()


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        (COUNTER, {"labels": []}, "Labels must be a dictionary"),
        (COUNTER, {"labels": {"a": 1}}, "must be a str"),
        (COUNTER, {"labels": {"a b": "1"}}, "not a label name"),
        (COUNTER, {"buckets": [1]}, "Unexpected buckets found"),
        (HISTOGRAM, {}, "Missing required buckets"),
        (HISTOGRAM, {"buckets": (1, 2)}, "Buckets must be a list"),
        (HISTOGRAM, {"buckets": [2, 1]}, "rise strictly"),
        (HISTOGRAM, {"buckets": [1, 1]}, "rise strictly"),
    ],
)
def test_wrong_metrics(kind, arguments, text):
    family = pb_utils.MetricFamily("unit_wrong", "x", kind)
    with pytest.raises(pb_utils.TritonModelException, match=text):
        family.Metric(**arguments)


def test_a_name_has_one_kind():
    family = pb_utils.MetricFamily("unit_same", "first", COUNTER)
    with pytest.raises(pb_utils.TritonModelException, match="and is a counter"):
        pb_utils.MetricFamily("unit_same", "x", GAUGE)
    with pytest.raises(pb_utils.TritonModelException, match="not a metric name"):
        pb_utils.MetricFamily("not a name", "x", GAUGE)
    with pytest.raises(TypeError):
        pb_utils.MetricFamily(None, "x", GAUGE)
    again = pb_utils.MetricFamily("unit_same", "second", COUNTER)
    one, other = family.Metric({"a": "1"}), again.Metric({"a": "1"})
    one.increment(1)
    assert other.value() == 1
    assert "unit_same first" in rendered()
    assert "second" not in rendered()


def test_a_family_ends_with_the_last_who_holds_it():
    one = pb_utils.MetricFamily("unit_short", "x", COUNTER)
    two = pb_utils.MetricFamily("unit_short", "x", COUNTER)
    metric = one.Metric()
    kept = two.Metric()
    del one
    gc.collect()
    with pytest.raises(pb_utils.TritonModelException, match="'MetricFamily' has been deleted"):
        metric.increment(1)
    assert kept.value() == 0
    assert "unit_short" in rendered()
    del two
    gc.collect()
    assert "unit_short" not in rendered()


def test_a_process_does_not_wait_for_changes_of_its_metrics():
    sent = []
    link = SimpleNamespace(send=lambda *message: sent.append(message), wait_for_room=lambda _: None)
    metric = RemoteMetric(RemoteHost(link, lambda: None), "counter", 3)
    metric.increment(2.0)
    assert sent == [("call", 0, "change_metric", (3, "increment", 2.0))]
    with pytest.raises(ValueError, match="does not support 'observe'"):
        metric.observe(1.0)
    with pytest.raises(ValueError, match="non-negative"):
        metric.increment(-1.0)
    assert len(sent) == 1
