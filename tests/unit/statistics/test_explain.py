"""Advice as a table: what was seen, and what one change would help."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.statistics.explain import Facts, advise, explain

NO_DELAY = "no queue delay is configured"
FULL = "a preferred size was reached"
SHAPE = "the next request has other shapes or inputs"
DELAY = "the oldest request had waited long enough"

CALM = Facts(
    max_batch_size=8,
    batching=True,
    max_delay_us=0,
    instances=2,
    cores=2,
    cuts=[(NO_DELAY, 1)] * 10,
    requests=10,
    queue_us=10,
    input_us=1,
    compute_us=100,
    output_us=1,
    variable_shapes=False,
)
BUSY = dataclasses.replace(CALM, queue_us=1000)


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (dataclasses.replace(CALM, cuts=[]), "Send some requests first"),
        (CALM, "nothing needs to change"),
        (dataclasses.replace(CALM, batching=False), "nothing needs to change"),
        (dataclasses.replace(BUSY, batching=False), "dynamic_batching { }"),
        (dataclasses.replace(CALM, cuts=[(SHAPE, 1)] * 10), "another shape"),
        (
            dataclasses.replace(CALM, cuts=[(DELAY, 1)] * 10, max_delay_us=500),
            "lower max_queue_delay_microseconds",
        ),
        (dataclasses.replace(BUSY, cuts=[(FULL, 8)] * 10), "raise max_batch_size above 8"),
        (dataclasses.replace(BUSY, max_batch_size=0), "one row at a time"),
        (dataclasses.replace(BUSY, instances=1, cores=4), "raise the count"),
        (BUSY, "the machine is busy"),
    ],
)
def test_advice(facts, word):
    assert word in advise(facts)


def test_numbers_and_words():
    facts = dataclasses.replace(CALM, cuts=[(FULL, 8), (FULL, 8), (NO_DELAY, 2)])
    told = explain(facts)
    assert told["batches"] == {
        "last": 3,
        "mean_rows": 6.0,
        "rows": {"2": 1, "8": 2},
        "cut_because": {FULL: 2, NO_DELAY: 1},
    }
    assert told["mean_us"]["queue"] == 10
    assert "6.0 rows on average, of at most 8" in told["summary"]
    assert f"2 left because {FULL}." in told["summary"]
    assert "9 % of its 112 µs waiting" in told["summary"]


def test_before_the_first_request():
    told = explain(dataclasses.replace(CALM, cuts=[], requests=0))
    assert told["summary"] == "No batch has been executed yet."
    assert told["batches"]["mean_rows"] == 0
