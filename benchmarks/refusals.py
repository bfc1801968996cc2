"""What a refused request costs, compared with one that is answered.

    python -m benchmarks.refusals [--seconds 2] [--clients 64] [--turns 3]

Both servers have the tensors of W1: one with its model, the other with one that is busy and has a
full queue, so that it refuses everything. CPU time of the server a request, over HTTP and gRPC, on
the fast path and without it (`--plans=false`).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.loads import h2load, program, wrk
from benchmarks.machine import describe
from benchmarks.peers import repository
from benchmarks.peers.base import Target
from benchmarks.peers.shoal import v2_targets
from benchmarks.serving import Server, serve
from benchmarks.workloads import WORKLOADS

WORKLOAD = WORKLOADS["W1"]
BUSY = """
parameters { key: "execute_delay_ms" value: { string_value: "3600000" } }
instance_group { count: 1 kind: KIND_CPU }
"""
FULL = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"


def write(folder: Path, *, full: bool) -> Path:
    """A repository with the model that answers, or the one that refuses."""
    if full:
        text = repository.config(WORKLOAD, WORKLOAD.model, "identity", BUSY)
        text = text.replace("dynamic_batching { }\n", FULL)
        folder.joinpath(WORKLOAD.model, "1").mkdir(parents=True)
        folder.joinpath(WORKLOAD.model, "config.pbtxt").write_text(text)
    else:
        text = repository.config(WORKLOAD, WORKLOAD.model, "onnxruntime")
        repository.write(folder, WORKLOAD.model, text, "model.onnx", WORKLOAD.model_path)
    return folder


def fill(targets: Sequence[Target], stack: ExitStack) -> None:
    """Send what the model is busy with, and what fills its queue: a request over each protocol,
    so that there are templates for both."""
    tool = program.find(h2load.NAME, "nghttp2-client")
    for target in targets:
        line = [tool, "-n1", "-c1", f"-d{program.body_file(target.exchange.body)}"]
        line += ["--h1"] if target.protocol == "http" else []
        for name, value in target.exchange.headers.items():
            line += ["-H", f"{name}: {value}"]
        line.append(f"http://127.0.0.1:{target.port}{target.path}")
        waiting = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(waiting.wait)
        stack.callback(waiting.kill)
        time.sleep(0.5)


def cost_us(server: Server, target: Target, clients: int, seconds: float) -> float:
    """Microseconds of the server's CPU time a request."""
    before = server.cpu_secs()
    if target.protocol == "http":
        load = wrk.run(target, clients, seconds)
    else:
        load = h2load.run(target, clients, seconds=seconds)
    return 1e6 * (server.cpu_secs() - before) / load.requests


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.refusals")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    print("| | protocol | answered | refused |\n|---|---|---:|---:|")
    for path, plans in (("fast path", "true"), ("slow path", "false")):
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            servers = [
                stack.enter_context(
                    serve(
                        f"--model-repository={write(Path(name) / str(full), full=full)}",
                        f"--plans={plans}",
                        "--exit-timeout-secs=1",
                        grpc=True,
                    )
                )
                for full in (False, True)
            ]
            targets = [v2_targets(WORKLOAD, [one.http_port, one.grpc_port, 0]) for one in servers]
            fill(targets[1], stack)
            for both in zip(*targets, strict=True):
                costs: list[list[float]] = [[], []]
                for turn in range(options.turns + 1):
                    for server, target, found in zip(servers, both, costs, strict=True):
                        cost = cost_us(server, target, options.clients, options.seconds)
                        if turn:
                            found.append(cost)
                answered, refused = map(statistics.median, costs)
                print(f"| {path} | {both[0].protocol} | {answered:.1f} µs | {refused:.1f} µs |")
    print(f"\n{describe()}")


if __name__ == "__main__":
    main()
