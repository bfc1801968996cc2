"""NVIDIA's perf_analyzer: KServe v2 over HTTP and gRPC.

With one client every response is compared with the expected one; with many it generates its data,
because comparing takes CPU time from the server. Many clients are asynchronous calls of a few
threads: with a thread for each, the main thread, which sorts the requests of a window in a time
that grows faster than their number, gets little of two cores. From 16 threads on it may never end,
whatever the server.
"""

from __future__ import annotations

import json
import re

from benchmarks.forms import perf_analyzer_data
from benchmarks.loads import program
from benchmarks.measures import Load
from benchmarks.peers.base import Target
from benchmarks.places import WORK
from benchmarks.workloads import Workload

NAME = "perf_analyzer"
MOST_THREADS, FEW_THREADS = 16, 4
WINDOWS = 3  # it reports the mean of three; a large -s accepts them as they come


def run(target: Target, workload: Workload, concurrency: int, seconds: float) -> Load:
    """Measure for about `seconds`. Raises LoadFailed, also for a wrong response, or Unavailable."""
    line = [program.perf_analyzer(), "-m", target.v2_model, "-i", target.protocol]
    line += ["-u", f"127.0.0.1:{target.port}", "--concurrency-range", str(concurrency)]
    line += ["-p", str(max(100, round(1000 * seconds / WINDOWS))), "-r", str(WINDOWS), "-s", "999"]
    if concurrency > MOST_THREADS:
        line += ["--async", "--max-threads", str(FEW_THREADS)]
    if concurrency == 1:
        data = WORK / "perf_analyzer.json"
        data.write_text(json.dumps(perf_analyzer_data(workload)), encoding="utf-8")
        line += ["--input-data", str(data)]
    return parse(program.run(line, 4 * seconds + 20))


def parse(text: str) -> Load:
    """The block it prints for the one concurrency that was requested."""
    # A response that came before its thread had noted that the request was sent is left out of its
    # statistics, with a word; it is no fault of the server's.
    text = re.sub(r"Failed to update context stat: Timer not set correctly.*", "", text)
    if "had error" in text or "Failed to" in text:
        fault = re.search(r"had error: (.*)|(Failed to.*)", text)
        raise program.LoadFailed(f"perf_analyzer: {fault.group(0) if fault else text[-200:]}")
    rate = re.search(r"Throughput: ([\d.]+) infer/sec", text)
    count = re.search(r"Request count: (\d+)", text)
    if rate is None or count is None:
        raise program.LoadFailed(f"perf_analyzer printed no result: {text[-300:]}")
    middle = re.search(r"p50 latency: (\d+) usec", text)
    worst = re.search(r"p99 latency: (\d+) usec", text)
    requests, per_second = int(count.group(1)), float(rate.group(1))
    return Load(
        requests,
        requests / per_second if per_second else 0.0,
        per_second,
        float(middle.group(1)) if middle else 0.0,
        float(worst.group(1)) if worst else 0.0,
    )
