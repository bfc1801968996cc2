"""How long Shoal pauses: garbage collections, and scrapes of the metrics, under load.

    python -m benchmarks.pauses TREE [TREE ...] [--models 1 100 1000] [--seconds 10]

For each number of models and each source tree: a server under wrk with 16 clients on one of its
models, scraped once a second. Prints the collections during the load by generation (how many, the
longest, and their share of the time), and wrk's p99.9 and maximum without and with scrapes. A
collection holds the GIL, so no request is answered meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.before_after import READY_WITHIN_SECS
from benchmarks.loads import wrk
from benchmarks.machine import describe
from benchmarks.measures import Load
from benchmarks.peers import repository
from benchmarks.peers.base import Target, WrongAnswer, free_ports
from benchmarks.peers.shoal import addresses, v2_targets
from benchmarks.workloads import WORKLOADS

CLIENTS = 16
RUN = """
import atexit, gc, json, sys, time
taken, begun = [], [0]
def note(phase, info):
    now = time.perf_counter_ns()
    if phase == "start":
        begun[0] = now
    else:
        taken.append((now, info["generation"], now - begun[0]))
gc.callbacks.append(note)
path = sys.argv.pop(1)
atexit.register(lambda: json.dump(taken, open(path, "w")))
from shoal.cli.main import main
sys.exit(main())
"""


def measure(tree: Path, models: int, seconds: float, stack: ExitStack) -> dict[str, Any]:
    """One server, loaded twice."""
    workload = replace(WORKLOADS["models-1"], copies=models)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    repository.write_all(
        folder / "models", workload, "onnxruntime", "model.onnx", workload.model_path
    )
    ports = free_ports(3)
    notes = folder / "collections.json"
    line = [sys.executable, "-c", RUN, str(notes), "serve", str(folder / "models")]
    begun = time.monotonic()
    process = subprocess.Popen(
        [*line, *addresses(ports)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(tree.resolve() / "src")},
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    (each,) = v2_targets(workload, ports)
    _wait(replace(each, path=each.paths[-1]), process)
    _ready(ports[0], process)
    ready_secs = time.monotonic() - begun
    target = replace(each, paths=())
    wrk.run(target, CLIENTS, 2)
    begin_ns = time.perf_counter_ns()
    plain = wrk.run(target, CLIENTS, seconds)
    scraped = _scraped(target, ports[2], seconds)
    end_ns = time.perf_counter_ns()
    process.terminate()
    process.wait()
    during = [one for one in json.loads(notes.read_text()) if begin_ns <= one[0] <= end_ns]
    return {
        "ready_secs": ready_secs,
        "plain": plain,
        "scraped": scraped,
        "collections": [
            [took for _, number, took in during if number == generation] for generation in range(3)
        ],
        "window_ns": end_ns - begin_ns,
    }


def _wait(target: Target, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_WITHIN_SECS
    while True:
        try:
            target.ask(WORKLOADS["models-1"])
            return
        except (OSError, WrongAnswer):
            if process.poll() is not None or time.monotonic() > until:
                sys.exit("the server did not start")
            time.sleep(0.05)


def _ready(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_WITHIN_SECS
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=10)
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                sys.exit("the server did not get ready")
            time.sleep(0.05)


def _scraped(target: Target, port: int, seconds: float) -> Load:
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(1.0):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        return wrk.run(target, CLIENTS, seconds)
    finally:
        stop.set()
        thread.join()


def row(tree: Path, models: int, found: dict[str, Any]) -> str:
    """One line of the table."""
    cells = [str(tree), str(models), f"{found['ready_secs']:.1f}"]
    for took in found["collections"]:
        longest = max(took, default=0) / 1e6
        share = sum(took) / found["window_ns"]
        cells.append(f"{len(took)}, {longest:.2f} ms, {share:.2%}")
    for name in ("plain", "scraped"):
        load = found[name]
        cells.append(f"{load.per_second:,.0f}")
        cells.append(f"{load.p999_us / 1e3:.2f} / {load.max_us / 1e3:.1f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", nargs="+", type=Path, metavar="TREE")
    parser.add_argument("--models", nargs="+", type=int, default=[1, 100])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    options = parser.parse_args()
    heads = ["tree", "models", "ready after s"]
    heads += [f"generation {number}: collections, longest, share" for number in range(3)]
    for name in ("", ", scraped"):
        heads += [f"requests/s{name}", f"p99.9 / maximum ms{name}"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for models in options.models:
        for tree in options.trees:
            with ExitStack() as stack:
                print(row(tree, models, measure(tree, models, options.seconds, stack)), flush=True)
    print(f"\n{describe()}")


if __name__ == "__main__":
    main()
