"""h2load: gRPC over HTTP/2, and HTTP/1.1 if the number of requests is fixed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks.loads import program
from benchmarks.measures import Load, percentile, steady_rate
from benchmarks.peers.base import Target
from benchmarks.places import WORK

NAME = "h2load"


def run(
    target: Target, concurrency: int, *, seconds: float = 0.0, requests: int = 0, answer: int = 0
) -> Load:
    """Post for some seconds or a number of requests, one at a time on each connection.

    `answer` is the size of the expected body: gRPC sends an error with status 200, but then no
    message, which the sum of bytes shows. Raises LoadFailed, or Unavailable
    without h2load.
    """
    h2load = program.find(NAME, "nghttp2-client")
    log = WORK / "h2load.log"
    log.unlink(missing_ok=True)  # it appends
    line = [h2load, "-t1", f"-c{concurrency}", "-m1", f"--log-file={log}"]
    line += [f"-n{requests}"] if requests else [f"-D{max(1, round(seconds))}"]
    if target.protocol == "http":
        line.append("--h1")
    line.append(f"-d{program.body_file(target.exchange.body)}")
    for name, value in target.exchange.headers.items():
        line += ["-H", f"{name}: {value}"]
    line.append(f"http://127.0.0.1:{target.port}{target.path}")
    within = 90 + (seconds or 60)
    return parse(program.run(line, within), _lines(log), answer, counted=bool(requests))


def parse(text: str, log: Iterable[str], answer: int = 0, *, counted: bool = False) -> Load:
    """h2load's summary, with percentiles from its log of single requests; the rate is that of the
    steady part where requests were counted."""
    finished = re.search(r"finished in ([\d.]+)(us|ms|s|m)?, ([\d.]+) req/s", text)
    outcome = re.search(r"requests: (\d+) total, .* (\d+) succeeded, (\d+) failed", text)
    status = re.search(r"status codes: .* (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", text)
    data = re.search(r"\((\d+)\) data", text)
    if finished is None or outcome is None or status is None or data is None:
        raise program.LoadFailed(f"h2load printed no summary: {text[-300:]}")
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, None: 1.0}[finished.group(2)]
    seconds = float(finished.group(1)) * unit
    total, succeeded, failed = (int(one) for one in outcome.groups())
    refused = sum(int(one) for one in status.groups())
    starts, durations = _times(log)
    rate = steady_rate(starts, durations) if counted else float(finished.group(3))
    micros = [1e6 * one for one in durations]
    load = Load(succeeded, seconds, rate, percentile(micros, 0.5), percentile(micros, 0.99))
    load.note("status", refused)
    load.note("failed", max(failed - refused, 0))
    if counted:
        load.note("lost", max(total - succeeded - failed, 0))
    if answer and succeeded:
        load.note("wrong size", max(succeeded - round(int(data.group(1)) / answer), 0))
    return load


def _times(log: Iterable[str]) -> tuple[list[float], list[float]]:
    """Start and duration of each completed request, in seconds."""
    starts, durations = [], []
    for line in log:
        fields = line.split()
        if len(fields) >= 3 and int(fields[2]) >= 0:
            starts.append(int(fields[0]) / 1e6)
            durations.append(int(fields[2]) / 1e6)
    return starts, durations


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []
