"""Finding a cache by its name.

    --cache-config=local,size=…  -->  entry point "local" of `shoal.caches`  -->  ResponseCache

An installed package can add one. Built-in caches are found even in a source tree that is not
installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from shoal.cache.base import CacheFactory, ResponseCache
from shoal.errors import InvalidArgument, ShoalError

GROUP = "shoal.caches"

BUILT_IN = MappingProxyType(
    {
        "local": "shoal.cache.local:local_cache",
        "redis": "shoal.cache.redis:redis_cache",
    }
)


def names() -> tuple[str, ...]:
    """The available caches, sorted."""
    return tuple(sorted({*BUILT_IN, *entry_points(group=GROUP).names}))


def open_cache(name: str, settings: Mapping[str, str]) -> ResponseCache:
    """The cache called `name`, with these settings.

    Raises InvalidArgument, which says what to write, if there is none or it cannot be created.
    """
    try:
        factory = _factory(name)
        if factory is None:
            raise InvalidArgument(
                f"--cache-config={name},…: there is no cache '{name}'; installed are "
                f"{', '.join(names())}"
            )
        return factory(settings)
    except ShoalError:
        raise
    except Exception as error:
        raise InvalidArgument(
            f"the cache '{name}' cannot be used: {type(error).__name__}: {error}"
        ) from error


def _factory(name: str) -> CacheFactory | None:
    for entry in entry_points(group=GROUP, name=name):
        installed: CacheFactory = entry.load()
        return installed
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        built_in: CacheFactory = getattr(importlib.import_module(module), attribute)
        return built_in
    return None
