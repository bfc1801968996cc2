"""The table: sessions by clients, mean and deviation of latency, without and with batching.

sessions  batching              1              5
       1  off          18.2 ± 1.1     92.4 ± 4.2
                             55/s           54/s
          on           18.4 ± 1.2     38.2 ± 5.1
                             54/s          131/s
          faster           0.99x          2.42x
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from shoal.stress.cell import Cell, ServerSetup
from shoal.stress.plan import StressPlan, StressResult

_LEFT, _COLUMN = 18, 15  # four columns fit into a width of 80
PARTIAL = "*"

Row = Sequence[Cell | None]


def title(outcome: StressResult) -> Iterator[str]:
    """What is measured."""
    plan = outcome.plan
    parts = [outcome.what, {"tcp": "TCP", "http": "HTTP"}[plan.protocol]]
    parts.append(f"{plan.requests} question{_s(plan.requests)} per client")
    if plan.least_requests:
        parts[-1] += f" (per cell at least {plan.least_requests})"
    if outcome.cores is not None:
        parts.append(f"{outcome.cores} core{_s(outcome.cores)}")
    yield " · ".join(parts)
    yield "latency in ms: mean ± standard deviation; below it, answers a second"


def head(plan: StressPlan) -> Iterator[str]:
    """The header, with the numbers of clients."""
    cells = [f"{count} client{_s(count)}" for count in plan.clients]
    yield _line("sessions  batching", cells)
    yield "─" * (_LEFT + _COLUMN * len(plan.clients))


def row(setup: ServerSetup, cells: Row, *, named: bool) -> Iterator[str]:
    """One setup; `named` shows its number of sessions."""
    sessions = "-" if setup.sessions is None else f"{setup.sessions}"
    batching = {True: "on", False: "off", None: "-"}[setup.batching]
    yield _line(_left(sessions if named else "", batching), [_latency(cell) for cell in cells])
    yield _line("", [_rate(cell) for cell in cells])
    if any(cell is not None and cell.failed for cell in cells):
        yield _line(_left("", "failed"), [_failed(cell) for cell in cells])


def comparison(without: Row, batched: Row) -> Iterator[str]:
    """The speed-up by batching."""
    cells = []
    for one, other in zip(without, batched, strict=True):
        times = speed_up(one, other)
        cells.append("" if times is None else f"{times:.2f}x")
    yield _line(_left("", "faster"), cells)


def speed_up(without: Cell | None, batched: Cell | None) -> float | None:
    """Mean latency without batching divided by that with batching; None if one is missing."""
    if without is None or batched is None or not without.answered or not batched.answered:
        return None
    return without.mean_ms / batched.mean_ms


def milliseconds(value_ms: float, decimals: int | None = None) -> str:
    """A time with about three significant digits."""
    return f"{value_ms:.{decimals_of(value_ms) if decimals is None else decimals}f}"


def decimals_of(value_ms: float) -> int:
    """The number of decimals for about three significant digits."""
    if math.isnan(value_ms) or value_ms >= 99.95:
        return 0
    return 1 if value_ms >= 9.995 else 2


def _latency(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if not cell.answered:
        return "no answer"
    decimals = decimals_of(cell.mean_ms)
    return f"{milliseconds(cell.mean_ms, decimals)} ± {milliseconds(cell.deviation_ms, decimals)}"


def _rate(cell: Cell | None) -> str:
    if cell is None or not cell.answered:
        return ""
    rate = f"{cell.per_second:,.0f}" if cell.per_second >= 9.95 else f"{cell.per_second:.1f}"
    return f"{rate}/s{PARTIAL if cell.partial else ''}"


def _failed(cell: Cell | None) -> str:
    if cell is None or not cell.failed:
        return ""
    return f"{cell.failed:,} of {cell.failed + cell.answered:,}"


def _left(sessions: str, batching: str) -> str:
    return f"{sessions:>8}  {batching}"


def _line(left: str, cells: Sequence[str]) -> str:
    return f"{left:<{_LEFT}}{''.join(f'{cell:>{_COLUMN}}' for cell in cells)}".rstrip()


def _s(count: int) -> str:
    return "" if count == 1 else "s"
