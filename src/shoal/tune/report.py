"""`--report`: a run as a self-contained HTML page: the chosen config and all measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from shoal.perf import page as parts
from shoal.perf import svg
from shoal.perf.svg import Dot
from shoal.tune.goal import Goal, Measurement
from shoal.tune.run import TuneResult
from shoal.tune.text import change_lines, described, milliseconds, verdict

_HEAD = ("try", "batch", "delay µs", "instances", "threads", "clients", "infer/sec", "mean batch")


_KINDS = {"chosen": "chosen", "start": "as it was", "tried": "tried", "over": "over the limit"}


def page(outcome: TuneResult) -> str:
    """The whole page."""
    return parts.page(f"A config for {outcome.model.name}", "\n".join(_sections(outcome)))


def _sections(outcome: TuneResult) -> Iterator[str]:
    finding, goal = outcome.finding, outcome.goal
    target = f"the best {goal.objective}"
    if goal.limit_us:
        target += f" with p{goal.percentile} within {milliseconds(goal.limit_us)}"
    cores = outcome.model.subject.cores
    yield parts.about(f"Goal: {target} on {cores} core{'' if cores == 1 else 's'}")
    yield parts.verdict(verdict(finding, goal, outcome.space), met=finding.met)
    yield "<h2>Throughput and latency of every measurement</h2>"
    latency = f"p{goal.percentile} in ms"
    yield parts.figure(
        svg.scatter(_dots(outcome), _KINDS, goal.limit_us / 1000, "inferences a second", latency),
        "Each dot is a measurement; hover over it for its config. The line connects those that no "
        "other measurement beats in both. Down and to the right is better.",
    )
    yield "<h2>Changes</h2>"
    changes = change_lines(outcome.changes)
    nothing = "<p>None: the config as it was is the best one found.</p>"
    yield parts.bullets(changes) if changes else nothing
    yield "<h2>config.pbtxt</h2>"
    yield f"<pre>{escape(outcome.text)}</pre>"
    yield "<h2>All measurements</h2>"
    yield _table(finding.tries, finding.chosen, goal)
    space = outcome.space
    yield (
        f"<p>Batches {_values(space.batches)}, delays {_values(space.delays_us)} µs, instances "
        f"{_values(space.instances)}, threads {_values(space.threads)}, clients "
        f"{_values(space.levels)}: the whole grid would take {finding.grid} measurements.</p>"
    )


def _dots(outcome: TuneResult) -> list[Dot]:
    finding, goal = outcome.finding, outcome.goal
    dots = []
    for measurement in finding.tries:
        if measurement.error:
            continue
        kind = "tried" if goal.met(measurement) else "over"
        if measurement == finding.start:
            kind = "start"
        if measurement == finding.chosen:
            kind = "chosen"
        hint = (
            f"{described(measurement.point)}; {measurement.clients} clients: "
            f"{measurement.per_second:,.0f} infer/sec, {milliseconds(measurement.latency_us)}"
        )
        dots.append(Dot(measurement.per_second, measurement.latency_us / 1000, kind, hint))
    return dots


def _table(tries: Sequence[Measurement], chosen: Measurement, goal: Goal) -> str:
    percentiles = sorted({name for each in tries for name in each.percentiles_us})
    return parts.table(
        [*_HEAD, "mean ms", *(f"p{name} ms" for name in percentiles)],
        [_row(number, each, percentiles) for number, each in enumerate(tries, 1)],
        [_note(each, chosen, goal) for each in tries],
        [index for index, each in enumerate(tries) if each == chosen],
    )


def _row(number: int, measurement: Measurement, percentiles: Sequence[int]) -> list[str]:
    point = measurement.point
    cells = [
        f"{number}",
        f"{point.batch or '-'}",
        f"{point.delay_us}" if point.batch else "-",
        f"{point.instances}",
        f"{point.threads or '-'}",
        f"{measurement.clients}",
    ]
    if measurement.error:
        return [*cells, *["-"] * (3 + len(percentiles))]
    found = measurement.percentiles_us
    return [
        *cells,
        f"{measurement.per_second:,.0f}",
        f"{measurement.mean_batch:.1f}" if measurement.mean_batch else "-",
        f"{measurement.average_us / 1000:.3g}",
        *(f"{found[name] / 1000:.3g}" if name in found else "-" for name in percentiles),
    ]


def _note(measurement: Measurement, chosen: Measurement, goal: Goal) -> str:
    notes = []
    if measurement == chosen:
        notes.append("chosen")
    if measurement.careful:
        notes.append("measured again")
    if measurement.error:
        notes.append(f"failed: {measurement.error}")
    elif not goal.met(measurement):
        notes.append("over the limit")
    return ", ".join(notes)


def _values(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
