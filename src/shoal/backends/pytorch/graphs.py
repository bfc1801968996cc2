"""CUDA graphs, one per batch size, which launch all kernels of an execution at once.

    batch of 3 --> the graph for 4, whose last row is undefined --> its first 3 rows

They are captured when an instance is created, the largest first, so that the smaller ones reuse its
memory from the shared pool. Replays of one instance run one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

# Kernels are chosen, and TorchScript specialises, in the first runs.
_RUNS_BEFORE_CAPTURE = 4
_capturing = threading.Lock()  # held while a graph is captured: one at a time in the process


class _CapturedGraph(NamedTuple):
    """One captured graph with the memory it reads and writes."""

    graph: Any
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]


class CapturedGraphs:
    """The graphs of one instance."""

    def __init__(
        self,
        call: Callable[[Mapping[str, torch.Tensor]], dict[str, Any]],
        shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
        sizes: Sequence[int],
        device: torch.device,
        stream: Any,
        *,
        batched: bool,
    ) -> None:
        """Capture `call` for every one of `sizes`; without a batch dimension there is one graph.

        `shapes` leave the batch out. Raises what the model or CUDA raises.
        """
        self._batched = batched
        self._graphs: dict[int, _CapturedGraph] = {}
        self._names = frozenset(shapes)
        pool = None
        for size in sorted(sizes, reverse=True) if batched else (1,):
            inputs = {
                name: torch.zeros((size, *dims) if batched else dims, dtype=kind, device=device)
                for name, (dims, kind) in shapes.items()
            }
            stream.wait_stream(torch.cuda.current_stream(device))
            with _capturing:
                graph, outputs = _capture(call, inputs, stream, pool)
            pool = graph.pool()
            for name, output in outputs.items():
                if not isinstance(output, torch.Tensor) or output.device != device:
                    raise TypeError(f"output '{name}' is not a tensor on the GPU")
                if batched and (not output.dim() or output.shape[0] != size):
                    raise ValueError(f"output '{name}' does not have one row per row of the batch")
            self._graphs[size] = _CapturedGraph(graph, inputs, outputs)
        self._sizes = sorted(self._graphs)

    def fits(self, rows: int | None, inputs: Mapping[str, Any]) -> bool:
        """Whether there is a graph for a batch of `rows` with these inputs."""
        return self._names == inputs.keys() and (rows is None or rows <= self._sizes[-1])

    def replay(
        self, rows: int | None, tensors: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Run a batch that `fits`, on the current stream.

        The next replay overwrites the results; copy them before.
        """
        size = next(size for size in self._sizes if rows is None or size >= rows)
        graph = self._graphs[size]
        for name, tensor in tensors.items():
            place = graph.inputs[name] if rows is None else graph.inputs[name][:rows]
            place.copy_(tensor.reshape(place.shape), non_blocking=True)
        graph.graph.replay()
        if rows is None:
            return dict(graph.outputs)
        return {name: output[:rows] for name, output in graph.outputs.items()}


def _capture(
    call: Callable[[Mapping[str, torch.Tensor]], dict[str, Any]],
    inputs: Mapping[str, torch.Tensor],
    stream: Any,
    pool: Any,
) -> tuple[Any, dict[str, Any]]:
    with torch.cuda.stream(stream):
        for _ in range(_RUNS_BEFORE_CAPTURE):
            call(inputs)
        stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads may allocate and launch meanwhile: only this one is captured.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        outputs = call(inputs)
    return graph, outputs
