"""The settings of a run, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.ask.question import Question
from shoal.stress.cell import Cell, ServerSetup

CLIENTS = (1, 5, 20, 50)
SESSIONS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class StressPlan:
    """The settings of a run."""

    questions: Sequence[Question]
    clients: tuple[int, ...] = CLIENTS
    requests: int = 10  # measured questions per client
    warmup: int = 1  # questions per client before them
    protocol: str = "tcp"
    timeout_secs: float = 60.0
    seed: int = 0

    def total(self, setups: int) -> int:
        """The number of questions in all, with warm-up."""
        return setups * sum(self.clients) * (self.requests + self.warmup)


@dataclass(slots=True)
class StressResult:
    """The result of a run, complete or interrupted."""

    plan: StressPlan
    what: str  # the model, or the address of the server
    cores: int | None  # of the machine; None where the server is elsewhere
    cells: list[Cell] = field(default_factory=list)
    interrupted: bool = False

    @property
    def total_questions(self) -> int:
        """Questions that were answered or failed."""
        return sum(cell.answered + cell.failed for cell in self.cells)

    @property
    def failed(self) -> int:
        """Questions that were not answered."""
        return sum(cell.failed for cell in self.cells)

    def setups(self) -> list[ServerSetup]:
        """The rows, in the order of measuring."""
        return list(dict.fromkeys(cell.setup for cell in self.cells))

    def cell(self, setup: ServerSetup, clients: int) -> Cell | None:
        """One cell, if it was measured."""
        for cell in self.cells:
            if cell.setup == setup and cell.clients == clients:
                return cell
        return None

    def row(self, setup: ServerSetup) -> list[Cell | None]:
        """The cells of a row, by number of clients."""
        return [self.cell(setup, clients) for clients in self.plan.clients]
