"""The memory of a server's process: what is loaded is left out of garbage collections.

    load --> exclude_loaded()     all start-up models are loaded --> exclude_started()
    unload --> give_memory_back()

A full collection looks at every object with the GIL held: some 20 ms with one model and 300 ms with
a thousand, in which no request is answered. The objects of a loaded model live as long as it does,
so they are moved to the collector's permanent generation (`gc.freeze`). Collections of what is left
of requests then take well below a millisecond, and they are rare: a burst of requests has more than
the 700 new objects at which Python collects by default, but hardly any that only a collection can
free. Only in a process that does nothing but serve: an application with a server inside decides
about its own objects.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

_YOUNG_OBJECTS = 5_000  # new objects that start a collection, which then takes 0.3 ms
_excludes = False  # whether the process is a server's own


@contextlib.contextmanager
def excluding() -> Iterator[None]:
    """Leave out what is loaded during the block. For the process of a server."""
    global _excludes  # noqa: PLW0603 - there is one collector in a process
    _excludes = True
    young, *older = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, *older)
    try:
        yield
    finally:
        _excludes = False
        gc.set_threshold(young, *older)
        gc.unfreeze()


def exclude_loaded() -> None:
    """Leave out everything there is; takes no time. Reference counts still free what is unused."""
    if _excludes:
        gc.freeze()


def exclude_started() -> None:
    """As `exclude_loaded`, after a full collection of what start-up has left behind."""
    if _excludes:
        _collect()


def give_memory_back() -> None:
    """Return freed memory to the system: drop cycles, then trim the C heap where glibc can."""
    _collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # not glibc
        return


def _collect() -> None:
    """A full collection, also of what is left out."""
    if _excludes:
        gc.unfreeze()
    gc.collect()
    exclude_loaded()
