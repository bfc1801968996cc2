"""Cores under affinity and cgroup limits; GPUs as the driver shows them."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.instance import device


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_affinity", lambda: 16)


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


V2 = "sys/fs/cgroup/"
V1 = "sys/fs/cgroup/cpu,cpuacct/"
SELF = "proc/self/cgroup"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16),  # no cgroups at all
        ({SELF: "0::/\n"}, 16),
        ({SELF: "0::/\n", V2 + "cpu.max": "max 100000\n"}, 16),
        ({SELF: "0::/\n", V2 + "cpu.max": "400000 100000\n"}, 4),
        ({SELF: "0::/\n", V2 + "cpu.max": "250000 100000\n"}, 2),  # a third thread would stall
        ({SELF: "0::/\n", V2 + "cpu.max": "50000 100000\n"}, 1),  # never none
        ({SELF: "0::/\n", V2 + "cpu.max": "9900000 100000\n"}, 16),  # affinity is tighter
        ({SELF: "0::/a/b\n", V2 + "a/cpu.max": "300000 100000\n"}, 3),  # the parent's limit
        (
            {
                SELF: "0::/a/b\n",
                V2 + "a/cpu.max": "300000 100000\n",
                V2 + "a/b/cpu.max": "800000 100000",
            },
            3,
        ),
        # the path of the host, seen from inside a container
        ({SELF: "0::/../../pod\n", V2 + "cpu.max": "200000 100000\n"}, 2),
        (
            {
                SELF: "4:memory:/x\n3:cpu,cpuacct:/docker/1\n",
                V1 + "docker/1/cpu.cfs_quota_us": "600000\n",
                V1 + "docker/1/cpu.cfs_period_us": "100000\n",
            },
            6,
        ),
        (
            {
                SELF: "3:cpu,cpuacct:/docker/1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "500000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            5,
        ),
        (
            {
                SELF: "3:cpu,cpuacct:/\n",
                V1 + "cpu.cfs_quota_us": "-1\n",
                V1 + "cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
        ({SELF: "0::/\n", V2 + "cpu.max": "rubbish"}, 16),
        ({SELF: "0::/\n", V2 + "cpu.max": "1000 0"}, 16),
    ],
)
def test_cores(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert device.available_cores(lay_out(tmp_path, files)) == cores


def test_this_machine_has_a_core() -> None:
    assert device.available_cores() >= 1


class Driver:
    """Stands in for libcuda."""

    def __init__(self, count: int, init_code: int = 0, count_code: int = 0) -> None:
        self.cuInit = lambda _: init_code
        self.cuDeviceGetCount = self._count
        self._answer = SimpleNamespace(count=count, code=count_code)

    def _count(self, where: Any) -> int:
        ctypes.cast(where, ctypes.POINTER(ctypes.c_int))[0] = self._answer.count
        return int(self._answer.code)


def test_gpus_are_counted_from_zero() -> None:
    assert device.gpus({}, lambda _: Driver(3)) == (0, 1, 2)


def test_the_driver_applies_the_visible_list() -> None:
    assert device.gpus({"CUDA_VISIBLE_DEVICES": "2,3"}, lambda _: Driver(2)) == (0, 1)


@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_hidden_gpus_do_not_wake_the_driver(hidden: str) -> None:
    def load(_: str) -> Any:
        raise AssertionError("the driver was loaded")

    assert device.gpus({"CUDA_VISIBLE_DEVICES": hidden}, load) == ()


def test_no_driver_means_no_gpus() -> None:
    def load(_: str) -> Any:
        raise OSError("no such library")

    assert device.gpus({}, load) == ()


@pytest.mark.parametrize(
    ("driver", "warns"),
    [
        (Driver(0), False),
        (Driver(2, init_code=100), False),  # a driver without a device is ordinary
        (Driver(2, init_code=803), True),
        (Driver(2, count_code=999), True),
    ],
)
def test_a_driver_that_cannot_serve(
    driver: Driver, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert device.gpus({}, lambda _: driver) == ()
    assert bool(caplog.records) is warns
