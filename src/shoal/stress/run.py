"""One run of `shoal stress`: measures row by row, cell by cell."""

from __future__ import annotations

from time import monotonic

from shoal.stress import material
from shoal.stress.cell import Cell, ServerSetup
from shoal.stress.load import ask
from shoal.stress.other_programs import others_secs, share
from shoal.stress.plan import StressPlan, StressResult
from shoal.stress.progress import ProgressPrinter
from shoal.stress.servers import Counts, ReadyServer, ServersUnderTest

_REPORT_SECS = 0.1


def run(plan: StressPlan, servers: ServersUnderTest, listener: ProgressPrinter) -> StressResult:
    """Measure all cells. Ctrl-C ends the run early and keeps what was measured.

    Raises ShoalError when a server does not start or cannot be reached.
    """
    outcome = StressResult(plan, servers.what, servers.cores)
    setups = servers.setups()
    counter = _Counter(listener, plan.total(len(setups)))
    for setup in setups:
        try:
            listener.starting(setup)
            with servers.ready(setup) as row:
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
        listener.measured(outcome, setup)
        if outcome.interrupted:
            break
    return outcome


class _Counter:
    """Counts the questions of a run and reports them at a limited rate."""

    def __init__(self, listener: ProgressPrinter, total: int) -> None:
        self._listener = listener
        self._total = total
        self._before = 0  # questions of completed parts
        self._clients = 0
        self._reported_secs = 0.0

    def cell(self, clients: int) -> None:
        """A cell begins."""
        self._clients = clients
        self._reported_secs = 0.0
        self.tick(0)

    def tick(self, done: int) -> None:
        """`done` questions of this part are finished."""
        if monotonic() - self._reported_secs >= _REPORT_SECS:
            self._reported_secs = monotonic()
            self._listener.asking(self._clients, self._before + done, self._total)

    def complete(self, done: int) -> None:
        """A part is complete."""
        self._before += done


def _measured(
    plan: StressPlan, row: ReadyServer, setup: ServerSetup, clients: int, counter: _Counter
) -> Cell:
    """Measure one cell; it is partial when interrupted."""
    scripts = material.shuffled(plan.questions, clients, plan.seed)
    pool = row.target.pool(scripts, plan.timeout_secs)
    cell = Cell(setup, clients)
    asking = False  # the questions that count
    try:
        warmup, requests = plan.warmup_of(clients), plan.requests_of(clients)
        if warmup:
            ask(pool, clients, warmup, counter.tick)
            counter.complete(clients * warmup)
        counts, others = row.counts(), others_secs() if row.ours else 0.0
        asking = True
        sample = ask(pool, clients, requests, counter.tick)
        counter.complete(clients * requests)
        if row.ours:
            cell.others = share(others, others_secs(), sample.duration_ns / 1e9)
        cell.mean_batch = _mean_batch(counts, row.counts())
    except KeyboardInterrupt:
        cell.partial = True
        if not asking:
            return cell
        sample = pool.end_window()
    finally:
        pool.stop()
    cell.latencies_ms = ((sample.ends - sample.starts) / 1e6).tolist()
    cell.failures = sample.failures
    cell.duration_secs = sample.duration_ns / 1e9
    first_end_ns = sample.first_sequence_end_ns
    if first_end_ns is not None and not sample.failures:  # failures have no moments
        cell.loaded_secs = (first_end_ns - sample.begin_ns) / 1e9
        # Large batches are answered at once: those that run then count by their time until then.
        took_ns = (sample.ends - sample.starts).clip(1)
        shares = (first_end_ns - sample.starts) / took_ns
        cell.answered_under_load = float(shares.clip(0, 1).sum())
    cell.busy = sample.busiest
    cell.starved = sample.starved
    return cell


def _mean_batch(before: Counts | None, after: Counts | None) -> float | None:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])
