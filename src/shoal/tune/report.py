"""`--report`: a run as one page, complete in itself: what was chosen, and everything tried."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from html import escape

import shoal
from shoal.tune.goal import Goal, Measurement
from shoal.tune.run import Outcome
from shoal.tune.scatter import Dot, scatter
from shoal.tune.text import change_lines, described, milliseconds, verdict

_STYLE = """
:root { --ink: #1f2933; --soft: #66737f; --line: #e1e6ea; --paper: #ffffff; --card: #f7f9fa;
  --tried: #868e96; --chosen: #0b7285; --start: #e8590c; --over: #c92a2a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaed; --soft: #9aa7b2; --line: #323c44;
  --paper: #14191d; --card: #1c2328; --tried: #adb5bd; --chosen: #3bc9db; --start: #ffa94d;
  --over: #ff8787; } }
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 980px; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.about { color: var(--soft); margin: .2rem 0 1.4rem; }
ul.verdict { background: var(--card); border-left: 4px solid var(--chosen); border-radius: 4px;
  padding: .8rem 1rem .8rem 2rem; }
ul.verdict.unmet { border-color: var(--over); }
figure { margin: 0 0 .9rem; background: var(--card); border-radius: 6px; padding: .6rem; }
figcaption { color: var(--soft); font-size: .85rem; padding: 0 .4rem .3rem; }
pre { background: var(--card); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .9rem; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
td.text, th.text { text-align: left; }
tr.chosen td { color: var(--chosen); font-weight: 600; }
.scroll { overflow-x: auto; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .tick, svg .title { fill: var(--soft); font-size: 11.5px; }
svg .grid { stroke: var(--line); } svg .limit { stroke: var(--over); stroke-dasharray: 4 3; }
svg .front { fill: none; stroke: var(--tried); stroke-width: 1.4; }
svg .tried { fill: var(--tried); } svg .over { fill: none; stroke: var(--over); }
svg .chosen { fill: var(--chosen); } svg .start { fill: var(--start); }
"""
_HEAD = ("try", "batch", "delay µs", "instances", "threads", "clients", "infer/sec", "mean batch")


def page(outcome: Outcome) -> str:
    """The whole page; it asks for nothing from elsewhere."""
    title = f"A config for {outcome.model.name}"
    body = "\n".join(_sections(outcome))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style></head>
<body>
<h1>{escape(title)}</h1>
{body}
</body></html>
"""


def _sections(outcome: Outcome) -> Iterator[str]:
    finding, goal = outcome.finding, outcome.goal
    now = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    wanted = f"the best {goal.objective}"
    if goal.limit_us:
        wanted += f" with p{goal.percentile} within {milliseconds(goal.limit_us)}"
    cores = outcome.model.subject.cores
    yield (
        f'<p class="about">Looked for {escape(wanted)} on {cores} '
        f"core{'' if cores == 1 else 's'} · measured {now} with Shoal "
        f"{escape(shoal.__version__)}</p>"
    )
    lines = "".join(f"<li>{escape(line)}</li>" for line in verdict(finding, goal, outcome.space))
    yield f'<ul class="verdict{"" if finding.met else " unmet"}">{lines}</ul>'
    yield "<h2>Throughput and latency of everything tried</h2>"
    yield (
        f"<figure>{scatter(_dots(outcome), goal.limit_us / 1000, f'p{goal.percentile} in ms')}"
        "<figcaption>Each dot is a measurement; point at it for its config. The line joins those "
        "that no other beats in both. Down and to the right is better.</figcaption></figure>"
    )
    yield "<h2>What changed</h2>"
    changes = "".join(f"<li>{escape(line.strip())}</li>" for line in change_lines(outcome.changes))
    nothing = "<p>Nothing: the config as it was is the best one found.</p>"
    yield f"<ul>{changes}</ul>" if changes else nothing
    yield "<h2>config.pbtxt</h2>"
    yield f"<pre>{escape(outcome.text)}</pre>"
    yield "<h2>Everything tried</h2>"
    yield _table(finding.tries, finding.chosen, goal)
    space = outcome.space
    yield (
        f"<p>Of batches {_values(space.batches)}, delays {_values(space.delays_us)} µs, instances "
        f"{_values(space.instances)}, threads {_values(space.threads)} and clients "
        f"{_values(space.levels)}: {finding.grid} measurements if all were made.</p>"
    )


def _dots(outcome: Outcome) -> list[Dot]:
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
    names = [*_HEAD, "mean ms", *(f"p{name} ms" for name in _percentiles(tries))]
    top = "".join(f"<th>{escape(name)}</th>" for name in names) + '<th class="text"></th>'
    rows = [_row(number, each, chosen, goal, tries) for number, each in enumerate(tries, 1)]
    body = "\n".join(rows)
    return f'<div class="scroll"><table><tr>{top}</tr>\n{body}</table></div>'


def _row(
    number: int,
    measurement: Measurement,
    chosen: Measurement,
    goal: Goal,
    tries: Sequence[Measurement],
) -> str:
    point = measurement.point
    cells = [
        f"{number}",
        f"{point.batch or '-'}",
        f"{point.delay_us}" if point.batch else "-",
        f"{point.instances}",
        f"{point.threads or '-'}",
        f"{measurement.clients}",
    ]
    percentiles = _percentiles(tries)
    if measurement.error:
        cells += ["-"] * (3 + len(percentiles))
    else:
        cells.append(f"{measurement.per_second:,.0f}")
        cells.append(f"{measurement.mean_batch:.1f}" if measurement.mean_batch else "-")
        cells.append(f"{measurement.average_us / 1000:.3g}")
        found = measurement.percentiles_us
        cells += [f"{found[name] / 1000:.3g}" if name in found else "-" for name in percentiles]
    notes = []
    if measurement == chosen:
        notes.append("chosen")
    if measurement.careful:
        notes.append("measured again")
    if measurement.error:
        notes.append(f"failed: {measurement.error}")
    elif not goal.met(measurement):
        notes.append("over the limit")
    kind = ' class="chosen"' if measurement == chosen else ""
    inside = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr{kind}>{inside}<td class="text">{escape(", ".join(notes))}</td></tr>'


def _percentiles(tries: Sequence[Measurement]) -> list[int]:
    return sorted({name for each in tries for name in each.percentiles_us})


def _values(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
