"""The machine's CPU and memory, and this process's share of them.

Utilization is measured between two readings, so the first one covers the time since the `Machine`
was made. Used memory is memory that is not available to new programs, as `free` counts it. A figure
that the platform does not provide is None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psutil

Figure = TypeVar("Figure")

# Linux counts a guest's time in `user` and `nice` as well, so it must not be added again.
_COUNTED_ELSEWHERE = frozenset({"guest", "guest_nice"})
_IDLE = frozenset({"idle", "iowait"})


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """One process of a server that has several."""

    name: str
    pid: int
    cpu_secs: float | None
    resident_bytes: int | None
    connections: int | None  # of front ends


@dataclass(frozen=True, slots=True)
class MachineReading:
    """One reading of the machine and of this process, or of all processes of the server."""

    cpu_utilization: float | None = None  # 0 … 1 over all cores
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    process_resident_bytes: int | None = None
    process_cpu_secs: float | None = None
    processes: tuple[ProcessFigures, ...] = ()  # where there are several


class Machine:
    """Reads the machine through psutil. One thread at a time may read."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._times = attempt(_cpu_times)
        self._utilization: float | None = None

    def read(self) -> MachineReading:
        """All figures now; those that are not available are None."""
        memory = attempt(psutil.virtual_memory)
        resident = attempt(self._process.memory_info)
        cpu = attempt(self._process.cpu_times)
        return MachineReading(
            cpu_utilization=self._utilization_since_last(),
            memory_total_bytes=memory.total if memory else None,
            memory_used_bytes=memory.total - memory.available if memory else None,
            process_resident_bytes=resident.rss if resident else None,
            process_cpu_secs=cpu.user + cpu.system if cpu else None,
        )

    def _utilization_since_last(self) -> float | None:
        before, now = self._times, attempt(_cpu_times)
        if now is None:
            return None
        self._times = now
        self._utilization = utilization(before or now, now, otherwise=self._utilization)
        return self._utilization


def utilization(
    before: dict[str, float], now: dict[str, float], otherwise: float | None
) -> float | None:
    """The busy share of the CPU time between two readings; `otherwise` when no time has passed."""
    busy = idle = 0.0
    for kind, secs in now.items():
        passed = max(0.0, secs - before.get(kind, 0.0))  # some kernels let `iowait` fall
        if kind in _IDLE:
            idle += passed
        elif kind not in _COUNTED_ELSEWHERE:
            busy += passed
    return busy / (busy + idle) if busy + idle else otherwise


def _cpu_times() -> dict[str, float]:
    return dict(psutil.cpu_times()._asdict())


def attempt(read: Callable[[], Figure]) -> Figure | None:
    """What `read` gives, or None where the platform (a locked-down /proc, say) refuses it."""
    try:
        return read()
    except (psutil.Error, OSError, NotImplementedError):
        return None
