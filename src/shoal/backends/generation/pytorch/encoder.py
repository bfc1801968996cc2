"""The encoder of photos or of sound, on the stream of the decoder that reads its results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from shoal.backends.generation.pytorch.decoder import DeviceDecoder, EncodedRow, at_least
from shoal.backends.generation.pytorch.graph import TorchGraph
from shoal.backends.pytorch.settings import graph_sizes

_EACH = 8  # photos; unlike a row of the decoder, each takes long


class TorchEncoder:
    """Encodes photos or sound for the decoder, on its stream. For one thread.

    What `start` was called for is computed right behind the next step, so that the GPU has work
    while the CPU reads the tokens of that step and prepares the next.
    """

    overlaps = True

    def __init__(
        self,
        graph: TorchGraph,
        name: str,
        dims: tuple[int, ...],
        decoder: DeviceDecoder,
        most: int,
    ) -> None:
        """Capture a graph for numbers of photos up to `most`, if all sizes are fixed."""
        self._graph, self._input, self._decoder = graph, name, decoder
        self._sizes: list[int] = []
        self._runs: dict[int, Callable[[], None]] = {}
        self._started: list[torch.Tensor] = []  # what `_early` was computed for
        self._early: list[torch.Tensor] | None = None
        results = decoder.ports.shape.context
        if -1 in dims or not all(type(dim) is int for own in results for dim in own):
            return
        self._sizes = sorted({*range(1, min(_EACH, most) + 1), *graph_sizes(most)})
        with decoder.active():
            self._given = torch.zeros((most, *dims), device=decoder.device)
            dtype = graph.dtype
            self._results = [
                torch.zeros((most, *own), dtype=dtype, device=decoder.device) for own in results
            ]
            for size in reversed(self._sizes):
                self._runs[size] = decoder.repeatable(partial(self._run_static, size))
            decoder.wait()

    def staged(self, features: np.ndarray) -> torch.Tensor:
        """A copy in page-locked memory, which the GPU reads without waiting for the CPU."""
        pinned = self._decoder.stream is not None
        memory = torch.empty(features.shape, dtype=torch.float32, pin_memory=pinned)
        np.copyto(memory.numpy(), features)  # the GIL is released meanwhile
        return memory

    def run(self, features: Sequence[torch.Tensor]) -> list[EncodedRow]:
        """The context of each photo, or window of sound. Raises BackendFailure."""
        early, self._early, self._decoder.after_launch = self._early, None, None
        same = [id(one) for one in features] == [id(one) for one in self._started]
        self._started = []
        try:
            if early is None or not same:
                with self._decoder.active():
                    early = self._run(features)
            return [EncodedRow(early, row) for row in range(len(features))]
        except Exception as error:
            raise self._decoder.failure("encoder", error) from error

    def start(self, features: Sequence[torch.Tensor]) -> None:
        """Encode these behind the next step of the decoder."""
        self._started = list(features)
        self._decoder.after_launch = self._run_early

    def _run_early(self) -> None:
        # An error shows again when `run` is called, which reports it.
        with contextlib.suppress(Exception), self._decoder.active():
            self._early = self._run(self._started)

    def _run(self, features: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if not self._runs:
            return self._encoded(torch.stack(list(features)).to(self._decoder.device))
        size = at_least(self._sizes, len(features))
        for place, tensor in zip(self._given, features, strict=False):
            place.copy_(tensor, non_blocking=True)
        self._runs[size]()
        return self._results

    def _run_static(self, size: int) -> None:
        """What a graph contains."""
        for kept, found in zip(self._results, self._encoded(self._given[:size]), strict=True):
            kept[:size].copy_(found)

    def _encoded(self, given: torch.Tensor) -> list[torch.Tensor]:
        found = self._graph({self._input: given.to(self._graph.dtype)})
        return [found[name] for name in self._decoder.ports.context]
