"""All kinds of traffic at once for a long time: is every answer right, and does anything grow?

    python -m benchmarks.soak --minutes 60 [--rate 2] [--name soak]

Tensors over HTTP and gRPC, shared memory, tasks, streams, sequences, ensembles, Python models on
threads and in processes, the response cache, reloads, uploads, scrapes of the metrics, bad requests
and clients that vanish: about 180 requests a second, half a core. Every answer is compared with
what its request implies. Memory, threads, descriptors and processes of the server are read every
few seconds. At the end the statistics must agree with the requests.

A resource leaks if it grew by more than 5 % from the first fifth of the run after the warm-up to
the last, and still grew at that pace in the second half: a single step, such as a pool that reaches
its size late, is no leak. Exits with 1 for a leak, a wrong or missing answer, or statistics that do
not add up. With --name, writes benchmarks/results/NAME.md and NAME.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import soak_models
from benchmarks.machine import describe
from benchmarks.places import RESULTS
from benchmarks.resources import LIMIT, Growth, Record, held_by, table
from benchmarks.serving import Server, serve
from benchmarks.soak_traffic import Traffic
from tests.support import accounting

WARM_UP_SHARE = 0.2  # of the run
MOST_READINGS = 720
LEAST_READ_SECS = 1.0
REPORT_EVERY_SECS = 60.0


@dataclass
class Outcome:
    """What a run has shown."""

    minutes: float
    traffic: Traffic
    record: Record
    growths: list[Growth]
    leaks: list[str]
    faults: list[str]
    cpu_secs: float
    log_errors: list[str]

    @property
    def passed(self) -> bool:
        """Whether everything was right."""
        return not self.leaks and not self.faults


def leaks(record: Record, warm_up: float) -> list[str]:
    """The resources that grew steadily, as sentences."""
    end = record.readings[-1][0]
    second_half = warm_up + (end - warm_up) / 2
    late = {one.resource: one for one in record.growths(second_half)}
    found = []
    for one in record.growths(warm_up):
        still = late[one.resource].slope * (end - warm_up)
        if one.exceeds() and still > LIMIT * one.first:
            found.append(
                f"{one.resource} grew from {one.first:,.0f} to {one.last:,.0f}, and by "
                f"{late[one.resource].slope * 60:,.0f} a minute in the second half"
            )
    return found


@contextlib.contextmanager
def recorded(server: Server, secs: float) -> Iterator[Record]:
    """Read what the server holds, again and again, during the block."""
    record = Record()
    ended = threading.Event()
    pause = max(LEAST_READ_SECS, secs / MOST_READINGS)
    begun = time.monotonic()

    def read() -> None:
        while not ended.wait(pause):
            with contextlib.suppress(psutil.NoSuchProcess):
                record.add(time.monotonic() - begun, held_by(server.process.pid))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield record
    finally:
        ended.set()
        reader.join()


def count_faults(server: Server, traffic: Traffic) -> list[str]:
    """Where statistics, metrics and requests disagree. Nothing may be in progress."""
    entries = _fetch(server.http_port, "/v2/models/stats")["model_stats"]
    metrics = _text(server.metrics_port, "/metrics")
    found = [fault for entry in entries for fault in accounting.faults(entry, metrics)]
    by_name = {entry["name"]: entry["inference_stats"] for entry in entries}
    for model, served in traffic.served.items():
        counted = by_name[model]["success"]["count"]
        if counted != served:
            found.append(f"{model}: {counted} requests counted, {served} answered")
    return found


def _text(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        return str(response.read().decode())


def _fetch(port: int, path: str) -> Any:
    return json.loads(_text(port, path))


def soak(minutes: float, rate: float, folder: Path) -> Outcome:
    """Run the server and the traffic; what came of it."""
    repository, functions = soak_models.write(folder)
    log = folder / "server.log"
    options = [
        *("--model-control-mode=explicit", "--load-model=*"),
        *("--cache-config=local,size=1048576", f"--access-log={folder / 'access.log'}"),
        *(f"--trace-config=triton,file={folder / 'traces.json'}", "--trace-config=rate=100"),
        *("--trace-config=level=TIMESTAMPS", f"--log-file={log}"),
    ]
    secs = 60 * minutes
    with serve(str(repository), str(functions), "--demo", *options, grpc=True) as server:
        traffic = Traffic(server, repository)
        cpu_secs = _cpu_secs(server)
        with recorded(server, secs) as record:
            asyncio.run(_run(traffic, secs, rate))
        cpu_secs = _cpu_secs(server) - cpu_secs
        faults = [
            f"{name}: {tally.faults} of {tally.asked}, e.g. {text}"
            for name, tally in traffic.tallies.items()
            for text in tally.texts[:1]
        ]
        faults += count_faults(server, traffic)
        children = server.family()
    if server.process.returncode:
        faults.append(f"the server exited with {server.process.returncode}")
    faults += [f"process {child.pid} is left" for child in children if child.is_running()]
    errors = [line for line in log.read_text(errors="replace").splitlines() if line[:1] == "E"]
    warm_up = WARM_UP_SHARE * secs
    growths, grown = record.growths(warm_up), leaks(record, warm_up)
    return Outcome(minutes, traffic, record, growths, grown, faults, cpu_secs, errors)


def _cpu_secs(server: Server) -> float:
    """CPU time of the server's processes, including those that have ended."""
    head = psutil.Process(server.process.pid).cpu_times()
    return server.cpu_secs() + head.children_user + head.children_system


async def _run(traffic: Traffic, secs: float, rate: float) -> None:
    """The traffic, and a line a minute about it."""
    begun = time.monotonic()

    async def report() -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_SECS)
            asked = sum(tally.asked for tally in traffic.tallies.values())
            faults = sum(tally.faults for tally in traffic.tallies.values())
            minutes = (time.monotonic() - begun) / 60
            print(f"{minutes:.0f} min: {asked} asked, {faults} faults", flush=True)

    reporter = asyncio.create_task(report())
    try:
        await traffic.run(secs, rate)
    finally:
        reporter.cancel()


def report(outcome: Outcome, command: str) -> str:
    """The results as Markdown."""
    machine = ", ".join(f"{name} {value}" for name, value in describe().items())
    tallies = outcome.traffic.tallies
    asked = sum(tally.asked for tally in tallies.values())
    faults = sum(tally.faults for tally in tallies.values())
    summary = (
        f"{asked:,} requests in {outcome.minutes:g} minutes, {faults} of them failed or wrongly "
        f"answered. The server used {outcome.cpu_secs / (60 * outcome.minutes):.2f} cores. The "
        f"start is the median of the first fifth after {WARM_UP_SHARE:.0%} of the time, the end "
        f"that of the last fifth."
    )
    lines = [
        f"`{command}`: {machine}",
        "",
        summary,
        "",
        table(outcome.growths, "second"),
        "",
        "| kind | requests | failed or wrong | longest, seconds |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {tally.asked:,} | {tally.faults} | {tally.longest_secs:.2f} |"
            for name, tally in tallies.items()
        ),
        "",
        f"Error lines in the server's log: {len(outcome.log_errors)}. "
        + ("Passed." if outcome.passed else "Failed:"),
    ]
    lines += [f"- {fault}" for fault in (*outcome.leaks, *outcome.faults)]
    return "\n".join(lines) + "\n"


def draw(record: Record, file: Path) -> None:
    """What the server held over time, as an SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    minutes = [at / 60 for at, _ in record.readings]
    panels = (("memory_bytes", "memory, MB", 1e6), ("threads", "threads", 1.0))
    panels += (("descriptors", "descriptors", 1.0), ("processes", "processes", 1.0))
    figure, axes = plt.subplots(len(panels), 1, sharex=True, figsize=(8, 8))
    for axis, (name, title, unit) in zip(axes, panels, strict=True):
        values = [getattr(held, name) / unit for _, held in record.readings]
        axis.plot(minutes, values, linewidth=0.8, color="#0b7285")
        axis.set_ylim(0, 1.2 * max(values))
        axis.set_ylabel(title)
        axis.grid(visible=True, alpha=0.3)
    axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)


def main(words: Sequence[str] | None = None) -> int:
    """Run the soak, print the report, write it if it has a name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=2.0, help="multiplies the rates")
    parser.add_argument("--name", default="", help="write the report to benchmarks/results/")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="shoal-soak-") as folder:
        outcome = soak(asked.minutes, asked.rate, Path(folder))
    text = report(outcome, f"python -m benchmarks.soak --minutes {asked.minutes:g}")
    print(text)
    for line in outcome.log_errors[:20]:
        print(line)
    if asked.name:
        draw(outcome.record, RESULTS / f"{asked.name}.svg")
        (RESULTS / f"{asked.name}.md").write_text(text)
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main())
