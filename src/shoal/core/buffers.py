"""Aligned memory that is reused: lent as a view, free again when its last view is deleted.

    take(size) --> memoryview --> tensors, outputs, what is being sent ... --last one gone--> pool

Touching fresh memory costs more than filling it, so what large bodies are received into and what
large batches are joined in is used again. Nothing is released explicitly: code that still
refers to a buffer (an executor, an output that is its input, an answer being sent) has it.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np

ALIGNMENT = 64
_MOST_KEPT_BYTES = 64 << 20
_STEPS = 8  # sizes between a power of two and the next: what is lent is at most 1/8 too large


class BufferPool:
    """Memory for large tensors. Any thread may take some; contents are whatever was there."""

    def __init__(self, most_kept_bytes: int = _MOST_KEPT_BYTES) -> None:
        """`most_kept_bytes` bounds what is free, not what is lent."""
        self._most_kept_bytes = most_kept_bytes
        # Guards the two below. Buffers come back wherever their last reference goes, also inside
        # `take` itself, so coming back never waits for this lock.
        self._lock = threading.Lock()
        self._free: dict[int, list[np.ndarray]] = {}  # by size, the least recently used first
        self._kept_bytes = 0
        self._lent: dict[int, _Loan] = {}

    @property
    def kept_bytes(self) -> int:
        """How much is free to be lent again."""
        return self._kept_bytes

    @property
    def lent(self) -> int:
        """How many buffers are in use."""
        return len(self._lent)

    def take(self, size: int, aligned_at: int = 0) -> memoryview:
        """`size` bytes, of which number `aligned_at` lies on a 64-byte boundary.

        They are free again once nothing refers to the view, or to a part of it, any more. Raises
        MemoryError when there is no such memory.
        """
        skipped = -aligned_at % ALIGNMENT
        memory = self._find(_rounded(size + skipped))
        # Not a slice: numpy lets arrays of a slice's memory refer to what was sliced instead.
        lent = np.frombuffer(memory.data, np.uint8, size, skipped)
        loan = _Loan(lent, self._take_back)
        loan.memory = memory
        loan.key = id(lent)
        self._lent[loan.key] = loan
        return lent.data

    def _find(self, size: int) -> np.ndarray:
        with self._lock:
            free = self._free.get(size)
            if free:
                self._kept_bytes -= size
                return free.pop()
        memory = np.empty(size + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + size]

    def _take_back(self, loan: weakref.ref[np.ndarray]) -> None:
        assert isinstance(loan, _Loan)
        del self._lent[loan.key]
        memory = loan.memory
        size = memory.nbytes
        if size > self._most_kept_bytes or not self._lock.acquire(blocking=False):
            return  # it is simply freed
        try:
            free = self._free.pop(size, [])
            free.append(memory)
            self._free[size] = free  # now the last to be dropped
            self._kept_bytes += size
            while self._kept_bytes > self._most_kept_bytes:
                self._drop_one()
        finally:
            self._lock.release()

    def _drop_one(self) -> None:
        """Free a buffer of the size that has not been used for longest. The lock is held."""
        size, free = next(iter(self._free.items()))
        if free:
            free.pop()
            self._kept_bytes -= size
        else:
            del self._free[size]


class _Loan(weakref.ref[np.ndarray]):
    """Returns the memory to the pool when the last view of it is deleted."""

    __slots__ = ("key", "memory")

    memory: np.ndarray
    key: int


def _rounded(size: int) -> int:
    """`size` rounded up, so that sizes that differ a little share buffers."""
    step = max(ALIGNMENT, 1 << max(0, size.bit_length() - 1) >> 3)
    return -(-size // step) * step


pool = BufferPool()  # one for the process, so that the bound is one too
