"""What is to be measured, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.ask.question import Question
from shoal.stress.cell import Cell, Setup

CLIENTS = (1, 5, 20, 50)
SESSIONS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    questions: Sequence[Question]
    clients: tuple[int, ...] = CLIENTS
    requests: int = 10  # questions of each client that count
    warmup: int = 1  # those before them, that do not
    protocol: str = "tcp"
    timeout_secs: float = 60.0
    seed: int = 0

    def total(self, setups: int) -> int:
        """How many questions are asked in all, those of the warm-up included."""
        return setups * sum(self.clients) * (self.requests + self.warmup)


@dataclass(slots=True)
class Outcome:
    """What a run came to, as far as it came."""

    plan: Plan
    what: str  # the model, or the address of the server
    cores: int | None  # of the machine; None where the server is elsewhere
    cells: list[Cell] = field(default_factory=list)
    interrupted: bool = False

    @property
    def asked(self) -> int:
        """Questions that were answered or failed."""
        return sum(cell.answered + cell.failed for cell in self.cells)

    @property
    def failed(self) -> int:
        """Questions that were not answered."""
        return sum(cell.failed for cell in self.cells)

    def setups(self) -> list[Setup]:
        """The rows, in the order of measuring."""
        return list(dict.fromkeys(cell.setup for cell in self.cells))

    def cell(self, setup: Setup, clients: int) -> Cell | None:
        """One of them, if it was measured."""
        for cell in self.cells:
            if cell.setup == setup and cell.clients == clients:
                return cell
        return None

    def row(self, setup: Setup) -> list[Cell | None]:
        """All of a row, by the number of clients."""
        return [self.cell(setup, clients) for clients in self.plan.clients]
