from __future__ import annotations

import psutil
import pytest

from shoal.statistics import machine as machine_module
from shoal.statistics.machine import Machine, MachineReading, utilization


def test_this_machine_has_figures():
    reading = Machine().read()
    assert reading.memory_total_bytes
    assert reading.memory_used_bytes
    assert 0 < reading.memory_used_bytes < reading.memory_total_bytes
    assert reading.process_resident_bytes
    assert reading.process_resident_bytes > 1_000_000
    assert reading.process_cpu_secs
    assert reading.cpu_utilization is None or 0 <= reading.cpu_utilization <= 1


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"user": 1.0, "idle": 1.0}, {"user": 2.0, "idle": 4.0}, 0.25),
        ({"user": 1.0, "idle": 1.0}, {"user": 1.0, "idle": 2.0}, 0.0),
        ({"user": 0.0, "system": 0.0, "idle": 0.0}, {"user": 1.0, "system": 1.0, "idle": 0.0}, 1.0),
        # waiting for a disk is idle; it may even seem to run backwards
        ({"user": 0.0, "idle": 0.0, "iowait": 5.0}, {"user": 1.0, "idle": 1.0, "iowait": 4.0}, 0.5),
        ({"user": 0.0, "idle": 0.0, "iowait": 0.0}, {"user": 1.0, "idle": 0.0, "iowait": 1.0}, 0.5),
        # a guest's second is in `user` already
        ({"user": 0.0, "guest": 0.0, "idle": 0.0}, {"user": 1.0, "guest": 1.0, "idle": 1.0}, 0.5),
        ({"user": 1.0, "idle": 1.0}, {"user": 1.0, "idle": 1.0}, 0.125),  # no time has passed
    ],
)
def test_utilization_is_the_busy_share(before, now, expected):
    assert utilization(before, now, otherwise=0.125) == expected


def test_readings_follow_one_another(monkeypatch):
    times = iter(
        [
            {"user": 0.0, "idle": 0.0},
            {"user": 1.0, "idle": 3.0},
            {"user": 1.0, "idle": 3.0},
            {"user": 4.0, "idle": 4.0},
        ]
    )
    monkeypatch.setattr(machine_module, "_cpu_times", lambda: next(times))
    machine = Machine()
    assert [machine.read().cpu_utilization for _ in range(3)] == [0.25, 0.25, 0.75]


def test_a_platform_that_tells_nothing_is_no_error(monkeypatch):
    def refuse(*_):
        raise psutil.AccessDenied

    monkeypatch.setattr(machine_module, "_cpu_times", refuse)
    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    monkeypatch.setattr(psutil.Process, "memory_info", refuse)
    monkeypatch.setattr(psutil.Process, "cpu_times", refuse)
    assert Machine().read() == MachineReading()
