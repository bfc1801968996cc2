"""Shared memory between two processes: segments that one side writes and the other reads.

    SegmentPool.take(size) --fill--> number --> SegmentViews.lease(number) --last view--> released

On Linux a segment is a file that exists in memory only: it has no name to collide or to be left
behind, and the size of /dev/shm does not matter. A segment is reused when the other side has
released everything in it.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.errors import Unavailable

ALIGNMENT = 64
_LEAST_BYTES = 1 << 16
_IDLE_BYTES = 64 << 20  # kept for the next tensors; more is freed


class Segment:
    """A piece of our memory that the other side can read."""

    __slots__ = ("file", "memory", "number", "size", "tag")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.file = -1  # sent to the other side, which maps the memory with it
        self.tag = ""
        if sys.platform == "win32":
            self.tag = f"shoal-{os.getpid()}-{number}-{os.urandom(8).hex()}"
            self.memory = mmap.mmap(-1, size, tagname=self.tag)
            return
        self.file = _anonymous_file(size)
        self.memory = mmap.mmap(self.file, size)


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("shoal", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.ftruncate(file, size)
    return file


class SegmentPool:
    """Our segments. Any thread may call any method."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards everything below
        self._lent: dict[int, Segment] = {}
        self._idle: dict[int, list[Segment]] = {}
        self._idle_bytes = 0
        self._opened: list[Segment] = []  # not yet announced
        self._closed: list[int] = []  # likewise

    def take(self, size: int) -> Segment:
        """A segment of at least `size` bytes, until the other side releases its number."""
        room = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        with self._lock:
            idle = self._idle.get(room)
            if idle:
                segment = idle.pop()
                self._idle_bytes -= room
            else:
                segment = Segment(next(self._numbers), room)
                self._opened.append(segment)
            self._lent[segment.number] = segment
        return segment

    def released(self, numbers: list[int]) -> None:
        """The other side has released these."""
        with self._lock:
            for number in numbers:
                segment = self._lent.pop(number, None)
                if segment is None:
                    continue
                if self._idle_bytes + segment.size > _IDLE_BYTES:
                    self._closed.append(number)
                else:
                    self._idle.setdefault(segment.size, []).append(segment)
                    self._idle_bytes += segment.size

    @property
    def has_news(self) -> bool:
        """Whether segments were opened or closed that the other side does not know of."""
        return bool(self._opened or self._closed)

    def news(self) -> tuple[list[tuple[int, int, str]], list[int], list[int]]:
        """News for the other side: opened segments, their files, and numbers of closed ones."""
        with self._lock:
            opened, self._opened = self._opened, []
            closed, self._closed = self._closed, []
        files = [segment.file for segment in opened if segment.file >= 0]
        for segment in opened:
            segment.file = -1  # it goes with the message
        return [(s.number, s.size, s.tag) for s in opened], files, closed

    def close(self) -> None:
        """Drop all segments; those with views stay mapped until the views end."""
        with self._lock:
            for segment in self._opened:
                if segment.file >= 0:
                    os.close(segment.file)
            self._opened.clear()
            self._lent.clear()
            self._idle.clear()


class SegmentViews:
    """The other side's segments, as we see them."""

    def __init__(self) -> None:
        self._memory: dict[int, mmap.mmap] = {}
        self._unmapped: dict[int, tuple[int, int]] = {}  # file and size: there was no memory for it

    def open(self, number: int, size: int, tag: str, next_file: Callable[[], int]) -> None:
        """Map a segment that the other side has opened; `lease` tries again if that fails."""
        if tag:
            if sys.platform == "win32":
                self._memory[number] = mmap.mmap(-1, size, tagname=tag)
            return
        self._unmapped[number] = (next_file(), size)
        with contextlib.suppress(OSError):
            self._map(number)

    def _map(self, number: int) -> mmap.mmap:
        """Raises OSError if there is no memory for it."""
        file, size = self._unmapped[number]
        memory = self._memory[number] = mmap.mmap(file, size)
        del self._unmapped[number]
        os.close(file)
        return memory

    def drop(self, number: int) -> None:
        """Unmap a segment once it is unused."""
        self._memory.pop(number, None)
        unmapped = self._unmapped.pop(number, None)
        if unmapped is not None:
            os.close(unmapped[0])

    def lease(self, number: int, release: Callable[[int], None]) -> memoryview:
        """The bytes of a segment; `release(number)` is called when they are unused.

        Raises Unavailable if there is no memory to map it, and releases it.
        """
        memory = self._memory.get(number)
        if memory is None:
            try:
                memory = self._map(number)
            except OSError as error:
                release(number)
                raise Unavailable(
                    f"no memory for the tensors of this request ({error.strerror}); retry later"
                ) from None
        whole = np.frombuffer(memory, np.uint8).view(_Leased)
        whole.release = (release, number)
        return whole.data

    def close(self) -> None:
        """Close the files of segments that were never mapped."""
        for number in list(self._unmapped):
            self.drop(number)


class _Leased(np.ndarray):
    """An array that reports when it, and all views of it, are freed."""

    release: Any = None

    def __del__(self) -> None:
        if self.release is not None:
            release, number = self.release
            release(number)
