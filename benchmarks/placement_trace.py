"""Records what the choice of loop or threads is made from, while a server runs in this process.

    batch --> LoopInstance --> [at µs, rows, bytes, own µs, µs by the clock, queued, rows alone]

Batches that follow another within a few milliseconds are left out, so that files stay small. The
choice sees fewer executions in a replay than in the run: it can only become slower by that.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from shoal.core.planned import PlannedRequest
from shoal.core.request import Request
from shoal.instance.execution import Execution
from shoal.instance.inline import LoopInstance, runs_apart
from shoal.instance.own_time import ComputeTime
from shoal.testing.server import running_server

APART_NS = 4_000_000
COLUMNS = ("at_us", "rows", "bytes", "own_us", "elapsed_us", "queued_rows", "rows_alone")


class Recorder:
    """Batches of a server, by phases of its load."""

    def __init__(self) -> None:
        self.http_port = self.grpc_port = 0
        self.begin()

    def begin(self) -> None:
        """Start a new trace."""
        self._begun_ns = self._last_ns = time.monotonic_ns()
        self._phases: list[dict[str, Any]] = []
        self._batches: list[list[int]] = []

    def phase(self, label: str, expected: str) -> None:
        """The load changes now."""
        at_us = (time.monotonic_ns() - self._begun_ns) // 1000
        self._phases.append({"at_us": at_us, "load": label, "expected": expected})

    def add(self, batch: Sequence[Request], took: ComputeTime, queued: int) -> None:
        """A batch has been executed."""
        now_ns = time.monotonic_ns()
        if now_ns - self._last_ns < APART_NS:
            return
        self._last_ns = now_ns
        rows, own_ns, elapsed_ns = took
        self._batches.append(
            [
                (now_ns - self._begun_ns) // 1000,
                rows,
                sum(_bytes_of(request) for request in batch),
                own_ns // 1000,
                elapsed_ns // 1000,
                queued * rows // len(batch),
                batch[0].rows if runs_apart(batch) else 0,
            ]
        )

    def write(self, file: Path) -> None:
        """Store the trace, a batch per line."""
        head = json.dumps({"phases": self._phases, "columns": COLUMNS}, indent=1)
        lines = ",\n".join(json.dumps(batch, separators=(",", ":")) for batch in self._batches)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'{head[:-2]},\n "batches": [\n{lines}\n]}}\n', encoding="utf-8")


def _bytes_of(request: Request) -> int:
    if isinstance(request, PlannedRequest) and request.template is not None:
        return sum(request.template.sizes)
    return sum(tensor.nbytes for tensor in request.inputs.values())


@contextlib.contextmanager
def recording(folder: Path, execution: str) -> Iterator[Recorder]:
    """A server of the models in `folder` whose batches are recorded."""
    recorder = Recorder()
    run, observe = Execution.run, LoopInstance.observe
    loops: list[LoopInstance] = []
    init = LoopInstance.__init__

    def created(self: LoopInstance, *arguments: Any) -> None:
        init(self, *arguments)
        loops.append(self)

    def on_thread(self: LoopInstance, batch: Sequence[Request], took: ComputeTime) -> None:
        recorder.add(batch, took, self._batcher.pending())
        observe(self, batch, took)

    def on_loop(self: Execution, executor: Any, batch: Sequence[Request]) -> ComputeTime:
        took = run(self, executor, batch)
        for one in loops:
            if one._executor is executor:
                recorder.add(batch, took, one._batcher.pending())
        return took

    with (
        mock.patch.object(LoopInstance, "__init__", created),
        mock.patch.object(LoopInstance, "observe", on_thread),
        mock.patch.object(Execution, "run", on_loop),
        running_server(folder, execution=execution) as running,
    ):
        recorder.http_port = running.server.http_port
        recorder.grpc_port = running.server.grpc_port
        yield recorder
