"""Executions that are written down together count as if each had been counted at once."""

from __future__ import annotations

import gc
import random
from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise

import pytest

from shoal.statistics import ledger as ledger_module
from shoal.statistics.ledger import ExecutionLedger
from shoal.statistics.model import _MOST_ACCOUNTS, ModelStatistics, Moments

EDGES = (10, 100, 1000)


def add(ledger, account, span=0):
    ledger.add(account.number, 5, 5, (5, 5, 5, 5 + span), 5 + span)


@pytest.mark.parametrize("most_entries", [1, 7, 1024])
def test_sums_and_histograms(monkeypatch, most_entries):
    monkeypatch.setattr(ledger_module, "_MOST_ENTRIES", most_entries)
    ledger, dice = ExecutionLedger(EDGES), random.Random(5)
    accounts = [ledger.open() for _ in range(40)]  # more than there is room for at first
    assert len({account.number for account in accounts}) == len(accounts)
    wanted = [[0] * 7 + [[0] * (len(EDGES) + 1) for _ in range(3)] for _ in accounts]
    for _ in range(500):
        place = dice.randrange(len(accounts))
        start, queued, *moments, end = sorted(dice.sample(range(1, 3000), 7))
        queued = dice.choice([0, queued, end])  # which did not wait, except for the second
        ledger.add(accounts[place].number, start, queued, tuple(moments), end)
        wait = moments[0] - queued if 0 < queued < moments[0] else 0
        sums = wanted[place]
        steps = [later - earlier for earlier, later in pairwise(moments)]
        for position, more in enumerate((1, end - start, wait, *steps)):
            sums[position] += more
        sums[6] = max(sums[6], end)
        for buckets, value in zip(
            sums[7:], (end - start, wait, moments[3] - moments[0]), strict=True
        ):
            buckets[bisect_left(EDGES, value)] += 1
    for account, sums in zip(accounts, wanted, strict=True):
        (taken,) = ledger.take([account])
        assert list(taken) == sums
        assert ledger.take([account]) == [None]


def test_the_place_of_a_freed_account_is_used_again_and_empty():
    ledger = ExecutionLedger(EDGES)
    accounts = [ledger.open() for _ in range(16)]
    numbers = {account.number for account in accounts}
    for account in accounts:
        add(ledger, account)
    del account
    accounts.clear()
    gc.collect()
    for _ in range(16):
        accounts.append(ledger.open())
    assert {account.number for account in accounts} == numbers
    assert ledger.take(accounts) == [None] * 16


def test_a_model_with_requests_of_many_sizes(make_request):
    counted = ModelStatistics("m", 1)
    sizes = range(1, 2 * _MOST_ACCOUNTS)
    for rows in sizes:
        counted.executed_one_by_one([make_request(1, 2, rows=rows)], [(3, 4, 5, 6)])
        counted.executed([make_request(1, 2, rows=rows)], rows, Moments(3, 4, 5, 6))
    reading = counted.read()
    assert {rows: batch.count for rows, batch in reading.batches.items()} == dict.fromkeys(sizes, 2)
    assert reading.success_count == reading.histograms.batch_size.count == 2 * len(sizes)
    assert reading.inference_count == 2 * sum(sizes)


def test_a_batch_counts_the_same_whether_or_not_it_goes_through_the_ledger(make_request):
    dice = random.Random(7)
    counted = ModelStatistics("m", 1, clock=lambda: 0, wall_clock=lambda: 0)
    wanted = ModelStatistics("m", 1, clock=lambda: 0, wall_clock=lambda: 0)
    wanted._uses_ledger = False
    for _ in range(300):
        count, size = dice.randint(1, 5), dice.randint(1, 2)
        start, queued, *moments, end = sorted(dice.sample(range(1, 30_000_000), 7))
        requests = [make_request(start, queued, rows=size) for _ in range(count)]
        if dice.random() < 0.3:  # the last arrived later
            requests[-1] = make_request(queued, moments[0], rows=size)
        for one in (counted, wanted):
            one.executed(requests, count * size, tuple(moments), end_ns=end)
    assert len(counted._accounts) > 5
    assert not wanted._accounts
    reading, other = counted.read(), wanted.read()
    last_ms = reading.last_inference_ms, other.last_inference_ms  # by different clocks
    assert replace(reading, last_inference_ms=0) == replace(other, last_inference_ms=0), last_ms


def test_rows_that_serve_no_request_are_no_inferences(make_request):
    counted = ModelStatistics("m", 1)
    counted.executed([make_request(1, 2), make_request(1, 2)], 8, Moments(3, 4, 5, 6))
    reading = counted.read()
    assert reading.inference_count == 2
    assert list(reading.batches) == [8]
