from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from shoal.statistics.exposition import Exposition, label_name, labels_text, number_text
from shoal.statistics.histogram import Histogram


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12, "12"),
        (2**60 + 1, "1152921504606846977"),
        (0.0, "0"),
        (1.0, "1"),
        (100.0, "100"),
        (0.25, "0.25"),
        (0.00005, "0.00005"),  # not 5e-05
        (1e-9, "0.000000001"),
        (1e17, "100000000000000000"),
    ],
)
def test_numbers_have_no_exponent(value, text):
    assert number_text(value) == text


def test_labels_are_sorted_and_escaped():
    labels = {"version": "1", "model": 'a"b\\c\nd', "_tag": "x"}
    assert labels_text(labels) == '{_tag="x",model="a\\"b\\\\c\\nd",version="1"}'


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [("_team", "_team"), ("_a-b.c", "_a_b_c"), ("9lives", "_9lives"), ("", "_"), ("é", "_")],
)
def test_label_names_are_cleaned(name, cleaned):
    assert label_name(name) == cleaned
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", cleaned)


def test_a_family_without_samples_is_left_out():
    text = Exposition()
    text.family("a", "gauge", "A", [])
    text.family("b", "gauge", "B", [("", None)])
    text.histogram("c", "C", 1, [])
    assert text.encode() == b""


def test_the_text_of_a_gauge_and_a_histogram():
    histogram = Histogram([500_000, 2_000_000_000])
    histogram.add(250_000, 2)
    histogram.add(3_000_000_000)
    text = Exposition()
    text.family("a", "gauge", "The a", [("", 1), (labels_text({"x": "y"}), 0.5)])
    text.histogram("b_seconds", "The b", 1_000_000_000, [({"m": "n"}, histogram.read())])
    assert text.encode().decode() == (
        "# HELP a The a\n"
        "# TYPE a gauge\n"
        "a 1\n"
        'a{x="y"} 0.5\n'
        "# HELP b_seconds The b\n"
        "# TYPE b_seconds histogram\n"
        'b_seconds_bucket{m="n",le="0.0005"} 2\n'
        'b_seconds_bucket{m="n",le="2"} 2\n'
        'b_seconds_bucket{m="n",le="+Inf"} 3\n'
        'b_seconds_sum{m="n"} 3.0005\n'
        'b_seconds_count{m="n"} 3\n'
    )


def test_names_that_are_no_unicode_do_not_spoil_the_scrape():
    text = Exposition()
    text.family("a", "gauge", "A", [(labels_text({"model": "caf\udce9"}), 1)])
    assert b'a{model="caf?"} 1\n' in text.encode()


@given(value=st.text(), count=st.integers(0, 2**53))
def test_any_label_value_survives_the_trip(value, count):
    text = Exposition()
    text.family("a", "counter", "A", [(labels_text({"model": value, "version": "1"}), count)])
    (family,) = text_string_to_metric_families(text.encode().decode())
    (sample,) = family.samples
    # Half a surrogate pair is no text: it arrives as a question mark.
    assert sample.labels["model"] == value.encode("utf-8", "replace").decode()
    assert sample.value == count


@given(value=st.floats(0, 1e15))
def test_numbers_survive_the_trip(value):
    assert float(number_text(value)) == pytest.approx(value, abs=1e-9)
