"""`shoal perf`: requests at a rate, with Poisson arrivals, each counted from when it was due.

The one load generator of ours, because of what it counts: wrk and perf_analyzer wait for a response
before they send the next request, so a stall of the server hides the requests that it would have
delayed (coordinated omission).
"""

from __future__ import annotations

import re

from benchmarks.loads import perf_analyzer, program
from benchmarks.measures import Load
from benchmarks.peers.base import Target
from benchmarks.peers.shoal import Shoal
from benchmarks.places import ROOT

NAME = "shoal perf"
WINDOWS = 3
SHARE = 0.7  # of the peak rate


def run(target: Target, seconds: float, *, clients: int = 0, rate: float = 0.0) -> Load:
    """Send from `clients`, or `rate` requests a second. Raises LoadFailed, or Unavailable."""
    shoal = Shoal()
    shoal.install()
    line = [str(shoal.python), "-m", "shoal", "perf", "-m", target.v2_model, "--workers", "1"]
    line += ["-i", target.protocol, "-u", f"127.0.0.1:{target.port}"]
    line += ["-p", str(max(100, round(1000 * seconds / WINDOWS))), "-r", str(WINDOWS), "-s", "999"]
    if rate:
        line += ["--request-rate-range", f"{rate:.0f}", "--request-distribution", "poisson"]
    else:
        line += ["--concurrency-range", str(clients)]
    # Triton's HTTP port can lose requests of a thousand connections when the rate is too high for
    # it, and the load waits for them.
    return parse(program.run(line, seconds + 20, {"PYTHONPATH": str(ROOT / "src")}))


def parse(text: str) -> Load:
    """The block that it prints, which is perf_analyzer's with two more lines."""
    load = perf_analyzer.parse(text)
    tail = re.search(r"p99\.9 latency: (\d+) usec", text)
    highest = re.search(r"Max latency: (\d+) usec", text)
    load.p999_us = float(tail.group(1)) if tail else None
    load.max_us = float(highest.group(1)) if highest else None
    return load
