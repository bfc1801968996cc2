"""CUDA graphs, one per batch size, which launch all kernels of an execution at once.

    batch of 3 --> the graph for 4, whose last row is undefined --> its first 3 rows

They are captured when an instance is created, the largest first, so that the smaller ones reuse its
memory from the shared pool. Small inputs are copied to the GPU together, and the copy of small
outputs to the CPU is a part of the graph. Replays of one instance run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from shoal.backends.pytorch.library import undisturbed
from shoal.backends.pytorch.settings import GraphSpec
from shoal.backends.pytorch.staging import Block, Form, block_bytes

# Kernels are chosen, and TorchScript specialises, in the first runs.
_RUNS_BEFORE_CAPTURE = 4
# Up to here all rows are copied at once, used or not: that takes less than a copy for each tensor.
_MOST_COPIED_BYTES = 1 << 20
_TRIES = 3

Call: TypeAlias = Callable[[Mapping[str, torch.Tensor]], dict[str, Any]]
_Dims: TypeAlias = tuple[tuple[int, ...], ...]  # of the inputs with variable dims


class CapturedGraph:
    """One captured graph with the memory it reads and writes."""

    def __init__(
        self,
        call: Call,
        forms: Mapping[str, Form],
        device: torch.device,
        stream: Any,
        pool: Any,
        *,
        pinned: bool,
        copies_outputs: bool,
    ) -> None:
        """Capture `call` with inputs of these `forms`. Raises what the model or CUDA raises."""
        self._inputs = Block(forms, device, pinned=pinned)
        self._stages = block_bytes(forms) <= _MOST_COPIED_BYTES
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._outputs = _tensors(call(self.inputs), device)
        results = {
            name: Form(tuple(value.shape), value.dtype) for name, value in self._outputs.items()
        }
        self._results: Block | None = None
        if copies_outputs and block_bytes(results) <= _MOST_COPIED_BYTES:
            self._results = Block(results, device, pinned=pinned)
        stream.wait_stream(torch.cuda.current_stream(device))
        self.graph = captured(lambda: self._run(call), stream, pool)

    def _run(self, call: Call) -> None:
        """What is captured."""
        self._outputs = call(self.inputs)
        if self._results is not None:
            for name, place in self._results.tensors.items():
                place.copy_(self._outputs[name])
            self._results.to_host()

    @property
    def inputs(self) -> Mapping[str, torch.Tensor]:
        """Where it reads its inputs, on the device."""
        return self._inputs.tensors

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """What the last replay has computed, on the device; the next one overwrites it."""
        return self._outputs if self._results is None else self._results.tensors

    def upload(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Start one copy of the first rows of all inputs, on the current stream, after the last
        replay has ended; false, with nothing done, if they are large."""
        if not self._stages:
            return False
        for name, array in arrays.items():
            self._inputs.write(name, array)
        self._inputs.to_device()
        return True

    @property
    def copies_outputs(self) -> bool:
        """Whether a replay copies the outputs to the CPU."""
        return self._results is not None

    def fetched(self, name: str, rows: int | None) -> np.ndarray:
        """A copy of the first rows of an output that was copied, after the replay has ended."""
        assert self._results is not None
        array = self._results.arrays[name]
        found: np.ndarray = array.copy() if rows is None else array[:rows].copy()
        return found


class CapturedGraphs:
    """The graphs of one instance."""

    def __init__(
        self,
        call: Call,
        forms: Mapping[str, Form],
        specs: Sequence[GraphSpec],
        device: torch.device,
        stream: Any,
        *,
        batched: bool,
        pinned: bool,
        copies_outputs: bool = True,
    ) -> None:
        """Capture `call` for every one of `specs`; without a batch dimension rows do not matter.

        `forms` leave the batch out; what varies in them is -1. Raises what the model or CUDA
        raises, and ValueError for a spec without a shape that varies.
        """
        before_bytes = _reserved_bytes(device)
        self._names = frozenset(forms)
        self._varying = tuple(name for name, form in forms.items() if -1 in form.shape)
        self._first_dim = 1 if batched else 0
        self._found: dict[_Dims, list[tuple[GraphSpec, CapturedGraph]]] = {}
        pool = None
        for spec in sorted(specs, key=lambda spec: spec.rows, reverse=True):
            own: dict[str, Form] = {}
            for name, form in forms.items():
                dims = spec.dims.get(name, form.shape)
                if not _fits(dims, form.shape):
                    raise ValueError(f"input '{name}' has the dims {form.shape}, not {dims}")
                own[name] = Form((spec.rows, *dims) if batched else dims, form.dtype)
            key = tuple(own[name].shape[self._first_dim :] for name in self._varying)
            others = self._found.setdefault(key, [])
            if not batched and others:
                continue
            made = CapturedGraph(
                call, own, device, stream, pool, pinned=pinned, copies_outputs=copies_outputs
            )
            pool = made.graph.pool()
            for name, output in made.outputs.items():
                if batched and (not output.dim() or output.shape[0] != spec.rows):
                    raise ValueError(f"output '{name}' does not have one row per row of the batch")
            others.insert(0, (spec, made))
        # About: other threads may allocate memory at the same time.
        self.nbytes = max(0, _reserved_bytes(device) - before_bytes)

    def find(self, rows: int | None, inputs: Mapping[str, Any]) -> CapturedGraph | None:
        """The graph for a batch of `rows` with these inputs, if there is one."""
        if self._names != inputs.keys():
            return None
        dims = tuple([_shape(inputs[name])[self._first_dim :] for name in self._varying])
        for spec, graph in self._found.get(dims, ()):
            if rows is None or spec.least_rows <= rows <= spec.rows:
                return graph
        return None


def _fits(dims: Sequence[int], allowed: Sequence[int]) -> bool:
    return len(dims) == len(allowed) and all(
        size >= 0 and wanted in (-1, size) for size, wanted in zip(dims, allowed, strict=True)
    )


def _shape(given: Any) -> tuple[int, ...]:
    """Of an array, or of the first of several tensors to be joined."""
    return tuple(given.shape) if isinstance(given, np.ndarray) else tuple(given[0].shape)


def _reserved_bytes(device: torch.device) -> int:
    return int(torch.cuda.memory_reserved(device)) if device.type == "cuda" else 0


def _tensors(outputs: Mapping[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
    for name, output in outputs.items():
        if not isinstance(output, torch.Tensor) or output.device != device:
            raise TypeError(f"output '{name}' is not a tensor on the GPU")
    return dict(outputs)


def captured(body: Callable[[], None], stream: Any, pool: Any) -> Any:
    """A graph; another thread that waits for the whole GPU may spoil the first attempts."""
    for tries_left in reversed(range(_TRIES)):
        try:
            with undisturbed:
                return _capture(body, stream, pool)
        except RuntimeError as error:
            if not tries_left or "capture" not in str(error):
                raise
    raise AssertionError


def _capture(body: Callable[[], None], stream: Any, pool: Any) -> Any:
    with torch.cuda.stream(stream):
        for _ in range(_RUNS_BEFORE_CAPTURE):
            body()
        stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads may allocate and launch meanwhile: only this one is captured.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        body()
    return graph
