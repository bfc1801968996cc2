"""The output of `shoal tune`: the table of measurements, and the conclusions after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import TextIO

from shoal.tune.configs import Change
from shoal.tune.goal import LATENCY, Goal, Measurement
from shoal.tune.search import SearchResult
from shoal.tune.space import ConfigPoint, Space

PrintLine = Callable[[str], None]
_COLUMNS = (("try", 4), ("batch", 6), ("delay", 9), ("instances", 10), ("threads", 8))
_NUMBERS = (("clients", 8), ("infer/sec", 11), ("latency", 10))


class Table:
    """Prints a line per measurement and, on a terminal, the current one."""

    def __init__(self, goal: Goal, print_line: PrintLine, terminal: TextIO | None) -> None:
        """`terminal` is None without a terminal."""
        self._goal = goal
        self._print_line = print_line
        self._terminal = terminal
        self._count = 0

    def head(self) -> None:
        """The header."""
        names = [f"{name:>{width}}" for name, width in _COLUMNS + _NUMBERS]
        names[-1] = f"{f'p{self._goal.percentile}':>{_NUMBERS[-1][1]}}"
        self._print_line("".join(names))

    def begins(self, point: ConfigPoint, clients: int, *, careful: bool) -> None:
        """A measurement begins."""
        if self._terminal is None:
            return
        line = f"{_cells(self._count + 1, point)}{clients:>8}   … measuring"
        line += " again, for longer" if careful else ""
        width = shutil.get_terminal_size().columns - 1
        self._terminal.write(f"\r\x1b[2K{line[:width]}")
        self._terminal.flush()

    def measured(self, measurement: Measurement, *, best: bool) -> None:
        """A measurement is complete."""
        self.clear()
        self._count += 1
        self._print_line(row(self._count, measurement, self._goal, best=best))

    def clear(self) -> None:
        """Make room for other output."""
        if self._terminal is not None:
            self._terminal.write("\r\x1b[2K")
            self._terminal.flush()


def row(number: int, measurement: Measurement, goal: Goal, *, best: bool = False) -> str:
    """One measurement as a line."""
    line = f"{_cells(number, measurement.point)}{measurement.clients:>8}"
    if measurement.error:
        return f"{line}   failed: {measurement.error}"
    line += f"{measurement.per_second:>11,.0f}{milliseconds(measurement.latency_us):>10}"
    notes = []
    if measurement.careful:
        notes.append("measured again")
    if not goal.met(measurement):
        notes.append("over the limit")
    elif best:
        notes.append("best so far")
    return f"{line}  {', '.join(notes)}".rstrip()


def described(point: ConfigPoint) -> str:
    """A config in words."""
    parts = []
    if point.batch:
        parts.append(f"batches of up to {point.batch}")
        parts.append(f"a delay of {point.delay_us} µs" if point.delay_us else "no delay")
    parts.append(f"{point.instances} instance{'' if point.instances == 1 else 's'}")
    if point.threads:
        parts.append(f"{point.threads} thread{'' if point.threads == 1 else 's'} each")
    return ", ".join(parts)


def verdict(finding: SearchResult, goal: Goal, space: Space) -> list[str]:
    """The chosen config, its gain, and the number of measurements."""
    chosen, start = finding.chosen, finding.start
    if not finding.met:
        return never_met(finding, goal, space)
    lines = [f"chosen: {described(chosen.point)}", f"        {_numbers(chosen, goal)}"]
    if chosen.point == start.point:
        lines.append("        the config as it was: no other config is measurably better")
    else:
        lines.append(f"before: {_numbers(start, goal)}; {_gain(finding, goal)}")
    lines.append(effort(finding))
    if chosen.client_bound:
        lines.append(
            "the client was the bottleneck, so the model may be able to do more; measure again "
            "with --workers 2"
        )
    return lines


def never_met(finding: SearchResult, goal: Goal, space: Space) -> list[str]:
    """The conclusions when no config met the limit: the nearest config, and what would help."""
    chosen = finding.chosen
    limit = milliseconds(goal.limit_us)
    nearest = f"{described(chosen.point)}: {_numbers(chosen, goal)}"
    lines = [
        f"no config met the limit of {limit} (p{goal.percentile}); the nearest was {nearest}",
    ]
    helps = []
    if chosen.clients > 1 and chosen.clients == space.levels[0]:
        helps.append(f"fewer clients at once (--concurrency {max(1, chosen.clients // 4)})")
    if chosen.compute_us >= goal.limit_us:
        helps.append(
            f"a faster model or machine (computing alone takes "
            f"{milliseconds(chosen.compute_us)} of a request)"
        )
    elif chosen.queue_us > chosen.compute_us:
        helps.append("more cores (requests spend more time in the queue than computing)")
    helps.append(f"a limit of {milliseconds(chosen.latency_us * 1.1)} or more")
    lines.append(f"what would help: {'; '.join(helps)}")
    lines.append(effort(finding))
    return lines


def effort(finding: SearchResult) -> str:
    """The number of measurements."""
    made = len(finding.tries)
    text = f"{made} measurements instead of {finding.grid} for the whole grid"
    if finding.implied:
        plural = "result was" if finding.implied == 1 else "results were"
        text += f"; {finding.implied} more {plural} inferred"
    return text


def change_lines(changes: Sequence[Change]) -> list[str]:
    """The changes of the config, and a warning about a smaller max_batch_size."""
    lines = [f"  {change.field}: {change.before} -> {change.after}" for change in changes]
    lines += [
        f"  requests of more than {change.after} rows will be refused; keep max_batch_size at "
        f"{change.before} if clients send them"
        for change in changes
        if change.field == "max_batch_size" and int(change.after) < int(change.before)
    ]
    return lines


def milliseconds(value_us: float) -> str:
    """A time with three significant digits."""
    value_ms = value_us / 1000
    return f"{value_ms:.0f} ms" if value_ms >= 100 else f"{value_ms:.3g} ms"


def _cells(number: int, point: ConfigPoint) -> str:
    cells = (
        f"{number}",
        f"{point.batch or '-'}",
        f"{point.delay_us} µs" if point.batch else "-",
        f"{point.instances}",
        f"{point.threads or '-'}",
    )
    widths = [width for _, width in _COLUMNS]
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _numbers(measurement: Measurement, goal: Goal) -> str:
    clients = f"{measurement.clients} client{'' if measurement.clients == 1 else 's'}"
    return (
        f"{measurement.per_second:,.0f} infer/sec, p{goal.percentile} "
        f"{milliseconds(measurement.latency_us)} with {clients}"
    )


def _gain(finding: SearchResult, goal: Goal) -> str:
    chosen, start = finding.chosen, finding.start
    if goal.met(chosen) and not goal.met(start):
        return "it was over the limit"
    if goal.objective == LATENCY:
        return f"p{goal.percentile} is {1 - chosen.latency_us / start.latency_us:.0%} lower"
    return f"throughput is {chosen.per_second / start.per_second - 1:.0%} higher"
