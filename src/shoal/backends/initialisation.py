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

    __slots__ = ("model", "over", "waits")

    def __init__(self, model: str) -> None:
        self.model = model
        self.over = False
        self.waits = 0  # of its threads, for other models


class _InitialisationLock:
    """Held by one `Initialisation` at a time, on whichever threads that runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows, `over` and `waits`
        self._holder: Initialisation | None = None
        self._loading_others: list[Initialisation] = []  # those that have waited for other models

    def acquire(self, wanting: Initialisation) -> None:
        """Wait until no other model is being initialised."""
        wait_secs = _LONG_SECS
        with self._changed:
            while not self._changed.wait_for(lambda: self._may_have(wanting), wait_secs):
                assert self._holder is not None
                logger.info(
                    "model '%s' waits for the initialisation of model '%s'",
                    wanting.model,
                    self._holder.model,
                )
                wait_secs = _LOG_EVERY_SECS
            if not wanting.over and not wanting.waits:
                self._holder = wanting

    def _may_have(self, wanting: Initialisation) -> bool:
        """Whether it can have the lock, or does not need it any more."""
        return self._holder is None or wanting.over or wanting.waits > 0

    def finish(self, holder: Initialisation) -> None:
        """It is over."""
        with self._changed:
            holder.over = True
            if holder in self._loading_others:
                self._loading_others.remove(holder)
            if self._holder is holder:
                self._holder = None
            self._changed.notify_all()

    def begin_wait(self, holder: Initialisation) -> None:
        """A thread of it waits for another model: that one goes first."""
        with self._changed:
            holder.waits += 1
            if holder not in self._loading_others and not holder.over:
                self._loading_others.append(holder)
            if self._holder is holder:
                self._holder = None
            self._changed.notify_all()

    def end_wait(self, holder: Initialisation) -> None:
        """The wait is over; after the last one it continues when no other is initialised."""
        with self._changed:
            holder.waits -= 1
        self.acquire(holder)

    def likely_owner(self) -> Initialisation | None:
        """The one that a thread of a model most likely belongs to, if it loads other models."""
        with self._changed:
            return self._loading_others[-1] if self._loading_others else None


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
        _lock.finish(own)


def initialising_with(backend: Backend, model: str) -> AbstractContextManager[object]:
    """As `initialising`, for calls of a backend; our own ones do it themselves, where needed."""
    if backend.loads_in_parallel or backend.name in BUILT_IN:
        return contextlib.nullcontext()
    return initialising(model)


@contextlib.contextmanager
def released(initialisation: Initialisation | None = None) -> Iterator[None]:
    """Let other models be initialised in here, because this waits for one of them.

    `initialisation` is that of the calling code; by default, that of this thread. Does nothing
    outside of one.
    """
    own = initialisation or _current.get()
    if own is None or own.over:
        yield
        return
    token = _current.set(None)
    _lock.begin_wait(own)
    try:
        yield
    finally:
        _current.reset(token)
        _lock.end_wait(own)


def released_by(model: Initialisation | None, *, known: bool) -> AbstractContextManager[None]:
    """As `released`, for a thread that calls functions of pb_utils for a `model`.

    If it is not `known` to run the model's code, the model may have started it: that may as well be
    one that has loaded others before and is still being initialised.
    """
    return released(model if known else _lock.likely_owner() or model)
