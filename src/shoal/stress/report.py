"""`--report`: a run as a self-contained HTML page: conclusions, two charts, all numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.perf import page as parts
from shoal.perf import svg
from shoal.perf.svg import Point, Series
from shoal.stress.cell import Cell, ServerSetup
from shoal.stress.findings import verdict
from shoal.stress.plan import StressResult
from shoal.stress.table import milliseconds

_MOST_LINES = 8  # the style sheet has 8 colours
_HEAD = (
    "sessions",
    "batching",
    "clients",
    "mean ms",
    "deviation ms",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "answers/s",
    "mean batch",
    "failed",
    "client busy",
)


def page(outcome: StressResult) -> str:
    """The whole page."""
    return parts.page("Questions under load", "\n".join(_sections(outcome)))


def _sections(outcome: StressResult) -> Iterator[str]:
    plan = outcome.plan
    machine = "" if outcome.cores is None else f" on {outcome.cores} cores"
    yield parts.about(
        f"{outcome.what}{machine}, over {plan.protocol.upper()}, "
        f"{plan.requests} questions per client"
    )
    yield parts.verdict(verdict(outcome))
    if not outcome.cells:
        return
    yield "<h2>Latency by clients</h2>"
    yield parts.figure(
        svg.lines(_curves(outcome, lambda cell: cell.mean_ms), "clients", "mean latency in ms"),
        "Each line is a number of sessions, with or without batching. Lower is better.",
    )
    yield "<h2>Throughput by clients</h2>"
    yield parts.figure(
        svg.lines(_curves(outcome, lambda cell: cell.per_second), "clients", "answers a second"),
        "Higher is better.",
    )
    yield "<h2>All numbers</h2>"
    yield parts.table(_HEAD, [_row(cell) for cell in outcome.cells])


def _curves(outcome: StressResult, value: Callable[[Cell], float]) -> list[Series]:
    return [
        Series(
            _name(setup),
            [
                Point(cell.clients, value(cell), hint=f"{_name(setup)}; {_clients(cell)}")
                for cell in outcome.row(setup)
                if cell is not None and cell.answered
            ],
        )
        for setup in outcome.setups()[:_MOST_LINES]
    ]


def _row(cell: Cell) -> list[str]:
    times = [cell.mean_ms, cell.deviation_ms, *map(cell.percentile_ms, (50, 95, 99))]
    return [
        "-" if cell.setup.sessions is None else f"{cell.setup.sessions}",
        _batching(cell.setup),
        f"{cell.clients}",
        *(milliseconds(time) if cell.answered else "-" for time in times),
        f"{cell.per_second:,.1f}",
        "-" if cell.mean_batch is None else f"{cell.mean_batch:.1f}",
        f"{cell.failed:,}",
        f"{cell.busy:.0%}",
    ]


def _name(setup: ServerSetup) -> str:
    if setup.sessions is None:
        return "as it runs"
    return f"{setup.sessions} batched" if setup.batching else f"{setup.sessions}"


def _batching(setup: ServerSetup) -> str:
    return {True: "on", False: "off", None: "-"}[setup.batching]


def _clients(cell: Cell) -> str:
    return (
        f"{cell.clients} clients: {milliseconds(cell.mean_ms)} ms, {cell.per_second:,.0f} answers/s"
    )
