"""Batches that are not plain rows: ragged, padded, or with inputs that the server makes.

    requests --join--> inputs of the model          outputs of the model --split--> responses

A model that needs none of this has no assembly; `shoal.scheduler.batch` joins and splits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from shoal.config.model import ModelConfig
from shoal.core import dtypes
from shoal.core.request import Request
from shoal.core.signature import Signature
from shoal.core.tensor import Tensor
from shoal.scheduler.batch import WholeOutput, join_tensors
from shoal.scheduler.padding import CutBack, fill_up, mask_of
from shoal.scheduler.ragged import MadeInput, Scattered, flat

# The part of an output for one request: its number in the batch, its first row, its rows.
_Part: TypeAlias = Callable[[int, int, int], Tensor]


class Assembly:
    """How one model's batches are joined and split. Any thread may use it."""

    def __init__(
        self,
        signature: Signature,
        made: Sequence[MadeInput] = (),
        scattered: Mapping[str, str] | None = None,
    ) -> None:
        """`made` are inputs that no client sends; `scattered` maps outputs to the input whose
        shapes determine how they are split."""
        self._signature = signature
        self._made = tuple(made)
        self._scattered = dict(scattered or {})
        self._ragged = frozenset(n for n, spec in signature.inputs.items() if spec.ragged)
        self._lock = threading.Lock()  # guards the one below
        self._padded = (0, 0)  # elements of padded inputs, and how many of them were padding

    @property
    def made_inputs(self) -> frozenset[str]:
        """The inputs that are made for every batch."""
        return frozenset(name for made in self._made for name in made.names)

    def padded(self) -> tuple[int, int]:
        """How many elements padded inputs had in all, and how many were padding."""
        return self._padded

    def join(self, requests: Sequence[Request]) -> dict[str, np.ndarray]:
        """The model's inputs for these requests, which are valid and have equal batch keys."""
        padding = self._signature.padding
        masks = () if padding is None else padding.masks
        joined: dict[str, np.ndarray] = {}
        for name in requests[0].inputs:
            if name in masks or (padding is not None and name in padding.inputs):
                continue
            parts = [request.inputs[name] for request in requests]
            if name in self._ragged:
                joined[name] = flat(parts)
            else:
                joined[name] = parts[0].array if len(parts) == 1 else join_tensors(parts)
        if padding is not None:
            self._join_padded(requests, joined)
        for made in self._made:
            joined.update(dict.fromkeys(made.names, made.make(requests)))
        return joined

    def _join_padded(self, requests: Sequence[Request], joined: dict[str, np.ndarray]) -> None:
        padding = self._signature.padding
        assert padding is not None
        sizes = [padding.sizes(request.inputs) for request in requests]
        targets = padding.targets(sizes)
        elements = filled = 0
        for name, axes in padding.inputs.items():
            if name in padding.masks:
                spec = self._signature.inputs[name]
                parts = [
                    request.inputs.get(name) or mask_of(spec, request.rows, axes, own)
                    for request, own in zip(requests, sizes, strict=True)
                ]
            elif name in requests[0].inputs:
                parts = [request.inputs[name] for request in requests]
            else:
                continue
            joined[name], added = fill_up(parts, axes, targets, padding.fills[name])
            elements += joined[name].size
            filled += added
        with self._lock:
            self._padded = (self._padded[0] + elements, self._padded[1] + filled)

    def split(
        self, requests: Sequence[Request], names: Sequence[str], arrays: Sequence[np.ndarray]
    ) -> list[list[Tensor]]:
        """Each request's outputs, in the order it requested them; views where that is possible.

        Raises BackendFailure when an output does not have the shape that these requests need.
        """
        signature = self._signature
        total = sum([request.rows for request in requests])
        padding = signature.padding
        sizes = [] if padding is None else [padding.sizes(request.inputs) for request in requests]
        targets = {} if padding is None else padding.targets(sizes)
        # Lengths that are the same for every request need not be cut.
        padded = {
            length
            for length, target in targets.items()
            if any(own.get(length) != target for own in sizes)
        }
        parts: dict[str, _Part] = {}
        for name, array in zip(names, arrays, strict=True):
            if name not in signature.outputs:
                continue
            source = self._scattered.get(name)
            if source is not None:
                spec, batched = signature.outputs[name], signature.max_batch_size > 0
                scattered = Scattered(spec, source, array, requests, batched=batched)
                parts[name] = scattered.part
                continue
            whole = WholeOutput(signature, name, array, total)
            cut = () if padding is None else padding.outputs.get(name, ())
            axes = tuple((axis, length) for axis, length in cut if length in padded)
            if axes:
                parts[name] = CutBack(whole, signature, axes, targets, sizes).part
            else:
                parts[name] = partial(_rows_of, whole)
        result: list[list[Tensor]] = []
        row = 0
        for number, request in enumerate(requests):
            requested = request.requested_outputs or signature.outputs
            result.append([parts[name](number, row, request.rows) for name in requested])
            row += request.rows
        return result


def _rows_of(output: WholeOutput, _number: int, row: int, rows: int) -> Tensor:
    return output.part(row, rows)


def build(config: ModelConfig, signature: Signature) -> Assembly | None:
    """The assembly of a config; None where its batches are plain rows."""
    made = [
        MadeInput(
            batch_input.kind,
            batch_input.target_name,
            dtypes.BY_CONFIG_NAME[batch_input.data_type],
            signature.inputs[batch_input.source_input[0]],
        )
        for batch_input in config.batch_input
    ]
    scattered = {
        name: batch_output.source_input[0]
        for batch_output in config.batch_output
        for name in batch_output.target_name
    }
    ragged = any(spec.ragged for spec in signature.inputs.values())
    if not made and not scattered and not ragged and signature.padding is None:
        return None
    return Assembly(signature, made, scattered)
