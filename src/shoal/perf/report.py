"""`--report`: a run as a self-contained HTML page or as a PNG image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.errors import InvalidArgument
from shoal.perf import page as parts
from shoal.perf import svg
from shoal.perf.findings import PARTS, LevelFinding, findings, label, verdict
from shoal.perf.model_facts import ModelFacts
from shoal.perf.options import PerfOptions
from shoal.perf.profiler import Profile
from shoal.perf.server_side import ServerSide, merge
from shoal.perf.svg import Bar, Point, Series


def write(path: str, options: PerfOptions, facts: ModelFacts, profile: Profile) -> None:
    """Write the report. Raises InvalidArgument when the file cannot be written."""
    file = Path(path)
    try:
        if file.suffix == ".png":
            from shoal.perf import png_chart

            png_chart.draw(file, options, facts, profile)
        else:
            file.write_text(page(options, facts, profile), encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"--report={path} cannot be written: {error}") from None


def page(options: PerfOptions, facts: ModelFacts, profile: Profile) -> str:
    """The whole page."""
    found = findings(profile)
    title = f"{facts.name} under load"
    body = "\n".join(_sections(options, profile, found))
    return parts.page(title, body)


def _sections(
    options: PerfOptions, profile: Profile, found: Sequence[LevelFinding]
) -> Iterator[str]:
    protocol = {"http": "HTTP", "grpc": "gRPC"}[options.protocol]
    protocol += " streams" if options.streaming else ""
    server = options.url or "localhost"
    rows = f"{options.batch_size} row{'' if options.batch_size == 1 else 's'} per request"
    yield parts.about(f"{server} over {protocol}, {rows}")
    yield parts.verdict(verdict(options, profile))
    if not found:
        return
    level = label(options)
    yield "<h2>Latency over throughput</h2>"
    yield parts.figure(
        svg.lines(_curves(found, level), "inferences a second", "latency in ms"),
        f"Each dot is a {level}; its value is written beside the dot of the mean.",
    )
    yield "<h2>Where the time went</h2>"
    stacks = [Bar(f"{finding.value}", finding.parts_us) for finding in found]
    yield parts.figure(
        svg.stacked(stacks, PARTS, f"mean time of a request in µs, by {level}"),
        "Queue and compute times are the server's statistics; the network's part is the rest.",
    )
    yield "<h2>Latency distribution</h2>"
    for finding in found if len(found) <= 4 else (found[0], found[len(found) // 2], found[-1]):
        marks = [
            (value, f"p{name} {value / 1000:.3g} ms")
            for name, value in finding.percentiles_us.items()
        ]
        yield parts.figure(
            svg.bars(finding.histogram, marks, "latency in µs", "requests"),
            f"{level.capitalize()} {finding.value}",
        )
    yield "<h2>All numbers</h2>"
    yield _table(found, level)
    whole = merge([result.server for result in profile.results])
    if whole is not None and whole.composing:
        yield "<h2>Composing models</h2>"
        yield _composing(whole)


def _curves(found: Sequence[LevelFinding], level: str) -> list[Series]:
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


def _table(found: Sequence[LevelFinding], level: str) -> str:
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
    return parts.table(head, rows)


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
    return parts.table(head, rows)
