"""What a backend reads of the executions at the same time."""

from __future__ import annotations

import pickle

from shoal.core.concurrency import ExpectedConcurrency


def test_a_lone_client_counts_on_the_event_loop():
    is_lone = True
    expected = ExpectedConcurrency(lambda: is_lone)
    assert expected.has_lone_client()
    is_lone = False
    assert not expected.has_lone_client()
    is_lone = True
    expected.executions = 1  # on a thread
    assert not expected.has_lone_client()


def test_without_an_event_loop_there_is_none():
    assert not ExpectedConcurrency().has_lone_client()


def test_a_process_of_an_instance_gets_one():
    assert not pickle.loads(pickle.dumps(ExpectedConcurrency())).has_lone_client()
