"""Percentiles, steady rates, medians over turns and ratios within a turn."""

from __future__ import annotations

import pytest
from benchmarks.measures import (
    ATTEMPTS,
    Load,
    Measurement,
    percentile,
    quietest,
    ratio,
    steady_rate,
    summarise,
)


def record(peer, turn, per_second, *, cpu_us=10.0, concurrency=16, errors=None, note=""):
    return Measurement(
        "W1",
        peer,
        "wrk",
        "http",
        concurrency,
        turn,
        1000,
        per_second,
        100.0,
        200.0,
        cpu_us,
        errors=errors or {},
        note=note,
    ).record()


CELL = ("W1", "wrk", "http", 16)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),  # order does not matter
        ([float(value) for value in range(1, 101)], 0.99, 99.0),
        ([float(value) for value in range(1, 101)], 1.0, 100.0),
        ([1.0, 2.0], 0.0, 1.0),
    ],
)
def test_percentile(values, share, expected):
    assert percentile(values, share) == expected


def test_steady_rate_of_one_client_is_the_rate_of_its_answers():
    starts = [0.1 * place for place in range(50)]
    assert steady_rate(starts, [0.1] * 50) == pytest.approx(10.0, rel=0.01)


def test_steady_rate_does_not_credit_the_first_batch():
    # Eight clients whose requests are answered together, once a second, five times.
    starts = [float(second) for second in range(5) for _ in range(8)]
    assert steady_rate(starts, [1.0] * 40) == pytest.approx(8.0, rel=0.01)


def test_steady_rate_leaves_out_the_end_when_clients_run_dry():
    # Two clients, one answer every half second; the last request takes long all by itself.
    starts = [0.0, 0.5, 0.5, 1.0, 1.5, 2.0]
    durations = [0.5, 0.5, 1.0, 1.0, 1.0, 30.0]
    assert steady_rate(starts, durations) == pytest.approx(2.0, rel=0.35)


def test_steady_rate_without_a_steady_part_is_the_plain_rate():
    assert steady_rate([], []) == 0.0
    assert steady_rate([0.0, 0.0], [2.0, 2.0]) == pytest.approx(1.0)


def test_errors_are_noted_by_kind_and_only_when_there_are_any():
    load = Load(10, 1.0, 10.0, 1.0, 2.0)
    load.note("timeout", 0)
    load.note("status", 2)
    load.note("status", 1)
    assert load.errors == {"status": 3}


def test_summarise_takes_medians_over_turns_and_adds_errors_up():
    records = [
        record("shoal", 0, 100.0, cpu_us=1.0),
        record("shoal", 1, 300.0, cpu_us=9.0, errors={"status": 2}),
        record("shoal", 2, 200.0, cpu_us=2.0, errors={"timeout": 1}),
        record("triton", 0, 50.0),
    ]
    rows = {row["peer"]: row for row in summarise(records)}
    ours = rows["shoal"]
    assert (ours["per_second"], ours["cpu_us"], ours["errors"]) == (200.0, 2.0, 3)
    assert (ours["lowest_per_second"], ours["highest_per_second"]) == (100.0, 300.0)
    assert (ours["turns"], ours["requests"]) == (3, 3000)
    assert rows["triton"]["turns"] == 1


def test_summarise_keeps_concurrencies_apart_and_unknown_figures_unknown():
    rows = summarise([record("shoal", 0, 1.0), record("shoal", 0, 2.0, concurrency=64)])
    assert [(row["concurrency"], row["per_second"]) for row in rows] == [(16, 1.0), (64, 2.0)]
    assert rows[0]["memory_mb"] is None


def test_ratio_is_taken_within_a_turn():
    # The machine was twice as slow in turn 1, for both: each turn says 2, the medians agree.
    records = [
        record("shoal", 0, 200.0),
        record("triton", 0, 100.0),
        record("shoal", 1, 100.0),
        record("triton", 1, 50.0),
    ]
    assert ratio(records, CELL, "shoal", "triton") == 2.0


def test_ratio_is_unknown_when_no_turn_has_both():
    records = [record("shoal", 0, 200.0), record("triton", 1, 100.0)]
    assert ratio(records, CELL, "shoal", "triton") is None
    assert ratio(records, ("W2", "wrk", "http", 16), "shoal", "shoal") is None


class Attempt:
    def __init__(self, others_cores):
        self.others_cores = others_cores


@pytest.mark.parametrize(
    ("noise", "quiet_cores", "kept", "pauses"),
    [
        ([0.9, 0.1], 0.0, 0.9, 0),  # nobody asked for quiet
        ([0.2, 0.1], 0.25, 0.2, 0),  # quiet enough at once
        ([0.9, 0.1], 0.25, 0.1, 1),
        ([0.9, 0.5, 0.7, 0.8], 0.25, 0.5, 3),  # never quiet: the least noisy one
    ],
)
def test_quietest(noise, quiet_cores, kept, pauses):
    attempts = (Attempt(one) for one in noise)
    waited = []
    best = quietest(lambda: next(attempts), quiet_cores, waited.append)
    assert best.others_cores == kept
    assert len(waited) == pauses < ATTEMPTS


def test_a_record_is_plain_and_rounded():
    plain = record("shoal", 0, 1 / 3)
    assert plain["per_second"] == 0.333
    assert plain["errors"] == {}
