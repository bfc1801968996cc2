"""The settings of a run, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.ask.question import Question
from shoal.stress.cell import Cell, ServerSetup

CLIENTS = (1, 5, 20, 50)
SESSIONS = (1, 2, 4)
REQUESTS, LEAST_REQUESTS = 10, 40  # per client, and per cell: fewer make a cell a matter of luck
WARMUP, LEAST_WARMUP = 1, 30  # by then, a model has all its sessions


@dataclass(frozen=True, slots=True)
class StressPlan:
    """The settings of a run."""

    questions: Sequence[Question]
    clients: tuple[int, ...] = CLIENTS
    requests: int = REQUESTS  # measured questions per client
    warmup: int = WARMUP  # questions per client before them
    least_requests: int = 0  # measured questions per cell
    least_warmup: int = 0  # questions per cell before them
    protocol: str = "tcp"
    timeout_secs: float = 60.0
    seed: int = 0

    def requests_of(self, clients: int) -> int:
        """Measured questions of each client in a cell with that many."""
        return max(self.requests, -(-self.least_requests // clients))

    def warmup_of(self, clients: int) -> int:
        """Questions of each client before them."""
        return max(self.warmup, -(-self.least_warmup // clients))

    def total(self, setups: int) -> int:
        """The number of questions in all, with warm-up."""
        each = [
            clients * (self.requests_of(clients) + self.warmup_of(clients))
            for clients in self.clients
        ]
        return setups * sum(each)


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
