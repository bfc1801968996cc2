"""Memory for large messages: aligned, and used again once nobody looks at it any more.

    take(length) --> memoryview --> tensors ... --last reference gone--> free for the next

A fresh allocation costs more in page faults than filling it does, so blocks come back: each is
lent out through a view object of its own, and when that dies, in whatever thread, so has
everything made from it.
"""

from __future__ import annotations

import weakref

import numpy as np

ALIGNMENT = 64
LEAST_POOLED_BYTES = 32 << 10
MOST_POOLED_BYTES = 64 << 20
_IDLE_BYTES_PER_SIZE = 16 << 20


class _Block:
    """One allocation, and where in it the first aligned byte is."""

    __slots__ = ("address", "array")

    def __init__(self, size: int) -> None:
        self.array = np.empty(size, np.uint8)
        self.address: int = self.array.ctypes.data


class _Loan(weakref.ref[np.ndarray]):
    """Watches the view through which a block was lent."""

    __slots__ = ("block",)
    block: _Block


class BufferPool:
    """Blocks by size class. All methods may be called from any thread."""

    def __init__(self) -> None:
        # Plain containers with single operations on them: a block comes back wherever its last
        # reference is dropped, even inside the garbage collector, where no lock may be taken.
        self._idle: dict[int, list[_Block]] = {}
        self._loans: dict[int, _Loan] = {}  # by their own id: their hash would be the view's

    @property
    def idle_bytes(self) -> int:
        """What is kept for the next messages."""
        return sum(size * len(blocks) for size, blocks in list(self._idle.items()))

    @property
    def lent(self) -> int:
        """How many blocks are in use."""
        return len(self._loans)

    def take(self, length: int) -> memoryview:
        """`length` writable bytes of which the last one lies right before a 64-byte boundary.

        The large tensor of a message comes last in it, and its size mostly is a multiple of 64:
        then it begins on a boundary, too. Raises MemoryError when there is no such memory.
        """
        size = _size_class(length + ALIGNMENT)
        pooled = size <= MOST_POOLED_BYTES
        idle = self._idle.get(size)
        try:
            block = idle.pop() if idle else _Block(size)
        except IndexError:  # another thread was faster
            block = _Block(size)
        start = -(block.address + length) % ALIGNMENT
        view = block.array[start : start + length]
        if pooled:
            loan = _Loan(view, self._returned)
            loan.block = block
            self._loans[id(loan)] = loan
        return view.data

    def trim(self) -> None:
        """Give half of what is idle back to the system; called now and then."""
        for blocks in list(self._idle.values()):
            del blocks[: (len(blocks) + 1) // 2]

    def _returned(self, loan: weakref.ref[np.ndarray]) -> None:
        assert isinstance(loan, _Loan)
        del self._loans[id(loan)]
        size = loan.block.array.nbytes
        blocks = self._idle.setdefault(size, [])
        if (len(blocks) + 1) * size <= _IDLE_BYTES_PER_SIZE or not blocks:
            blocks.append(loan.block)


def _size_class(size: int) -> int:
    """`size` rounded up so that at most a quarter is wasted."""
    step = 1 << max(12, size.bit_length() - 3)
    return -(-size // step) * step
