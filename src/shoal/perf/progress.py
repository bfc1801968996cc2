"""A progress line on the terminal; without a terminal it prints nothing."""

from __future__ import annotations

import shutil
from typing import TextIO

from shoal.perf.summary import LoadSummary

_BAR = 16


class ProgressLine:
    """Overwrites its own line. Silent unless `stream` is a terminal."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._title = ""
        self._windows = 0
        self._last = ""  # the result of the last window
        self._shown = False

    def level(self, title: str) -> None:
        """A level begins."""
        self._title = title
        self._windows = 0
        self._last = ""
        self.note("starting")

    def waiting(self, done: float) -> None:
        """This share of a window has passed."""
        full = round(_BAR * done)
        self.note(f"{'█' * full}{'░' * (_BAR - full)} window {self._windows + 1}{self._last}")

    def window(self, number: int, summary: LoadSummary) -> None:
        """A window was measured."""
        self._windows = number
        self._last = (
            f" · {summary.per_second:,.0f} infer/sec, {summary.average_us / 1000:.2f} ms on average"
        )
        self.note(f"window {number}{self._last}")

    def note(self, what: str) -> None:
        """Show the current activity."""
        if self._stream is None:
            return
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[2K{f'  … {self._title} · {what}'[:width]}")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Clear the line before other output."""
        if self._stream is not None and self._shown:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._shown = False
