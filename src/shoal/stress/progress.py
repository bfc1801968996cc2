"""Output during a run: the rows of the table, and a progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable

from shoal.perf.progress import ProgressLine
from shoal.stress import table
from shoal.stress.cell import ServerSetup
from shoal.stress.plan import StressResult

PrintLine = Callable[[str], None]
_BAR = 12


class ProgressPrinter:
    """Prints each row when it is measured, and the progress on terminals."""

    def __init__(self, print_line: PrintLine, progress: ProgressLine) -> None:
        self._print_line = print_line
        self._progress = progress
        self._started = False

    def starting(self, setup: ServerSetup) -> None:
        """A server is started."""
        self._progress.level(_words(setup))

    def asking(self, clients: int, done: int, total: int) -> None:
        """The progress bar."""
        full = _BAR * done // max(1, total)
        bar = "█" * full + "░" * (_BAR - full)
        self._progress.note(
            f"{clients} client{'' if clients == 1 else 's'} {bar} {done:,}/{total:,} questions"
        )

    def measured(self, outcome: StressResult, setup: ServerSetup) -> None:
        """A row of the table, and the comparison once both rows are measured."""
        cells = outcome.row(setup)
        self._progress.clear()
        if not any(cells):
            return
        without = ServerSetup(setup.sessions, batching=False)
        second = bool(setup.batching) and any(outcome.row(without))
        if not self._started:
            self._started = True
            for line in (*table.title(outcome), "", *table.head(outcome.plan)):
                self._print_line(line)
        elif not second:
            self._print_line("")
        for line in table.row(setup, cells, named=not second):
            self._print_line(line)
        if second:
            for line in table.comparison(outcome.row(without), cells):
                self._print_line(line)


def _words(setup: ServerSetup) -> str:
    if setup.sessions is None:
        return "asking"
    sessions = f"{setup.sessions} session{'' if setup.sessions == 1 else 's'}"
    return f"{sessions}, {'with' if setup.batching else 'without'} batching"
