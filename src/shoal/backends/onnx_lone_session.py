"""A second ONNX Runtime session with all cores, for executions that run alone.

    alone, long --> opened in the background --> compared with the first --> used for such sizes

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
from statistics import mean, median
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from shoal.backends.base import BoundRun
from shoal.core.concurrency import ExpectedConcurrency
from shoal.errors import ShoalError

logger = logging.getLogger(__name__)

# Shorter executions on threads gain too little by all cores, and the other cores have work.
_LONG_NS = 4_000_000
_LONG_FOR_LONE_CLIENT_NS = 100_000  # on the event loop, whose other requests would be its own
_LONG_RUNS = 2  # of a size, before the session is opened; the first may be slow for other reasons
_COMPARED_RUNS = 8  # at least, with each session
_COMPARED_NS = 20_000_000  # likewise
# While it is used, until it is judged again: in single moments, threads may share a core.
_OBSERVED_NS = 250_000_000
# With the second one, before they are compared: the kernel spreads its threads.
_SETTLING_NS = 80_000_000
_ENOUGH_GAIN = 0.85  # of the time of an execution without it
_ENOUGH_GAIN_OF_CYCLE = 0.9  # of which the execution is about two thirds
# Between executions of a lone client: somewhat longer than the event loop polls for its requests.
# What lasts longer is a pause, or there were executions of other models.
_LONGEST_GAP_NS = 250_000
_FIRST_CHECK_NS = 15_000_000_000  # until a size is compared again; twice as long after each time
_LAST_CHECK_NS = 16 * _FIRST_CHECK_NS

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


class _Size:
    """Long executions whose inputs have about the same number of elements, all of them on the event
    loop or all on threads.

    not known --compared--> gains or not --15 s, 30 s, ...--> not known
                            gains --as slow as without--> does not
    """

    __slots__ = (
        "_check_after_ns",
        "_check_at_ns",
        "_own_ns_each",
        "_settling_ns",
        "_with_it",
        "_without",
        "gains",
        "is_on_loop",
        "long_runs",
        "own_ns",
    )

    def __init__(self, *, is_on_loop: bool) -> None:
        self.is_on_loop = is_on_loop  # where cycles are compared, instead of executions
        self.long_runs = 0
        self.own_ns = 0  # CPU time of the last one with the model's own session
        self._without = _Times()  # with the model's own session, in the last comparison
        self._with_it = _Times()  # with the second one, since the last decision
        self._own_ns_each = 0.0  # of the last comparison
        self._settling_ns = 0
        self.gains: bool | None = None  # by the second session; None while it is not known
        self._check_at_ns = 0
        self._check_after_ns = _FIRST_CHECK_NS

    def may_gain(self, now_ns: int) -> bool:
        """Whether it gains by the second session, or that is to be found out, or once more: other
        programs come and go."""
        if self.gains is not None and now_ns >= self._check_at_ns:
            self.gains = None
            self.long_runs = 0
            self._without, self._with_it, self._settling_ns = _Times(), _Times(), 0
        return self.gains is not False

    @property
    def takes_second(self) -> bool:
        """Whether the next execution should use the second session. While the two are compared, one
        is used after the other: threads that are used now and then sleep in between."""
        return self._without.last(_COMPARED_NS) if self.gains is None else self.gains

    def observe_cycle(self, elements: int, took_ns: int, now_ns: int, *, is_second: bool) -> None:
        """The next execution begins so long after the beginning of the last one. A pause of the
        client counts only as the longest cycle: a client that always pauses gains nothing."""
        longest_ns = _LONGEST_GAP_NS + 2 * self.own_ns  # the same with both sessions
        self.observe(elements, min(took_ns, longest_ns), now_ns, is_second=is_second)

    def observe(self, elements: int, took_ns: int, now_ns: int, *, is_second: bool) -> None:
        """An execution or a cycle took so long that is compared, or used the second session."""
        if not is_second:
            self._without.add(elements, took_ns)
        elif self._settling_ns < _SETTLING_NS:
            self._settling_ns += took_ns
        else:
            self._with_it.add(elements, took_ns)
        if not self._with_it.last(_OBSERVED_NS if self.gains else _COMPARED_NS):
            return
        took, self._with_it = self._typical(self._with_it), _Times()
        if self.gains is None:
            self._own_ns_each = self._typical(self._without)
            enough = _ENOUGH_GAIN_OF_CYCLE if self.is_on_loop else _ENOUGH_GAIN
            self._decide(now_ns, gains=took <= enough * self._own_ns_each)
        elif took >= self._own_ns_each:  # threads lost their cores, to other programs or each other
            self._decide(now_ns, gains=False)

    def _typical(self, times: _Times) -> float:
        """What a lone client's responses take includes the slow ones; of executions on threads, a
        slow one may be due to others."""
        return times.mean() if self.is_on_loop else times.median()

    def _decide(self, now_ns: int, *, gains: bool) -> None:
        self.gains = gains
        self._check_at_ns = now_ns + self._check_after_ns
        self._check_after_ns = min(2 * self._check_after_ns, _LAST_CHECK_NS)


class _Times:
    """How long executions or cycles took."""

    __slots__ = ("_each_ns", "_total_ns")

    def __init__(self) -> None:
        self._each_ns: list[float] = []  # for each element
        self._total_ns = 0

    def add(self, elements: int, took_ns: int) -> None:
        self._each_ns.append(took_ns / max(1, elements))
        self._total_ns += took_ns

    def last(self, least_ns: int) -> bool:
        """Whether there are enough of them."""
        return len(self._each_ns) >= _COMPARED_RUNS and self._total_ns >= least_ns

    def mean(self) -> float:
        return mean(self._each_ns)

    def median(self) -> float:
        return median(self._each_ns)


class _Cycle(NamedTuple):
    """An execution of a lone client, until its next one begins."""

    size: _Size
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
        self._sizes: dict[int, _Size] = {}
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
        size = self._sizes.get(key)
        start_ns = self._clock()
        if self._cycle is not None:
            self._end_cycle(size, start_ns)
        if size is None:
            results = execute(work, None)
            # The CPU time takes longer to read: it counts from the next one on.
            if self._clock() - start_ns >= least_ns:
                with self._lock:
                    self._sizes[key] = _Size(is_on_loop=key < 0)
            return results
        if self._state is _State.CLOSED or not size.may_gain(start_ns):
            return execute(work, None)
        second = self.second if size.takes_second and size.own_ns >= least_ns else None
        if second is not None:
            results = execute(work, second)
            took_ns = self._clock() - start_ns
        else:
            cpu_ns = self._cpu_clock()
            results = execute(work, None)
            took_ns = self._clock() - start_ns
            # One that only waited for a core was not long.
            size.own_ns = min(self._cpu_clock() - cpu_ns, took_ns)
        with self._lock:
            if second is not None or self._is_long(key, size, least_ns):
                self._observe(_Cycle(size, elements, start_ns, second is not None), took_ns)
        return results

    def _is_long(self, key: int, size: _Size, least_ns: int) -> bool:
        """Whether the execution that has ended, with the model's own session, was long. The lock is
        held."""
        if size.own_ns >= least_ns:
            size.long_runs += 1
            return True
        if size.gains is None and self._state is _State.NOT_OPEN:
            self._sizes.pop(key, None)  # the long one was an exception
        return False

    def _observe(self, ended: _Cycle, took_ns: int) -> None:
        """A long execution took so long. The lock is held."""
        size = ended.size
        if size.gains is False:  # since it began
            return
        if self._state is _State.OPEN:
            if size.is_on_loop:
                self._cycle = ended
            else:
                self._compare(ended, took_ns)
        elif self._state is _State.NOT_OPEN and size.long_runs >= _LONG_RUNS:
            self._state = _State.OPENING
            name = f"shoal-open-{self._model_name}"
            self._opening = threading.Thread(target=self._open, name=name, daemon=True)
            self._opening.start()

    def _end_cycle(self, size: _Size | None, now_ns: int) -> None:
        """An execution of this size begins, of the same client as the last one."""
        with self._lock:
            cycle, self._cycle = self._cycle, None
            if cycle is not None and cycle.size is size and self._state is _State.OPEN:
                self._compare(cycle, now_ns - cycle.start_ns)

    def _compare(self, ended: _Cycle, took_ns: int) -> None:
        """An execution or a cycle took so long. The lock is held."""
        size = ended.size
        if size.gains is None or ended.is_second:
            observe = size.observe_cycle if size.is_on_loop else size.observe
            now_ns = ended.start_ns + took_ns
            observe(ended.elements, took_ns, now_ns, is_second=ended.is_second)
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
        if all(size.gains is False for size in self._sizes.values()):
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
