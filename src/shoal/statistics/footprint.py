"""The memory of a loaded model: how much this process grew, and at least the size of its files.

Loads run in parallel, so that one may measure another's growth; where they overlap, the growth is
divided by the size of their files. This is an estimate, good enough to tell large from small.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass(eq=False, slots=True)
class MemoryFootprint:
    """The memory of one load; known when it has ended."""

    file_bytes: int
    memory_bytes: int = 0
    beside: list[int] = field(default_factory=list)  # the files of loads at the same time


class FootprintMeter:
    """Measures loads. Any thread may call any method."""

    def __init__(self, resident: Callable[[], int] | None = None) -> None:
        """`resident` returns the memory of this process; by default from the system."""
        self._resident = resident or resident_bytes
        self._lock = threading.Lock()  # guards _running and `beside` of those in it
        self._running: list[MemoryFootprint] = []

    @contextmanager
    def measure(self, folder: Path) -> Iterator[MemoryFootprint]:
        """Measure the block, which loads the files below `folder`."""
        footprint = MemoryFootprint(file_bytes(folder))
        with self._lock:
            for other in self._running:
                other.beside.append(footprint.file_bytes)
                footprint.beside.append(other.file_bytes)
            self._running.append(footprint)
        before = self._resident()
        try:
            yield footprint
        finally:
            grown = max(0, self._resident() - before)
            with self._lock:
                self._running.remove(footprint)
            every = footprint.file_bytes + sum(footprint.beside)
            if footprint.beside and every:
                grown = grown * footprint.file_bytes // every
            footprint.memory_bytes = max(footprint.file_bytes, grown)


def file_bytes(folder: Path) -> int:
    """The size of all files below `folder`, which may be a file itself; files that cannot be read
    count as 0."""
    if folder.is_file():
        return folder.stat().st_size
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size  # noqa: PTH116, PTH118 - quick
            except OSError:
                continue
    return total


def resident_bytes(pid: int | None = None) -> int:
    """The memory of a process, by default this one; 0 if it is not known."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, OSError):
        return 0


footprint_meter = FootprintMeter()
