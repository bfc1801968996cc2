"""How far downloads are, and how fast they may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.storage.source import Source

SizeCallback = Callable[[Source, int], None]


@dataclass(slots=True)
class Progress:
    """How far a download is; read by any thread, and changed by those of the transfer."""

    started: float
    name: str = ""  # of what is downloaded, for the log
    total_bytes: int = 0
    total_files: int = 0
    done_bytes: int = 0
    left: Callable[[int], None] = lambda _change: None  # called when more or less is left to do
    _changing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def percent(self) -> int:
        """Of the bytes that had to be downloaded."""
        return min(100, 100 * self.done_bytes // self.total_bytes) if self.total_bytes else 100

    def expect(self, files: int, size: int) -> None:
        """So much has to be downloaded, too."""
        with self._changing:
            self.total_files += files
            self.total_bytes += size
        self.left(size)

    def add(self, size: int) -> None:
        """More bytes are here; a negative number if they have to be read again."""
        with self._changing:
            self.done_bytes += size
        self.left(-size)

    def end(self) -> None:
        """Nothing more is downloaded, whether all is here or not."""
        self.left(self.done_bytes - self.total_bytes)


class RateLimit:
    """A number of bytes per second for everything together; 0: no limit."""

    def __init__(self, bytes_per_sec: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_sec = bytes_per_sec
        self._clock = clock
        self._free_at = clock()
        self._changing = threading.Lock()  # guards _free_at

    def delay_secs(self, size: int) -> float:
        """For how long to wait before reading this number of bytes, which count from now on."""
        if not self.bytes_per_sec:
            return 0.0
        with self._changing:
            now = self._clock()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self.bytes_per_sec
        return begin - now


def megabytes(size: float) -> str:
    """A size for texts."""
    return f"{size / 1e6:.0f} MB" if size >= 10e6 else f"{size / 1e6:.3g} MB"
