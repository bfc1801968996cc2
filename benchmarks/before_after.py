"""Does a change of the source cost or gain anything? Two trees take turns under the same load.

    python -m benchmarks.before_after ../base . [--turns 12] [--seconds 1] [--clients 16 64]
    python -m benchmarks.before_after ../base . --workload W4 --clients 16
    python -m benchmarks.before_after . . --with-key         what keys and quotas cost

Both servers run all the time, each from its own `src` with this interpreter; the load (wrk over
HTTP, h2load over gRPC) goes to one after the other, in the order A B B A. Prints for each protocol
and number of clients the median of the server's CPU time a request and of the rate, and the ratio
B/A: the median over pairs of neighbouring turns, with its quartiles. On a shared machine the rate
depends on the neighbours; CPU time a request much less so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from benchmarks.loads import h2load, wrk
from benchmarks.machine import describe
from benchmarks.peers import repository
from benchmarks.peers.base import Target, WrongAnswer, free_ports
from benchmarks.peers.shoal import addresses, v2_targets
from benchmarks.workloads import LOADS, WORKLOADS, Workload

READY_WITHIN_SECS = 60.0
KEY = "shoal_benchmark-" + "k" * 32
CHOICES = [one.name for one in WORKLOADS.values() if one.method == LOADS and not one.picture]
RUN = "import sys; from shoal.cli.main import main; sys.exit(main())"


@dataclass
class Tree:
    """A source tree, and the server that runs from it."""

    path: Path
    process: subprocess.Popen[bytes]
    targets: list[Target]
    turns: dict[tuple[str, int], list[Turn]] = field(default_factory=dict)

    def cpu_secs(self) -> float:
        """User and system time of the server so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system


@dataclass(frozen=True)
class Turn:
    """One load on one server."""

    cpu_us: float  # of the server, a request
    per_second: float


def start(
    path: Path, workload: Workload, folder: Path, stack: ExitStack, *, with_key: bool = False
) -> Tree:
    """A server from `path`, ready; it ends with `stack`. With `with_key` it requires a key that has
    every kind of quota, and the requests have it."""
    source = path.resolve() / "src"
    if not (source / "shoal").is_dir():
        sys.exit(f"{path}: not a source tree of Shoal (it has no src/shoal)")
    ports = free_ports(3)
    line = [sys.executable, "-c", RUN, "serve", str(folder), *addresses(ports)]
    targets = v2_targets(workload, ports)
    if with_key:
        line += ["--api-keys", str(write_key(stack))]
        targets = [_keyed(target) for target in targets]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    log = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    process = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, env=environment)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    tree = Tree(path, process, targets)
    deadline = time.monotonic() + READY_WITHIN_SECS
    for target in tree.targets:
        while True:
            try:
                target.ask(workload)
                break
            except (OSError, WrongAnswer):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    sys.exit(f"{path}: no server: {log.read()[-2000:].decode(errors='replace')}")
                time.sleep(0.05)
    return tree


def write_key(stack: ExitStack) -> Path:
    """A key file with one key, whose quotas are not used up."""
    entry = {
        "name": "benchmark",
        "sha256": hashlib.sha256(KEY.encode()).hexdigest(),
        "requests_per_second": 1e9,
        "bytes_per_second": 1e12,
        "requests_in_flight": 100_000,
    }
    file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "keys.jsonl"
    file.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    return file


def _keyed(target: Target) -> Target:
    headers = {**target.exchange.headers, "authorization": f"Bearer {KEY}"}
    return replace(target, exchange=replace(target.exchange, headers=headers))


def take_turn(tree: Tree, target: Target, clients: int, seconds: float) -> Turn:
    """Load one server for a moment."""
    before = tree.cpu_secs()
    if target.protocol == "http":
        load = wrk.run(target, clients, seconds)
    else:
        load = h2load.run(target, clients, seconds=seconds)
    if load.errors:
        sys.exit(f"{tree.path}: requests failed over {target.protocol}: {load.errors}")
    return Turn(1e6 * (tree.cpu_secs() - before) / load.requests, load.per_second)


def report(trees: Sequence[Tree]) -> None:
    """A table with one row per protocol and number of clients."""
    first, second = trees
    print(f"\nA: {first.path}\nB: {second.path}\n")
    print("| protocol | clients | CPU A | CPU B | B/A (quartiles) | rate A | rate B | B/A |")
    print("|---|---|---|---|---|---|---|---|")
    for (protocol, clients), a in first.turns.items():
        b = second.turns[protocol, clients]
        cpu = [y.cpu_us / x.cpu_us for x, y in zip(a, b, strict=True)]
        rate = [y.per_second / x.per_second for x, y in zip(a, b, strict=True)]
        low, middle, high = statistics.quantiles(cpu, n=4)
        print(
            f"| {protocol} | {clients} | {_median(x.cpu_us for x in a):.1f} µs | "
            f"{_median(y.cpu_us for y in b):.1f} µs | {middle:.3f} ({low:.3f}-{high:.3f}) | "
            f"{_median(x.per_second for x in a):,.0f} | {_median(y.per_second for y in b):,.0f} | "
            f"{_median(rate):.3f} |"
        )


def _median(values: object) -> float:
    return statistics.median(values)  # type: ignore[call-overload, no-any-return]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE", help="A and B")
    parser.add_argument("--workload", default="W1", choices=CHOICES)
    parser.add_argument("--clients", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--turns", type=int, default=12, help="of each server, for each row")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    parser.add_argument("--with-key", action="store_true", help="B requires a key, A does not")
    parser.add_argument("--protocols", nargs="+", default=["http", "grpc"])
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        repository.write_all(folder, workload, "onnxruntime", "model.onnx", workload.model_path)
        trees = [
            start(path, workload, folder, stack, with_key=options.with_key and place == 1)
            for place, path in enumerate(options.trees)
        ]
        for clients in options.clients:
            for place, target in enumerate(trees[0].targets):
                if target.protocol not in options.protocols:
                    continue
                for tree in trees:  # until the model runs where it stays
                    take_turn(tree, tree.targets[place], clients, options.seconds)
                for turn in range(options.turns):
                    for tree in trees if turn % 2 == 0 else reversed(trees):
                        taken = take_turn(tree, tree.targets[place], clients, options.seconds)
                        tree.turns.setdefault((target.protocol, clients), []).append(taken)
                print(f"{target.protocol}, {clients} clients: done", flush=True)
        report(trees)
    print(f"\n{describe()}")


if __name__ == "__main__":
    main()
