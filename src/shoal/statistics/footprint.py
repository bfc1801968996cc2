"""What memory a load took: how much this process grew meanwhile, and at least the model's files.

Loads run side by side, so one may see another's growth; where they overlap, each is given the part
that its files are of all of theirs. It is an estimate, good enough to tell large from small.
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
class Footprint:
    """What one load took; known when it is over."""

    file_bytes: int
    memory_bytes: int = 0
    beside: list[int] = field(default_factory=list)  # the files of loads at the same time


class Footprints:
    """Measures loads. Any thread may call any method."""

    def __init__(self, resident: Callable[[], int] | None = None) -> None:
        """`resident` tells how many bytes this process holds; by default the system is asked."""
        self._resident = resident or resident_bytes
        self._lock = threading.Lock()  # guards _running and `beside` of those in it
        self._running: list[Footprint] = []

    @contextmanager
    def measure(self, folder: Path) -> Iterator[Footprint]:
        """Measure what happens inside the block, which loads the files below `folder`."""
        footprint = Footprint(file_bytes(folder))
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
    """The size of all files below `folder`, which may be a file itself; what cannot be looked at
    counts nothing."""
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
    """The memory a process holds, this one unless told; 0 where that cannot be known."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, OSError):
        return 0


footprints = Footprints()
