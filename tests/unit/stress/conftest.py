"""Runs that nobody measured."""

from __future__ import annotations

from collections import Counter

import pytest

from shoal.ask.question import Question
from shoal.stress.cell import Cell, ServerSetup
from shoal.stress.plan import StressPlan, StressResult


@pytest.fixture
def made():
    """A run from (sessions, batching, clients) to its latencies in ms."""

    def make(latencies, clients=(1, 5), *, cores=2, **changes):
        plan = StressPlan([Question("It is red.", "What?")], clients=clients, requests=4)
        outcome = StressResult(plan, "model 'faq'", cores)
        for (sessions, batching, count), values in latencies.items():
            cell = Cell(ServerSetup(sessions, batching), count, values, duration_secs=0.5)
            for name, value in changes.get(f"c{count}", {}).items():
                setattr(cell, name, Counter(value) if name == "failures" else value)
            outcome.cells.append(cell)
        return outcome

    return make
