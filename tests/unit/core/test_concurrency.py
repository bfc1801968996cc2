"""Whether the execution that begins runs alone."""

from __future__ import annotations

import pytest

from shoal.core.concurrency import ExpectedConcurrency


@pytest.mark.parametrize(("executions", "alone"), [(0, False), (1, True), (2, False)])
def test_as_many_as_the_scheduler_expects(executions, alone):
    expected = ExpectedConcurrency()
    expected.executions = executions
    assert expected.runs_alone() is alone


def test_on_the_event_loop_where_there_is_one_client():
    is_lone = True
    expected = ExpectedConcurrency(lambda: is_lone)
    assert expected.runs_alone()
    is_lone = False
    assert not expected.runs_alone()
    expected.executions = 1  # on a thread
    assert expected.runs_alone()
    is_lone = True
    expected.executions = 2
    assert not expected.runs_alone()
