"""CPU time of a batch in the server's process and in a process of its own (isolation).

    python -m benchmarks.isolation [--turns 7] [--seconds 0.5] [--name NAME]

The same functions are loaded twice, without and with `isolation: process`, and one thread runs
batches on both alternately, as a worker of the server does. The figure is CPU time per batch of
both processes together, of the cheapest turn. Prints a table with the machine and the commit; with
--name writes it to benchmarks/results/, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from benchmarks.places import RESULTS
from shoal.backends.base import Executor, LoadContext, LoadedModel, Placement
from shoal.backends.function.backend import FunctionBackend
from shoal.backends.isolation.backend import IsolatedBackend
from shoal.backends.isolation.executors import IsolatedExecutor
from shoal.config.model import ModelConfig

HERE = Placement("KIND_CPU", 0, "m_0_0")
MOST_ADDED_US = 60
MOST_RATIO = 1.15  # for the model that computes for 1 ms
WARM_UP_BATCHES = 200

SOURCE = """
import time
import numpy as np
import numpy.typing as npt
import shoal

@shoal.model(batch=8)
def m(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    end_ns = time.thread_time_ns() + {compute_ns}
    while {compute_ns} and time.thread_time_ns() < end_ns:
        pass
    return x + x
"""


@dataclass
class Load:
    """One row of the table."""

    title: str
    elements: int
    compute_ns: int = 0
    plain_us: list[float] = field(default_factory=list)
    isolated_us: list[float] = field(default_factory=list)

    def row(self) -> str:
        """The cheapest turn of each, because other work on the machine only adds to it."""
        plain, isolated = min(self.plain_us), min(self.isolated_us)
        bar = f"at most {MOST_RATIO:g} times" if self.compute_ns else f"at most {MOST_ADDED_US} µs"
        turns = " ".join(f"{figure:.0f}" for figure in self.isolated_us)
        return (
            f"| {self.title} | {plain:.0f} | {isolated:.0f} | {isolated - plain:.0f} "
            f"| {isolated / plain:.2f} | {bar if self.elements < 1000 else ''} | {turns} |"
        )


def loads() -> list[Load]:
    """What is measured."""
    return [
        Load("tiny: 64 bytes in and out", 16),
        Load("1 ms of computation, 64 bytes", 16, compute_ns=1_000_000),
        Load("600 KB in and out", 150_528),
    ]


def cpu_ns(pid: int | None) -> int:
    """The CPU time of this process and of another one."""
    own = time.process_time_ns()
    if pid is None:
        return own
    tasks = Path(f"/proc/{pid}/task")
    return own + sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())


def measure(executor: Executor, batch: np.ndarray, seconds: float) -> float:
    """Microseconds of CPU time for each batch."""
    pid = None
    if isinstance(executor, IsolatedExecutor):
        process = executor._supervisor.process
        assert process is not None
        pid = process.pid
    batches = 0
    start_ns, deadline = cpu_ns(pid), time.monotonic() + seconds
    while time.monotonic() < deadline:
        (result,) = executor.run({"x": batch}, ["output"])
        batches += 1
    used_ns = cpu_ns(pid) - start_ns
    assert np.array_equal(result, batch + batch)
    return used_ns / batches / 1000


def run(load: Load, folder: Path, turns: int, seconds: float) -> None:
    """Measure one row."""
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(SOURCE.format(compute_ns=load.compute_ns))
    plain = FunctionBackend()
    config = ModelConfig(name="m", backend="function", max_batch_size=8)
    config = plain.complete(config, version.parent, version, {})
    context = LoadContext(version.parent, version, 1, config, [HERE])
    models: list[LoadedModel] = [each.load(context) for each in (plain, IsolatedBackend(plain))]
    executors = [model.executor(HERE) for model in models]
    batch = np.ones((1, load.elements), np.float32)
    for executor in executors:
        assert isinstance(executor, Executor)
        for _ in range(WARM_UP_BATCHES):
            executor.run({"x": batch}, ["output"])
    for _ in range(turns):
        for executor, figures in zip(executors, (load.plain_us, load.isolated_us), strict=True):
            assert isinstance(executor, Executor)
            figures.append(measure(executor, batch, seconds))
    for executor, model in zip(executors, models, strict=True):
        executor.close()
        model.close()


def main(words: Sequence[str] | None = None) -> None:
    """Measure every row and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--name", default="", help="write benchmarks/results/<name>.md, too")
    asked = parser.parse_args(words)
    machine = ", ".join(f"{key} {value}" for key, value in describe().items())
    lines = [
        f"CPU time of a batch without and with isolation: {machine}",
        "",
        "| batch | thread, µs | process, µs | added, µs | ratio | bar | turns in a process, µs |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for load in loads():
        with tempfile.TemporaryDirectory() as folder:
            run(load, Path(folder), asked.turns, asked.seconds)
        lines.append(load.row())
    text = "\n".join([*lines, ""])
    print(text)
    if asked.name:
        (RESULTS / f"{asked.name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
