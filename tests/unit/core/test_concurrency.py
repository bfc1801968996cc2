"""What a backend reads of the executions at the same time."""

from __future__ import annotations

import pickle

import pytest

from shoal.core.concurrency import ExpectedConcurrency, LoneClient


@pytest.mark.parametrize(
    ("executions", "has_lone_client", "is_lone"),
    [
        (1, False, True),  # on a thread
        (1, True, True),
        (2, False, False),
        (2, True, False),  # on threads, whoever the event loop's client is
        (0, False, False),  # on the event loop, or not known
        (0, True, True),
    ],
)
def test_an_execution_runs_alone(executions, has_lone_client, is_lone):
    client = LoneClient()
    expected = ExpectedConcurrency(client)
    expected.executions = executions
    client.is_there = has_lone_client
    assert expected.is_lone() is is_lone


def test_without_an_event_loop_there_is_no_lone_client():
    assert not ExpectedConcurrency().is_lone()


def test_a_process_of_an_instance_gets_one():
    assert not pickle.loads(pickle.dumps(ExpectedConcurrency())).is_lone()
