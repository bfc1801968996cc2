"""The states of prompts, computed at once on the device, as a CUDA graph for each size.

tokens, places ==one copy==> [ decoder, states to the rows of these places ]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from shoal.backends.generation.pytorch.decoder import DeviceDecoder
from shoal.backends.pytorch.staging import Block, Form


class Prefill:
    """Computes the states of prompts, for a fixed number of texts and tokens, at their places."""

    def __init__(
        self,
        decoder: DeviceDecoder,
        past: torch.Tensor,
        context: Sequence[torch.Tensor],
        width: int,
        forms: tuple[int, int],
    ) -> None:
        """`forms` are the numbers of texts and of tokens. The last row of `past` is spare."""
        self._decoder, self._past, self._context, self._width = decoder, past, context, width
        texts, self._length = forms
        self._inputs = Block(
            {
                "tokens": Form(forms, torch.int64),
                "places": Form((texts,), torch.int64),
                "written_rows": Form((texts, width), torch.int64),
            },
            decoder.device,
            pinned=decoder.stream is not None,
        )
        self._inputs.arrays["written_rows"][:] = past.shape[1] - 1
        self._repeat = decoder.repeatable(self._run)

    def run(self, places: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        """Start the computation."""
        self._decoder.wait()  # until the last copy from this memory has ended
        tokens, kept, written = self._inputs.arrays.values()
        written[:] = self._past.shape[1] - 1
        for row, (place, prompt) in enumerate(zip(places, prompts, strict=True)):
            tokens[row, : len(prompt)] = prompt  # what follows is never read
            kept[row] = place
            written[row] = place * self._width + np.arange(self._width)
        self._repeat()

    def _run(self) -> None:
        """What a graph contains."""
        self._inputs.to_device()
        tokens, places, written = self._inputs.tensors.values()
        shape = self._decoder.ports.shape
        nothing = self._past.new_zeros((len(tokens), shape.heads, 1, shape.head_size))
        _, states = self._decoder.run(
            tokens,
            torch.zeros_like(places),
            [nothing] * shape.states,
            [tensor.index_select(0, places) for tensor in self._context],
        )
        states = states.repeat_interleave(self._width, 1)
        self._past[:, written.reshape(-1), :, : self._length] = states
