"""The limit: ONNX Runtime in a plain loop on the same machine, without any server.

    for each number of threads and each batch size: run briefly --> the best is the limit

W2's loop also decodes the photo, as every server has to. With several models, one thread runs their
sessions in turn: what they take from each other in the processor's caches, no server can avoid. It
runs in a process of its own, so that its memory and threads are released afterwards:

    python -m benchmarks.limit W3 --seconds 2
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.forms import plain
from benchmarks.measures import Measurement
from benchmarks.peers.base import CORES
from benchmarks.peers.services.inference import Model
from benchmarks.places import ROOT
from benchmarks.workloads import WORKLOADS, Workload

NAME = "onnxruntime"
TITLE = "plain ONNX Runtime loop (the limit)"


@dataclass(frozen=True)
class Setting:
    """One way to use the machine."""

    sessions: int
    threads: int  # of each session
    batch: int


def settings(workload: Workload, cores: int = CORES) -> list[Setting]:
    """What is tried: all cores in one session, one session per core, one core alone."""
    ways = [(1, 1)]
    if workload.compute_bound:
        ways = list(dict.fromkeys([(cores, 1), (1, cores)]))
    return [Setting(*way, batch) for way in ways for batch in workload.batches]


def measure(workload: Workload, setting: Setting, seconds: float) -> dict[str, Any]:
    """Rows a second and CPU time a row of one setting."""
    if workload.copies:
        return _in_turn(workload, seconds)
    body = plain(workload).body
    models = [
        Model(str(workload.model_path), setting.threads, workload.picture)
        for _ in range(setting.sessions)
    ]
    done = [0] * setting.sessions
    until = 0.0
    begin = threading.Barrier(setting.sessions + 1)

    def loop(place: int) -> None:
        model = models[place]
        feeds = _feeds(model, body, setting.batch)
        model.run(feeds)
        begin.wait()
        while time.perf_counter() < until:
            if workload.picture:
                feeds = _feeds(model, body, setting.batch)
            model.run(feeds)
            done[place] += setting.batch

    threads = [threading.Thread(target=loop, args=(one,)) for one in range(setting.sessions)]
    for thread in threads:
        thread.start()
    until = time.perf_counter() + 3600
    begin.wait()
    begun, busy = time.perf_counter(), time.process_time()
    until = begun + seconds
    for thread in threads:
        thread.join()
    took, busy = time.perf_counter() - begun, time.process_time() - busy
    rows = sum(done)
    return {
        "sessions": setting.sessions,
        "threads": setting.threads,
        "batch": setting.batch,
        "per_second": rows / took,
        "cpu_us": 1e6 * busy / max(rows, 1),
    }


def _in_turn(workload: Workload, seconds: float) -> dict[str, Any]:
    """As `measure`, for the sessions of all models, one after the other in one thread."""
    models = [Model(str(workload.model_path), 1, pictures=False) for _ in workload.model_names]
    feeds = _feeds(models[0], plain(workload).body, 1)
    for model in models:
        model.run(feeds)
    rows = 0
    begun, busy = time.perf_counter(), time.process_time()
    while time.perf_counter() < begun + seconds:
        for model in models:
            model.run(feeds)
        rows += len(models)
    took, busy = time.perf_counter() - begun, time.process_time() - busy
    return {
        "sessions": len(models),
        "threads": 1,
        "batch": 1,
        "per_second": rows / took,
        "cpu_us": 1e6 * busy / rows,
    }


def run(workload: Workload, turn: int, seconds: float) -> Measurement:
    """The best of all settings, measured in a process of its own."""
    line = [sys.executable, "-m", "benchmarks.limit", workload.name, "--seconds", str(seconds)]
    done = subprocess.run(
        line,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    tried = json.loads(done.stdout)
    best = max(tried, key=lambda one: one["per_second"])
    single = max(one["per_second"] for one in tried if one["batch"] == 1)
    return Measurement(
        workload.name,
        NAME,
        "loop",
        "none",
        0,
        turn,
        0,
        best["per_second"],
        None,
        None,
        best["cpu_us"],
        note=(
            f"{best['sessions']} session(s) of {best['threads']} thread(s), batch "
            f"{best['batch']}; at batch 1: {single:,.1f} a second"
        ),
    )


def _feeds(model: Model, body: bytes, batch: int) -> dict[str, Any]:
    each = [model.read(body) for _ in range(batch)]
    if batch == 1:
        return each[0]
    return {name: np.concatenate([one[name] for one in each]) for name in each[0]}


def main() -> None:
    """Try every setting and print the figures as JSON."""
    parser = argparse.ArgumentParser(description="ONNX Runtime in a plain loop, as JSON.")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    workload = WORKLOADS[arguments.workload]
    print(json.dumps([measure(workload, one, arguments.seconds) for one in settings(workload)]))


if __name__ == "__main__":
    main()
