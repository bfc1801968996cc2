"""The contract of a response cache, for built-in ones and those of other packages.

    --cache-config=<name>,<key>=<value>  -->  the entry point <name> of the group `shoal.caches`
                                         -->  factory({<key>: <value>})  -->  ResponseCache

There is one cache for all models. Keys are digests that no two different requests share; see
`shoal.cache.key` for what they are made of. A cache may evict anything at any time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from shoal.cache.entry import CachedResponse

__all__ = ["CacheFactory", "CacheUsage", "CachedResponse", "ResponseCache"]


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """How full a cache is, if it knows."""

    entries: int
    used_bytes: int
    size_bytes: int
    evictions: int  # since the start


class ResponseCache(ABC):
    """Stores responses by key. Any thread may call any method, several at once.

    A method that raises counts as a miss, or as a response that was not stored: requests never
    fail because of the cache. After an error, the cache is not used for a while.
    """

    # Whether other servers, or this one after a restart, read the entries, too. Then models are
    # identified by the contents of their files, which are read once at each load.
    shared: bool = False
    # Whether `lookup` and `insert` block. Then they run on `threads` threads of their own;
    # otherwise on the thread of the request, which may be the event loop.
    waits: bool = False
    threads: int = 4

    @abstractmethod
    def lookup(self, key: bytes) -> CachedResponse | None:
        """The response stored under `key`, or None."""

    @abstractmethod
    def insert(self, key: bytes, entry: CachedResponse) -> bool:
        """Store `entry`; false when it is too large to be stored at all."""

    def usage(self) -> CacheUsage | None:
        """How full the cache is; None if it does not know."""
        return None

    def check(self) -> None:
        """Raise if the cache cannot be used now. Called once, when the server starts; may block."""
        return

    def close(self) -> None:
        """Release everything. No method is called afterwards."""
        return


# Raises InvalidArgument, which names the setting and what to write, for invalid settings.
CacheFactory: TypeAlias = Callable[[Mapping[str, str]], ResponseCache]
