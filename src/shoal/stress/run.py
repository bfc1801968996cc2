"""One run of `shoal stress`: row by row, cell by cell, until all is measured or it is stopped."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from shoal.stress import material
from shoal.stress.bench import Bench, Counts, Row
from shoal.stress.cell import Cell, Setup
from shoal.stress.load import ask
from shoal.stress.neighbours import others_secs, share
from shoal.stress.plan import Outcome, Plan

_TELL_SECS = 0.1


class Watcher(Protocol):
    """Hears how a run goes."""

    def starting(self, setup: Setup) -> None:
        """The server of a row is being started."""

    def asking(self, clients: int, done: int, total: int) -> None:
        """So many questions of the whole run are done."""

    def measured(self, outcome: Outcome, setup: Setup) -> None:
        """A row is complete, or as complete as it gets."""


def run(plan: Plan, bench: Bench, watcher: Watcher) -> Outcome:
    """Measure all cells. Ctrl-C ends it early, with what was measured; servers are stopped.

    Raises ShoalError when a server does not start or cannot be reached.
    """
    outcome = Outcome(plan, bench.what, bench.cores)
    setups = bench.setups()
    counter = _Counter(watcher, plan.total(len(setups)))
    for setup in setups:
        try:
            watcher.starting(setup)
            with bench.row(setup) as row:
                for clients in plan.clients:
                    counter.cell(clients)
                    cell = _measured(plan, row, setup, clients, counter)
                    if cell.answered or cell.failed:
                        outcome.cells.append(cell)
                    if cell.partial:
                        outcome.interrupted = True
                        break
        except KeyboardInterrupt:
            outcome.interrupted = True
        watcher.measured(outcome, setup)
        if outcome.interrupted:
            break
    return outcome


class _Counter:
    """How far the whole run is, told often enough and not more often."""

    def __init__(self, watcher: Watcher, total: int) -> None:
        self._watcher = watcher
        self._total = total
        self._before = 0  # questions of the parts that are over
        self._clients = 0
        self._told_secs = 0.0

    def cell(self, clients: int) -> None:
        """A cell begins."""
        self._clients = clients
        self._told_secs = 0.0
        self.tick(0)

    def tick(self, done: int) -> None:
        """So many questions of this part are done."""
        if monotonic() - self._told_secs >= _TELL_SECS:
            self._told_secs = monotonic()
            self._watcher.asking(self._clients, self._before + done, self._total)

    def over(self, done: int) -> None:
        """A part is over."""
        self._before += done


def _measured(plan: Plan, row: Row, setup: Setup, clients: int, counter: _Counter) -> Cell:
    """One cell; a partial one when it was interrupted."""
    scripts = material.shuffled(plan.questions, clients, plan.seed)
    pool = row.target.pool(scripts, plan.timeout_secs)
    cell = Cell(setup, clients)
    asking = False  # the questions that count
    try:
        if plan.warmup:
            ask(pool, clients, plan.warmup, counter.tick)
            counter.over(clients * plan.warmup)
        counts, others = row.counts(), others_secs() if row.ours else 0.0
        asking = True
        sample = ask(pool, clients, plan.requests, counter.tick)
        counter.over(clients * plan.requests)
        if row.ours:
            cell.others = share(others, others_secs(), sample.duration_ns / 1e9)
        cell.mean_batch = _mean_batch(counts, row.counts())
    except KeyboardInterrupt:
        cell.partial = True
        if not asking:
            return cell
        sample = pool.cut()
    finally:
        pool.stop()
    cell.latencies_ms = ((sample.ends - sample.starts) / 1e6).tolist()
    cell.failures = sample.failures
    cell.duration_secs = sample.duration_ns / 1e9
    cell.busy = sample.busiest
    cell.starved = sample.starved
    return cell


def _mean_batch(before: Counts | None, after: Counts | None) -> float | None:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])
