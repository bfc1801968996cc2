"""Shared memory between two processes: segments that one side writes and the other reads.

    SegmentPool.take(size) --fill--> number --> SegmentViews.lease(number) --last view--> released
    SegmentPool.lend(size) --receive into it--> number, as often as it is sent --> ... released

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
import weakref
from collections import deque
from collections.abc import Callable, Iterable
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

    def __del__(self) -> None:
        if getattr(self, "file", -1) >= 0:  # the other side was gone before it was told
            os.close(self.file)


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
        self._holds: dict[int, int] = {}  # of those that have more than one, by their numbers
        self._idle: dict[int, list[Segment]] = {}
        self._idle_bytes = 0
        self.lent_bytes = 0  # of segments that are in use; any thread may read it
        self._opened: list[Segment] = []  # not yet announced
        self._closed: list[int] = []  # likewise
        self._loans: dict[int, _Loan] = {}  # by the id of the array that is lent
        # Numbers of segments whose loan is over. Loans end wherever their last view goes, even
        # inside the garbage collector, so no lock may be taken for it.
        self._returned: deque[int] = deque()

    def take(self, size: int) -> Segment:
        """A segment of at least `size` bytes, until the other side releases its number."""
        if self._returned:
            self.released([self._returned.popleft() for _ in range(len(self._returned))])
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
            self.lent_bytes += room
        return segment

    def lend(self, size: int, aligned_at: int = 0) -> memoryview:
        """Memory of a segment to this side, until nothing refers to it; byte number `aligned_at`
        lies on a 64-byte boundary. What is in it is sent without a copy: see `find`."""
        skipped = -aligned_at % ALIGNMENT
        segment = self.take(size + skipped)
        lent = np.frombuffer(segment.memory, np.uint8, size, skipped)
        loan = _Loan(lent, self._end_loan)
        loan.key = id(lent)
        loan.segment = segment.number
        loan.address = _address(lent) - skipped
        self._loans[loan.key] = loan
        return lent.data

    def _end_loan(self, loan: weakref.ref[np.ndarray]) -> None:
        assert isinstance(loan, _Loan)
        del self._loans[loan.key]
        self._returned.append(loan.segment)

    def find(self, view: memoryview) -> tuple[int, int, int] | None:
        """The segment, start and end of a part of lent memory; None for other memory."""
        loan = self._loans.get(id(view.obj))
        if loan is None or not view.contiguous:
            return None
        start = _address(np.frombuffer(view, np.uint8)) - loan.address
        return loan.segment, start, start + view.nbytes

    def hold(self, number: int) -> None:
        """A lent segment is sent: it is free when the other side has released it, too."""
        with self._lock:
            self._holds[number] = self._holds.get(number, 1) + 1

    def released(self, numbers: Iterable[int]) -> None:
        """The other side has released these, or this side those that it had lent to itself."""
        with self._lock:
            for number in numbers:
                holds = self._holds.pop(number, 1) - 1
                if holds:
                    if holds > 1:
                        self._holds[number] = holds
                    continue
                segment = self._lent.pop(number, None)
                if segment is None:
                    continue
                self.lent_bytes -= segment.size
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
            self._opened.clear()
            self._lent.clear()
            self._holds.clear()
            self._idle.clear()


class _Loan(weakref.ref[np.ndarray]):
    """A segment that this side uses itself, until its array and all views of it are freed."""

    __slots__ = ("address", "key", "segment")

    key: int
    segment: int
    address: int  # of the segment's first byte


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


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
