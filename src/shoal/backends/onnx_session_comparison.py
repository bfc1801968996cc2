"""Whether executions gain by a second session: compared again and again while it is used.

    own session: 20 ms --> second: 80 ms to settle, 20 ms --> own: 20 ms --no gain--> 15 s, 30 s ...
                           '-- to settle, 16 times as long, 32, 64 <-- gain --'

What it takes with the second session is compared with the shorter of what it took before and after
with the model's own: other programs may come, and a client may begin or end, in either of them. No
clock is read here, and no lock is taken.
"""

from __future__ import annotations

from statistics import median

_COMPARED_RUNS = 8  # at least, with each session
_COMPARED_NS = 20_000_000  # likewise
# With the second one, before they are compared: the kernel spreads its threads.
_SETTLING_NS = 80_000_000
_FIRST_USED_SHARE = 16  # of the time of a comparison: how long it is used until the next one;
_LAST_USED_SHARE = 4 * _FIRST_USED_SHARE  # twice as long after each that it gained
_ENOUGH_GAIN = 0.85  # of the time of an execution without it
_ENOUGH_GAIN_OF_CYCLE = 0.9  # of which the execution is about two thirds
_STILL_ENOUGH_GAIN = 0.95  # to go on with it
# Between executions of a lone client: somewhat longer than the event loop polls for its requests.
# What lasts longer is a pause, or there were executions of other models.
_LONGEST_GAP_NS = 250_000
_FIRST_CHECK_NS = 15_000_000_000  # until a size that gained nothing is compared again; twice as
_LAST_CHECK_NS = 16 * _FIRST_CHECK_NS  # long after each time
_SMOOTHING = 0.125


class SessionComparison:
    """Of long executions whose inputs have about the same number of elements.

    They are compared by how long they take; those of a lone client on the event loop by their
    cycles, each until the next one begins: the client may lose its core to the threads that spin.
    """

    __slots__ = (
        "_before",
        "_check_after_ns",
        "_check_at_ns",
        "_own",
        "_second",
        "_settling_ns",
        "_used_ns",
        "_used_share",
        "gains",
        "long_runs",
        "of_cycles",
        "own_ns",
        "takes_second",
    )

    def __init__(self, *, of_cycles: bool) -> None:
        self.of_cycles = of_cycles
        self.long_runs = 0  # with the own session, since it was not known whether it gains
        self.own_ns = 0.0  # CPU time of one with the model's own session, see `ran_with_own`
        self.gains: bool | None = None  # by the second session; None while it is not known
        self.takes_second = False  # whether the next execution should use it
        self._own = _Times()  # with the model's own session, since it was used last
        self._before = 0.0  # an element, with the own session before the second one was used
        self._second = _Times()  # with the second session, since it was used last
        self._settling_ns = 0
        self._used_ns = 0  # how long it is to be used
        self._used_share = _FIRST_USED_SHARE
        self._check_at_ns = 0
        self._check_after_ns = _FIRST_CHECK_NS

    def may_gain(self, now_ns: int) -> bool:
        """Whether it gains by the second session, or that is to be found out, or once more: other
        programs come and go."""
        if self.gains is False and now_ns >= self._check_at_ns:
            self.gains = None
            self.long_runs = 0
            self._own, self._second = _Times(), _Times()
        return self.gains is not False

    def ran_with_own(self, own_ns: int) -> None:
        """An execution with the own session had so much CPU time. Nearly all disturbances make it
        longer, so what counts is a minimum that rises slowly."""
        if own_ns < self.own_ns or not self.own_ns:
            self.own_ns = own_ns
        else:
            self.own_ns += _SMOOTHING * (own_ns - self.own_ns)

    def observe(self, elements: int, took_ns: int, now_ns: int, *, is_second: bool) -> None:
        """An execution or a cycle took so long.

        A pause of the client counts only as the longest cycle. A client that always pauses gains
        nothing.
        """
        if is_second is not self.takes_second:  # it began before that changed
            return
        if self.of_cycles:  # the longest is the same with both sessions
            took_ns = min(took_ns, _LONGEST_GAP_NS + 2 * int(self.own_ns))
        if not is_second:
            self._own.add(elements, took_ns)
            if self._own.last(_COMPARED_NS):
                self._compare(now_ns)
        elif self._settling_ns < _SETTLING_NS:
            self._settling_ns += took_ns
        else:
            second = self._second
            second.add(elements, took_ns)
            # Threads that lost their cores, to other programs or each other, are noticed sooner.
            is_slow = second.last(self._used_ns // 4) and second.mean() > self._before
            if is_slow or second.last(self._used_ns):
                self.takes_second = False

    def _compare(self, now_ns: int) -> None:
        """It has run with the own session for a while, and before that perhaps with the second."""
        own, own_ns = self._typical(self._own), self._own.total_ns
        if len(self._second):
            self.gains = self._has_gained(own)
            if self.gains is False:
                self._check_at_ns = now_ns + self._check_after_ns
                self._check_after_ns = min(2 * self._check_after_ns, _LAST_CHECK_NS)
                return
        self._before = own
        if self.gains:
            self._used_ns = self._used_share * own_ns
            self._used_share = min(2 * self._used_share, _LAST_USED_SHARE)
        else:
            self._used_ns, self._used_share = _COMPARED_NS, _FIRST_USED_SHARE
        self._own, self._second, self._settling_ns = _Times(), _Times(), 0
        self.takes_second = True

    def _has_gained(self, own: float) -> bool | None:
        """By the second session, used since the last time with the own one; `own` is this time's.
        None: to be compared once more."""
        second = self._typical(self._second)
        if not self.gains:
            enough = _ENOUGH_GAIN_OF_CYCLE if self.of_cycles else _ENOUGH_GAIN
            return second <= enough * min(own, self._before)
        self._check_after_ns = _FIRST_CHECK_NS  # it gained for a while, and may soon gain again
        if second <= _STILL_ENOUGH_GAIN * min(own, self._before):
            return True
        return None if second <= _STILL_ENOUGH_GAIN * own else False  # None: all became slower

    def _typical(self, times: _Times) -> float:
        """What a lone client's responses take includes the slow ones; of executions on threads, a
        slow one may be due to others."""
        return times.mean() if self.of_cycles else times.median()


class _Times:
    """How long executions or cycles took."""

    __slots__ = ("_each_ns", "_sum_ns", "total_ns")

    def __init__(self) -> None:
        self._each_ns: list[float] = []  # for each element
        self._sum_ns = 0.0  # of these
        self.total_ns = 0

    def __len__(self) -> int:
        return len(self._each_ns)

    def add(self, elements: int, took_ns: int) -> None:
        each_ns = took_ns / max(1, elements)
        self._each_ns.append(each_ns)
        self._sum_ns += each_ns
        self.total_ns += took_ns

    def last(self, least_ns: int) -> bool:
        """Whether there are enough of them."""
        return len(self._each_ns) >= _COMPARED_RUNS and self.total_ns >= least_ns

    def mean(self) -> float:
        return self._sum_ns / len(self._each_ns)

    def median(self) -> float:
        return median(self._each_ns)
