"""What is said while a run goes on: the table as it grows, and a bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable

from shoal.perf.progress import Progress
from shoal.stress import table
from shoal.stress.cell import Setup
from shoal.stress.plan import Outcome

Say = Callable[[str], None]
_BAR = 12


class Narrator:
    """Prints each row when it is measured; what happens meanwhile shows on terminals only."""

    def __init__(self, say: Say, progress: Progress) -> None:
        self._say = say
        self._progress = progress
        self._begun = False

    def starting(self, setup: Setup) -> None:
        """A server is started."""
        self._progress.level(_words(setup))

    def asking(self, clients: int, done: int, total: int) -> None:
        """The bar."""
        full = _BAR * done // max(1, total)
        bar = "█" * full + "░" * (_BAR - full)
        self._progress.note(
            f"{clients} client{'' if clients == 1 else 's'} {bar} {done:,}/{total:,} questions"
        )

    def measured(self, outcome: Outcome, setup: Setup) -> None:
        """A row of the table, and what batching did once both are there."""
        cells = outcome.row(setup)
        self._progress.clear()
        if not any(cells):
            return
        without = Setup(setup.sessions, batching=False)
        second = bool(setup.batching) and any(outcome.row(without))
        if not self._begun:
            self._begun = True
            for line in (*table.title(outcome), "", *table.head(outcome.plan)):
                self._say(line)
        elif not second:
            self._say("")
        for line in table.row(setup, cells, named=not second):
            self._say(line)
        if second:
            for line in table.comparison(outcome.row(without), cells):
                self._say(line)


def _words(setup: Setup) -> str:
    if setup.sessions is None:
        return "asking"
    sessions = f"{setup.sessions} session{'' if setup.sessions == 1 else 's'}"
    return f"{sessions}, {'with' if setup.batching else 'without'} batching"
