"""Requests per second of models on a GPU, beside what the network alone can do.

    python -m benchmarks.gpu [--workloads tiny,bert,photos] [--seconds 4] [--name gpu]

Needs PyTorch with CUDA, wrk, for `bert` transformers, for `photos` torchvision and a C compiler;
creates its models itself, with random weights. For each workload, `shoal serve` serves its variants
and wrk sends the same request over many connections, from the same machine. Every response must
have status 200; the contents of one are compared with the network's own results. `photos` sends
different ones and checks every answer; see `gpu_photos`. With --name the tables are written to
benchmarks/results/, too. `--device cpu --quick` checks this program without a GPU.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shlex
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_photos import photos
from benchmarks.loads import program, wrk
from benchmarks.machine import describe
from benchmarks.measures import Load
from benchmarks.places import RESULTS, WORK
from benchmarks.serving import Server, serve
from shoal.backends.pytorch.library import quiet
from shoal.core.dtypes import from_numpy
from shoal.statistics.gpu import Gpus

WARM_UP_SECS = 1
SAMPLE_SECS = 0.1
GRAPHS = "optimization { cuda { graphs: true } }\n"
COLUMNS = ("model", "front ends", "connections", "requests/s", "p50, ms", "p99, ms")
COLUMNS += ("CPU µs", "GPU busy", "rows a batch")


@dataclass(frozen=True)
class Variant:
    """A model folder to be served: its title, the network, and what is added to its config."""

    name: str
    title: str
    network: Any
    exported: bool = False
    count: int = 1  # of instances
    more: str = ""
    counted: str = ""  # the model whose batches are counted, for an ensemble


# ---- requests


def encoded(tensors: Mapping[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a KServe v2 request whose tensors are bytes, in both directions."""
    raws = [array.tobytes() for array in tensors.values()]
    header = {
        "inputs": [
            {
                "name": name,
                "datatype": from_numpy(array.dtype).name,
                "shape": list(array.shape),
                "parameters": {"binary_data_size": array.nbytes},
            }
            for name, array in tensors.items()
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(header).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    headers["Content-Type"] = "application/octet-stream"
    return text + b"".join(raws), headers


def answer(port: int, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """The bytes of all outputs of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, body, dict(headers))
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise SystemExit(f"{path}: status {response.status}: {content[:300]!r}")
    size = int(response.headers["Inference-Header-Content-Length"])
    return content[size:]


def send(
    port: int, path: str, body: bytes, headers: dict[str, str], connections: int, seconds: int
) -> Load:
    """Send a request over so many connections for some seconds."""
    file = WORK / "gpu.lua"
    file.write_text(wrk.script([str(program.body_file(body))], headers), encoding="utf-8")
    threads = min(4, max(1, connections // 32))
    line = [program.find(wrk.NAME, "wrk"), f"-t{threads}", f"-c{connections}", f"-d{seconds}s"]
    line += ["--timeout", "60s", "-s", str(file), f"http://127.0.0.1:{port}{path}"]
    load = wrk.parse(program.run(line, seconds + 90))
    if load.errors:
        raise SystemExit(f"{path} with {connections} connections: {load.errors}")
    return load


@contextmanager
def gpu_busy() -> Iterator[list[float]]:
    """Sample how busy the first GPU is while the block runs."""
    found = Gpus.find()
    samples: list[float] = []
    ended = threading.Event()

    def sample() -> None:
        while found is not None and not ended.wait(SAMPLE_SECS):
            samples.append(found.read()[0].utilization or 0.0)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def measured(
    server: Server,
    variant: Variant,
    request: tuple[bytes, dict[str, str]],
    connections: int,
    seconds: int,
) -> tuple[Load, str]:
    """The load, and the last six cells of its row."""
    path, model = f"/v2/models/{variant.name}/infer", variant.counted or variant.name
    send(server.http_port, path, *request, connections, WARM_UP_SECS)
    before, counted = server.cpu_secs(), counts(server, model)
    with gpu_busy() as samples:
        load = send(server.http_port, path, *request, connections, seconds)
    used_us = (server.cpu_secs() - before) / load.requests * 1e6
    rows, batches = [now - then for now, then in zip(counts(server, model), counted, strict=True)]
    busy = f"{statistics.mean(samples):.0%}" if samples else ""
    cells = f"| {connections} | {load.per_second:,.0f} | {load.p50_us / 1000:.2f} "
    cells += f"| {load.p99_us / 1000:.2f} | {used_us:.1f} | {busy} | {rows / max(1, batches):.0f} |"
    return load, cells


def counts(server: Server, model: str) -> tuple[int, int]:
    """How many rows a model has run, in how many batches."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("GET", f"/v2/models/{model}/stats")
    found = json.loads(connection.getresponse().read())["model_stats"][0]
    return found["inference_count"], found["execution_count"]


# ---- models


class AddSub(torch.nn.Module):
    """Sum and difference."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As in Triton's examples."""
        return left + right, left - right


def bert(device: str) -> Any:
    """BERT-base with a classifier and random weights, in half precision on a GPU."""
    from transformers import BertConfig, BertForSequenceClassification

    class Classifier(torch.nn.Module):
        """Token ids and mask to logits."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            layers = 12 if device == "cuda" else 1
            self.bert = BertForSequenceClassification(BertConfig(num_hidden_layers=layers))

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            """Logits in FP32."""
            found = self.bert(input_ids=input_ids, attention_mask=attention_mask)
            return found.logits.float()

    made = Classifier().eval().to(device)
    return made.half() if device == "cuda" else made


def write(folder: Path, variant: Variant, example: Sequence[torch.Tensor], config: str) -> None:
    """A model folder for a server."""
    version = folder / variant.name / "1"
    version.mkdir(parents=True)
    with quiet, torch.no_grad():
        if variant.exported:
            batch = torch.export.Dim("batch", min=1, max=1024)
            shapes = tuple({0: batch} for _ in example)
            made = torch.export.export(variant.network, tuple(example), dynamic_shapes=shapes)
            torch.export.save(made, str(version / "model.pt2"))
        else:
            traced = torch.jit.trace(variant.network, tuple(example), strict=False)
            traced.save(str(version / "model.pt"))
    text = config.replace("COUNT", str(variant.count)) + variant.more
    (version.parent / "config.pbtxt").write_text(text, encoding="utf-8")


def config_of(kind: str, largest: int, inputs: str, outputs: str) -> str:
    """The common part of a model's config; tensors as name, type and dims, separated by commas."""

    def listed(field: str, text: str) -> str:
        lines = [entry.split() for entry in text.split(",")]
        return "".join(
            f'{field} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}\n'
            for name, datatype, dims in lines
        )

    return (
        f'backend: "pytorch"\nmax_batch_size: {largest}\ndynamic_batching {{ }}\n'
        f"instance_group [ {{ kind: {kind} count: COUNT }} ]\n"
        + listed("input", inputs)
        + listed("output", outputs)
    )


# ---- workloads


def table(
    asked: argparse.Namespace,
    folder: Path,
    variants: Sequence[Variant],
    inputs: Mapping[str, np.ndarray],
    expected: Sequence[np.ndarray],
    loads: Sequence[int],
) -> tuple[list[str], dict[tuple[str, int, int], float]]:
    """A row for each variant, number of front ends and of connections; the rates by those."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
    rates: dict[tuple[str, int, int], float] = {}
    request = encoded(inputs)
    for ends in asked.frontends:
        with serve(str(folder), f"--frontend-processes={ends}") as server:
            for variant in variants:
                path = f"/v2/models/{variant.name}/infer"
                check(answer(server.http_port, path, *request), expected, variant.name)
                for connections in loads:
                    load, cells = measured(server, variant, request, connections, asked.seconds)
                    rates[variant.name, ends, connections] = load.per_second
                    lines.append(f"| {variant.title} | {ends} {cells}")
                    print(lines[-1], flush=True)
    return lines, rates


def chosen(asked: argparse.Namespace, *variants: Variant) -> list[Variant]:
    """Those that are asked for."""
    only = asked.only.split(",") if asked.only else [variant.name for variant in variants]
    return [variant for variant in variants if variant.name in only]


def check(content: bytes, expected: Sequence[np.ndarray], name: str) -> None:
    """End the program if a response does not have the expected outputs."""
    start = 0
    for array in expected:
        found = np.frombuffer(content[start : start + array.nbytes], array.dtype)
        if not np.allclose(found, array.reshape(-1), rtol=0.02, atol=0.02):
            raise SystemExit(f"{name}: expected {array}, got {found}")
        start += array.nbytes


def tiny(asked: argparse.Namespace) -> list[str]:
    """Add and subtract 16 integers: the cost of everything but the network."""
    network = AddSub().eval()
    example = [torch.zeros(2, 16, dtype=torch.int32, device=asked.device) for _ in range(2)]
    variants = chosen(
        asked,
        Variant("script", "TorchScript", network),
        Variant("script2", "TorchScript, two instances", network, count=2),
        Variant("graphs", "TorchScript, CUDA graphs", network, more=GRAPHS),
        Variant("export", "torch.export", network, exported=True),
    )
    config = config_of(
        asked.kind, 256, "left INT32 16, right INT32 16", "OUTPUT__0 INT32 16, OUTPUT__1 INT32 16"
    )
    left, right = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
    with tempfile.TemporaryDirectory() as folder:
        for variant in variants:
            write(Path(folder), variant, example, config)
        inputs = {"left": left, "right": right}
        lines, _ = table(
            asked, Path(folder), variants, inputs, (left + right, left - right), asked.loads[0]
        )
    return ["**add_sub, two INT32[16] in, two out, one row a request**", "", *lines, ""]


def bert_base(asked: argparse.Namespace) -> list[str]:
    """BERT-base at 128 tokens: a large network and small requests."""
    network = bert(asked.device)
    ids = np.random.default_rng(0).integers(1, 30000, (1, 128), np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    example = [torch.from_numpy(array).repeat(2, 1).to(asked.device) for array in inputs.values()]
    with torch.inference_mode():
        expected = network(*example)[:1].cpu().numpy()
    variants = chosen(
        asked,
        Variant("script", "TorchScript", network),
        Variant("script2", "TorchScript, two instances", network, count=2),
        Variant("graphs2", "the same with CUDA graphs", network, count=2, more=GRAPHS),
        Variant("export2", "torch.export, two instances", network, exported=True, count=2),
        Variant(
            "export_graphs2",
            "the same with CUDA graphs",
            network,
            exported=True,
            count=2,
            more=GRAPHS,
        ),
    )
    config = config_of(
        asked.kind,
        asked.bert_batch,
        "input_ids INT64 128, attention_mask INT64 128",
        "OUTPUT__0 FP32 2",
    )
    limits: dict[tuple[str, int], float] = {}
    with quiet, torch.no_grad():
        script = torch.jit.trace(network, tuple(example), strict=False)
    with tempfile.TemporaryDirectory() as folder:
        for variant in variants:
            write(Path(folder), variant, example, config)
        for rows in (asked.bert_batch // 2, asked.bert_batch):
            limits["eager", rows] = plain_rate(network, rows, asked)
            limits["TorchScript", rows] = plain_rate(script, rows, asked)
            limits["CUDA graph", rows] = plain_rate(script, rows, asked, captured=True)
        limit = max(limits.values())
        del network, script
        if asked.device == "cuda":
            torch.cuda.empty_cache()
        lines, rates = table(asked, Path(folder), variants, inputs, (expected,), asked.loads[1])
    listed = ", ".join(f"{way} {rows} rows {rate:,.0f}/s" for (way, rows), rate in limits.items())
    best = max(rates.values())
    return [
        "**BERT-base FP16, 128 tokens, two INT64[128] in, two FP32 out, one row a request**",
        "",
        *lines,
        "",
        f"The network alone, in a loop with copies in both directions: {listed}.",
        f"The best rate of the server is {best / limit:.0%} of the best of these.",
        "",
    ]


def plain_rate(
    network: Any, rows: int, asked: argparse.Namespace, *, captured: bool = False
) -> float:
    """Rows per second of the network without a server; `captured` as a CUDA graph."""
    ids = torch.randint(1, 30000, (rows, 128))
    mask = torch.ones_like(ids)
    if asked.device == "cuda":
        ids, mask = ids.pin_memory(), mask.pin_memory()

    given = [tensor.to(asked.device) for tensor in (ids, mask)]
    graph = torch.cuda.CUDAGraph() if captured and asked.device == "cuda" else None
    result: Any = None

    def once() -> None:
        for place, tensor in zip(given, (ids, mask), strict=True):
            place.copy_(tensor, non_blocking=True)
        if graph is None:
            network(*given).cpu()
        else:
            graph.replay()
            result.cpu()

    with torch.inference_mode():
        for _ in range(5):
            network(*given)
        if graph is not None:
            with torch.cuda.graph(graph):
                result = network(*given)
        once()
        runs = 0
        start = time.perf_counter()
        while time.perf_counter() - start < min(2.0, asked.seconds):
            once()
            runs += 1
        return runs * rows / (time.perf_counter() - start)


ENSEMBLE = """platform: "ensemble"
max_batch_size: 256
input [ { name: "a" data_type: TYPE_INT32 dims: [ 16 ] },
        { name: "b" data_type: TYPE_INT32 dims: [ 16 ] } ]
output { name: "twice" data_type: TYPE_INT32 dims: [ 16 ] }
ensemble_scheduling { step [
  { model_name: "script" model_version: -1
    input_map [ { key: "left" value: "a" }, { key: "right" value: "b" } ]
    output_map [ { key: "OUTPUT__0" value: "sum" }, { key: "OUTPUT__1" value: "rest" } ] },
  { model_name: "second" model_version: -1
    input_map [ { key: "left" value: "sum" }, { key: "right" value: "rest" } ]
    output_map { key: "OUTPUT__0" value: "twice" } }
] }
"""


def ensemble(asked: argparse.Namespace) -> list[str]:
    """Two of the tiny models, one after the other, with tensors that stay on the GPU."""
    network = AddSub().eval()
    example = [torch.zeros(2, 16, dtype=torch.int32, device=asked.device) for _ in range(2)]
    config = config_of(
        asked.kind, 256, "left INT32 16, right INT32 16", "OUTPUT__0 INT32 16, OUTPUT__1 INT32 16"
    )
    left, right = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("script", "second"):
            write(Path(folder), Variant(name, "", network), example, config)
        (Path(folder) / "both" / "1").mkdir(parents=True)
        (Path(folder) / "both" / "config.pbtxt").write_text(ENSEMBLE, encoding="utf-8")
        variants = (Variant("both", "ensemble of two", network, counted="second"),)
        inputs = {"a": left, "b": right}
        lines, _ = table(asked, Path(folder), variants, inputs, (2 * left,), asked.loads[0])
    return ["**An ensemble of two add_sub models**", "", *lines, ""]


WORKLOADS: dict[str, Callable[[argparse.Namespace], list[str]]] = {
    "tiny": tiny,
    "ensemble": ensemble,
    "bert": bert_base,
    "photos": photos,
}


def main(words: Sequence[str] | None = None) -> None:
    """Measure the workloads and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"of {list(WORKLOADS)}")
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--frontends", default="1", help="numbers of front-end processes")
    parser.add_argument("--photos", type=int, default=0, help="so many, instead of --seconds")
    parser.add_argument("--instances", type=int, default=4, help="that classify photos")
    parser.add_argument("--batch", type=int, default=48, help="of photos, at most")
    parser.add_argument("--more", default="", help="added to the config of the classifier")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="", help="names of variants, by default all")
    parser.add_argument("--quick", action="store_true", help="one load each, of a second")
    parser.add_argument("--name", default="", help="write benchmarks/results/<name>.md, too")
    asked = parser.parse_args(words)
    asked.frontends = [int(number) for number in asked.frontends.split(",")]
    asked.kind = "KIND_GPU" if asked.device == "cuda" else "KIND_CPU"
    asked.bert_batch = 128 if asked.device == "cuda" else 4
    asked.loads = ((64, 256), (256, 512))
    if asked.quick:
        asked.seconds, asked.loads = 1, ((64,), (8,))
    WORK.mkdir(parents=True, exist_ok=True)
    machine = ", ".join(f"{key} {value}" for key, value in describe().items())
    card = torch.cuda.get_device_name() if asked.device == "cuda" else "no GPU"
    lines = [f"{card}, PyTorch {torch.__version__}, {machine}; load from the same machine.", ""]
    given = shlex.join(sys.argv[1:] if words is None else words)
    lines += [f"`python -m benchmarks.gpu {given}`", ""]
    for name in asked.workloads.split(","):
        lines += WORKLOADS[name](asked)
    text = "\n".join(lines)
    print(text)
    if asked.name:
        (RESULTS / f"{asked.name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
