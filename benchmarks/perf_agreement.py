"""Compare the figures of `shoal perf` and NVIDIA's perf_analyzer on the same server.

    python -m benchmarks.perf_agreement [--turns 5] [--window 1000] [--levels 1,4]

One server from this tree has three models: one that waits 4 ms for each request, a ResNet-18, and
the sum and difference of two rows. The two programs run alternately, over HTTP and gRPC. The
figures are throughput and median latency, and the difference is the median over the
rounds: less than 5 % if the server takes most of the time. The smallest model is shown, but not
judged: it takes less time than the programs that measure it. On a busy machine the ResNet-18, which
shares its cores with other work, may differ by more. Prints a table with the
machine and the commit.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import models
from benchmarks.loads import program
from benchmarks.machine import describe, load_average
from benchmarks.places import WORK
from benchmarks.serving import Server, command, serve

BAR = 0.05
JUDGED = ("wait", "classifier")
MODELS = (*JUDGED, "add_sub")
PROTOCOLS = ("http", "grpc")
FUNCTION = '''
import time

import shoal


@shoal.model
def wait(seconds: float) -> float:
    """A model whose time depends on nothing else on the machine."""
    time.sleep(0.004)
    return seconds
'''


class Figures(NamedTuple):
    """The figures of one program at one level."""

    per_second: float
    median_us: float


def measure(
    tool: str, server: Server, model: str, protocol: str, level: int, window_ms: int
) -> Figures:
    """One round of one program: three windows, without a stability criterion."""
    head = [command(), "perf"] if tool == "shoal" else [program.perf_analyzer()]
    port = server.http_port if protocol == "http" else server.grpc_port
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        words = ["-m", model, "-i", protocol, "-u", f"127.0.0.1:{port}", "-f", str(table)]
        words += ["--concurrency-range", str(level), "-p", str(window_ms), "-s", "999", "-r", "3"]
        words += ["--shape", "seconds:1"] if model == "wait" else []
        program.run([*head, *words], 60 + window_ms * 4 / 1000)
        with table.open() as file:
            (row,) = csv.DictReader(file)
    return Figures(float(row["Inferences/Second"]), float(row["p50 latency"]))


def main(words: Sequence[str] | None = None) -> None:
    """Measure alternately and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--window", type=int, default=1000, help="milliseconds")
    parser.add_argument("--levels", default="1,4")
    parser.add_argument("--models", default=",".join(MODELS))
    asked = parser.parse_args(words)
    levels = [int(level) for level in asked.levels.split(",")]
    print(", ".join(f"{key} {value}" for key, value in describe().items()))
    print(f"load average before: {load_average():.1f}")
    print("| model | protocol | clients | shoal perf | perf_analyzer | throughput | p50 | |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        function = Path(folder) / "app.py"
        function.write_text(FUNCTION, encoding="utf-8")
        repository = Path(folder) / "models"
        for name in ("classifier", "add_sub"):
            version = repository / name / "1"
            version.mkdir(parents=True)
            (version / "model.onnx").write_bytes(models.make(name, WORK / "models").read_bytes())
        with serve(str(repository), str(function), grpc=True) as server:
            for model in asked.models.split(","):
                for protocol in PROTOCOLS:
                    for level in levels:
                        apart = _compare(server, model, protocol, level, asked)
                        worst = max(worst, apart) if model in JUDGED else worst
    said = "within" if worst <= BAR else "NOT within"
    print(f"largest difference where the server is measured: {worst:.1%}, {said} {BAR:.0%}")


def _compare(
    server: Server, model: str, protocol: str, level: int, asked: argparse.Namespace
) -> float:
    """Run both alternately; prints a row and returns the larger difference."""
    found: dict[str, list[Figures]] = {"shoal": [], "perf_analyzer": []}
    for turn in range(asked.turns):
        order = list(found) if turn % 2 == 0 else list(reversed(found))
        for tool in order:
            found[tool].append(measure(tool, server, model, protocol, level, asked.window))
    ours, theirs = found["shoal"], found["perf_analyzer"]
    pairs = list(zip(ours, theirs, strict=True))
    rate = statistics.median(one.per_second / other.per_second for one, other in pairs) - 1
    latency = statistics.median(one.median_us / other.median_us for one, other in pairs) - 1
    apart = max(abs(rate), abs(latency))
    verdict = ("ok" if apart <= BAR else "apart") if model in JUDGED else "not judged"
    print(
        f"| {model} | {protocol} | {level} | {_shown(ours)} "
        f"| {_shown(theirs)} | {rate:+.1%} | {latency:+.1%} | {verdict} |",
        flush=True,
    )
    return apart


def _shown(turns: Sequence[Figures]) -> str:
    rate = statistics.median(turn.per_second for turn in turns)
    return f"{rate:.1f}/s, {statistics.median(turn.median_us for turn in turns):.0f} µs"


if __name__ == "__main__":
    main()
