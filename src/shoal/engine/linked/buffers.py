"""Memory of a front end to receive large tensors into: the engine process can read it."""

from __future__ import annotations

from shoal.core.buffers import BufferPool
from shoal.engine.linked.client import LinkedEngine


class SharedBufferPool(BufferPool):
    """Lends memory of the link to the engine, so that what is received is sent without a copy."""

    def __init__(self, engine: LinkedEngine) -> None:
        super().__init__()
        self._engine = engine

    def take(self, size: int, aligned_at: int = 0) -> memoryview:
        """See `BufferPool`. While there is no engine process, the memory is this process's own."""
        link = self._engine.link
        if link is None:
            return super().take(size, aligned_at)
        try:
            return link.lend(size, aligned_at)
        except OSError:  # no more descriptors, or no memory for a segment
            return super().take(size, aligned_at)
