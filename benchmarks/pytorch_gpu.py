"""Speed of the ways to run a PyTorch model on a GPU, measured in one run.

    python -m benchmarks.pytorch_gpu [--quick] [--turns 3] [--output FILE]

Needs PyTorch with CUDA, numpy and Shoal's own dependencies, and creates its models itself. The
executors are called as an instance's thread calls them: arrays in, arrays out, no network. Variants
are measured alternately; a figure is the median over rounds of the medians within a round. The
tables go to benchmarks/results/pytorch_gpu.md, which the documentation shows. `--quick --device cpu
--size 32` runs the parts that need no GPU, to check this program.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import itertools
import platform
import queue
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from shoal.backends.base import Executor, LoadContext, Placement
from shoal.backends.pytorch.model import PyTorchModel
from shoal.config.model import (
    ModelConfig,
    ModelInput,
    ModelOptimizationPolicy,
    ModelOutput,
    ModelParameter,
)
from shoal.core.dtypes import FP32
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.testing.server import running_server
from tests.support import torch_models

RESULTS = Path(__file__).parent / "results" / "pytorch_gpu.md"
CLASSES = 1000

Policy = ModelOptimizationPolicy
NOT_PINNED = Policy(
    input_pinned_memory=Policy.PinnedMemoryBuffer(enable=False),
    output_pinned_memory=Policy.PinnedMemoryBuffer(enable=False),
)
BUSY = Policy(cuda=Policy.Cuda(busy_wait_events=True))


class Block(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.around = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As in a ResNet."""
        inner = functional.relu(self.norms[0](self.one(x)))
        return functional.relu(self.norms[1](self.two(inner)) + self.around(x))


class ResNet18(nn.Module):
    """The network of that name with random weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.start = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        self.blocks = nn.Sequential(
            *(Block(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths))
        )
        self.end = nn.Linear(512, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Images to scores."""
        return self.end(self.blocks(self.start(image)).mean((2, 3)))


class Layers(nn.Module):
    """Many small operators: shows the cost of launching them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(64)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Vectors to vectors."""
        return torch.tanh(self.layers(x))


class Mean(nn.Module):
    """Little computation on much data: shows the cost of copies."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean of each row."""
        return x.mean(1, keepdim=True)


class Prepare(nn.Module):
    """The step before the network of an ensemble."""

    def forward(self, raw: torch.Tensor) -> torch.Tensor:
        """Scale pixels."""
        return (raw - 0.45) / 0.225


class Finish(nn.Module):
    """The step after it."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """Probabilities."""
        return torch.softmax(scores, 1)


@dataclass(frozen=True)
class Workload:
    """One model with its batch sizes."""

    name: str
    model: Callable[[], nn.Module]
    input: str
    dims: tuple[int, ...]
    out: int
    batches: tuple[int, ...]
    compiled: bool = True  # whether torch.compile, which takes long, is worth a look


@dataclass(frozen=True)
class Variant:
    """One way to run a model."""

    name: str
    parameters: tuple[tuple[str, str], ...] = ()
    optimization: Any = None
    exported: bool = False  # a torch.export program instead of TorchScript


def network(size: int) -> Workload:
    """The network for square images."""
    name = f"ResNet-18, {size} x {size}"
    return Workload(name, ResNet18, "image", (3, size, size), CLASSES, (1, 8, 32))


OTHERS = (
    Workload("64 layers of 64 x 64", Layers, "x", (64,), 64, (1, 8, 32)),
    Workload("mean of 4 MB per row", Mean, "x", (1 << 20,), 1, (1, 8), compiled=False),
)
COMPILED = "torch.compile"
FP16 = ("HALF_PRECISION", "fp16")
LAST = ("CHANNELS_LAST", "true")
GRAPHS = ("CUDA_GRAPHS", "1,8,32")
VARIANTS = (
    Variant("pageable memory, the CPU waits for each copy", optimization=NOT_PINNED),
    Variant("pinned memory, asynchronous copies (default)"),
    Variant("the same, waiting busily", optimization=BUSY),
    Variant("CUDA graphs", (GRAPHS,)),
    Variant("torch.export instead of TorchScript", exported=True),
    Variant(COMPILED, (("ENABLE_TORCH_COMPILE", "true"),), exported=True),
    Variant("fp16", (FP16,)),
    Variant("fp16, channels last", (FP16, LAST)),
    Variant("fp16, channels last, CUDA graphs", (FP16, LAST, GRAPHS)),
)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="per variant, batch and turn")
    parser.add_argument("--quick", action="store_true", help="one short turn")
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; --device cpu shows that the program works")
    if asked.quick:
        asked.turns, asked.seconds = 1, 0.1
    lines = [*describe(asked.device), ""]
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    parts: list[Callable[[argparse.Namespace], list[str]]] = [
        partial(measure_workload, workload) for workload in (network(asked.size), *OTHERS)
    ]
    for part in (*parts, measure_instances, measure_ensemble):
        lines += part(asked)
        # What has been measured is kept, should the rest be cut short.
        asked.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    print(f"written to {asked.output}")


def describe(device: str) -> list[str]:
    """The machine and the versions of the figures."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})"
    now = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d")
    git = ["git", "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        commit = ""
    return [
        f"{gpu}, PyTorch {torch.__version__}, Python {platform.python_version()}, {now}"
        + (f", commit {commit}" if commit else "")
        + ". Command: `python -m benchmarks.pytorch_gpu`. Milliseconds per batch (median), from an "
        "array to an array; in brackets the CPU time of the instance's thread. Lower is better.",
    ]


# ---- one model, many ways


def measure_workload(workload: Workload, asked: argparse.Namespace) -> list[str]:
    """A table: variants down, batch sizes across."""
    names = [variant.name for variant in VARIANTS]
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        loaded: dict[str, Executor] = {}
        models: list[PyTorchModel] = []
        for number, variant in enumerate(VARIANTS):
            if variant.name == COMPILED and not workload.compiled:
                continue
            try:
                model = load(Path(folder) / f"m{number}", workload, variant, asked.device)
                models.append(model)
                loaded[variant.name] = model.executor(placement(asked.device))
            except Exception as error:  # noqa: BLE001 - a variant that fails is a row that says so
                failed[variant.name] = f"{type(error).__name__}: {error}"[:100]
        for _ in range(asked.turns):
            for name, executor in loaded.items():
                for rows in workload.batches:
                    took = timed(executor, workload, rows, asked.seconds)
                    found.setdefault((name, rows), []).append(took)
        for executor in loaded.values():
            executor.close()
        for model in models:
            model.close()
    lines = [f"**{workload.name}**", ""]
    lines += head(["way", *(f"batch of {rows}" for rows in workload.batches)])
    for name in names:
        cells = [cell(found.get((name, rows))) for rows in workload.batches]
        if name in failed:
            cells[0] = f"failed: {failed[name]}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def load(folder: Path, workload: Workload, variant: Variant, device: str) -> PyTorchModel:
    """Write the model and load it as a server would."""
    version = folder / "1"
    model = workload.model().eval()
    if variant.exported:
        example = (torch.zeros(2, *workload.dims),)
        torch_models.export(model, example, version / "model.pt2")
    else:
        torch_models.script(model, version / "model.pt")
    config = ModelConfig(
        name=folder.name,
        backend="pytorch",
        max_batch_size=max(workload.batches),
        input=(ModelInput(name=workload.input, data_type="TYPE_FP32", dims=workload.dims),),
        output=(ModelOutput(name="OUTPUT__0", data_type="TYPE_FP32", dims=(workload.out,)),),
        optimization=variant.optimization,
    )
    sizes = ",".join(map(str, workload.batches))
    wrapped = {
        key: ModelParameter(sizes if key == "CUDA_GRAPHS" else text)
        for key, text in variant.parameters
    }
    config = replace(config, parameters=wrapped)
    placements = [placement(device)]
    return PyTorchModel(LoadContext(folder, version, 1, config, placements, cores=4))


def placement(device: str) -> Placement:
    """The first GPU, or the CPU."""
    return Placement("KIND_GPU" if device == "cuda" else "KIND_CPU", 0, "m_0_0")


def timed(executor: Executor, workload: Workload, rows: int, seconds: float) -> tuple[float, float]:
    """Median wall-clock and mean CPU milliseconds of a batch."""
    array = np.random.default_rng(rows).random((rows, *workload.dims), np.float32)
    inputs = {workload.input: array}
    for _ in range(5):
        executor.run(inputs, ["OUTPUT__0"])
    took: list[float] = []
    cpu = time.thread_time()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(took) < 5:
        start = time.perf_counter()
        executor.run(inputs, ["OUTPUT__0"])
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e3, (time.thread_time() - cpu) / len(took) * 1e3


# ---- several instances


def measure_instances(asked: argparse.Namespace) -> list[str]:
    """Batches per second of one and two instances, each with its stream and its thread."""
    workload = network(asked.size)
    rows = 8
    lines = [f"**Instances: {workload.name}, batches of {rows}, images per second**", ""]
    lines += head(["instances", "fp32", "fp16, channels last"])
    cells: dict[int, list[str]] = {1: [], 2: [], 4: []}
    with tempfile.TemporaryDirectory() as folder:
        for number, variant in enumerate((VARIANTS[1], VARIANTS[7])):
            model = load(Path(folder) / f"m{number}", workload, variant, asked.device)
            for count, row in cells.items():
                executors = [model.executor(placement(asked.device)) for _ in range(count)]
                speeds = [together(executors, workload, rows, asked) for _ in range(asked.turns)]
                row.append(f"{statistics.median(speeds):.0f}")
                for executor in executors:
                    executor.close()
            model.close()
    lines += [f"| {count} | {' | '.join(found)} |" for count, found in cells.items()]
    return [*lines, ""]


def together(
    executors: Sequence[Executor], workload: Workload, rows: int, asked: argparse.Namespace
) -> float:
    """Rows per second of all instances."""
    array = np.random.default_rng(0).random((rows, *workload.dims), np.float32)
    counts = [0] * len(executors)
    ready = threading.Barrier(len(executors) + 1)
    stop = threading.Event()

    def run(number: int) -> None:
        for _ in range(5):
            executors[number].run({workload.input: array}, ["OUTPUT__0"])
        ready.wait()
        while not stop.is_set():
            executors[number].run({workload.input: array}, ["OUTPUT__0"])
            counts[number] += 1

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(executors))]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    stop.wait(max(asked.seconds, 0.2) * 2)
    took = time.perf_counter() - start
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) * rows / took


# ---- an ensemble

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "RAW" data_type: TYPE_FP32 dims: [ 3, SIZE, SIZE ] }
output { name: "PROBABILITIES" data_type: TYPE_FP32 dims: [ 1000 ] }
ensemble_scheduling { step [
  { model_name: "prepare" model_version: -1
    input_map { key: "raw" value: "RAW" } output_map { key: "OUTPUT__0" value: "image" } },
  { model_name: "network" model_version: -1
    input_map { key: "image" value: "image" } output_map { key: "OUTPUT__0" value: "scores" } },
  { model_name: "finish" model_version: -1
    input_map { key: "scores" value: "scores" }
    output_map { key: "OUTPUT__0" value: "PROBABILITIES" } }
] }
"""


class Answers:
    """The reply of requests that this program makes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Response] = queue.SimpleQueue()

    def send(self, response: Response) -> None:
        """Take a response."""
        self._queue.put(response)

    def wait(self) -> Response:
        """The next one."""
        response = self._queue.get(timeout=60)
        if response.error is not None:
            raise response.error
        return response


def measure_ensemble(asked: argparse.Namespace) -> list[str]:
    """Three models in sequence: tensors copied through the CPU, or kept on the GPU."""
    batches = (1, 8)
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    ways = {"through the CPU": "false", "left on the GPU (default)": "true"}
    with tempfile.TemporaryDirectory() as folder:
        for keep in ways.values():
            write_ensemble(Path(folder) / keep, keep, asked)
        with contextlib.ExitStack() as running:
            servers = {
                way: running.enter_context(running_server(Path(folder) / keep))
                for way, keep in ways.items()
            }
            for _, way, rows in itertools.product(range(asked.turns), ways, batches):
                took = asked_of(servers[way].server.engine.infer, rows, asked)
                found.setdefault((way, rows), []).append(took)
    lines = ["**Ensemble: prepare, ResNet-18, finish (one request at a time, no network)**", ""]
    lines += head(["tensors between the steps", *(f"batch of {rows}" for rows in batches)])
    for way in ways:
        cells = [f"{middle(found[way, rows], 0):.2f}" for rows in batches]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return [*lines, ""]


def write_ensemble(folder: Path, keep: str, asked: argparse.Namespace) -> None:
    """A repository with the ensemble and its models."""
    kind = "KIND_GPU" if asked.device == "cuda" else "KIND_CPU"
    size = asked.size
    more = f'instance_group {{ kind: {kind} }}\nparameters {{ key: "KEEP_ON_GPU" '
    more += f'value: {{ string_value: "{keep}" }} }}\nmax_batch_size: 8\n'
    images, scores = (torch.zeros(2, 3, size, size),), (torch.zeros(2, CLASSES),)
    models: Iterable[tuple[str, nn.Module, tuple[torch.Tensor]]] = (
        ("prepare", Prepare(), images),
        ("network", ResNet18(), images),
        ("finish", Finish(), scores),
    )
    for name, model, example in models:
        torch_models.export(model.eval(), example, folder / name / "1" / "model.pt2")
        (folder / name / "config.pbtxt").write_text(more, encoding="utf-8")
    (folder / "whole" / "1").mkdir(parents=True)
    (folder / "whole" / "config.pbtxt").write_text(
        ENSEMBLE.replace("SIZE", str(size)), encoding="utf-8"
    )


def asked_of(
    infer: Callable[[Request], None], rows: int, asked: argparse.Namespace
) -> tuple[float, float]:
    """Milliseconds of a request to the ensemble, including reading its response."""
    shape = (rows, 3, asked.size, asked.size)
    array = np.random.default_rng(rows).random(shape, np.float32)
    answers = Answers()

    def once() -> None:
        tensor = Tensor("RAW", FP32, array.shape, array=array)
        infer(Request("whole", {"RAW": tensor}, answers))
        (output,) = answers.wait().outputs
        assert len(output.raw) == rows * CLASSES * 4

    for _ in range(5):
        once()
    took: list[float] = []
    end = time.perf_counter() + asked.seconds
    while time.perf_counter() < end or len(took) < 5:
        start = time.perf_counter()
        once()
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e3, 0.0


# ---- tables


def head(columns: Sequence[str]) -> list[str]:
    """The first two lines of a table."""
    return [f"| {' | '.join(columns)} |", "|---" + "|---:" * (len(columns) - 1) + "|"]


def cell(turns: list[tuple[float, float]] | None) -> str:
    """Wall-clock and CPU milliseconds."""
    if not turns:
        return ""
    return f"{middle(turns, 0):.2f} ({middle(turns, 1):.2f})"


def middle(turns: Sequence[tuple[float, float]], which: int) -> float:
    """The median of one figure over turns."""
    return statistics.median(turn[which] for turn in turns)


if __name__ == "__main__":
    main()
