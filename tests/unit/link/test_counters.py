"""Counters of several processes; here all of them are in one."""

from __future__ import annotations

import os
import sys

import pytest

from shoal.link import counters as module
from shoal.link.counters import COUNT, SINCE, SPENT, SharedCounters, SharedRow

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs memfd")


@pytest.fixture
def one_slot(monkeypatch):
    monkeypatch.setattr(module, "_SLOTS", 2)  # the other one is the server's


@pytest.fixture
def processes():
    file = SharedCounters.make(3)
    yield [SharedCounters(file, 3, own) for own in range(3)]
    os.close(file)


def test_the_server_counts_what_all_processes_have(processes):
    for number, one in enumerate(processes):
        one.of_server(1).set(10 + number)
    assert [one.of_server(1).total() for one in processes] == [33, 33, 33]
    processes[2].clear()
    assert processes[0].of_server(1).total() == 21


def test_a_name_has_one_row_in_all_processes(processes):
    for one in processes:
        for name, amount in (("a", 1), ("b", 100)):
            row = SharedRow(one, name)
            row.read()
            row.add(COUNT, amount)
    assert SharedRow(processes[0], "a").read()[:3] == (1, 1, 1)
    assert SharedRow(processes[1], "b").read()[:3] == (100, 100, 100)
    processes[0].clear()
    assert SharedRow(processes[1], "b").read()[:3] == (0, 100, 100)


@pytest.mark.usefixtures("one_slot")
def test_a_row_in_use_is_not_given_to_another_name(processes):
    first, second = SharedRow(processes[0], "first"), SharedRow(processes[1], "second")
    first.read()
    first.add(COUNT, 1)
    second.read()
    second.add(COUNT, 5)  # for itself: there is no slot
    assert second.read()[:3] == (5, 0, 0)
    assert first.read()[:3] == (1, 0, 0)
    first.add(COUNT, -1)
    second.add(COUNT, -5)
    assert second.read()[:3] == (0, 0, 0)
    second.add(COUNT, 7)
    assert SharedRow(processes[2], "second").read()[:3] == (0, 7, 0)
    assert not first.is_current


@pytest.mark.usefixtures("one_slot")
def test_what_is_not_earned_back_keeps_its_row(processes):
    row = SharedRow(processes[0], "first")
    row.read()
    row.put(SINCE, 1e18)
    row.add(SPENT, 1e9)
    assert SharedRow(processes[1], "second").read() == (0,) * 15
    assert row.is_current
