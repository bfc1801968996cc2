"""Does the choice of loop or threads follow the load? The load changes every two seconds.

    python -m benchmarks.changing_load [TREE ...] [--series tiny large network] [--rounds 2]
    python -m benchmarks.changing_load --record tests/unit/instance/traces [--series tiny]

Each series is one model under several loads in turn. Prints for each phase the rate, the server's
CPU time a request, where the model ran at the end of the phase, the part of the phase that it ran
on the loop, and how often it changed. With several source trees, each is measured in turn.

`--record` runs the server in this process and writes what the choice is made from, one file per
series: the batches that tests replay.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks import forms
from benchmarks.before_after import start
from benchmarks.forms import DATATYPES, Exchange
from benchmarks.loads import h2load, wrk
from benchmarks.machine import describe
from benchmarks.models import Graph
from benchmarks.peers import repository
from benchmarks.peers.base import GRPC_PATH, Target
from benchmarks.workloads import WORKLOADS, Array

SECONDS = 2.0
ASK_EVERY_SECS = 0.02
FEATURES, WIDTH, LAYERS = 64, 256, 4
NETWORK = "network"


@dataclass(frozen=True)
class Phase:
    """One load."""

    label: str
    protocol: str  # "http" or "grpc"
    clients: int
    exchange: Callable[[], Exchange]
    expected: str = "loop"  # where the model belongs


@dataclass(frozen=True)
class Series:
    """Loads of one model, in turn."""

    model: str
    phases: tuple[Phase, ...]


def _binary() -> Exchange:
    return forms.v2_http(WORKLOADS["W1"])


def _json() -> Exchange:
    return forms.v2_json(WORKLOADS["W1"])


def _grpc() -> Exchange:
    return forms.v2_grpc(WORKLOADS["W1"])


def _large_http() -> Exchange:
    return forms.v2_http(WORKLOADS["W4"])


def _large_grpc() -> Exchange:
    return forms.v2_grpc(WORKLOADS["W4"])


def _rows(rows: int) -> Callable[[], Exchange]:
    """A request of so many rows to the network, with binary tensors over HTTP."""

    def encode() -> Exchange:
        value: Array = np.ones((rows, FEATURES), np.float32)
        tensor = {
            "name": "INPUT",
            "datatype": DATATYPES["float32"],
            "shape": list(value.shape),
            "parameters": {"binary_data_size": value.nbytes},
        }
        output = {"name": "OUTPUT", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        return Exchange(head + value.tobytes(), forms.read_v2_http, headers)

    return encode


SERIES = {
    "tiny": Series(
        "add_sub",
        (
            Phase("binary, 64 clients", "http", 64, _binary),
            Phase("JSON, 64 clients", "http", 64, _json),
            Phase("gRPC, 64 clients", "grpc", 64, _grpc),
            Phase("binary, 1 client", "http", 1, _binary),
            Phase("JSON, 16 clients", "http", 16, _json),
            Phase("binary, 64 clients", "http", 64, _binary),
        ),
    ),
    "large": Series(
        "pool",
        (
            Phase("600 KB, gRPC, 16 clients", "grpc", 16, _large_grpc),
            Phase("600 KB, HTTP, 16 clients", "http", 16, _large_http),
            Phase("600 KB, gRPC, 1 client", "grpc", 1, _large_grpc),
            Phase("600 KB, gRPC, 16 clients", "grpc", 16, _large_grpc),
        ),
    ),
    NETWORK: Series(
        NETWORK,
        (
            Phase("1 row, 4 clients", "http", 4, _rows(1)),
            Phase("64 rows, 4 clients", "http", 4, _rows(64), "threads"),
            Phase("1 row, 1 client", "http", 1, _rows(1)),
            Phase("64 rows, 16 clients", "http", 16, _rows(64), "threads"),
            Phase("1 row, 4 clients", "http", 4, _rows(1)),
        ),
    ),
}


def network() -> onnx.ModelProto:
    """Dense layers, whose time grows with the rows: 0.05 ms for one, 2 ms for 64 on one core."""
    graph = Graph(NETWORK)
    width, data = FEATURES, "INPUT"
    for layer in range(LAYERS):
        weights = graph.weight(width, WIDTH * (layer + 1), scale=0.05)
        data, width = graph.add("Relu", graph.add("MatMul", data, weights)), WIDTH * (layer + 1)
    graph.add("MatMul", data, graph.weight(width, 1, scale=0.05), output="OUTPUT")
    value = helper.make_tensor_value_info
    return graph.finish(
        [value("INPUT", TensorProto.FLOAT, ["batch", FEATURES])],
        [value("OUTPUT", TensorProto.FLOAT, ["batch", 1])],
    )


def write_models(folder: Path) -> None:
    """The repository of all series."""
    for name in ("W1", "W4"):
        workload = WORKLOADS[name]
        text = repository.config(workload, workload.model, "onnxruntime")
        repository.write(folder, workload.model, text, "model.onnx", workload.model_path)
    version = folder / NETWORK / "1"
    version.mkdir(parents=True)
    onnx.save(network(), version / "model.onnx")
    text = f"max_batch_size: {repository.MAX_BATCH}\ndynamic_batching {{ }}\n"
    (folder / NETWORK / "config.pbtxt").write_text(text, encoding="utf-8")


@dataclass
class PlacementPoll:
    """Asks a server again and again where a model runs."""

    port: int
    model: str
    modes: list[str] = field(default_factory=list)

    def once(self) -> dict[str, str]:
        """The mode and its reason now."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", f"/v2/models/{self.model}/stats")
            answer = json.load(connection.getresponse())
        execution: dict[str, str] = answer["model_stats"][0]["execution"]
        return execution

    @contextlib.contextmanager
    def polling(self) -> Iterator[None]:
        """Collect modes until the block ends."""
        ended = threading.Event()

        def poll() -> None:
            while not ended.wait(ASK_EVERY_SECS):
                self.modes.append(self.once()["mode"])

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def summary(self) -> str:
        """Columns of the table: mode at the end, share on the loop, changes."""
        modes = self.modes
        share = modes.count("loop") / max(1, len(modes))
        changes = sum(one != other for one, other in itertools.pairwise(modes))
        return f"{modes[-1]} | {share:.0%} | {changes}"


def run_series(
    series: Series, http_port: int, grpc_port: int, cpu_secs: Callable[[], float]
) -> None:
    """All phases; prints a row for each."""
    path = f"/v2/models/{series.model}/infer"
    for phase in series.phases:
        at_http = phase.protocol == "http"
        exchange = phase.exchange()
        target = Target(
            phase.protocol,
            http_port if at_http else grpc_port,
            path if at_http else GRPC_PATH,
            exchange,
        )
        poll = PlacementPoll(http_port, series.model)
        before = cpu_secs()
        with poll.polling():
            if at_http:
                load = wrk.run(target, phase.clients, SECONDS)
            else:
                load = h2load.run(target, phase.clients, seconds=SECONDS)
        errors = f" ERRORS {load.errors}" if load.errors else ""
        micros = 1e6 * (cpu_secs() - before) / max(1, load.requests)
        print(
            f"| {series.model} | {phase.label} | {load.per_second:,.0f} | {micros:.1f} µs | "
            f"{phase.expected} | {poll.summary()} | {poll.once()['reason']}{errors} |",
            flush=True,
        )


def measure(tree: Path, names: list[str], rounds: int, folder: Path) -> None:
    """One source tree under all series."""
    print(f"\n{tree}\n")
    print(
        "| model | load | requests/s | CPU | should be on | is on | on the loop | changes | why |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with ExitStack() as stack:
        server = start(tree, WORKLOADS["W1"], folder, stack)
        over_http, over_grpc = server.targets
        for _ in range(rounds):
            for name in names:
                run_series(SERIES[name], over_http.port, over_grpc.port, server.cpu_secs)


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Processes that compete with the server for the CPUs."""
    line = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(line) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def record(names: list[str], execution: str, busy: int, folder: Path, traces: Path) -> None:
    """One file of batches for each series."""
    from benchmarks.placement_trace import recording

    with neighbours(busy), recording(folder, execution) as recorder:
        for name in names:
            recorder.begin()
            for phase in SERIES[name].phases:
                recorder.phase(phase.label, phase.expected)
                single = Series(SERIES[name].model, (phase,))
                run_series(single, recorder.http_port, recorder.grpc_port, time.process_time)
            suffix = "" if execution == "auto" else f"_on_{execution}"
            recorder.write(traces / f"{name}{suffix}{'_busy' if busy else ''}.json")


def main() -> None:
    """Measure and print, or record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", nargs="*", type=Path, default=[Path()], metavar="TREE")
    parser.add_argument("--series", nargs="+", default=list(SERIES), choices=list(SERIES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    parser.add_argument("--execution", default="auto", choices=["auto", "loop", "threads"])
    parser.add_argument("--neighbours", type=int, default=0, help="that use the CPUs, for --record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        if options.record is not None:
            record(options.series, options.execution, options.neighbours, folder, options.record)
            return
        for tree in options.trees:
            measure(tree, options.series, options.rounds, folder)
    print(f"\n{describe()}")


if __name__ == "__main__":
    main()
