"""Reloading a model under load: is a request lost or wrong, does anything grow?

    python -m benchmarks.reloads [--reloads 1000] [--kinds onnx,python-thread] [--name reloads]

For each kind of model: a server, four clients (HTTP with binary tensors and with JSON, gRPC twice)
that never stop, and a load request after the other. What changes between two of them: the file of
the same version, the config, a newer version, and back to the older one. Version N adds N to its
input, so each response is compared with its own request and with the version that it names.
Memory, threads, descriptors and processes are read now and then. Exits with 1 if a request failed
or was wrong, or if anything grew by more than 5 % between the end of the warm-up and the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from benchmarks.places import RESULTS
from benchmarks.resources import Growth, Held, Record, held_by, table
from benchmarks.serving import Server, serve
from shoal.client import Client, ClientError
from tests.support import onnx_models
from tests.support.repositories import parameter, touch

WIDTH = 4
PAUSE_SECS = 0.001  # of each client between two requests: reloads need the cores, too
MOST_NUMBERS = 1 << 20  # are exact in FP32
READINGS = 100
SETTLE_SECS = 0.4  # for the model that was replaced to be closed before a reading
CONFIG = """
name: "%s"
backend: "%s"
max_batch_size: %d
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "%s" data_type: TYPE_FP32 dims: [ 4 ] }
dynamic_batching { }
"""
PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.number = int(args["model_version"])

    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            output = pb_utils.Tensor("OUTPUT0", numbers + self.number)
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""


def _write_onnx(folder: Path, version: int) -> None:
    onnx_models.save(onnx_models.plus(version, WIDTH), folder / "model.onnx")


def _write_python(folder: Path, version: int) -> None:  # noqa: ARG001 - it reads its version
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(PYTHON_MODEL)


def _write_pytorch(folder: Path, version: int) -> None:
    import torch

    from tests.support import torch_models

    class Plus(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.number = float(version)

        def forward(self, INPUT0: torch.Tensor) -> torch.Tensor:  # noqa: N803 - the tensor's name
            return INPUT0 + self.number

    torch_models.script(Plus(), folder / "model.pt")


@dataclass(frozen=True)
class Kind:
    """One kind of model."""

    name: str
    backend: str
    library: str  # that must be installed
    write: Callable[[Path, int], None]
    more: str = ""  # of its config
    output: str = "OUTPUT0"

    @property
    def installed(self) -> bool:
        """Whether it can be served here."""
        return importlib.util.find_spec(self.library) is not None


KINDS = {
    kind.name: kind
    for kind in (
        Kind("onnx", "onnxruntime", "onnxruntime", _write_onnx),
        Kind(
            "python-thread",
            "python",
            "numpy",
            _write_python,
            parameter("python_execution", "thread"),
        ),
        Kind(
            "python-process",
            "python",
            "numpy",
            _write_python,
            parameter("python_execution", "process"),
        ),
        Kind("pytorch", "pytorch", "torch", _write_pytorch, output="OUTPUT__0"),
    )
}


class ChangingModel:
    """A model whose folder is changed between loads."""

    def __init__(self, repository: Path, kind: Kind) -> None:
        """Write version 1, and version 2 where no server looks."""
        self.name = kind.name
        self._kind = kind
        self._folder = repository / kind.name
        self._newer = repository / f".{kind.name}-2"
        self._batch = 8
        kind.write(self._folder / "1", 1)
        kind.write(self._newer, 2)
        self._write_config()

    def change(self, number: int) -> None:
        """Make the change before load `number`: the file, the config, a newer version, and back."""
        if number % 4 == 0:
            (file,) = (self._folder / "1").glob("model.*")
            touch(file)
        elif number % 4 == 1:
            self._batch = 24 - self._batch
            self._write_config()
        elif number % 4 == 2:
            self._newer.rename(self._folder / "2")
        else:
            (self._folder / "2").rename(self._newer)

    def _write_config(self) -> None:
        kind = self._kind
        text = CONFIG % (kind.name, kind.backend, self._batch, kind.output)
        (self._folder / "config.pbtxt").write_text(text + kind.more)


@dataclass
class Traffic:
    """What clients have sent, by protocol, and what was wrong with the responses."""

    requests: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)


class Clients:
    """Threads that call models until they are told to stop."""

    def __init__(self, server: Server, models: Sequence[str]) -> None:
        self.traffic = {model: Traffic() for model in models}
        self._stop = threading.Event()
        http, grpc = f"127.0.0.1:{server.http_port}", f"grpc://127.0.0.1:{server.grpc_port}"
        ways = (("HTTP", http, True), ("HTTP, JSON", http, False), ("gRPC", grpc, True))
        self._threads = [
            threading.Thread(target=self._call, args=(model, place, *way), daemon=True)
            for model in models
            for place, way in enumerate((*ways, ways[-1]))
        ]

    def __enter__(self) -> Clients:  # noqa: PYI034 - Python 3.10 has no Self
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, model: str, place: int, protocol: str, url: str, binary: bool) -> None:
        traffic = self.traffic[model]
        number = place * MOST_NUMBERS // 8
        with Client(url, retries=0) as client:
            while not self._stop.wait(PAUSE_SECS):
                number = (number + WIDTH) % MOST_NUMBERS
                numbers = np.arange(number, number + WIDTH, dtype=np.float32)[np.newaxis]
                traffic.requests[protocol] += 1
                try:
                    result = client.infer(model, {"INPUT0": numbers}, binary=binary)
                    (found,) = result.values()
                except ClientError as error:
                    traffic.failed[f"{protocol}: {error}"] += 1
                    continue
                traffic.versions[result.model_version] += 1
                if not np.array_equal(found, numbers + float(result.model_version)):
                    traffic.wrong[protocol] += 1


@dataclass
class Outcome:
    """What reloading one or more models at a time has shown."""

    reloads: int
    seconds: float
    traffic: dict[str, Traffic]
    growths: list[Growth]

    def problems(self, limit: float) -> list[str]:
        """What must not have happened."""
        found: list[str] = []
        for model, traffic in self.traffic.items():
            for text, count in (traffic.failed + traffic.wrong).most_common(5):
                found.append(f"{model}: {count} of {text}")
            if set(traffic.versions) != {"1", "2"}:
                found.append(f"{model}: not both versions have responded: {traffic.versions}")
        found += [
            f"{one.resource} grew by {one.share:.1%}" for one in self.growths if one.exceeds(limit)
        ]
        return found


def run(kinds: Sequence[Kind], reloads: int, warm_up: int) -> Outcome:
    """Reload a model of each kind so often, all in one server.

    Raises ClientError for a load that fails, ValueError for too few reloads after the warm-up.
    """
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        models = [ChangingModel(repository, kind) for kind in kinds]
        line = [folder, "--model-control-mode=explicit", "--load-model=*"]
        with serve(*line, grpc=True) as server:
            begun = time.monotonic()
            with (
                Clients(server, [model.name for model in models]) as clients,
                Client(server.address, timeout=120) as control,
            ):
                record = _reload(control, models, reloads, server.process.pid)
            seconds = time.monotonic() - begun
    return Outcome(reloads, seconds, clients.traffic, record.growths(warm_up))


def _reload(
    control: Client, models: Sequence[ChangingModel], reloads: int, server_pid: int
) -> Record:
    record = Record()
    every = max(1, reloads // READINGS)
    for number in range(reloads):
        for model in models:
            model.change(number)
            control.load(model.name)
        if number % every == every - 1:
            record.add(number + 1, _settled(server_pid))
    return record


def _settled(pid: int) -> Held:
    """Of some readings the one with the fewest threads: no model was being closed then."""
    until = time.monotonic() + SETTLE_SECS
    readings = [held_by(pid)]
    while time.monotonic() < until:
        time.sleep(SETTLE_SECS / 8)
        readings.append(held_by(pid))
    return min(reversed(readings), key=lambda held: held.threads)


def report(kind: str, outcome: Outcome, limit: float) -> str:
    """The section of one kind."""
    traffic = outcome.traffic[kind]
    asked = ", ".join(f"{count:,} {protocol}" for protocol, count in traffic.requests.items())
    counts = f"{sum(traffic.failed.values())} failed, {sum(traffic.wrong.values())} wrong"
    head = f"**{kind}**: {outcome.reloads:,} reloads in {outcome.seconds:,.0f} s"
    figures = table(outcome.growths, "reload", limit)
    return f"{head}; requests: {asked}; {counts}.\n\n{figures}\n"


def main() -> int:
    """Run each kind in a server of its own; 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reloads", type=int, default=1000, help="of each kind (default 1000)")
    parser.add_argument("--warm-up", type=int, default=100, help="of them (default 100)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="separated by commas")
    parser.add_argument("--limit", type=float, default=0.05, help="of growth (default 0.05)")
    parser.add_argument("--name", default="", help="also write benchmarks/results/NAME.md")
    options = parser.parse_args()
    unknown = [name for name in options.kinds.split(",") if name not in KINDS]
    if unknown:
        parser.error(f"there is no kind {unknown[0]!r}; choose from {', '.join(KINDS)}")
    lines: list[str] = []
    problems: list[str] = []
    for name in options.kinds.split(","):
        kind = KINDS[name]
        if not kind.installed:
            print(f"{name} is left out: {kind.library} is not installed", flush=True)
            continue
        outcome = run([kind], options.reloads, options.warm_up)
        lines.append(report(name, outcome, options.limit))
        print(lines[-1], flush=True)
        problems += [f"{name}: {problem}" for problem in outcome.problems(options.limit)]
    where = ", ".join(f"{name} {value}" for name, value in describe().items())
    lines.append(f"Resources from reload {options.warm_up} on. {where}.\n")
    print(lines[-1])
    if options.name:
        (RESULTS / f"{options.name}.md").write_text("\n".join(lines), encoding="utf-8")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
