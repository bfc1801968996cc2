"""Counters of several processes in shared memory: each writes its own, and all read the sum.

    name --slot--> a row: five fields, each with a cell for every process

No lock is needed to count, because every cell has one writer. Slots are given to names under a lock
of the file, which ends with its holder. A row whose counters are as those of a new name may be
given to another one, so that any number of names can be counted.

What was used of a rate is kept as two fields. `SPENT` only grows: by the time in which a use is
earned back. `SINCE` is the moment from which all that was spent counts, so that everything is
earned back at the largest `SINCE` plus the sum of `SPENT`; where that is past, `SINCE` is moved on.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import time
from collections.abc import Iterator
from typing import Any

try:
    import fcntl
except ImportError:  # Windows, where a server is one process
    fcntl = None  # type: ignore[assignment]

COUNT, SPENT, SINCE, BYTES_SPENT, BYTES_SINCE = range(5)
_FIELDS = 5
_SLOTS = 16384
_SERVER = 0  # the slot of the server as a whole; names get the others
_PROBES = 64  # places for a name
_TRIES = 200  # for the lock, which is held for microseconds


class SharedCounters:
    """The counters of a server, as one of its processes has them. For one thread at a time."""

    def __init__(self, file: int, processes: int, own: int) -> None:
        """`file` is that of `make`; `own` is the number of this process, from 0."""
        self.processes = processes
        self.own = own
        self._file = file
        self._memory = mmap.mmap(file, _size(processes))
        self._first = _SLOTS * 8  # the place of the first row
        self.ids = memoryview(self._memory)[: self._first].cast("Q")
        self.cells = memoryview(self._memory)[self._first :].cast("d")
        self._row = struct.Struct(f"={_FIELDS * processes}d")

    @staticmethod
    def make(processes: int) -> int:
        """An open file for that many processes; pages that are not used take no memory."""
        file = os.memfd_create("shoal-counters")
        os.ftruncate(file, _size(processes))
        return file

    def of_server(self, field: int) -> ServerCounter:
        """A counter of the server as a whole."""
        return ServerCounter(self, field)

    def place(self, slot: int, field: int) -> int:
        """The index of a field's first cell; those of the other processes follow."""
        return (slot * _FIELDS + field) * self.processes

    def read(self, slot: int) -> tuple[float, ...]:
        """A row: the cells of all processes, one field after the other."""
        return self._row.unpack_from(self._memory, self._first + slot * self._row.size)

    def find(self, name_id: int) -> int:
        """The slot of a name, the same in all processes; 0 if none can be had at the moment."""
        idle = 0
        with self._locked() as locked:
            if not locked:
                return 0
            for probe in range(_PROBES):
                slot = 1 + (name_id + probe) % (_SLOTS - 1)
                found = self.ids[slot]
                if found == name_id:
                    return slot
                if not idle and self._is_idle(slot):
                    idle = slot
                if not found:
                    break
            if idle:
                self.ids[idle] = name_id
        return idle

    def _is_idle(self, slot: int) -> bool:
        row, count = self.read(slot), self.processes
        return (
            not any(row[:count])
            and due_ns(row, SPENT, count) <= time.monotonic_ns()
            and due_ns(row, BYTES_SPENT, count) <= time.monotonic_ns()
        )

    def clear(self) -> None:
        """This process has ended: set its counts to zero. What it has spent remains."""
        for slot in range(_SLOTS):
            if self.ids[slot]:
                self.cells[self.place(slot, COUNT) + self.own] = 0.0
        for field in range(_FIELDS):
            self.cells[self.place(_SERVER, field) + self.own] = 0.0

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether the lock could be had: a process may have been stopped while it held it."""
        for _ in range(_TRIES):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0)
        else:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


class ServerCounter:
    """An amount that each process has, of the server as a whole."""

    def __init__(self, counters: SharedCounters, field: int) -> None:
        self._cells = counters.cells
        self._first = counters.place(_SERVER, field)
        self._last = self._first + counters.processes
        self._own = self._first + counters.own

    def set(self, value: int) -> None:
        """What this process has."""
        self._cells[self._own] = value

    def total(self) -> int:
        """What all of them have."""
        return int(sum(self._cells[self._first : self._last]))

    def others(self) -> list[float]:
        """What each of the other processes has."""
        cells = self._cells
        return [cells[i] for i in range(self._first, self._last) if i != self._own]


class SharedRow:
    """The counters of one name. For the thread of `SharedCounters`."""

    __slots__ = ("_cells", "_counters", "_id", "_ids", "_own", "_slot", "_width")

    def __init__(self, counters: SharedCounters, name: str) -> None:
        """Takes no slot yet."""
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self._id = int.from_bytes(digest, "little") or 1
        self._counters = counters
        self._width = counters.processes
        self._ids = counters.ids
        self._slot = 0
        # Where all slots are in use, this process counts for itself.
        self._cells: Any = []
        self._own = 0

    def read(self) -> tuple[float, ...]:
        """The cells of all processes, one field after the other."""
        if self._ids[self._slot] != self._id:
            self._find()
        if self._slot:
            return self._counters.read(self._slot)
        return tuple(self._cells)

    def _find(self) -> None:
        if not self._slot and self._cells and self._cells[COUNT]:
            return  # what was begun here ends here
        counters = self._counters
        slot = counters.find(self._id)
        if slot:
            self._cells = counters.cells
            self._own = counters.place(slot, 0) + counters.own
        elif self._slot or not self._cells:
            self._cells = [0.0] * (_FIELDS * self._width)
            self._own = 0
        self._slot = slot

    def add(self, field: int, amount: float) -> None:
        """Add to this process's cell; after `read`."""
        self._cells[self._own + field * self._width] += amount

    def put(self, field: int, value: float) -> None:
        """Set this process's cell; after `read`."""
        self._cells[self._own + field * self._width] = value

    @property
    def is_current(self) -> bool:
        """Whether the row still belongs to the name."""
        return not self._slot or self._ids[self._slot] == self._id


def due_ns(row: tuple[float, ...], spent: int, processes: int) -> float:
    """When all that was spent is earned back; `spent` is the field."""
    first, middle, last = spent * processes, (spent + 1) * processes, (spent + 2) * processes
    return max(row[middle:last]) + sum(row[first:middle])


def _size(processes: int) -> int:
    return _SLOTS * 8 + _SLOTS * _FIELDS * processes * 8
