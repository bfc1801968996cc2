"""A second ONNX Runtime session with all cores, for executions that run alone.

    alone, long --> opened in the background --> compared with the first --> used for such sizes

Instances of a model share a session with cores / instances threads: a session's number of threads
cannot change, and more of them than cores would slow each other down. An execution that runs alone
would leave the other cores idle. The threads of this session spin while they wait, also for the
next request of a lone client: to wake them for each operator takes longer than small operators.

Only models with long executions get one, because it has its own copy of the weights. Executions
on threads are alone if the scheduler expects no other one; on the event loop, if it has a lone
client. Sizes are compared separately: a batch may gain by more threads, and one of a few rows lose.
"""

from __future__ import annotations

import enum
import logging
import math
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any, TypeVar

from shoal.core.concurrency import ExpectedConcurrency
from shoal.errors import ShoalError

logger = logging.getLogger(__name__)

# Shorter executions on threads gain too little by all cores, and the other cores have work.
_LONG_NS = 4_000_000
_LONG_FOR_LONE_CLIENT_NS = 100_000  # on the event loop, whose other requests would be its own
_LONG_RUNS = 2  # of a size, before the session is opened; the first may be slow for other reasons
_COMPARED_RUNS = 8  # at least, with each session
_COMPARED_NS = 20_000_000  # likewise
# Of executions with the second one, before they are compared: the kernel spreads its threads.
_SETTLING_NS = 80_000_000
_ENOUGH_GAIN = 0.85  # of the time without it
_FIRST_CHECK_NS = 15_000_000_000  # until a size is compared again; twice as long after each time

_Result = TypeVar("_Result")


class _State(enum.Enum):
    NOT_OPEN = "long executions open it"
    OPENING = "a thread opens it"
    OPEN = "it is compared or used"
    CLOSED = "it is never opened again"


class _Size:
    """Long executions whose inputs have about the same number of elements.

    not known --compared--> gains or not --15 s, 30 s, ...--> not known
                            gains --as slow as without--> does not
    """

    __slots__ = (
        "_check_after_ns",
        "_check_at_ns",
        "_own_median",
        "_settling_ns",
        "_with_it",
        "_without",
        "gains",
        "long_runs",
        "own_ns",
    )

    def __init__(self) -> None:
        self.long_runs = 0
        self.own_ns = 0  # CPU time of the last one with the model's own session
        self._without = _Times()  # with the model's own session
        self._with_it = _Times()  # with the second one
        self._own_median = 0.0  # of the last comparison
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
        return self._without.is_enough if self.gains is None else self.gains

    def observe(self, elements: int, took_ns: int, now_ns: int, *, is_second: bool) -> None:
        """An execution took so long that was compared, or used the second session."""
        if not is_second:
            self._without.add(elements, took_ns)
        elif self._settling_ns < _SETTLING_NS:
            self._settling_ns += took_ns
        else:
            self._with_it.add(elements, took_ns)
        if not self._with_it.is_enough:
            return
        took, self._with_it = self._with_it.median(), _Times()
        if self.gains is None:
            self._own_median = self._without.median()
            self._decide(now_ns, gains=took <= _ENOUGH_GAIN * self._own_median)
        elif took > self._own_median:  # threads lost their cores, to other programs or each other
            self._decide(now_ns, gains=False)

    def _decide(self, now_ns: int, *, gains: bool) -> None:
        self.gains = gains
        self._check_at_ns = now_ns + self._check_after_ns
        self._check_after_ns *= 2


class _Times:
    """How long executions took."""

    __slots__ = ("_each_ns", "_total_ns")

    def __init__(self) -> None:
        self._each_ns: list[float] = []  # for each element
        self._total_ns = 0

    def add(self, elements: int, took_ns: int) -> None:
        self._each_ns.append(took_ns / max(1, elements))
        self._total_ns += took_ns

    @property
    def is_enough(self) -> bool:
        return len(self._each_ns) >= _COMPARED_RUNS and self._total_ns >= _COMPARED_NS

    def median(self) -> float:
        return median(self._each_ns)


class LoneSession:
    """The second session of one model, if it has one. Any thread may use it."""

    def __init__(
        self,
        open_session: Callable[[], Any],
        concurrency: ExpectedConcurrency,
        model_name: str,
        *,
        is_light: bool,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`open_session` is called on a thread of its own. A model that `is_light` may have its
        weights in memory twice for short executions, too."""
        self.session: Any = None  # while it is open
        self.last_was_long = False
        self._open_session = open_session
        self._concurrency = concurrency
        self._model_name = model_name
        self._long_ns = _LONG_FOR_LONE_CLIENT_NS if is_light else _LONG_NS
        self._clock = clock
        self._lock = threading.Lock()  # guards changes of the above and of everything below
        self._state = _State.NOT_OPEN
        self._opening: threading.Thread | None = None
        self._sizes: dict[int, _Size] = {}  # by the number of bits of the number of elements

    def knows(self, elements: int) -> bool:
        """Whether executions with so many elements in their inputs are long."""
        size = self._sizes.get(elements.bit_length())
        return size is not None and size.long_runs >= _LONG_RUNS

    def run(
        self,
        elements: int,
        with_first: Callable[[], _Result],
        with_second: Callable[[Any], _Result],
    ) -> _Result:
        """Run with the model's own session, or with this one, which is passed, where that is
        quicker. Raises what they raise."""
        size = self._sizes.get(elements.bit_length())
        least_ns = self._least_ns()
        second = None
        if size is not None and size.own_ns >= least_ns and size.may_gain(self._clock()):
            second = self.session if size.takes_second else None
        start_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        results = with_first() if second is None else with_second(second)
        took_ns, cpu_ns = time.perf_counter_ns() - start_ns, time.thread_time_ns() - cpu_ns
        own_ns = None
        if second is None:
            own_ns = min(cpu_ns, took_ns)  # one that only waited for a core was not long
            self.last_was_long = own_ns >= self._long_ns
        if size is not None or self.last_was_long:
            with self._lock:
                self._observe(elements, took_ns, own_ns, least_ns)
        return results

    def _least_ns(self) -> float:
        """How long executions must be for the one that begins now to use this session."""
        if self._state is not _State.CLOSED:
            if self._concurrency.executions == 1:
                return _LONG_NS
            if self._concurrency.has_lone_client():
                return self._long_ns
        return math.inf

    def _observe(self, elements: int, took_ns: int, own_ns: int | None, least_ns: float) -> None:
        """An execution took so long; `own_ns` of CPU time with the model's own session, None with
        this one. The lock is held."""
        size = self._sizes.get(elements.bit_length())
        if own_ns is not None:
            if own_ns >= self._long_ns:
                if size is None:
                    size = self._sizes[elements.bit_length()] = _Size()
                size.long_runs += 1
            elif size and size.gains is None and self._state is _State.NOT_OPEN:
                del self._sizes[elements.bit_length()]  # the long one was an exception
                return
            if size is not None:
                size.own_ns = own_ns
        if size is None or size.own_ns < least_ns or size.gains is False:
            return
        if self._state is _State.OPEN:
            if size.gains is None or own_ns is None:
                size.observe(elements, took_ns, self._clock(), is_second=own_ns is None)
            self._close_if_useless()
        elif self._state is _State.NOT_OPEN and size.long_runs >= _LONG_RUNS:
            self._state = _State.OPENING
            name = f"shoal-open-{self._model_name}"
            self._opening = threading.Thread(target=self._open, name=name, daemon=True)
            self._opening.start()

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
            self.session = session
            self._state = _State.OPEN

    def _close_if_useless(self) -> None:
        """Close it while no size gains: the model may use one thread only, or threads of its own,
        or other programs use the cores."""
        if all(size.gains is False for size in self._sizes.values()):
            self._state = _State.NOT_OPEN
            self.session = None

    def close(self) -> None:
        """Release it; waits until it has been opened."""
        with self._lock:
            self._state = _State.CLOSED
            self.session = None
            opening = self._opening
        if opening is not None:
            opening.join()
