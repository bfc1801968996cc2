"""`--report`: a run as a page (.html, complete in itself) or as a picture (.png)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import shoal
from shoal.errors import InvalidArgument
from shoal.perf import svg
from shoal.perf.findings import PARTS, Finding, findings, label, verdict
from shoal.perf.model_facts import ModelFacts
from shoal.perf.options import PerfOptions
from shoal.perf.profiler import Profile
from shoal.perf.server_side import ServerSide, merge
from shoal.perf.svg import Bar, Point, Series

_STYLE = """
:root { --ink: #1f2933; --soft: #66737f; --line: #e1e6ea; --paper: #ffffff; --card: #f7f9fa;
  --c0: #0b7285; --c1: #e8590c; --c2: #9c36b5; --c3: #2b8a3e; --c4: #1971c2; --c5: #c2a100;
  --c6: #868e96; --c7: #e64980; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaed; --soft: #9aa7b2; --line: #323c44;
  --paper: #14191d; --card: #1c2328; --c0: #3bc9db; --c1: #ffa94d; --c2: #da77f2; --c3: #69db7c;
  --c4: #74c0fc; --c5: #ffe066; --c6: #adb5bd; --c7: #faa2c1; } }
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 860px; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.about { color: var(--soft); margin: .2rem 0 1.4rem; }
ul.verdict { background: var(--card); border-left: 4px solid var(--c0); border-radius: 4px;
  padding: .8rem 1rem .8rem 2rem; }
figure { margin: 0 0 .9rem; background: var(--card); border-radius: 6px; padding: .6rem; }
figcaption { color: var(--soft); font-size: .85rem; padding: 0 .4rem .3rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .9rem; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
.scroll { overflow-x: auto; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .tick, svg .title { fill: var(--soft); font-size: 11.5px; }
svg .label { font-size: 11px; } svg .grid { stroke: var(--line); }
svg .line { fill: none; stroke-width: 2.2; }
svg .mark { stroke: var(--c1); stroke-dasharray: 4 3; }
"""
_COLOURS = "\n".join(
    f"svg .s{index} {{ fill: var(--c{index}); stroke: var(--c{index}); }} "
    f"svg .bar.s{index} {{ stroke: none; }} svg .line.s{index} {{ fill: none; }}"
    for index in range(8)
)


def write(path: str, options: PerfOptions, facts: ModelFacts, profile: Profile) -> None:
    """Write the report. InvalidArgument when it cannot be."""
    place = Path(path)
    try:
        if place.suffix == ".png":
            from shoal.perf import picture

            picture.draw(place, options, facts, profile)
        else:
            place.write_text(page(options, facts, profile), encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"--report={path} cannot be written: {error}") from None


def page(options: PerfOptions, facts: ModelFacts, profile: Profile) -> str:
    """The whole page; it asks for nothing from elsewhere."""
    found = findings(profile)
    title = f"{facts.name} under load"
    body = "\n".join(_sections(options, profile, found))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}{_COLOURS}</style></head>
<body>
<h1>{escape(title)}</h1>
{body}
</body></html>
"""


def _sections(options: PerfOptions, profile: Profile, found: Sequence[Finding]) -> Iterator[str]:
    now = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    protocol = {"http": "HTTP", "grpc": "gRPC"}[options.protocol]
    protocol += " streams" if options.streaming else ""
    server = options.url or "localhost"
    yield (
        f'<p class="about">{escape(server)} over {protocol}, {options.batch_size} '
        f"row{'' if options.batch_size == 1 else 's'} per request · measured {now} with Shoal "
        f"{escape(shoal.__version__)}</p>"
    )
    sentences = "".join(f"<li>{escape(line)}</li>" for line in verdict(options, profile))
    yield f'<ul class="verdict">{sentences}</ul>'
    if not found:
        return
    level = label(options)
    yield "<h2>Latency over throughput</h2>"
    yield _figure(
        svg.lines(_curves(found, level), "inferences a second", "latency in ms"),
        f"A dot is a {level}, which stands beside the dots of the mean.",
    )
    yield "<h2>Where the time went</h2>"
    rows = [Bar(f"{finding.value}", finding.parts_us) for finding in found]
    yield _figure(
        svg.stacked(rows, PARTS, f"mean time of a request in µs, by {level}"),
        "Queue and compute are what the server counted; the network's part is what is left over.",
    )
    yield "<h2>Latency distribution</h2>"
    for finding in found if len(found) <= 4 else (found[0], found[len(found) // 2], found[-1]):
        marks = [
            (value, f"p{name} {value / 1000:.3g} ms")
            for name, value in finding.percentiles_us.items()
        ]
        yield _figure(
            svg.bars(finding.histogram, marks, "latency in µs", "requests"),
            f"{level.capitalize()} {finding.value}",
        )
    yield "<h2>All numbers</h2>"
    yield _table(found, level)
    whole = merge([result.server for result in profile.results])
    if whole is not None and whole.composing:
        yield "<h2>Composing models</h2>"
        yield _composing(whole)


def _curves(found: Sequence[Finding], level: str) -> list[Series]:
    def points(take: int | None) -> list[Point]:
        made = []
        for finding in found:
            value = finding.average_us if take is None else finding.percentiles_us[take]
            hint = f"{level} {finding.value}: {finding.per_second:,.0f}/s, {value / 1000:.3g} ms"
            made.append(
                Point(finding.per_second, value / 1000, finding.value if take is None else "", hint)
            )
        return made

    return [
        Series("mean", points(None)),
        Series("p95", points(95)),
        Series("p99", points(99)),
    ]


def _table(found: Sequence[Finding], level: str) -> str:
    names = [f"p{name}" for name in found[0].percentiles_us]
    head = [level, "infer/sec", "mean µs", *(f"{name} µs" for name in names)]
    head += [f"{part} µs" for part in PARTS] + ["client busy"]
    rows = []
    for finding in found:
        cells = [finding.value, f"{finding.per_second:,.1f}", f"{finding.average_us:,.0f}"]
        cells += [f"{value:,.0f}" for value in finding.percentiles_us.values()]
        cells += [f"{value:,.0f}" for value in finding.parts_us]
        cells.append(f"{finding.busiest:.0%}{' of each' if finding.workers > 1 else ''}")
        rows.append(cells)
    return _html_table(head, rows)


def _composing(server: ServerSide) -> str:
    head = ["model", "inferences", "executions", "request µs", "queue µs", "compute µs"]
    rows = [
        [
            f"{name}, version {version}",
            f"{tally.inferences:,}",
            f"{tally.executions:,}",
            f"{tally.request_us:,.0f}",
            f"{tally.part_us('queue'):,.0f}",
            f"{tally.compute_us:,.0f}",
        ]
        for (name, version), tally in server.composing.items()
    ]
    return _html_table(head, rows)


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{top}</tr>\n{body}</table></div>'


def _figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"
