"""A second ONNX Runtime session with all cores, for executions that run alone.

    alone, long --> opened in the background --> compared with the first, again and again
                                                 '--> used for such sizes while it gains

Instances of a model share a session with cores / instances threads: a session's number of threads
cannot change, and more of them than cores would slow each other down. An execution that runs alone
would leave the other cores idle. The threads of this session spin while they wait, also for the
next request of a lone client: to wake them for each operator takes longer than small operators.

Only models with long executions get one, because it has its own copy of the weights. Executions
on threads are alone if the scheduler expects no other one; on the event loop, if it has a lone
client. Others are not measured. Sizes are compared separately: a batch may gain by more threads,
and one of a few rows lose.

What is compared on the event loop is the time from the beginning of one execution to that of the
next: the client may have lost its core to the threads that spin.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from shoal.backends.base import BoundRun
from shoal.backends.onnx_session_comparison import SessionComparison
from shoal.core.concurrency import ExpectedConcurrency
from shoal.errors import ShoalError

logger = logging.getLogger(__name__)

# Shorter executions on threads gain too little by all cores, and the other cores have work.
_LONG_NS = 4_000_000
_LONG_FOR_LONE_CLIENT_NS = 100_000  # on the event loop, whose other requests would be its own
_LONG_RUNS = 2  # of a size, before the session is opened; the first may be slow for other reasons
_LONG_RUNS_ON_LOOP = 8  # likewise: it takes much longer to open it than they take

_Work = TypeVar("_Work")
_Result = TypeVar("_Result")


class _State(enum.Enum):
    NOT_OPEN = "long executions open it"
    OPENING = "a thread opens it"
    OPEN = "it is compared or used"
    CLOSED = "it is never opened again"


class SecondSession:
    """The session while it is open, and what is bound to it."""

    __slots__ = ("bound_runs", "session")

    def __init__(self, session: Any) -> None:
        self.session = session
        # By the same, bound to the model's own session. Released together with the session.
        self.bound_runs: WeakKeyDictionary[BoundRun, BoundRun] = WeakKeyDictionary()


class _Cycle(NamedTuple):
    """An execution of a lone client, until its next one begins."""

    comparison: SessionComparison
    elements: int
    start_ns: int
    is_second: bool


class LoneSession:
    """The second session of one model, if it has one. Any thread may use it."""

    def __init__(
        self,
        open_session: Callable[[], Any],
        concurrency: ExpectedConcurrency,
        model_name: str,
        *,
        is_light: bool,
        clock: Callable[[], int] = time.perf_counter_ns,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`open_session` is called on a thread of its own. A model that `is_light` may have its
        weights in memory twice for short executions, too."""
        self.concurrency = concurrency
        self.second: SecondSession | None = None  # while it is open
        self._open_session = open_session
        self._model_name = model_name
        self._long_on_loop_ns = _LONG_FOR_LONE_CLIENT_NS if is_light else _LONG_NS
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._lock = threading.Lock()  # guards changes of the above and of everything below
        self._state = _State.NOT_OPEN
        self._opening: threading.Thread | None = None
        # By the number of bits of the number of elements; its complement on the event loop.
        self._comparisons: dict[int, SessionComparison] = {}
        self._cycle: _Cycle | None = None  # of the last execution

    def is_for(self, took_ns: int) -> bool:
        """Whether executions that take so long by the clock may ever use this session."""
        return took_ns >= self._long_on_loop_ns

    def run(
        self,
        elements: int,
        execute: Callable[[_Work, SecondSession | None], _Result],
        work: _Work,
    ) -> _Result:
        """Execute `work` with the model's own session, which is None, or with this one where that
        is quicker. Raises what `execute` raises."""
        key, least_ns = elements.bit_length(), _LONG_NS
        if self.concurrency.executions != 1:
            if not self.concurrency.is_lone():
                return execute(work, None)
            key, least_ns = ~key, self._long_on_loop_ns
        comparison = self._comparisons.get(key)
        start_ns = self._clock()
        if self._cycle is not None:
            self._end_cycle(comparison, start_ns)
        if comparison is None:
            results = execute(work, None)
            # The CPU time takes longer to read: it counts from the next one on.
            if self._clock() - start_ns >= least_ns:
                with self._lock:
                    self._comparisons[key] = SessionComparison(of_cycles=key < 0)
            return results
        if self._state is _State.CLOSED or not comparison.may_gain(start_ns):
            return execute(work, None)
        second = self.second if comparison.takes_second and comparison.own_ns >= least_ns else None
        if second is not None:
            results = execute(work, second)
            took_ns = self._clock() - start_ns
        else:
            cpu_ns = self._cpu_clock()
            results = execute(work, None)
            took_ns = self._clock() - start_ns
            # One that only waited for a core was not long.
            comparison.ran_with_own(min(self._cpu_clock() - cpu_ns, took_ns))
        with self._lock:
            if second is not None or self._is_long(key, comparison, least_ns):
                self._observe(_Cycle(comparison, elements, start_ns, second is not None), took_ns)
        return results

    def _is_long(self, key: int, comparison: SessionComparison, least_ns: int) -> bool:
        """Whether executions with the model's own session, of which one has ended, are long: not
        only some of them, or those would be compared. The lock is held."""
        if comparison.own_ns >= least_ns:
            comparison.long_runs += 1
            return True
        if comparison.gains is None and self._state is _State.NOT_OPEN:
            self._comparisons.pop(key, None)  # the long one was an exception
        return False

    def _observe(self, ended: _Cycle, took_ns: int) -> None:
        """A long execution took so long. The lock is held."""
        comparison = ended.comparison
        if comparison.gains is False:  # since it began
            return
        if self._state is _State.OPEN:
            if comparison.of_cycles:
                self._cycle = ended
            else:
                self._compare(ended, took_ns)
        elif self._state is _State.NOT_OPEN and comparison.long_runs >= (
            _LONG_RUNS_ON_LOOP if comparison.of_cycles else _LONG_RUNS
        ):
            self._state = _State.OPENING
            name = f"shoal-open-{self._model_name}"
            self._opening = threading.Thread(target=self._open, name=name, daemon=True)
            self._opening.start()

    def _end_cycle(self, comparison: SessionComparison | None, now_ns: int) -> None:
        """An execution of this size begins, of the same client as the last one."""
        with self._lock:
            cycle, self._cycle = self._cycle, None
            if cycle is not None and cycle.comparison is comparison and self._state is _State.OPEN:
                self._compare(cycle, now_ns - cycle.start_ns)

    def _compare(self, ended: _Cycle, took_ns: int) -> None:
        """An execution or a cycle took so long. The lock is held."""
        comparison = ended.comparison
        if comparison.gains is not False:
            now_ns = ended.start_ns + took_ns
            comparison.observe(ended.elements, took_ns, now_ns, is_second=ended.is_second)
            self._close_if_useless()

    def _open(self) -> None:
        try:
            session = self._open_session()
        except ShoalError as error:  # there may be no memory for it
            logger.warning(
                "model '%s' runs without a second session for all cores: %s",
                self._model_name,
                error.message,
            )
            session = None
        with self._lock:
            if session is None or self._state is _State.CLOSED:
                self._state = _State.CLOSED
                return
            self.second = SecondSession(session)
            self._state = _State.OPEN

    def _close_if_useless(self) -> None:
        """Close it while no size gains: the model may use one thread only, or threads of its own,
        or other programs use the cores."""
        if all(comparison.gains is False for comparison in self._comparisons.values()):
            self._state = _State.NOT_OPEN
            self.second = None

    def close(self) -> None:
        """Release it; waits until it has been opened."""
        with self._lock:
            self._state = _State.CLOSED
            self.second = None
            opening = self._opening
        if opening is not None:
            opening.join()
