"""Stop sequences: text goes out up to the first of them, however it was cut into pieces.

feed("Hello wor") "Hello "     feed("ld. The end") "world"     with the stop ". "
"""

from __future__ import annotations

from collections.abc import Sequence


class StopCutter:
    """Looks for stop sequences in a text that comes in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""  # may be the beginning of one of them
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take a piece; what may go out now. Nothing comes after `stopped`."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        places = [place for place in map(held.find, self._stops) if place >= 0]
        if places:
            self.stopped = True
            self._held = ""
            return held[: min(places)]
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def rest(self) -> str:
        """The text is over: what was held back and is no stop sequence after all."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How much of the end of `text` is the beginning of `stop`, and less than all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
