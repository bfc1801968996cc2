"""Whether another poll of the sockets, before requests are submitted, pays for itself."""

from __future__ import annotations

ENOUGH_GAIN = 0.2  # requests that a repoll has to bring, for each that was there before
TRY_EVERY = 32  # groups, while repolls are not worth it
_SMOOTHING = 0.125


class SocketRepoll:
    """Whether to poll the sockets once more before requests are submitted, from what that brought
    lately.

    Some clients send all at once: once one request has been read, all have been. Requests of
    others arrive one wake-up after the other; then polling again for a few microseconds makes
    larger batches, which make each request cheaper. Now and then a poll measures which it is.
    """

    __slots__ = ("_before", "_gain", "_until_try")

    def __init__(self) -> None:
        self._before = 0
        self._gain = 0.0
        self._until_try = TRY_EVERY

    def is_worthwhile(self, waiting: int) -> bool:
        """Whether to poll again before `waiting` requests are submitted; at most once for them."""
        if self._before or not waiting:
            return False
        if self._gain < ENOUGH_GAIN:
            self._until_try -= 1
            if self._until_try > 0:
                return False
            self._until_try = TRY_EVERY
        self._before = waiting
        return True

    def observe(self, waiting: int) -> None:
        """`waiting` requests are about to be submitted; call it each time."""
        before, self._before = self._before, 0
        if before:
            brought = (waiting - before) / before
            self._gain += _SMOOTHING * (brought - self._gain)
