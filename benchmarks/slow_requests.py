"""Where the slowest requests come from: the server's own work, or waiting for a core.

    python -m benchmarks.slow_requests [--shares 0.3 0.5 0.7] [--seconds 10] [--rates 5000]

Shoal with the tiny model under Poisson arrivals (`open_loop`) at shares of its peak rate, first
with both cores for server and load, then with a core for each (Linux). Prints:

    p50 ... maximum      latency from when a request was due
    CPU                  of the event loop's thread, as a share of the time
    waited for a core    the same thread, ready to run but not running (run delay, schedstat)
    longest iteration    of the event loop by its own CPU time, and by the clock
    collections          of garbage, with the longest
    load waited          as above, for the load generator; and how many requests it sent late

CPU time hardly depends on what else the machine does: a long iteration by CPU time is the server's
work. One that is long by the clock alone is the machine's. The peak rate is measured before and
after: where the two differ, the machine changed its speed, and a share of the peak means little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.before_after import READY_WITHIN_SECS
from benchmarks.loads import open_loop, program, wrk
from benchmarks.machine import describe
from benchmarks.measures import Load
from benchmarks.peers import repository
from benchmarks.peers.base import Target, WrongAnswer, free_ports
from benchmarks.peers.shoal import addresses, v2_targets
from benchmarks.places import ROOT
from benchmarks.workloads import WORKLOADS, Workload

CLIENTS = 64
RUN = """
import atexit, gc, json, sys, time
from shoal.instance.inline import LoopHandle
wall, cpu = time.monotonic_ns, time.thread_time_ns
iterations, collections, last, begun = [], [], [0, 0], [0]
run_callbacks = LoopHandle._run_callbacks
def timed(self):
    started = wall()
    run_callbacks(self)
    ended, used = wall(), cpu()
    own = used - last[1]  # since the last one ended: with the reading of sockets
    if own > 500_000 or ended - started > 1_000_000:
        iterations.append((ended, own, ended - started))
    last[:] = ended, used
LoopHandle._run_callbacks = timed
def note(phase, info):
    if phase == "start":
        begun[0] = wall()
    else:
        collections.append((wall(), wall() - begun[0]))
gc.callbacks.append(note)
path = sys.argv.pop(1)
atexit.register(lambda: json.dump([iterations, collections], open(path, "w")))
from shoal.cli.main import main
sys.exit(main())
"""


@dataclass
class Row:
    """One load, as it was measured from outside; the rest is known when the server has ended."""

    cores: str
    load: Load
    begin_ns: int
    end_ns: int
    cpu_share: float
    waited_share: float
    load_waited_share: float


def measure(shares: list[float], rates: list[float], seconds: float) -> list[str]:
    """All rows of the table."""
    workload = WORKLOADS["W1"]
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        notes = folder / "notes.json"
        process, target = _serve(workload, folder, notes, stack)
        answer_bytes = target.ask(workload)
        wrk.run(target, CLIENTS, 2)
        peak = _peak(target, seconds, "before")
        cores = sorted(os.sched_getaffinity(0))
        placements = [("all for both", set(cores), set(cores))]
        if len(cores) > 1:
            placements.append(("one for each", {cores[0]}, {cores[1]}))
        for words, ours, theirs in placements:
            _pin(process.pid, ours)
            rows += [
                _load(process.pid, target, words, theirs, rate, seconds, answer_bytes)
                for rate in [*(share * peak.per_second for share in shares), *rates]
            ]
        _pin(process.pid, set(cores))
        _peak(target, seconds, "after")
        process.terminate()
        process.wait()
        iterations, collections = json.loads(notes.read_text())
    return [_line(row, iterations, collections) for row in rows]


def _peak(target: Target, seconds: float, when: str) -> Load:
    peak = wrk.run(target, CLIENTS, seconds)
    print(
        f"peak rate {when} (wrk, {CLIENTS} clients): {peak.per_second:,.0f} a second, "
        f"p99.9 {(peak.p999_us or 0) / 1e3:.2f} ms",
        flush=True,
    )
    return peak


def _serve(
    workload: Workload, folder: Path, notes: Path, stack: ExitStack
) -> tuple[subprocess.Popen[bytes], Target]:
    models = folder / "models"
    text = repository.config(workload, workload.model, "onnxruntime")
    repository.write(models, workload.model, text, "model.onnx", workload.model_path)
    ports = free_ports(3)
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(notes), "serve", str(models), *addresses(ports)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        start_new_session=True,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    target = next(one for one in v2_targets(workload, ports) if one.protocol == "http")
    until = time.monotonic() + READY_WITHIN_SECS
    while True:
        try:
            target.ask(workload)
            return process, target
        except (OSError, WrongAnswer):
            if process.poll() is not None or time.monotonic() > until:
                sys.exit("the server did not start")
            time.sleep(0.05)


def _pin(pid: int, cores: set[int]) -> None:
    """Let all threads of a process run on these cores."""
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, cores)


def _scheduled(pid: int) -> tuple[int, int]:
    """For how long a process's main thread has run, and waited for a core; nanoseconds."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran), int(waited)


def _load(
    pid: int, target: Target, words: str, cores: set[int], rate: float, seconds: float, answer: int
) -> Row:
    request = str(program.body_file(open_loop.message(target)))
    line = open_loop.command(target.port, rate, seconds, CLIENTS, request, answer)
    before, begin_ns = _scheduled(pid), time.monotonic_ns()
    load = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(load.pid, cores)
    time.sleep(seconds * 0.9)
    generator = _scheduled(load.pid)
    text = load.communicate()[0]
    after, end_ns = _scheduled(pid), time.monotonic_ns()
    took_ns = end_ns - begin_ns
    return Row(
        words,
        open_loop.parse(text),
        begin_ns,
        end_ns,
        (after[0] - before[0]) / took_ns,
        (after[1] - before[1]) / took_ns,
        generator[1] / (seconds * 0.9e9),
    )


def _line(row: Row, iterations: list[Any], collections: list[Any]) -> str:
    load = row.load
    inside = [one for one in iterations if row.begin_ns <= one[0] <= row.end_ns]
    pauses = [took for at, took in collections if row.begin_ns <= at <= row.end_ns]
    longest_cpu = max((own for _, own, _ in inside), default=0) / 1e6
    longest = max((took for _, _, took in inside), default=0) / 1e6
    latencies = (load.p50_us, load.p99_us, load.p999_us or 0.0, load.max_us or 0.0)
    cells = [
        row.cores,
        f"{load.per_second:,.0f}",
        " / ".join(f"{one / 1e3:.2f}" for one in latencies),
        f"{row.cpu_share:.0%}",
        f"{row.waited_share:.1%}",
        f"{longest_cpu:.1f} / {longest:.1f}" if inside else "under 0.5 / 1",
        f"{len(pauses)}, {max(pauses, default=0) / 1e6:.1f} ms",
        f"{row.load_waited_share:.1%}, {load.late_share or 0:.2%}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shares", nargs="*", type=float, default=[0.3, 0.5, 0.7])
    parser.add_argument("--rates", nargs="*", type=float, default=[], help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    options = parser.parse_args()
    lines = measure(options.shares, options.rates, options.seconds)
    heads = [
        "cores",
        "requests/s",
        "p50 / p99 / p99.9 / maximum ms",
        "CPU of the loop",
        "waited for a core",
        "longest iteration: CPU / clock ms",
        "collections, longest",
        "load waited, sent late",
    ]
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    print("\n".join(lines))
    print(f"\n{describe()}")


if __name__ == "__main__":
    main()
