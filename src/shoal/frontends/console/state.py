"""The state that the console shows: current counters, the machine, and recent errors.

    ModelStatistics.read(), Machine.read(), Gpus.read(), recent_errors --> one JSON document

Counters only: each page computes the differences between its own polls, so any number of pages can
poll at any interval. Nothing is recorded for this and nothing is read before the first poll; the
machine is sampled at most once a second for all pages.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, Protocol

from shoal.engine.local import LocalEngine
from shoal.errors import ShoalError
from shoal.frontends.http.routes import resolve
from shoal.statistics.gpu import GpuReading, Gpus
from shoal.statistics.machine import Machine, MachineReading
from shoal.statistics.model import BATCH_SIZE_EDGES, DURATION_EDGES_NS, ModelStatistics
from shoal.statistics.recent_errors import ErrorEntry, RecentErrors, recent_errors
from shoal.statistics.sampled import Sampled

_SAMPLE_NS = 900_000_000  # pages poll once a second
_NS_PER_MS = 1_000_000


Allow = Callable[[str], bool]  # whether the caller may use a model


class Console(Protocol):
    """What the console's routes need."""

    def document(self, errors_after: int = 0, allow: Allow | None = None) -> dict[str, Any]:
        """The whole state, with the errors after the one of that number; where `allow` is given,
        only models that it is true for, and their errors. Blocks."""


class ConsoleState:
    """Makes the state document. Any thread may call it; it blocks for some milliseconds."""

    def __init__(
        self,
        engine: LocalEngine,
        *,
        model_control_mode: str = "none",
        addresses: Sequence[str] = (),
        cpu: bool = True,
        gpu: bool = True,
        errors: RecentErrors = recent_errors,
        machine: Callable[[], MachineReading] | None = None,
        started_ms: int = 0,
    ) -> None:
        """`addresses` are those of remote repositories, without secrets. With `cpu` and `gpu` false
        their figures are left out (--allow-…-metrics). `machine` reads the figures of all
        processes, where there are several; `started_ms` is when the server was started, by default
        now."""
        self._engine = engine
        self._control_mode = model_control_mode
        self._addresses = list(addresses)
        self._cpu = cpu
        self._gpu = gpu
        self._errors = errors
        self._read_machine = machine
        self._started_ms = started_ms or time.time_ns() // _NS_PER_MS

    def document(self, errors_after: int = 0, allow: Allow | None = None) -> dict[str, Any]:
        """See `Console`."""
        return permitted(self.collect(errors_after), allow)

    def collect(self, errors_after: int = 0) -> dict[str, Any]:
        """The state for `permitted`; plain values."""
        errors = [_error(entry) for entry in self._errors.since(errors_after)]
        models = list(self._engine.model_statistics())
        server, readiness = self._engine.server_metadata(), self._engine.readiness()
        return {
            "server": {
                "name": server["name"],
                "version": server["version"],
                "started_ms": self._started_ms,
                "ready": readiness.ready,
                "problems": [
                    (problem.model, {"text": problem.text, "blocks": problem.blocks})
                    for problem in readiness.problems
                ],
                "in_flight": self._engine.in_flight(),
                "model_control_mode": self._control_mode,
                "addresses": self._addresses,
            },
            "time_ns": time.monotonic_ns(),
            "time_ms": time.time_ns() // _NS_PER_MS,
            "duration_edges_ns": DURATION_EDGES_NS,
            "batch_size_edges": BATCH_SIZE_EDGES,
            "models": [_counted(model) for model in models],
            "machine": self._machine_state() if self._cpu else None,
            "gpus": [asdict(gpu) for gpu in self._gpus.value()] if self._gpu else [],
            "errors": errors,
        }

    def _machine_state(self) -> dict[str, Any]:
        return {**asdict(self._machine.value()), "cores": os.cpu_count()}

    @cached_property
    def _machine(self) -> Sampled[MachineReading]:
        return Sampled(self._read_machine or Machine().read, _SAMPLE_NS)

    @cached_property
    def _gpus(self) -> Sampled[Sequence[GpuReading]]:
        found = Gpus.find()  # starts the driver's library, which can be slow
        read: Callable[[], Sequence[GpuReading]] = found.read if found else tuple
        return Sampled(read, _SAMPLE_NS)


class LinkedConsole:
    """The state of an engine in another process."""

    def __init__(self, collect: Callable[[int], dict[str, Any]]) -> None:
        """`collect` is that of the other process's `ConsoleState`."""
        self._collect = collect

    def document(self, errors_after: int = 0, allow: Allow | None = None) -> dict[str, Any]:
        """See `Console`."""
        return permitted(self._collect(errors_after), allow)


def permitted(state: dict[str, Any], allow: Allow | None) -> dict[str, Any]:
    """The document for a caller who may use the models that `allow` is true for, or all."""
    server, errors, models = state["server"], state["errors"], state["models"]
    problems = server["problems"]
    if allow is not None:
        problems = [(model, text) for model, text in problems if not model or allow(model)]
        errors = [error for error in errors if error["model"] and allow(error["model"])]
        models = [model for model in models if allow(model["name"])]
        server = {**server, "addresses": []}
    server = {**server, "problems": [text for _, text in problems]}
    return {**state, "server": server, "errors": errors, "models": models}


def _counted(model: ModelStatistics) -> dict[str, Any]:
    reading = model.read()
    histograms = reading.histograms
    return {
        "name": model.name,
        "version": str(model.version),
        "on_loop": model.on_loop(),
        "health": None if model.health is None else model.health()._asdict(),
        "pending": model.pending(),
        "memory_bytes": model.memory_bytes(),
        "gpu_memory_bytes": sum(model.gpu_memory().values()),
        "load_secs": round(model.load_duration_secs, 6),
        "loaded_ms": model.loaded_ms,
        "last_inference_ms": reading.last_inference_ms,
        "success": reading.success_count,
        "success_ns": reading.success_ns,
        "failures": {reason.value: count for reason, count in reading.failures.items()},
        "rows": reading.inference_count,
        "executions": reading.execution_count,
        "queue_ns": reading.queue_ns,
        "input_ns": reading.compute_input_ns,
        "infer_ns": reading.compute_infer_ns,
        "output_ns": reading.compute_output_ns,
        "cache_hits": reading.cache.hit_count if reading.cache else 0,
        "histograms": None
        if histograms is None
        else {
            "request": histograms.request_duration_ns.cumulative,
            "queue": histograms.queue_duration_ns.cumulative,
            "compute": histograms.compute_duration_ns.cumulative,
            "batch": histograms.batch_size.cumulative,
        },
    }


def _error(entry: ErrorEntry) -> dict[str, Any]:
    error = asdict(entry)
    if not entry.model and entry.protocol == "HTTP":
        error["model"] = _model(entry.place.partition(" ")[2])
    for name in ("place", "model", "text"):  # clients can send half a surrogate pair
        error[name] = error[name].encode("utf-8", "replace").decode()
    return error


def _model(path: str) -> str:
    """The model that a path names, if any."""
    try:
        target = resolve(path)
    except ShoalError:
        return ""
    return target.model if target is not None else ""
