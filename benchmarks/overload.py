"""Goodput over offered load: what becomes of a server that is asked for more than it can do.

    python -m benchmarks.overload [--variants shoal,shoal-queue,…] [--loads 0.5,1,3] [--seconds 8]
    python -m benchmarks.overload --capacity 700 --variants shoal-target --loads 3 --seconds 60
    python -m benchmarks.overload --name overload      # keeps the results, so that parts add up

A model of some milliseconds a batch is served by Shoal and by Triton with its ONNX Runtime backend
in C++ (as `triton-onnx`, see README.md), each with an unlimited queue and with `max_queue_size`,
and by Shoal with a target latency. Requests arrive at random (Poisson) at multiples of the
capacity, whatever the server answers: each takes an idle connection or a new one. Goodput is the
number of answers a second within the limit, counted from when the request was due.

The capacity is what the first variant serves to 16 connections that always wait for an answer, if
--capacity does not give it. With --name the results are kept in results/NAME.json, and NAME.md and
NAME.svg are written from it. Where a load was measured before, the result stays that had less CPU
time of other programs beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.machine import describe
from benchmarks.overload_report import write_report
from benchmarks.peers.base import free_ports
from benchmarks.places import RESULTS
from benchmarks.serving import Server, launched, serve

LOADS = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
LIMIT_MS = 50.0  # an answer that comes later is of no use to its client
TARGET_MS = 40  # of the server: the rest is for the way and for a busy client
QUEUE = 12  # requests, six batches
WIDTH, LAYERS, MAX_BATCH = 768, 48, 2
CONNECTIONS = 3000  # at most: further requests are not sent, and count as not answered
WARM_UP_SECS, DRAIN_SECS = 1.5, 3.0
CLOSED_CONNECTIONS, CLOSED_SECS = 16, 4.0

VARIANTS = {
    "shoal": "Shoal",
    "shoal-queue": f"Shoal, max_queue_size {QUEUE}",
    "shoal-target": f"Shoal, target_latency_ms {TARGET_MS}",
    "triton": "Triton",
    "triton-queue": f"Triton, max_queue_size {QUEUE}",
}
CONFIG = """\
backend: "onnxruntime"
max_batch_size: {rows}
input {{ name: "x" data_type: TYPE_FP32 dims: [ {width} ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
dynamic_batching {{ {policy} }}
"""


# ---- the model and the servers


def write_model(folder: Path, variant: str) -> float:
    """A repository with the model; returns the right answer."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    version = folder / "layers" / "1"
    version.mkdir(parents=True)
    random_values = np.random.default_rng(5).standard_normal((WIDTH, WIDTH))
    weights = np.linalg.qr(random_values)[0].astype(np.float32)  # keeps the length of a row
    nodes = [
        helper.make_node("MatMul", [f"h{n}" if n else "x", "w"], [f"h{n + 1}"])
        for n in range(LAYERS)
    ]
    nodes.append(helper.make_node("ReduceMax", [f"h{LAYERS}"], ["y"], axes=[1], keepdims=1))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, version / "model.onnx")
    policy = f"default_queue_policy {{ max_queue_size: {QUEUE} }}" if "queue" in variant else ""
    text = CONFIG.format(rows=MAX_BATCH, width=WIDTH, policy=policy)
    if variant == "shoal-target":
        text += (
            f'parameters {{ key: "target_latency_ms" value {{ string_value: "{TARGET_MS}" }} }}\n'
        )
    (folder / "layers" / "config.pbtxt").write_text(text)
    row = np.ones(WIDTH, np.float32)
    for _ in range(LAYERS):
        row = row @ weights
    return float(row.max())


@contextlib.contextmanager
def served(variant: str, folder: Path) -> Iterator[Server]:
    """The server of a variant."""
    if variant.startswith("shoal"):
        with serve(f"--model-repository={folder}") as server:
            yield server
        return
    executable, backends = (os.environ.get(f"SHOAL_TRITON{end}", "") for end in ("", "_BACKENDS"))
    if shutil.which(executable) is None:
        sys.exit("set SHOAL_TRITON and SHOAL_TRITON_BACKENDS, or leave out Triton's variants")
    http_port, grpc_port, metrics_port = free_ports(3)
    line = [executable, f"--model-repository={folder}", f"--backend-directory={backends}"]
    line += [f"--http-port={http_port}", f"--grpc-port={grpc_port}"]
    line += [f"--metrics-port={metrics_port}", "--http-address=127.0.0.1"]
    with launched(line, http_port, grpc_port, metrics_port) as server:
        yield server


def request_bytes() -> bytes:
    """A request with the tensor as bytes."""
    tensor = np.ones((1, WIDTH), np.float32).tobytes()
    document = {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, WIDTH],
                "parameters": {"binary_data_size": len(tensor)},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    header = json.dumps(document).encode()
    head = (
        "POST /v2/models/layers/infer HTTP/1.1\r\nHost: x\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + len(tensor)}\r\n\r\n"
    )
    return head.encode() + header + tensor


# ---- the load


@dataclass
class Level:
    """What became of the requests of one offered load."""

    times_capacity: float
    offered_per_second: float
    seconds: float
    goodput: float = 0.0  # right answers within the limit, a second
    late: float = 0.0  # a second
    refused: float = 0.0  # 503, a second
    unanswered: float = 0.0  # a second: not sent for want of connections, or no answer at the end
    failed: int = 0  # anything else
    without_retry_after: int = 0  # of those that were refused
    p50_ms: float = 0.0  # of those that were accepted
    p99_ms: float = 0.0
    refusal_p99_ms: float = 0.0
    connections: int = 0
    cpu_secs: float = 0.0  # of the server, a second
    others_cpu_secs: float = 0.0  # of other programs than server and load, a second
    memory_mb: list[float] = field(default_factory=list)  # of the server, each second


class Client(asyncio.Protocol):
    """A connection, for one request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._received = b""
        self._due = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, due: float) -> None:
        """Send the request that was due at that moment."""
        self._due = due
        assert self._transport is not None
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        """A response, or a part of it."""
        received = self._received = self._received + data
        head_end = received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = received[:head_end].lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(received) < head_end + 4 + length:
            return
        self._received = b""
        self._load.answered(self, int(received[9:12]), b"\r\nretry-after:" in head, self._due)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed it, or the load is over."""
        del exc
        self._load.lost(self)


class Load:
    """Requests that are sent when they are due, whatever becomes of the others."""

    def __init__(self, port: int, request: bytes) -> None:
        self.request = request
        self._port = port
        self._idle: list[Client] = []
        self._open: set[Client] = set()
        self._opening = 0
        self._busy: dict[Client, float] = {}
        self._none_busy = asyncio.Event()
        self._answers: list[tuple[float, float, int, bool]] = []  # due, latency, status, retry
        self._unsent: list[float] = []
        self._closed_loop_end = 0.0  # while that is ahead, each answer leads to a request
        self.most = 0

    async def capacity(self) -> float:
        """Answers a second for connections that always wait for an answer."""
        for _ in range(CLOSED_CONNECTIONS):
            await self._connect()
        begun = time.perf_counter()
        self._closed_loop_end = begun + WARM_UP_SECS + CLOSED_SECS
        while self._idle:
            self._send(self._idle.pop(), begun)
        await asyncio.sleep(WARM_UP_SECS + CLOSED_SECS + 0.5)
        first, last = begun + WARM_UP_SECS, self._closed_loop_end
        ends = [due + took for due, took, status, _ in self._answers if status == 200]
        self._close()
        return sum(first < end <= last for end in ends) / CLOSED_SECS

    async def offer(self, rate: float, seconds: float, seed: int = 3) -> None:
        """Send for so long at this rate, then wait for answers for a while."""
        chance = random.Random(seed)
        due = time.perf_counter()
        end = due + seconds
        opening: set[asyncio.Task[None]] = set()
        while due < end:
            now = time.perf_counter()
            if due > now:
                await asyncio.sleep(due - now)
                continue
            if self._idle:
                self._send(self._idle.pop(), due)
            elif len(self._open) + self._opening < CONNECTIONS:
                self._opening += 1
                task = asyncio.ensure_future(self._open_and_send(due))
                opening.add(task)
                task.add_done_callback(opening.discard)
            else:
                self._unsent.append(due)
            due += chance.expovariate(rate)
            if due <= now:  # far behind: answers are read in between
                await asyncio.sleep(0)
        await asyncio.gather(*opening)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._none_busy.wait(), DRAIN_SECS)
        self._close()

    async def _connect(self) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: Client(self), "127.0.0.1", self._port)
        self._open.add(client)
        self._idle.append(client)
        return client

    async def _open_and_send(self, due: float) -> None:
        try:
            client = await self._connect()
        except OSError:
            self._unsent.append(due)
        else:
            self._idle.remove(client)
            self._send(client, due)
        finally:
            self._opening -= 1

    def _send(self, client: Client, due: float) -> None:
        self._busy[client] = due
        self._none_busy.clear()
        self.most = max(self.most, len(self._busy))
        client.send(due)

    def answered(self, client: Client, status: int, retry_after: bool, due: float) -> None:
        """A response is complete."""
        now = time.perf_counter()
        self._answers.append((due, now - due, status, retry_after))
        del self._busy[client]
        if now < self._closed_loop_end:
            self._send(client, now)
        else:
            self._idle.append(client)
        if not self._busy:
            self._none_busy.set()

    def lost(self, client: Client) -> None:
        """A connection is closed."""
        self._open.discard(client)
        if client in self._idle:
            self._idle.remove(client)
        due = self._busy.pop(client, None)
        if due is not None:
            self._unsent.append(due)

    def _close(self) -> None:
        self._unsent += self._busy.values()
        self._busy.clear()
        for client in list(self._open):
            assert client._transport is not None
            client._transport.abort()

    def result(self, level: Level, begun: float) -> Level:
        """Count what was due after the warm-up."""
        first = begun + WARM_UP_SECS
        seconds = level.seconds - WARM_UP_SECS
        answers = [answer for answer in self._answers if answer[0] >= first]
        accepted = sorted(took * 1000 for _, took, status, _ in answers if status == 200)
        refused = sorted(took * 1000 for _, took, status, _ in answers if status == 503)
        statuses = Counter(status for _, _, status, _ in answers)
        good = sum(took <= LIMIT_MS for took in accepted)
        level.goodput = good / seconds
        level.late = (len(accepted) - good) / seconds
        level.refused = len(refused) / seconds
        level.unanswered = sum(due >= first for due in self._unsent) / seconds
        level.failed = len(answers) - statuses[200] - statuses[503]
        level.without_retry_after = sum(
            status == 503 and not retry for _, _, status, retry in answers
        )
        level.p50_ms, level.p99_ms = _percentile(accepted, 0.5), _percentile(accepted, 0.99)
        level.refusal_p99_ms = _percentile(refused, 0.99)
        level.connections = self.most
        return level


def _percentile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


async def _watch_memory(server: Server, into: list[float]) -> None:
    while True:
        into.append(round(server.resident_bytes() / 1e6, 1))
        await asyncio.sleep(1)


def _busy_secs() -> float:
    """CPU time of all programs so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.softirq)


async def _measure(server: Server, times: float, capacity: float, seconds: float) -> Level:
    level = Level(times, times * capacity, seconds)
    load = Load(server.http_port, request_bytes())
    watching = asyncio.ensure_future(_watch_memory(server, level.memory_mb))
    cpu_secs, begun = server.cpu_secs(), time.perf_counter()
    own_secs, all_secs = time.process_time(), _busy_secs()
    await load.offer(level.offered_per_second, seconds)
    elapsed = time.perf_counter() - begun
    cpu_secs = server.cpu_secs() - cpu_secs
    level.cpu_secs = cpu_secs / elapsed
    own_secs, all_secs = time.process_time() - own_secs, _busy_secs() - all_secs
    level.others_cpu_secs = (all_secs - own_secs - cpu_secs) / elapsed
    watching.cancel()
    return load.result(level, begun)


def check_answer(server: Server, expected: float) -> None:
    """The model computes what it should."""
    import http.client

    head, _, body = request_bytes().partition(b"\r\n\r\n")
    length = head.partition(b"Inference-Header-Content-Length: ")[2].partition(b"\r\n")[0]
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
    headers = {"Inference-Header-Content-Length": length.decode()}
    connection.request("POST", "/v2/models/layers/infer", body, headers)
    response = connection.getresponse()
    content = response.read()
    found = float(np.frombuffer(content[-4:], np.float32)[0])
    if response.status != 200 or abs(found - expected) > 1e-3 * abs(expected):
        sys.exit(f"status {response.status}, {found} instead of {expected}: {content[:200]!r}")


def run(variant: str, loads: Sequence[float], seconds: float, capacity: float) -> dict[str, Any]:
    """All loads of one variant, on one server."""
    with tempfile.TemporaryDirectory() as folder:
        expected = write_model(Path(folder), variant)
        with served(variant, Path(folder)) as server:
            check_answer(server, expected)
            if not capacity:
                capacity = asyncio.run(Load(server.http_port, request_bytes()).capacity())
                print(f"capacity: {capacity:.0f} requests a second", flush=True)
            levels = []
            for times in loads:
                level = asyncio.run(_measure(server, times, capacity, seconds))
                levels.append(asdict(level))
                print(variant, json.dumps(levels[-1]), flush=True)
    return {"capacity": capacity, "levels": levels}


def keep_quietest(levels: list[dict[str, Any]], level: dict[str, Any]) -> None:
    """Add a level, unless the same was measured while other programs used less CPU time."""
    for place, other in enumerate(levels):
        if all(other[key] == level[key] for key in ("variant", "times_capacity", "seconds")):
            if level["others_cpu_secs"] <= other["others_cpu_secs"]:
                levels[place] = level
            return
    levels.append(level)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(prog="benchmarks.overload")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--loads", default=",".join(map(str, LOADS)))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--capacity", type=float, default=0.0, help="instead of measuring it")
    parser.add_argument("--name", default="")
    options = parser.parse_args()
    file = RESULTS / f"{options.name}.json"
    kept: dict[str, Any] = {"levels": []}
    if options.name and file.exists():
        kept = json.loads(file.read_text())
    capacity = options.capacity or kept.get("capacity", 0.0)
    loads = [float(text) for text in options.loads.split(",") if text]
    for variant in options.variants.split(","):
        if not variant:
            continue
        found = run(variant, loads, options.seconds, capacity)
        capacity = kept["capacity"] = found["capacity"]
        for level in found["levels"]:
            level["variant"] = variant
            keep_quietest(kept["levels"], level)
        kept["machine"] = describe()
        kept["limit_ms"] = LIMIT_MS
        if options.name:
            file.write_text(json.dumps(kept, indent=1) + "\n")
    if options.name:
        write_report(kept, VARIANTS, RESULTS, options.name)


if __name__ == "__main__":
    main()
