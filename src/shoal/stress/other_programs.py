"""The CPU time of other programs during a run: it explains odd numbers."""

from __future__ import annotations

import contextlib

import psutil

_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")  # `user` includes the guests' time


def others_secs() -> float:
    """CPU time since boot, without that of this process and its children.

    Only differences are meaningful, and only while the children run.
    """
    machine = psutil.cpu_times()
    busy_secs = sum(value for name, value in machine._asdict().items() if name not in _NOT_BUSY)
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended
            times = process.cpu_times()
            busy_secs -= times.user + times.system
    return float(busy_secs)


def share(before_secs: float, after_secs: float, duration_secs: float) -> float:
    """The share of all CPUs that others used between two readings."""
    whole_secs = duration_secs * (psutil.cpu_count() or 1)
    if whole_secs <= 0:
        return 0.0
    return min(1.0, max(0.0, (after_secs - before_secs) / whole_secs))
