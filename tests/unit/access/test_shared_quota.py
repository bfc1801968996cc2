"""Quotas of keys that several processes count; here all of them are in one."""

from __future__ import annotations

import math
import os
import random
import sys

import pytest

from shoal.access.access import Access
from shoal.access.caller import Caller
from shoal.access.entry import KeyEntry, digest_of
from shoal.access.shared_quota import SharedCaller
from shoal.errors import QuotaExceeded
from shoal.link.counters import SharedCounters

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs memfd")
SECOND_NS = 1_000_000_000


@pytest.fixture
def callers():
    """Makes the callers of one key in two processes."""
    file = SharedCounters.make(2)
    counters = [SharedCounters(file, 2, own) for own in range(2)]

    def make(**limits):
        entry = KeyEntry("key", sha256=digest_of(b"secret").hex(), **limits)
        return [Access([entry], counters=each).identify(b"secret", None) for each in counters]

    yield make
    os.close(file)


def test_a_key_without_limits_is_not_shared(callers):
    assert [type(caller) for caller in callers()] == [Caller, Caller]
    assert [type(caller) for caller in callers(burst=2, requests_per_second=1)] == [
        SharedCaller
    ] * 2


def test_requests_in_flight_are_those_of_all_processes(callers):
    first, second = callers(requests_in_flight=3)
    assert [one.admit(0, 0) for one in (first, second, first, second, first)] == [
        *(True, True, True),
        *(False, False),
    ]
    first.end()
    assert second.admit(0, 0)
    with pytest.raises(QuotaExceeded, match="3 requests in flight"):
        first.begin(0)
    assert (first.counts.requests, second.counts.requests) == (2, 2)


def test_bytes_are_those_of_all_processes(callers):
    first, second = callers(bytes_per_second=1000)
    now_ns = 10 * SECOND_NS
    assert first.admit(600, now_ns)
    second_admitted = second.admit(0, now_ns)
    second.finish(500)
    assert second_admitted
    assert not first.admit(0, now_ns)
    assert first.admit(0, now_ns + SECOND_NS // 5)


def test_a_rate_is_that_of_one_process_with_all_requests(callers):
    """Any order of requests in two processes is admitted as by one caller that gets all of them."""
    rng = random.Random(7)
    first, second = callers(requests_per_second=100, burst=5)
    alone = Access(
        [KeyEntry("key", sha256=digest_of(b"s").hex(), requests_per_second=100, burst=5)]
    ).identify(b"s", None)
    now_ns, admitted = 5 * SECOND_NS, 0
    for _ in range(3000):
        now_ns += int(rng.expovariate(1 / 4_000_000)) if rng.random() < 0.99 else SECOND_NS // 4
        expected = alone.admit(0, now_ns)
        assert rng.choice((first, second)).admit(0, now_ns) == expected
        admitted += expected
    assert 1000 < admitted < 2500
    assert alone.quota.due_ns < math.inf
