"""When to leave a cache alone that fails, and how often to say so.

    failed --> left alone for 1 s, then one question --> failed again: for 2 s, 4 s, ... 30 s
                                                     └--> answered: as before

It reads no clock and takes no lock: its owner has both.
"""

from __future__ import annotations

_SECOND_NS = 1_000_000_000
FIRST_PAUSE_NS = 1 * _SECOND_NS
LONGEST_PAUSE_NS = 30 * _SECOND_NS
WORD_EVERY_NS = 30 * _SECOND_NS  # at most one warning in that time


class Outage:
    """Whether something that may fail is worth asking now."""

    __slots__ = ("_next_pause_ns", "_next_word_ns", "_retry_at_ns")

    def __init__(self) -> None:
        self._next_pause_ns = 2 * FIRST_PAUSE_NS
        self._retry_at_ns: int | None = None  # None: all is well
        self._next_word_ns = 0

    @property
    def active(self) -> bool:
        """Whether the last question failed."""
        return self._retry_at_ns is not None

    def pauses(self, now_ns: int) -> bool:
        """Whether asking now is in vain. Changes nothing."""
        return self._retry_at_ns is not None and now_ns < self._retry_at_ns

    def allows(self, now_ns: int) -> bool:
        """Whether to ask now. During an outage one question is let through after each pause."""
        if self._retry_at_ns is None:
            return True
        if now_ns < self._retry_at_ns:
            return False
        # The others wait for what this one finds, or for the next pause to end.
        self._retry_at_ns = now_ns + self._next_pause_ns
        self._next_pause_ns = min(2 * self._next_pause_ns, LONGEST_PAUSE_NS)
        return True

    def failed(self, now_ns: int) -> bool:
        """Note a question that failed; true when it is time to say so."""
        if self._retry_at_ns is None:  # else it was asked before, or it was the one let through
            self._retry_at_ns = now_ns + FIRST_PAUSE_NS
            self._next_pause_ns = 2 * FIRST_PAUSE_NS
        if now_ns < self._next_word_ns:
            return False
        self._next_word_ns = now_ns + WORD_EVERY_NS
        return True

    def succeeded(self) -> bool:
        """Note a question that was answered; true when that ends an outage."""
        if self._retry_at_ns is None:
            return False
        self._retry_at_ns = None
        return True
