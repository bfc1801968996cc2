"""CPU time of a request to a Python model: on a thread, in a process, and in tritonserver.

    python -m benchmarks.python_models [--turns 5] [--seconds 4] [--quiet 0.25] [--name NAME]

The same model.py (add/sub of two INT32[1,16] with numpy, request by request) is served in three
ways, measured alternately: by Shoal in the server's process, by Shoal in a process of its own, and
by tritonserver's Python backend; once with dynamic batching and once without. wrk keeps 64
connections busy. The figure is CPU time per request of all the server's processes. Prints a table
with the machine and the commit; with --name writes it to benchmarks/results/, too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.environments import Unavailable
from benchmarks.loads import wrk
from benchmarks.machine import describe
from benchmarks.measures import quietest
from benchmarks.peers import repository
from benchmarks.peers.base import Peer, serving
from benchmarks.peers.shoal import Shoal, addresses
from benchmarks.peers.triton import Triton
from benchmarks.places import RESULTS, SERVICES
from benchmarks.processes import metered
from benchmarks.serving import command
from benchmarks.workloads import WORKLOADS, Workload

SOURCE = SERVICES / "add_sub_model.py"
WORKLOAD = WORKLOADS["W1"]
CONCURRENCY = 64
WARM_UP_SECS = 2.0
BATCHING = {"dynamic batching": True, "no batching": False}
BARS = {"thread": 0.5, "process": 1.0}  # of Triton's CPU time per request


def _write(folder: Path, *, batching: bool, more: str = "") -> Path:
    """A repository with the one model; both servers read the same."""
    text = repository.config(WORKLOAD, WORKLOAD.model, "python", more)
    if not batching:
        text = text.replace("dynamic_batching { }\n", "")
    repository.write(folder / "models", WORKLOAD.model, text, "model.py", SOURCE)
    return folder / "models"


class ShoalPython(Shoal):
    """Shoal with the model on a thread or in a process."""

    def __init__(self, execution: str, *, batching: bool) -> None:
        self.name = f"shoal-{execution}"
        self.title = {"thread": "Shoal, on a thread", "process": "Shoal, in a process"}[execution]
        self._execution = execution
        self._batching = batching

    def install(self) -> None:
        """Nothing to install: this tree, in this interpreter's environment."""
        self.python = Path(sys.executable)

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:  # noqa: ARG002
        """The repository, and how its model is to run."""
        models = _write(folder, batching=self._batching)
        how = f"--backend-config=python,execution={self._execution}"
        return [command(), "serve", str(models), how, *addresses(ports)]


class TritonPython(Triton):
    """tritonserver with the same model."""

    title = "tritonserver's Python backend"

    def __init__(self, *, batching: bool) -> None:
        self._batching = batching

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:  # noqa: ARG002
        """The same repository; one instance on the CPU, which is its default."""
        cpu = "instance_group { kind: KIND_CPU }\n"
        return self.serve(_write(folder, batching=self._batching, more=cpu), ports)


@dataclass
class Figure:
    """One load on one server."""

    cpu_us: float
    per_second: float
    others_cores: float | None


def measure(peer: Peer, seconds: float, quiet_cores: float) -> Figure:
    """Start the server, warm it up and measure. Raises SystemExit if a response is wrong."""
    with serving(peer, WORKLOAD) as running:
        target = next(one for one in running.targets if one.protocol == "http")
        wrk.run(target, CONCURRENCY, WARM_UP_SECS)

        def load() -> Figure:
            with metered(running.family) as usage:
                done = wrk.run(target, CONCURRENCY, seconds)
            if done.errors:
                raise SystemExit(f"{peer.name}: {done.errors}")
            cost = 1e6 * usage.server_secs / max(done.requests, 1)
            return Figure(cost, done.per_second, usage.others_cores)

        figure = quietest(load, quiet_cores)
        target.ask(WORKLOAD)
    return figure


def take_turns(peers: Sequence[Peer], turns: int, one: partial[Figure]) -> dict[str, list[Figure]]:
    """Measure each peer once a round; each round begins with another one."""
    found: dict[str, list[Figure]] = {peer.name: [] for peer in peers}
    for turn in range(turns):
        begin = turn % len(peers)
        for peer in (*peers[begin:], *peers[:begin]):
            figure = one(peer)
            found[peer.name].append(figure)
            print(
                f"  turn {turn + 1} {peer.name}: {figure.cpu_us:.1f} µs, "
                f"{figure.per_second:,.0f}/s, others {figure.others_cores or 0.0:.2f} cores",
                file=sys.stderr,
                flush=True,
            )
    return found


def table(title: str, peers: Sequence[Peer], found: dict[str, list[Figure]]) -> list[str]:
    """Medians over the rounds; ratios are those within a round."""
    lines = [
        f"**{title}**",
        "",
        "| server | CPU µs per request | of tritonserver's | bar | requests/s | turns (CPU µs) |",
        "|---|---:|---:|---:|---:|---|",
    ]
    theirs = found["triton"]
    for peer in peers:
        figures = found[peer.name]
        ratios = [ours.cpu_us / other.cpu_us for ours, other in zip(figures, theirs, strict=True)]
        bar = BARS.get(peer.name.removeprefix("shoal-"))
        lines.append(
            f"| {peer.title} | {statistics.median(one.cpu_us for one in figures):.0f} "
            f"| {statistics.median(ratios):.2f} | {f'at most {bar:g}' if bar else ''} "
            f"| {statistics.median(one.per_second for one in figures):,.0f} "
            f"| {' '.join(f'{one.cpu_us:.0f}' for one in figures)} |"
        )
    return [*lines, ""]


def main(words: Sequence[str] | None = None) -> None:
    """Measure all three alternately, with and without batching, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quiet", type=float, default=0.0, help="cores that others may use")
    parser.add_argument("--name", default="", help="write benchmarks/results/<name>.md, too")
    asked = parser.parse_args(words)
    machine = ", ".join(f"{key} {value}" for key, value in describe().items())
    lines = [f"A Python model over HTTP at concurrency {CONCURRENCY}: {machine}", ""]
    one = partial(measure, seconds=asked.seconds, quiet_cores=asked.quiet)
    for title, batching in BATCHING.items():
        print(title, file=sys.stderr)
        peers: list[Peer] = [ShoalPython(how, batching=batching) for how in BARS]
        peers.append(TritonPython(batching=batching))
        try:
            for peer in peers:
                peer.install()
        except Unavailable as reason:
            raise SystemExit(f"{peer.name}: {reason}") from None
        lines += table(title, peers, take_turns(peers, asked.turns, one))
    text = "\n".join(lines)
    print(text)
    if asked.name:
        (RESULTS / f"{asked.name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
