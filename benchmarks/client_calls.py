"""CPU time of a call in the client: ours and NVIDIA's, over HTTP and gRPC.

    python -m benchmarks.client_calls [--calls 500] [--turns 5]

One server from this tree; the clients in this process are measured alternately. A small call sends
two times sixteen INT32 and reads both outputs, a large one sends 600 KB of FP32 and gets it back.
Both make their request from numpy arrays each time, as programs do. The figure is this process's
CPU time per call, user and system. Prints a table with the machine and the commit.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.machine import describe
from benchmarks.serving import Server, serve

PROTOCOLS = ("http", "grpc")
SIZES = ("small", "600 KB")
SMALL = np.arange(16, dtype=np.int32).reshape(1, 16)
LARGE = np.ones((1, *models.LARGE), dtype=np.float32)
WARM_UP = 50
Call = Callable[[], None]


def calls(inputs: dict[str, np.ndarray], outputs: list[str]) -> dict[str, Any]:
    """A call of each client, including reading the outputs, by client name."""

    def ours(client: Any, model: str) -> None:
        result = client.infer(model, inputs)
        for name in outputs:
            assert result[name].size == next(iter(inputs.values())).size

    def nvidia(client: Any, kind: Any, model: str) -> None:
        tensors = []
        for name, array in inputs.items():
            tensor = kind.InferInput(name, list(array.shape), _datatype(array))
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        result = client.infer(model, tensors)
        for name in outputs:
            assert result.as_numpy(name).size == next(iter(inputs.values())).size

    return {"shoal.client": ours, "tritonclient": nvidia}


def _datatype(array: np.ndarray) -> str:
    return "INT32" if array.dtype == np.int32 else "FP32"


@contextlib.contextmanager
def clients(server: Server, protocol: str) -> Iterator[dict[str, tuple[Any, ...]]]:
    """Both clients of one protocol, connected."""
    from shoal.client import Client

    port = server.http_port if protocol == "http" else server.grpc_port
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(Client(f"{protocol}://127.0.0.1:{port}"))
        if protocol == "http":
            import tritonclient.http as kind
        else:
            import tritonclient.grpc as kind
        theirs = stack.enter_context(kind.InferenceServerClient(f"127.0.0.1:{port}"))
        yield {"shoal.client": (ours,), "tritonclient": (theirs, kind)}


def measure(call: Call, count: int) -> float:
    """CPU µs of this process per call."""
    before = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - before) / count * 1e6


def main(words: Sequence[str] | None = None) -> None:
    """Measure all alternately and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args(words)
    found: dict[tuple[str, str, str], list[float]] = {}
    work = {
        "small": (
            "add_sub",
            calls({"INPUT0": SMALL, "INPUT1": SMALL}, ["OUTPUT0", "OUTPUT1"]),
        ),
        "600 KB": ("echo", calls({"INPUT": LARGE}, ["OUTPUT"])),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, built in (("add_sub", models.add_sub()), ("echo", models.echo())):
            version = Path(folder) / name / "1"
            version.mkdir(parents=True)
            (version / "model.onnx").write_bytes(built.SerializeToString())
        with serve(folder, grpc=True) as server:
            for protocol in PROTOCOLS:
                with clients(server, protocol) as both:
                    for size, (model, ways) in work.items():
                        made = {
                            name: (lambda way=ways[name], who=who, model=model: way(*who, model))
                            for name, who in both.items()
                        }
                        for call in made.values():
                            measure(call, WARM_UP)
                        for _ in range(asked.turns):
                            for name, call in made.items():
                                figure = measure(call, asked.calls)
                                found.setdefault((protocol, size, name), []).append(figure)
    print(", ".join(f"{key} {value}" for key, value in describe().items()))
    print("| protocol | request | client | CPU µs a call | turns |")
    print("|---|---|---|---:|---|")
    for (protocol, size, name), figures in found.items():
        turns = " ".join(f"{figure:.0f}" for figure in figures)
        print(f"| {protocol} | {size} | {name} | {statistics.median(figures):.0f} | {turns} |")


if __name__ == "__main__":
    main()
