"""The server's own process, in the figures that all of Prometheus' client libraries report.

A figure that the platform does not provide is None. Processes of model instances are not included.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

import psutil

import shoal
from shoal.statistics.machine import attempt


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One reading of this process."""

    start_secs: float | None = None  # since the epoch
    cpu_secs: float | None = None
    resident_bytes: int | None = None
    virtual_bytes: int | None = None
    open_files: int | None = None  # file descriptors, sockets included
    max_files: int | None = None
    threads: int | None = None


class ServerProcess:
    """Reads this process through psutil. One thread at a time may read."""

    def __init__(self) -> None:
        self._process = psutil.Process()

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
