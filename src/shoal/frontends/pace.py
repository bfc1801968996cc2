"""How fast a client sends a body or takes a response, as the sweep of the connections sees it.

Pauses are limited elsewhere. This finds the client that makes none, but sends a byte a minute, and
so occupies memory and a connection for as long as it likes.
"""

from __future__ import annotations

_GRACE_SECS = 60.0


class Pace:
    """The time and the bytes of one transfer at a time."""

    __slots__ = ("_bytes_before", "_since", "_transfer")

    def __init__(self) -> None:
        self._transfer: object = None
        self._since = 0.0
        self._bytes_before = 0

    def end(self) -> None:
        """No transfer is under way."""
        self._transfer = None

    def measure(self, transfer: object, moved: int, now: float) -> tuple[float, int]:
        """How long `transfer` has been seen, and how many bytes it has moved since.

        `moved` is a count that only grows; another `transfer` begins from 0 again.
        """
        if transfer != self._transfer:
            self._transfer = transfer
            self._since = now
            self._bytes_before = moved
        return now - self._since, moved - self._bytes_before


def is_too_slow(secs: float, moved: int, pause_secs: float, min_rate: float) -> bool:
    """Whether the bytes are fewer than `min_rate` a second, after the longest pause a client may
    make (0: any pause) is subtracted; never if `min_rate` is 0."""
    return bool(min_rate) and secs > (pause_secs or _GRACE_SECS) + moved / min_rate
