"""Whether a model runs on the event loop or on its worker threads: decided by what it would cost.

    execution on a thread --> ComputeCost --> a batch on the loop would take ... --> LOOP
    execution on the loop --> slow too often, or for too long -------------------> THREADS

Only the model's own time counts: joining and splitting a batch costs the same in both places, and
what a busy machine adds is not the model's. That time does not depend on the place either, so
executions on threads tell what the loop would cost, and no batch has to be run there to find out.
A pure object: it reads only the clock it is given.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

from shoal.instance.compute_cost import ComputeCost

# Passing a batch to a thread and back costs 100-200 µs, and batches on the loop are larger. So up
# to more than 1 ms the loop serves a model's own clients faster; but all others wait meanwhile.
QUICK_NS = 400_000  # batches below this may move to the loop
SLOW_NS = 800_000  # batches above this do not stay there
STALL_NS = 20_000_000  # one execution this long has delayed every connection already

# A single execution may be slow for other reasons, and a rare slow one is bearable: a model leaves
# the loop only after several of the last executions were slow, or when those took too long.
_RECENT = 8
_MOST_SLOW = 2
_MOST_DEBT_NS = STALL_NS + _RECENT * QUICK_NS

# Quick executions in a row before a model moves to the loop. Far below the limit two are enough, as
# long as it has not left the loop: with a thousand models, most requests are among their first.
_STREAK = 8
_SHORT_STREAK = 2
_VERY_QUICK_NS = QUICK_NS // 4
_SAMPLE_EVERY = 16  # quick executions on the loop: enough for the figures in `report`

# After it has left, a model stays on threads until executions have been quick for this long: longer
# each time if they are quick on threads at once, which means that slow ones are exceptions.
_SHORTEST_HOLD_NS = 250_000_000
_LONGEST_HOLD_NS = 16_000_000_000
_GOOD_STAY = 16  # times as long on the loop as on threads: the next exception is the first again
_LOOK_BACK = 16  # executions on threads that tell why it had to leave


class ExecutionMode(enum.Enum):
    """Where executions happen."""

    LOOP = "loop"
    THREADS = "threads"


# For the hot path: on Python 3.11 each access to a member of an enum runs Python code.
LOOP = ExecutionMode.LOOP
THREADS = ExecutionMode.THREADS


class ExecutionPlacement:
    """Where one model's executions happen, from how long they take."""

    # Together in memory, because each execution reads them; everything else is in the dictionary.
    __slots__ = (
        "__dict__",
        "_is_settled",
        "_until_sample",
        "mode",
    )

    def __init__(
        self,
        *,
        allowed: bool = True,
        forced: ExecutionMode | None = None,
        why: str = "",
        max_rows: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`allowed`: whether it may run on the loop at all; `why` is the reason if not.

        `max_rows` is the largest batch that is made of several requests, 0 for none.
        """
        self._clock = clock
        self._forced = forced if allowed else THREADS
        self._why = "set by the configuration"
        if not allowed:
            self._why = why or "the backend may wait for something"
        self._max_rows = max_rows
        self.mode = self._forced or THREADS
        self._is_settled = False  # it is on the loop, free to leave, and has not been slow
        self._cost = ComputeCost()
        self._rows = 0  # of a batch on the loop
        self._slow_among_recent = 0  # one bit per execution, the latest lowest
        self._debt_ns = 0  # of slow executions; each quick one pays QUICK_NS
        self._until_sample = _SAMPLE_EVERY
        self._left_because = ""
        self._on_loop_since_ns = 0
        self._hold_ns = _SHORTEST_HOLD_NS
        self._ready_ns = 0  # not before this may it return
        self._quick_streak = 0
        self._after_leaving = 0  # executions that were examined
        self._slow_after_leaving = 0
        self._was_exception = False  # whether it left for a few executions only

    def on_loop(self) -> bool:
        """Whether executions happen on the event loop now."""
        return self.mode is LOOP

    def report(self) -> dict[str, str]:
        """The mode and its reason with the figures, for statistics."""
        return {"mode": self.mode.value, "reason": self._reason()}

    def observe(self, rows: int, own_ns: int, elapsed_ns: int) -> ExecutionMode:
        """The loop has executed a batch of `rows`; returns the mode for the next one.

        `own_ns` is what the model computed, `elapsed_ns` the same by the clock.
        """
        if self._is_settled and own_ns <= SLOW_NS and elapsed_ns <= STALL_NS:
            self._until_sample -= 1
            if not self._until_sample:
                self._until_sample = _SAMPLE_EVERY
                self._rows = rows
                self._cost.add(rows, own_ns, self._clock())
            return LOOP
        if self.mode is THREADS or self._forced is not None:
            return self.mode
        self._cost.add(rows, own_ns, self._clock())
        self._rows = rows
        if self._is_too_slow(own_ns, elapsed_ns):
            self._leave(rows, own_ns, elapsed_ns)
        else:
            self._is_settled = not self._slow_among_recent and not self._debt_ns
        return self.mode

    def observe_on_thread(
        self, rows: int, own_ns: int, *, waiting_rows: int = 0, rows_alone: int = 0
    ) -> ExecutionMode:
        """As `observe`, for a worker thread, while `waiting_rows` more had arrived.

        The loop would have run all of them as one batch, or `rows_alone` in each execution.
        """
        if self.mode is LOOP or self._forced is not None:
            return self.mode
        now_ns = self._clock()
        cost = self._cost
        cost.add(rows, own_ns, now_ns)
        on_loop = rows_alone or max(rows, min(rows + waiting_rows, self._max_rows))
        self._rows = on_loop
        expected_ns = cost.of(on_loop)
        judged_ns = max(expected_ns, own_ns * rows_alone // rows if rows_alone else own_ns)
        if self._after_leaving < _LOOK_BACK:
            self._after_leaving += 1
            self._slow_after_leaving += judged_ns > QUICK_NS
        self._quick_streak = self._quick_streak + 1 if expected_ns <= QUICK_NS else 0
        if self._is_too_slow(judged_ns, 0):
            if judged_ns > SLOW_NS:
                self._ready_ns = now_ns + self._hold_ns
        elif now_ns >= self._ready_ns:
            surely_quick = judged_ns <= _VERY_QUICK_NS and not self._left_because
            if self._quick_streak >= (_SHORT_STREAK if surely_quick else _STREAK):
                self._enter(now_ns)
        return self.mode

    def _is_too_slow(self, own_ns: int, elapsed_ns: int) -> bool:
        """Record an execution; whether the last ones were too slow for the loop."""
        slow = own_ns > SLOW_NS
        late = elapsed_ns > STALL_NS  # it waits for something, if this happens again and again
        recent = (self._slow_among_recent << 1 | (slow or late)) & ((1 << _RECENT) - 1)
        self._slow_among_recent = recent
        debt_ns = max(0, self._debt_ns + (own_ns if slow else -QUICK_NS))
        self._debt_ns = min(debt_ns, _MOST_DEBT_NS)
        return debt_ns > STALL_NS or recent.bit_count() > _MOST_SLOW

    def _leave(self, rows: int, own_ns: int, elapsed_ns: int) -> None:
        now_ns = self._clock()
        self.mode = THREADS
        self._is_settled = False
        ns = max(own_ns, elapsed_ns) if elapsed_ns > STALL_NS else own_ns
        self._left_because = f"on the event loop a batch of {_rows(rows)} took {_us(ns)}"
        short_stay = now_ns - self._on_loop_since_ns < _GOOD_STAY * self._hold_ns
        if short_stay and self._was_exception:
            self._hold_ns = min(2 * self._hold_ns, _LONGEST_HOLD_NS)
        else:
            self._hold_ns = _SHORTEST_HOLD_NS
        self._ready_ns = now_ns + self._hold_ns
        self._slow_among_recent = self._debt_ns = self._quick_streak = 0
        self._after_leaving = self._slow_after_leaving = 0

    def _enter(self, now_ns: int) -> None:
        self.mode = LOOP
        if self._left_because:
            self._was_exception = 2 * self._slow_after_leaving < self._after_leaving
        self._on_loop_since_ns = now_ns
        self._slow_among_recent = self._debt_ns = 0
        self._is_settled = True

    def _reason(self) -> str:
        if self._forced is not None:
            return self._why
        if not self._rows:
            return "not measured yet"
        batch_ns, row_ns = self._cost.parts()
        compute_ns = self._cost.of(self._rows)
        figures = f"a batch of {_rows(self._rows)} takes {_us(compute_ns)} to compute"
        if batch_ns:
            figures += f", {_us(batch_ns)} and {row_ns / 1000:.2g} µs for each row"
        if self.mode is LOOP:
            return f"{figures}; over {_us(SLOW_NS)} it would move to threads"
        if self._left_because and (compute_ns <= QUICK_NS or not self._after_leaving):
            return f"{self._left_because}; now {figures}"
        return f"{figures}; up to {_us(QUICK_NS)} it would move to the event loop"


def _rows(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


def _us(ns: float) -> str:
    return f"{ns / 1000:.0f} µs"
