"""Running out of time: idle sequences, and those that wait for a slot."""

from __future__ import annotations

import pytest

from shoal.scheduler.sequence_table import (
    IdleSequences,
    SequenceRun,
    expired,
    limit_wait,
    next_expiry_ns,
)
from tests.support.fakes import make_request


@pytest.mark.parametrize(
    ("now", "over"),
    [(100, []), (109, []), (110, [1]), (114, [1]), (115, [1, 2]), (10**9, [1, 2])],
)
def test_those_that_rest_too_long(now, over):
    watch = IdleSequences(10)
    for number, since in ((1, 100), (2, 105)):
        watch.rest(SequenceRun(number), since)
    assert [run.correlation_id for run in watch.over(now)] == over
    assert watch.next_ns() == 110


def test_one_that_stirs_is_not_idle():
    watch = IdleSequences(10)
    run = SequenceRun(1)
    watch.rest(run, 100)
    watch.stir(run)
    watch.stir(run)  # twice is no harm
    assert watch.over(10**9) == []
    assert watch.next_ns() is None
    watch.rest(run, 200)
    assert watch.next_ns() == 210
    assert watch.resting() == [run]


@pytest.mark.parametrize(
    ("timeouts_us", "expires_ns", "changed"),
    [
        ([0], None, [None]),
        ([5], 5000, [5000]),
        ([5, 0], 5000, [5000, None]),
        ([5, 9], 5000, [5000, None]),  # the earliest decides
        ([9, 5], 5000, [9000, 5000]),
        ([0, 5], 5000, [None, 5000]),
    ],
)
def test_a_request_limits_the_wait_of_its_sequence(timeouts_us, expires_ns, changed):
    run = SequenceRun(1)
    requests = [make_request(timeout_us=timeout)[0] for timeout in timeouts_us]
    assert [limit_wait(run, request) for request in requests] == changed
    assert run.expires_ns == expires_ns


def test_expired_waits():
    patient, soon, later = SequenceRun(1), SequenceRun(2), SequenceRun(3)
    soon.expires_ns, later.expires_ns = 100, 200
    backlog = [patient, later, soon]
    assert expired(backlog, 99) == []
    assert expired(backlog, 100) == [soon]
    assert expired(backlog, 200) == [later, soon]
    assert next_expiry_ns(backlog) == 100
    assert next_expiry_ns([patient]) is None
