"""Whether another look at the sockets is worth it before a batch runs: measured, as it goes.

Some clients send all at once: once one has been read, all have been. Others trickle in, one wake-up
after the other, and then a second look brings more, for a few microseconds, than the batch would
have had: it is the larger batch that makes a request cheap. Which of the two it is shows when one
looks, so now and then one looks again.
"""

from __future__ import annotations

ENOUGH = 0.15  # requests that a look has to bring, for each that was there before
TRY_EVERY = 32  # batches, while looks are not worth it
_SMOOTHING = 0.125


class Company:
    """What looking again has brought to one model lately."""

    __slots__ = ("_before", "_gain", "_until_try")

    def __init__(self) -> None:
        self._before = 0
        self._gain = 0.0
        self._until_try = TRY_EVERY

    def look_again(self, waiting: int) -> bool:
        """Whether to look again before `waiting` requests run; if so, `came` is told what came.

        Once for each batch: the answer after a look is no.
        """
        if self._before or not waiting:
            return False
        if self._gain < ENOUGH:
            self._until_try -= 1
            if self._until_try > 0:
                return False
            self._until_try = TRY_EVERY
        self._before = waiting
        return True

    def came(self, waiting: int) -> None:
        """So many wait now, at the time of the batch; to be told before each of them."""
        before, self._before = self._before, 0
        if before:
            brought = (waiting - before) / before
            self._gain += _SMOOTHING * (brought - self._gain)
