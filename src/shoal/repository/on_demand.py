"""Models that load at their first request (`--model-control-mode=lazy`).

    request for "m" --ModelLoading--> wait --> one load, on a thread --> all requests for "m"

A load that fails answers the waiting requests with its own message. Later requests retry it after a
back-off, so that a broken model costs little.
"""

from __future__ import annotations

import copy
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from shoal.core.model_loading import FailedToLoad, LoadOnDemand, ModelLoading
from shoal.core.request import Request, State
from shoal.errors import Cancelled, Internal, NotFound, QueueRejected, ShoalError, Unavailable
from shoal.scheduler.timer import shared_timer

logger = logging.getLogger(__name__)

NOT_LOADED = "not loaded: it loads at its first request"
LOADS_AGAIN = "it loads again at its next request"
_FIRST_REST_SECS = 1.0
_LONGEST_REST_SECS = 10.0
_NS_PER_US = 1000

Settled: TypeAlias = Callable[[ShoalError | None], None]


@dataclass(eq=False, slots=True)
class _Load:
    """One load in progress and what waits for it; guarded by the lock of `OnDemand`."""

    key: str
    urgent: bool = False  # it must not wait for other loads
    waiting: dict[int, Settled] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Failure:
    error: ShoalError
    rest_secs: float
    again_at: float


class OnDemand:
    """The loads for requests. Any thread may call any method."""

    def __init__(
        self,
        load: Callable[[str], None],
        serves: Callable[[str], bool],
        *,
        threads: int = 4,
        clock: Callable[[], float] = time.monotonic,
        waiting: Callable[[str, int], None] = lambda _key, _count: None,
    ) -> None:
        """`load` loads a model by its key, blocking, or raises; `serves` is whether it serves.

        At most `threads` loads run at a time, except for those that other loads may wait for.
        `waiting` is called with the number of requests that wait; it must be quick and not raise.
        """
        self._load = load
        self._serves = serves
        self._threads = threads
        self._clock = clock
        self._tell_waiting = waiting
        self._changed = threading.Condition()  # guards everything below
        self._loads: dict[str, _Load] = {}
        self._running = 0  # how many of them have begun
        self._failures: dict[str, _Failure] = {}
        self._numbers = itertools.count()
        self._closed = False

    def absent(self, key: str) -> ShoalError:
        """The error for a model that does not serve: ModelLoading, or why its last load failed."""
        failure = None if key in self._loads else self._recent_failure(key)
        return _FirstUse(self, key) if failure is None else failure

    def _recent_failure(self, key: str) -> ShoalError | None:
        """Why the last load failed, until it may be retried."""
        failure = self._failures.get(key)
        if failure is None or self._clock() >= failure.again_at:
            return None
        return copy.copy(failure.error)

    def has_failed(self, key: str) -> bool:
        """Whether the last load for a request failed."""
        return key in self._failures

    def is_loading(self, key: str) -> bool:
        """Whether a load for a request is in progress."""
        return key in self._loads

    def waiting(self) -> dict[str, int]:
        """How many requests wait for each model that is being loaded."""
        with self._changed:
            return {key: len(load.waiting) for key, load in self._loads.items() if load.waiting}

    def forget_failure(self, key: str) -> None:
        """The model was loaded or unloaded by name: an earlier failure does not matter then."""
        with self._changed:
            self._failures.pop(key, None)

    def wait(self, key: str, settled: Settled, *, inside: bool = False) -> Callable[[], None]:
        """As `ModelLoading.then`, for one model."""
        with self._changed:
            load = self._loads.get(key)
            if self._closed:
                refusal: ShoalError | None = Unavailable("Server exiting")
            elif load is None and not self._serves(key):
                # The load that `absent` saw in progress may have failed since.
                refusal = self._recent_failure(key)
                if refusal is None:
                    load = self._loads[key] = _Load(key)
                    name = f"shoal-load-{key}"
                    threading.Thread(target=self._run, args=(load,), name=name, daemon=True).start()
            else:
                refusal = None
            if load is not None and refusal is None:
                number = next(self._numbers)
                load.waiting[number] = settled
                self._tell_waiting(key, len(load.waiting))
                if inside and not load.urgent:
                    load.urgent = True
                    self._changed.notify_all()
                return lambda: self._leave(load, number)
        settled(refusal)
        return lambda: None

    def _leave(self, load: _Load, number: int) -> None:
        with self._changed:
            if load.waiting.pop(number, None) is not None:
                self._tell_waiting(load.key, len(load.waiting))

    def close(self) -> None:
        """Start no more loads, and wait for those in progress. Blocks."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._loads)

    # ---- on the thread of a load

    def _run(self, load: _Load) -> None:
        began = self._begin(load)
        error: ShoalError | None = None
        if not began:
            error = Unavailable("Server exiting")
        else:
            try:
                self._load(load.key)
            except NotFound as failure:
                error = failure
            except ShoalError as failure:
                error = FailedToLoad(failure.message)
            except Exception as failure:  # of a backend; waiting requests must be answered
                logger.exception("loading '%s' failed", load.key)
                error = FailedToLoad(f"{type(failure).__name__}: {failure}")
        with self._changed:
            self._note(load.key, error)
            del self._loads[load.key]
            self._running -= began
            waiting = list(load.waiting.values())
            load.waiting.clear()
            self._tell_waiting(load.key, 0)
            self._changed.notify_all()
        if isinstance(error, FailedToLoad):
            logger.error("%s", error.message)
        for settled in waiting:
            try:
                settled(copy.copy(error))
            except Exception:  # an error of one callback must not keep the others waiting
                logger.exception("a request that waited for '%s' was lost", load.key)

    def _begin(self, load: _Load) -> bool:
        """Wait until the load may run; false if the server exits."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or load.urgent or self._running < self._threads
            )
            self._running += not self._closed
            return not self._closed

    def _note(self, key: str, error: ShoalError | None) -> None:
        if not isinstance(error, FailedToLoad):
            self._failures.pop(key, None)
            return
        last = self._failures.get(key)
        rest_secs = _FIRST_REST_SECS if last is None else last.rest_secs * 2
        rest_secs = min(rest_secs, _LONGEST_REST_SECS)
        self._failures[key] = _Failure(error, rest_secs, self._clock() + rest_secs)


class _FirstUse(LoadOnDemand):
    """The first request since the model was unloaded, or since the start."""

    def __init__(self, loads: OnDemand, key: str) -> None:
        super().__init__(f"model '{key}' is {NOT_LOADED}")
        self._loads = loads
        self._key = key

    def then(self, settled: Settled, *, inside: bool = False) -> Callable[[], None]:
        """See `ModelLoading`."""
        return self._loads.wait(self._key, settled, inside=inside)

    def hold(self, request: Request, again: Callable[[], None], *, inside: bool = False) -> None:
        """See `LoadOnDemand`."""
        _Held(request, again).begin(self, inside=inside)


class _Held:
    """A request that waits for a model to be loaded. It is submitted or answered exactly once."""

    def __init__(self, request: Request, again: Callable[[], None]) -> None:
        self._lock = threading.Lock()  # guards _held
        # None: it is over. The timer may refer to this for long, which must not keep tensors.
        self._held: tuple[Request, Callable[[], None]] | None = (request, again)
        self._leave: Callable[[], None] = lambda: None

    def begin(self, pending: ModelLoading, *, inside: bool) -> None:
        assert self._held is not None
        request, _ = self._held
        request.on_cancel = self._cancelled
        if request.timeout_us:
            shared_timer.at(time.monotonic_ns() + request.timeout_us * _NS_PER_US, self._expired)
        self._leave = pending.then(self._settled, inside=inside)
        if request.cancelled:  # before `on_cancel` was set
            self._cancelled()

    def _take(self) -> tuple[Request, Callable[[], None]] | None:
        """The request and what to do with it, for the first caller."""
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            held[0].on_cancel = None
        return held

    def _settled(self, error: ShoalError | None) -> None:
        held = self._take()
        if held is None:
            return
        request, again = held
        try:
            if error is not None:
                raise error
            again()
        except ShoalError as refusal:
            _answer(request, refusal)
        except Exception as fault:
            logger.exception("a request that waited for '%s' failed", request.model_name)
            _answer(request, Internal(f"{type(fault).__name__}: {fault}"))

    def _cancelled(self) -> None:
        held = self._take()
        if held is not None:
            self._leave()
            _answer(held[0], Cancelled(held[0].log_prefix() + "Request cancelled"))

    def _expired(self) -> None:
        held = self._take()
        if held is not None:
            self._leave()
            _answer(held[0], QueueRejected("Request timeout expired"))  # as the queue does


def _answer(request: Request, error: ShoalError) -> None:
    request.state = State.DONE
    request.fail(error)
