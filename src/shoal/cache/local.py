"""The cache in this process's memory: bounded in bytes, evicts the least recently used entry."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from shoal.cache.base import CacheUsage, ResponseCache
from shoal.cache.entry import CachedResponse
from shoal.cache.key import KEY_BYTES
from shoal.cache.settings import CacheSettings

_SLOT_BYTES = 128 + KEY_BYTES  # what a key costs beside its entry


class LocalCache(ResponseCache):
    """Responses in memory, shared by all models. Never blocks except for its lock."""

    def __init__(self, size_bytes: int) -> None:
        """Stores at most `size_bytes`, including the objects around the tensors."""
        self._size_bytes = size_bytes
        self._lock = threading.Lock()  # guards everything below
        self._entries: OrderedDict[bytes, CachedResponse] = OrderedDict()  # least recent first
        self._used_bytes = 0
        self._evictions = 0

    def lookup(self, key: bytes) -> CachedResponse | None:
        """The response stored under `key`, now the most recently used one, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def insert(self, key: bytes, entry: CachedResponse) -> bool:
        """Store `entry`, which replaces an older one; false when it can never fit."""
        size = entry.nbytes + _SLOT_BYTES
        if size > self._size_bytes:
            return False
        with self._lock:
            before = self._entries.pop(key, None)
            if before is not None:
                self._used_bytes -= before.nbytes + _SLOT_BYTES
            while self._used_bytes + size > self._size_bytes:
                _, oldest = self._entries.popitem(last=False)
                self._used_bytes -= oldest.nbytes + _SLOT_BYTES
                self._evictions += 1
            self._entries[key] = entry
            self._used_bytes += size
        return True

    def usage(self) -> CacheUsage:
        """How full it is."""
        with self._lock:
            return CacheUsage(
                len(self._entries), self._used_bytes, self._size_bytes, self._evictions
            )

    def close(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._used_bytes = 0


def local_cache(given: Mapping[str, str]) -> LocalCache:
    """The cache for `--cache-config=local,size=<bytes>`."""
    settings = CacheSettings("local", given, ("size",))
    return LocalCache(settings.size("size"))
