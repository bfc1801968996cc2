"""CPU time of a large gRPC request: our own transport and grpcio's asyncio server.

    python -m benchmarks.grpc_transports [--requests 300] [--turns 3]

Two servers from this tree, which differ in `--grpc-transport` only, are measured alternately.
NVIDIA's client in this process sends 600 KB of FP32 and gets sixteen sums back; the figure is the
server's CPU time per request. Prints a table with the machine and the commit.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import models
from benchmarks.machine import describe
from benchmarks.serving import serve

TRANSPORTS = ("native", "grpcio")


def measure(transport: str, repository: Path, requests: int) -> float:
    """CPU µs of the server per request, without warm-up."""
    from tritonclient import grpc

    with serve(str(repository), f"--grpc-transport={transport}", grpc=True) as server:
        client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        data = np.ones((1, *models.LARGE), dtype=np.float32)
        tensor = grpc.InferInput("INPUT", list(data.shape), "FP32")
        tensor.set_data_from_numpy(data)
        for _ in range(20):
            client.infer("pool", [tensor])
        before = server.cpu_secs()
        for _ in range(requests):
            answer = client.infer("pool", [tensor])
        used = server.cpu_secs() - before
        if not np.isclose(answer.as_numpy("OUTPUT").sum(), data.sum()):
            raise SystemExit(f"{transport}: the answer is wrong")
        client.close()
    return used / requests * 1e6


def main(words: Sequence[str] | None = None) -> None:
    """Measure both alternately and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args(words)
    found: dict[str, list[float]] = {transport: [] for transport in TRANSPORTS}
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / "pool" / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(models.pool().SerializeToString())
        for _ in range(asked.turns):
            for transport in TRANSPORTS:
                found[transport].append(measure(transport, Path(folder), asked.requests))
    print(", ".join(f"{key} {value}" for key, value in describe().items()))
    print("| transport | server CPU µs a request of 600 KB | turns |")
    print("|---|---:|---|")
    for transport, figures in found.items():
        turns = " ".join(f"{figure:.0f}" for figure in figures)
        print(f"| {transport} | {statistics.median(figures):.0f} | {turns} |")


if __name__ == "__main__":
    main()
