"""The server's own processes, in the figures that all of Prometheus' client libraries report.

A figure that the platform does not provide is None. Processes of model instances are not included.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import psutil

import shoal
from shoal.statistics.machine import attempt

Figure = TypeVar("Figure", int, float)


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One reading of a process."""

    start_secs: float | None = None  # since the epoch
    cpu_secs: float | None = None
    resident_bytes: int | None = None
    virtual_bytes: int | None = None
    open_files: int | None = None  # file descriptors, sockets included
    max_files: int | None = None
    threads: int | None = None


class ServerProcess:
    """Reads a process of the server through psutil. One thread at a time may read."""

    def __init__(self, pid: int | None = None) -> None:
        """By default this one. psutil.NoSuchProcess for one that has ended."""
        self._process = psutil.Process(pid)

    def read(self) -> ProcessReading:
        """All figures now; those that are not available are None."""
        process = self._process
        cpu = attempt(process.cpu_times)
        memory = attempt(process.memory_info)
        return ProcessReading(
            start_secs=attempt(process.create_time),
            cpu_secs=cpu.user + cpu.system if cpu else None,
            resident_bytes=memory.rss if memory else None,
            virtual_bytes=memory.vms if memory else None,
            open_files=attempt(process.num_fds) if hasattr(process, "num_fds") else None,
            max_files=_max_files(),
            threads=attempt(process.num_threads),
        )


class ServerProcesses:
    """Reads all processes of a server that has several. One thread at a time may read."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        """`pids` are those that run, by their names in the metrics."""
        self._pids = pids
        self._known: dict[tuple[str, int], ServerProcess] = {}
        self._last: dict[tuple[str, int], ProcessReading] = {}
        self._ended_cpu_secs = 0.0

    def read(self) -> dict[str, ProcessReading]:
        """The figures of each of them."""
        readings: dict[tuple[str, int], ProcessReading] = {}
        for key in self._pids().items():
            process = self._known.get(key) or attempt(lambda pid=key[1]: ServerProcess(pid))  # type: ignore[misc]
            if process is not None:
                self._known[key] = process
                readings[key] = process.read()
        for key in set(self._last) - set(readings):
            self._known.pop(key, None)
            self._ended_cpu_secs += self._last[key].cpu_secs or 0.0
        self._last = readings
        return {name: reading for (name, _), reading in readings.items()}

    def total(self, readings: Mapping[str, ProcessReading]) -> ProcessReading:
        """The server as a whole: its processes together, also the CPU time of those that ended."""
        every = list(readings.values())
        cpu_secs = _sum([one.cpu_secs for one in every])
        return ProcessReading(
            start_secs=min([one.start_secs for one in every if one.start_secs], default=None),
            cpu_secs=None if cpu_secs is None else cpu_secs + self._ended_cpu_secs,
            resident_bytes=_sum([one.resident_bytes for one in every]),
            virtual_bytes=_sum([one.virtual_bytes for one in every]),
            open_files=_sum([one.open_files for one in every]),
            max_files=_sum([one.max_files for one in every]),
            threads=_sum([one.threads for one in every]),
        )


def _sum(figures: list[Figure | None]) -> Figure | None:
    found = [figure for figure in figures if figure is not None]
    return sum(found) if found else None


def build_labels() -> dict[str, str]:
    """What was built and what it runs on, for `shoal_build_info`."""
    return {
        "version": shoal.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
    }


def _max_files() -> int | None:
    """How many file descriptors the process may open; None without a limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if most == resource.RLIM_INFINITY else most
