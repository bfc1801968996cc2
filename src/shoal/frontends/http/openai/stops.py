"""Stop sequences: passes on text up to the first of them, however it is divided into pieces.

feed("Hello wor") "Hello "     feed("ld. The end") "world"     with the stop ". "
"""

from __future__ import annotations

from collections.abc import Sequence


class StopCutter:
    """Finds stop sequences in a text that arrives in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""  # may be the beginning of a stop sequence
        self.stopped = False

    def feed(self, text: str) -> str:
        """Add a piece; returns the text to send now, which is empty once `stopped` is set."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        offsets = [offset for offset in map(held.find, self._stops) if offset >= 0]
        if offsets:
            self.stopped = True
            self._held = ""
            return held[: min(offsets)]
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def rest(self) -> str:
        """The text is complete: returns what was held back, as it is no stop sequence."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop` without completing it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
