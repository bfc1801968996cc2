"""Import and initialisation of users' Python code: one model at a time in this process.

    load of A --initialising--> import, constructor, initialize --> done
    load of B --waits, and logs it after a while---------------------^

Libraries are not made for this to happen on several threads at once: `from_pretrained` of
transformers changes global state of PyTorch, and packages that import their parts when they are
used fail with "cannot import name". Executions are not concerned, nor are models in processes.

A model that loads another one while it is initialised lets others go first meanwhile (`released`):
the other one may need to be initialised, too.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from shoal.config.backends import BACKENDS

if TYPE_CHECKING:  # models in processes import this
    from shoal.backends.base import Backend

logger = logging.getLogger(__name__)

# Of these backends only those that run users' Python code call `initialising`.
BUILT_IN = frozenset(name for name, backend in BACKENDS.items() if backend.entry_point)

_LONG_SECS = 10.0  # then the wait is logged
_LOG_EVERY_SECS = 60.0


class Initialisation:
    """One model's import and initialisation, from its beginning to its end."""

    __slots__ = ("model", "over")

    def __init__(self, model: str) -> None:
        self.model = model
        self.over = False


class _InitialisationLock:
    """Held by one `Initialisation` at a time, on whichever threads that runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards _holder, and `over` of all
        self._holder: Initialisation | None = None

    def acquire(self, wanting: Initialisation) -> None:
        """Wait until no other model is being initialised. Does nothing for one that is over."""
        wait_secs = _LONG_SECS
        with self._changed:
            while not self._changed.wait_for(
                lambda: self._holder is None or wanting.over, wait_secs
            ):
                assert self._holder is not None
                logger.info(
                    "model '%s' waits for the initialisation of model '%s'",
                    wanting.model,
                    self._holder.model,
                )
                wait_secs = _LOG_EVERY_SECS
            if not wanting.over:
                self._holder = wanting

    def release(self, holder: Initialisation, *, over: bool) -> bool:
        """Let another one go first; whether `holder` had the lock."""
        with self._changed:
            holder.over = holder.over or over
            held = self._holder is holder
            if held:
                self._holder = None
            self._changed.notify_all()
            return held


_lock = _InitialisationLock()
_current: ContextVar[Initialisation | None] = ContextVar("initialisation", default=None)


@contextlib.contextmanager
def initialising(model: str) -> Iterator[Initialisation]:
    """Import and initialise the code of `model` in here. Waits while another model does that.

    Within itself it does nothing.
    """
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    own = Initialisation(model)
    _lock.acquire(own)
    token = _current.set(own)
    try:
        yield own
    finally:
        _current.reset(token)
        _lock.release(own, over=True)


def initialising_with(backend: Backend, model: str) -> AbstractContextManager[object]:
    """As `initialising`, for calls of a backend; our own ones do it themselves, where needed."""
    if backend.loads_in_parallel or backend.name in BUILT_IN:
        return contextlib.nullcontext()
    return initialising(model)


@contextlib.contextmanager
def released(initialisation: Initialisation | None = None) -> Iterator[None]:
    """Let other models be initialised in here, because this waits for one of them.

    `initialisation` is that of the calling code, if it may run on a thread that the code started
    itself; by default, that of this thread. Does nothing outside of one.
    """
    own = initialisation or _current.get()
    if own is None:
        yield
        return
    token = _current.set(None)
    held = _lock.release(own, over=False)
    try:
        yield
    finally:
        _current.reset(token)
        if held:
            _lock.acquire(own)
