"""The line that says how far a run is."""

from __future__ import annotations

import io

from shoal.perf.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_it_writes_over_itself_and_goes_away(result):
    terminal = Terminal()
    progress = ProgressLine(terminal)
    progress.level("Request concurrency: 4")
    progress.waiting(0.5)
    progress.window(1, result(4, [100] * 10).summary)
    progress.clear()
    progress.clear()
    lines = terminal.getvalue().split("\r\x1b[2K")
    assert lines == [
        "",
        "  … Request concurrency: 4 · starting",
        "  … Request concurrency: 4 · ████████░░░░░░░░ window 1",
        "  … Request concurrency: 4 · window 1 · 10 infer/sec, 0.10 ms on average",
        "",
    ]


def test_it_is_silent_elsewhere(result):
    for stream in (io.StringIO(), None):
        progress = ProgressLine(stream)
        progress.level("Request concurrency: 4")
        progress.window(1, result(4, [100]).summary)
        progress.clear()
        assert stream is None or stream.getvalue() == ""
