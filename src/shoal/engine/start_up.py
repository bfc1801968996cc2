"""The start of a server: requests for models that are not loaded yet wait until it is over.

    find(model) --raises--> StartPending --then--> start-up loads are over --> the caller retries

Ports are open from the first moment, so that liveness probes succeed while models load. Programs
that take an open port for readiness (TCP probes, activators) send requests meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

from shoal.core.model_loading import ModelLoading
from shoal.errors import ShoalError

logger = logging.getLogger(__name__)

Settled: TypeAlias = Callable[[ShoalError | None], None]


class StartUp:
    """Those who wait for the end of the start. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._numbers = itertools.count()
        self._waiting: dict[int, Settled] = {}
        self._over = False
        self._error: ShoalError | None = None

    def end(self, error: ShoalError | None = None) -> None:
        """The start is over, or the server exits with `error`. Calls those who wait; the first
        call counts."""
        with self._lock:
            if self._over:
                return
            self._over, self._error = True, error
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for settled in waiting:
            try:
                settled(error)
            except Exception:  # an error of one callback must not keep the others waiting
                logger.exception("a request that waited for the start was lost")

    def wait(self, settled: Settled) -> Callable[[], None]:
        """As `ModelLoading.then`."""
        with self._lock:
            if not self._over:
                number = next(self._numbers)
                self._waiting[number] = settled
                return lambda: self._leave(number)
        settled(self._error)
        return lambda: None

    def _leave(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)


class StartPending(ModelLoading):
    """Raised for a model that does not serve while start-up loads are in progress."""

    def __init__(self, start: StartUp) -> None:
        super().__init__("the server is starting: its models are loading; try again later")
        self._start = start

    def then(self, settled: Settled, *, inside: bool = False) -> Callable[[], None]:
        """See `ModelLoading`."""
        del inside
        return self._start.wait(settled)
