"""Rates and CPU times of one server by the number of its front-end processes.

    python -m benchmarks.cores [--processes 1,2,4,8] [--loads tiny,json] [--models engine,frontends]
                               [--threads 1] [--seconds 4] [--name NAME]

For each number, `shoal serve --frontend-processes=N` serves the same models, and wrk or h2load
sends each load to models that the engine runs, and to the same models with the parameter
`run_in_frontends`. The load generator runs on the same machine, with as many threads as there are
front ends unless --threads says otherwise.
Prints a table with the machine and the commit; with --name writes it to benchmarks/results/, too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper
from PIL import Image

from benchmarks import forms, models
from benchmarks.loads import h2load, program, wrk
from benchmarks.machine import describe
from benchmarks.measures import Load
from benchmarks.peers.base import GRPC_PATH, Target
from benchmarks.peers.shoal import TASK
from benchmarks.places import MODELS, RESULTS, WORK
from benchmarks.serving import Server, serve
from benchmarks.shapes import PICTURE
from benchmarks.workloads import JSON, WORKLOADS

WARM_UP_SECS = 1
PHOTO_MODEL = "photos"
MARK = 'parameters { key: "run_in_frontends" value { string_value: "true" } }\n'
ENGINE, FRONTENDS = "engine", "frontends"  # where models run
BATCHED = 'backend: "onnxruntime"\nmax_batch_size: 64\ndynamic_batching {}\n'


@dataclass(frozen=True)
class Kind:
    """One load."""

    name: str
    title: str
    workload: str  # of the suite, or empty for photos
    connections: int  # for each front end, at least one of each
    grpc: bool = False
    least: int = 0  # of all connections


KINDS = {
    kind.name: kind
    for kind in (
        Kind("lone", "the tiny model, one connection", "W1", 0, least=1),
        Kind("lone-grpc", "the tiny model over gRPC, one connection", "W1", 0, grpc=True, least=1),
        Kind("tiny", "the tiny model", "W1", 32, least=64),
        Kind("tiny-grpc", "the tiny model over gRPC", "W1", 32, grpc=True, least=64),
        Kind("json", "1,000 numbers as JSON, in and out", "JSON-1k", 8, least=16),
        Kind("photos", "JPEG of 100 KB, decoded by Pillow, for a small network", "", 8, least=16),
        Kind("large", "600 KB of FP32 in, 64 bytes out", "W4", 8, least=16),
        Kind("large-grpc", "600 KB of FP32 in over gRPC, 64 bytes out", "W4", 8, True, 16),
    )
}


def write_models(folder: Path, mark: str = "") -> None:
    """The models of all loads; `mark` is added to their configs."""
    for name in ("add_sub", "double", "pool"):
        version = folder / name / "1"
        version.mkdir(parents=True)
        source = models.make(name, MODELS)
        (version / "model.onnx").write_bytes(source.read_bytes())
        (version.parent / "config.pbtxt").write_text(BATCHED + mark, encoding="utf-8")
    version = folder / PHOTO_MODEL / "1"
    version.mkdir(parents=True)
    onnx.save(_photo_network(), version / "model.onnx")
    config = (
        BATCHED
        + mark
        + ('parameters { key: "task" value { string_value: "image-classification" } }\n')
    )
    (version.parent / "config.pbtxt").write_text(config, encoding="utf-8")
    (version.parent / "task.json").write_text(json.dumps(TASK), encoding="utf-8")


def _photo_network() -> onnx.ModelProto:
    """The mean of each colour: next to nothing to compute, so that decoding is what is measured."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["means"]),
        helper.make_node("Flatten", ["means"], ["scores"]),
    ]
    picture = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *PICTURE])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", PICTURE[0]])
    graph = helper.make_graph(nodes, "means", [picture], [scores])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_photo() -> bytes:
    """A JPEG of 500x375 and about 100 KB."""
    small = np.random.default_rng(0).integers(0, 256, (188, 250, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(small).resize((500, 375)).save(content, "JPEG", quality=88)
    return content.getvalue()


def target(kind: Kind, server: Server) -> Target:
    """Where the load goes."""
    if not kind.workload:
        headers = {"content-type": "image/jpeg"}
        exchange = forms.Exchange(make_photo(), lambda *_: {}, headers)
        return Target("http", server.http_port, f"/v2/models/{PHOTO_MODEL}/classify", exchange)
    workload = WORKLOADS[kind.workload]
    path = f"/v2/models/{workload.model}/infer"
    if kind.grpc:
        return Target("grpc", server.grpc_port, GRPC_PATH, forms.v2_grpc(workload))
    form = forms.v2_json if workload.encoding == JSON else forms.v2_http
    return Target("http", server.http_port, path, form(workload))


def send(to: Target, threads: int, connections: int, seconds: int) -> Load:
    """Send the load for some seconds."""
    if to.protocol == "grpc":
        return _send_grpc(to, threads, connections, seconds)
    found = program.find(wrk.NAME, "wrk")
    file = WORK / "cores.lua"
    bodies = [str(program.body_file(to.exchange.body))]
    file.write_text(wrk.script(bodies, to.exchange.headers), encoding="utf-8")
    line = [found, f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s"]
    line += ["-s", str(file), f"http://127.0.0.1:{to.port}{to.path}"]
    return wrk.parse(program.run(line, seconds + 90))


def _send_grpc(to: Target, threads: int, connections: int, seconds: int) -> Load:
    found = program.find(h2load.NAME, "nghttp2-client")
    log = WORK / "cores-h2load.log"
    log.unlink(missing_ok=True)
    line = [found, f"-t{threads}", f"-c{connections}", "-m1", f"-D{seconds}"]
    if connections == 1:  # a log of single requests slows down the load generator
        line.append(f"--log-file={log}")
    line.append(f"-d{program.body_file(to.exchange.body)}")
    for name, value in to.exchange.headers.items():
        line += ["-H", f"{name}: {value}"]
    line.append(f"http://127.0.0.1:{to.port}{to.path}")
    text = program.run(line, seconds + 90)
    return h2load.parse(text, log.read_text().splitlines() if log.exists() else [])


@dataclass
class Times:
    """CPU seconds of the engine, or of everything where that is one process, and of front ends."""

    engine: float = 0.0
    frontends: float = 0.0

    @classmethod
    def of(cls, server: Server) -> Times:
        """So far."""
        found = cls()
        for process in server.family():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                if "shoal.processes.frontend" in process.cmdline():
                    found.frontends += times.user + times.system
                else:
                    found.engine += times.user + times.system
        return found


def measure(
    kind: Kind, server: Server, count: int, seconds: int, threads: int = 0
) -> tuple[Load, Times]:
    """The load, and the CPU time that it cost for each request."""
    to = target(kind, server)
    connections = max(kind.least, kind.connections * count)
    threads = min(threads or count, connections, max(1, (os.cpu_count() or 1) // 2))
    send(to, threads, connections, WARM_UP_SECS)
    before = Times.of(server)
    load = send(to, threads, connections, seconds)
    after = Times.of(server)
    if load.errors:
        raise SystemExit(f"{kind.name} with {count} front ends: {load.errors}")
    used = Times(
        (after.engine - before.engine) / load.requests * 1e6,
        (after.frontends - before.frontends) / load.requests * 1e6,
    )
    return load, used


def resident_mb(server: Server) -> str:
    """The memory of each process, as text."""
    sizes = []
    for process in server.family():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            name = next((w.split(".")[-1] for w in words if w.startswith("shoal.processes")), "")
            info = process.memory_full_info()
            sizes.append(f"{name or 'main'} {info.rss >> 20} (own {info.uss >> 20})")
    return ", ".join(sizes)


def main(words: Sequence[str] | None = None) -> None:
    """Measure every load for every number of processes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--processes", default="1,2", help="numbers of front ends, in this order")
    parser.add_argument("--loads", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--models", default=f"{ENGINE},{FRONTENDS}", help="where models run")
    parser.add_argument("--threads", type=int, default=0, help="of the load generator")
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--name", default="", help="write benchmarks/results/<name>.md, too")
    asked = parser.parse_args(words)
    machine = ", ".join(f"{key} {value}" for key, value in describe().items())
    lines = [
        f"One server by its number of front-end processes: {machine}",
        "",
        "| load | ends | run in | requests/s | times one | p50, ms | p99, ms | CPU µs | engine | front |",  # noqa: E501
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    first: dict[str, float] = {}
    memory = []
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder, ENGINE))
        write_models(Path(folder, FRONTENDS), MARK)
        numbers = [int(number) for number in asked.processes.split(",")]
        places = asked.models.split(",")
        runs = [(n, where) for n in numbers for where in (places if n > 1 else places[:1])]
        for count, where in runs:
            place = str(Path(folder, where))
            with serve(place, f"--frontend-processes={count}", grpc=True) as server:
                for name in asked.loads.split(","):
                    kind = KINDS[name]
                    load, used = measure(kind, server, count, asked.seconds, asked.threads)
                    rate = load.per_second
                    ratio = rate / first.setdefault(name, rate)
                    lines.append(
                        f"| {kind.title} | {count} | {where} | {rate:,.0f} | {ratio:.2f} "
                        f"| {load.p50_us / 1000:.2f} | {load.p99_us / 1000:.2f} "
                        f"| {used.engine + used.frontends:.1f} | {used.engine:.1f} "
                        f"| {used.frontends:.1f} |"
                    )
                    print(lines[-1], flush=True)
                memory.append(f"Resident MB with {count}, {where}: {resident_mb(server)}.")
                print(memory[-1], flush=True)
    text = "\n".join([*lines, "", *memory, ""])
    print(text)
    if asked.name:
        (RESULTS / f"{asked.name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
