"""The encoder of photos or of sound, on the stream of the decoder that reads its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from shoal.backends.generation.pytorch.decoder import DeviceDecoder, EncodedRow, at_least
from shoal.backends.generation.pytorch.graph import TorchGraph
from shoal.backends.pytorch.library import clean_message
from shoal.backends.pytorch.settings import graph_sizes
from shoal.errors import BackendFailure


class TorchEncoder:
    """Encodes photos or sound for the decoder, on its stream. For one thread."""

    def __init__(
        self,
        graph: TorchGraph,
        name: str,
        dims: tuple[int, ...],
        context: Sequence[str],
        decoder: DeviceDecoder,
        most: int,
    ) -> None:
        """Capture a graph for each number of photos up to `most`, if they have one size."""
        self._graph, self._input, self._context = graph, name, context
        self._decoder = decoder
        self._sizes: list[int] = []
        self._runs: dict[int, Callable[[], None]] = {}
        self._results: dict[int, list[torch.Tensor]] = {}
        if -1 in dims:
            return
        self._sizes = graph_sizes(most)
        with decoder.active():
            self._given = torch.zeros((most, *dims), device=decoder.device)
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
        try:
            with self._decoder.active():
                encoded = self._run(features)
                return [EncodedRow(encoded, row) for row in range(len(features))]
        except Exception as error:
            raise BackendFailure(f"the encoder failed: {clean_message(error)}") from error

    def _run(self, features: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if not self._runs:
            return self._encoded(torch.stack(list(features)).to(self._decoder.device))
        size = at_least(self._sizes, len(features))
        for place, tensor in zip(self._given, features, strict=False):
            place.copy_(tensor, non_blocking=True)
        self._runs[size]()
        return self._results[size]

    def _run_static(self, size: int) -> None:
        """What a graph contains."""
        self._results[size] = self._encoded(self._given[:size])

    def _encoded(self, given: torch.Tensor) -> list[torch.Tensor]:
        found = self._graph({self._input: given.to(self._graph.dtype)})
        return [found[name] for name in self._context]
