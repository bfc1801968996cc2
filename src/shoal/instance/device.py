"""What this process may run on: CPU cores (affinity and cgroup limits) and GPUs.

Both are about this process, not the machine: a container that may use two of 64 cores
has two, and a GPU hidden by CUDA_VISIBLE_DEVICES is not there.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

_CUDA_SUCCESS = 0
_CUDA_ERROR_NO_DEVICE = 100


def available_cores(root: Path = Path("/")) -> int:
    """How many cores this process may keep busy; at least 1.

    The smaller of the CPU affinity and the cgroup's CPU quota. A quota of 2.5 cores counts as
    two: a third thread would use up the quota early and have all of them stopped until the next
    period. `root` is where /proc and /sys are looked for.
    """
    cores = _affinity()
    quota = _cgroup_quota(root)
    if quota is not None:
        cores = min(cores, int(quota))
    return max(1, cores)


def gpus(
    environment: Mapping[str, str] = os.environ,
    load: Callable[[str], Any] = ctypes.CDLL,
) -> tuple[int, ...]:
    """The GPUs CUDA shows to this process, counted from 0 as CUDA does; empty where there are none.

    Asks the driver library itself, so nothing has to be installed. Never raises.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return ()  # hidden on purpose: the driver need not even be woken
    try:
        cuda = load("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return ()
    code = int(cuda.cuInit(0))
    if code != _CUDA_SUCCESS:
        if code != _CUDA_ERROR_NO_DEVICE:
            _log.warning("the CUDA driver is installed but cannot start (error %d): no GPUs", code)
        return ()
    count = ctypes.c_int(0)
    code = int(cuda.cuDeviceGetCount(ctypes.byref(count)))
    if code != _CUDA_SUCCESS:
        _log.warning("the CUDA driver cannot count its GPUs (error %d): no GPUs", code)
        return ()
    return tuple(range(count.value))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroup_quota(root: Path) -> float | None:
    """The tightest CPU quota on this process, in cores; None where there is no limit.

    A parent's limit binds its children, so every level from our group up to the top counts.
    """
    quotas = [quota for quota in _quotas(root) if quota > 0]
    return min(quotas) if quotas else None


def _quotas(root: Path) -> Iterator[float]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux, or no /proc
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # cgroup v2: one tree for everything
            for folder in _levels(mount, path):
                yield _quota_v2(folder)
        elif "cpu" in controllers.split(","):
            for name in ("cpu", controllers):
                for folder in _levels(mount / name, path):
                    yield _quota_v1(folder)


def _levels(mount: Path, path: str) -> Iterator[Path]:
    """Our group's folder and its parents. Inside a container the path may lie outside what is
    mounted; then only the top, which is the container's own group, exists."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _quota_v2(folder: Path) -> float:
    """`cpu.max` holds "<quota> <period>", or "max <period>" where there is no limit."""
    words = _words(folder / "cpu.max")
    return _ratio(words[0], words[1]) if len(words) == 2 else 0.0


def _quota_v1(folder: Path) -> float:
    """The quota is -1 where there is no limit."""
    quota = "".join(_words(folder / "cpu.cfs_quota_us"))
    return _ratio(quota, "".join(_words(folder / "cpu.cfs_period_us")))


def _ratio(quota: str, period: str) -> float:
    """Quota in cores; 0 stands for no limit, or one we cannot read."""
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:
        return 0.0
    return int(quota) / int(period)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
