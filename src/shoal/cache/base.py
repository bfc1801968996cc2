"""What a response cache is: the whole contract, for those that come with Shoal and for others.

    --cache-config=<name>,<key>=<value>  -->  the entry point <name> of the group `shoal.caches`
                                         -->  factory({<key>: <value>})  -->  ResponseCache

There is one cache for all models. Keys are digests that no two different requests share; see
`shoal.cache.key` for what they are made of. A cache may forget anything at any time.
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
    """How full a cache is, where it knows."""

    entries: int
    used_bytes: int
    size_bytes: int
    evictions: int  # since the start


class ResponseCache(ABC):
    """Keeps answers by key. Any thread may call any method, several at once.

    A method that raises is a lookup that found nothing or an answer that was not kept: requests
    never fail because of their cache. After it has raised, it is left alone for a while.
    """

    # Whether others read the entries too: other servers, or this one when it is started again.
    # Then models are told apart by what their files hold, which is read once at each load.
    shared: bool = False
    # Whether `lookup` and `insert` wait for anything. Then they run on `threads` threads of their
    # own; otherwise wherever a request happens to be, the event loop included.
    waits: bool = False
    threads: int = 4

    @abstractmethod
    def lookup(self, key: bytes) -> CachedResponse | None:
        """The answer kept under `key`, or None."""

    @abstractmethod
    def insert(self, key: bytes, entry: CachedResponse) -> bool:
        """Keep `entry`; false when it is too large to be kept at all."""

    def usage(self) -> CacheUsage | None:
        """How full the cache is; None where it does not know."""
        return None

    def check(self) -> None:
        """Raise if the cache cannot be used now. Called once, when the server starts; may wait."""
        return

    def close(self) -> None:
        """Give back what it holds. Nothing is called afterwards."""
        return


# Raises InvalidArgument, which names the setting and what to write, for settings that cannot be.
CacheFactory: TypeAlias = Callable[[Mapping[str, str]], ResponseCache]
