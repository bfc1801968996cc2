"""A second ONNX Runtime session with all cores, for executions that run alone.

    alone, long --> opened in the background --> compared with the first --> used for such sizes

Instances of a model share a session with cores / instances threads: a session's number of threads
cannot change, and more of them than cores would slow each other down. An execution that runs alone
would leave the other cores idle. The threads of this session spin while they wait, also for the
next request of a lone client: to wake them for each operator takes longer than small operators.

Only models with long executions get one, because it has its own copy of the weights. Sizes are
compared separately: a batch may gain by more threads, and one of a few rows lose.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any, TypeVar

from shoal.core.concurrency import ExpectedConcurrency
from shoal.errors import ShoalError

logger = logging.getLogger(__name__)

_LONG_RUNS = 2  # of a size, before the session is opened; the first may be slow for other reasons
_IN_A_ROW = 8  # executions with the same session, while they are compared: its threads may spin
_COMPARED_NS = 20_000_000  # of executions with each session, and at least so many in a row
_ENOUGH_GAIN = 0.85  # of the time without it
_FIRST_CHECK_NS = 15_000_000_000  # until a size is compared again; twice as long after each time

_Result = TypeVar("_Result")


class _State(enum.Enum):
    NOT_OPEN = "long executions open it"
    OPENING = "a thread opens it"
    OPEN = "it is compared or used"
    CLOSED = "it is never opened again"


class _Size:
    """Long executions whose inputs have about the same number of elements."""

    __slots__ = ("_check_after_ns", "_check_at_ns", "gains", "long_runs", "with_it", "without")

    def __init__(self) -> None:
        self.long_runs = 0
        self.without: list[float] = []  # ns an element, with the model's own session
        self.with_it: list[float] = []  # ... and with the second one
        self.gains: bool | None = None  # by the second session; None while it is not known
        self._check_at_ns = 0
        self._check_after_ns = _FIRST_CHECK_NS

    def may_gain(self, now_ns: int) -> bool:
        """Whether it gains by the second session, or that is to be found out, or once more: other
        programs come and go."""
        if self.gains is not None and now_ns >= self._check_at_ns:
            self.gains = None
            self.long_runs = 0
        return self.gains is not False

    def judge(self, now_ns: int) -> None:
        """Compare the times, and forget them."""
        self.gains = median(self.with_it) <= _ENOUGH_GAIN * median(self.without)
        self._check_at_ns = now_ns + self._check_after_ns
        self._check_after_ns *= 2
        self.with_it, self.without = [], []


class LoneSession:
    """The second session of one model, if it has one. Any thread may use it."""

    def __init__(
        self,
        open_session: Callable[[], Any],
        concurrency: ExpectedConcurrency,
        model_name: str,
        *,
        long_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`open_session` is called on a thread of its own. Executions of `long_ns` or more of CPU
        time are long; one that only waited for a core is not."""
        self.session: Any = None  # while it is open
        self.last_was_long = False
        self._open_session = open_session
        self._concurrency = concurrency
        self._model_name = model_name
        self._long_ns = long_ns
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
        is_alone = self._state is not _State.CLOSED and self._concurrency.runs_alone()
        second = None
        if is_alone and size is not None and size.may_gain(self._clock()):
            second = self._chosen(size)
        start_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        results = with_first() if second is None else with_second(second)
        took_ns, cpu_ns = time.perf_counter_ns() - start_ns, time.thread_time_ns() - cpu_ns
        if second is None:
            self.last_was_long = min(cpu_ns, took_ns) >= self._long_ns
        if size is not None or self.last_was_long:
            with self._lock:
                self._observe(elements, took_ns, is_alone=is_alone, is_second=second is not None)
        return results

    def _chosen(self, size: _Size) -> Any:
        """The second session, if it is to run the execution of this size that begins."""
        if size.gains is None:
            turn = (len(size.without) + len(size.with_it)) // _IN_A_ROW
            return self.session if turn % 2 else None
        return self.session

    def _observe(self, elements: int, took_ns: int, *, is_alone: bool, is_second: bool) -> None:
        """An execution took so long. The lock is held."""
        size = self._sizes.get(elements.bit_length())
        if not is_second and self.last_was_long:
            if size is None:
                size = self._sizes[elements.bit_length()] = _Size()
            size.long_runs += 1
        if size is None or not is_alone or size.gains is not None:
            return
        if self._state is _State.NOT_OPEN:
            if not self.last_was_long:
                del self._sizes[elements.bit_length()]  # the long one was an exception
            elif size.long_runs >= _LONG_RUNS:
                self._state = _State.OPENING
                name = f"shoal-open-{self._model_name}"
                self._opening = threading.Thread(target=self._open, name=name, daemon=True)
                self._opening.start()
        elif self._state is _State.OPEN:
            times = size.with_it if is_second else size.without
            times.append(took_ns / max(1, elements))
            runs = len(size.with_it)
            if is_second and runs % _IN_A_ROW == 0 and runs * took_ns >= _COMPARED_NS:
                size.judge(self._clock())
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
