"""Generation with PyTorch, on GPUs: encoder and decoder of a model, and what instances run.

encoder.onnx, decoder.onnx --> weights on each GPU --> an instance: a stream, states, CUDA graphs
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from shoal.backends.base import Placement
from shoal.backends.generation.files import DecoderPorts, ModelFiles, encoder_input
from shoal.backends.generation.pytorch.decoder import DeviceDecoder
from shoal.backends.generation.pytorch.encoder import TorchEncoder
from shoal.backends.generation.pytorch.graph import TorchGraph
from shoal.backends.generation.pytorch.rows import TorchRows
from shoal.backends.pytorch.library import HALVES, clean_message, gpu_of, has_cuda
from shoal.errors import ConfigError
from shoal.generation.decoder import RowsFactory


class _Weights(NamedTuple):
    """The files of a model on one device."""

    decoder: TorchGraph
    encoder: TorchGraph | None

    @property
    def nbytes(self) -> int:
        return self.decoder.nbytes + (0 if self.encoder is None else self.encoder.nbytes)


class TorchRuntime:
    """See `shoal.backends.generation.backend.Runtime`."""

    def __init__(
        self,
        files: ModelFiles,
        placements: Sequence[Placement],
        *,
        half: str,
        max_length: int,
        max_rows: int,
        encoder_batch: int,
        stop_ids: Sequence[int],
        file: str,
    ) -> None:
        """Read the files onto the first device. Raises a ShoalError."""
        self._files = files
        self._dtype = HALVES.get(half, torch.float32)
        self._max_rows = max_rows
        self._encoder_batch = encoder_batch
        self._stop_ids = sorted(stop_ids)
        self._file = file
        self._lock = threading.Lock()  # guards _weights
        self._weights: dict[torch.device, _Weights] = {}
        self._runners: weakref.WeakSet[TorchRunner] = weakref.WeakSet()
        weights = self._on(gpu_of(placements[0], self._file))
        self.dims: tuple[int, ...] | None = None
        encoded: dict[str, tuple[Any, ...]] = {}
        if weights.encoder is not None:
            assert files.encoder is not None
            self._input, self.dims = encoder_input(files.encoder, weights.encoder.inputs)
            encoded = {name: dims[1:] for name, dims in weights.encoder.outputs.items()}
        decoder = weights.decoder
        self._ports = DecoderPorts.of(
            files.decoder, decoder.inputs, decoder.outputs, encoded, max_length
        )
        self.vocabulary = self._ports.shape.vocabulary

    def instance(self, placement: Placement) -> tuple[TorchEncoder | None, RowsFactory]:
        """An encoder and states of its own, with their CUDA graphs."""
        device = gpu_of(placement, self._file)
        weights = self._on(device)
        stream: Any = None
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)
        decoder = DeviceDecoder(
            weights.decoder, self._ports, self._stop_ids, self._max_rows, stream
        )
        try:
            runner = TorchRunner(decoder)
            encoder = None
            if weights.encoder is not None and self.dims is not None:
                encoder = TorchEncoder(
                    weights.encoder,
                    self._input,
                    self.dims,
                    decoder,
                    self._encoder_batch,
                )
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the GPU has too little memory for the states of {self._max_rows} texts of "
                f"{self._ports.shape.max_length} tokens: {clean_message(error)}",
                file=self._file,
                field="parameters['max_sequences']",
                fix="Write a smaller number, or a smaller max_length in task.json, or set "
                "HALF_PRECISION",
            ) from error
        self._runners.add(runner)
        return encoder, runner.rows

    def ready(self) -> bool:
        """False if the GPU has failed and the server must be restarted."""
        return not any(runner.broken for runner in list(self._runners))

    def gpu_memory(self) -> dict[int, int]:
        """Bytes of weights and states on each GPU."""
        found: dict[int, int] = {}
        with self._lock:
            held = [(device, weights.nbytes) for device, weights in self._weights.items()]
        held += [(runner.device, runner.nbytes) for runner in list(self._runners)]
        for device, size in held:
            if device.type == "cuda":
                found[device.index or 0] = found.get(device.index or 0, 0) + size
        return found

    def close(self) -> None:
        """Drop the weights, and return unused GPU memory to the driver."""
        with self._lock:
            self._weights.clear()
        if has_cuda():
            gc.collect()  # reference cycles would keep their memory in PyTorch's cache
            torch.cuda.empty_cache()

    def _on(self, device: torch.device) -> _Weights:
        with self._lock:
            if device not in self._weights:
                files, dtype = self._files, self._dtype
                self._weights[device] = _Weights(
                    TorchGraph(files.decoder, device, dtype),
                    None if files.encoder is None else TorchGraph(files.encoder, device, dtype),
                )
            return self._weights[device]


class TorchRunner:
    """The memory and the graphs of one instance."""

    def __init__(self, decoder: DeviceDecoder) -> None:
        """Allocate the memory of texts without beams, and capture graphs for short ones."""
        self.device = decoder.device
        self._decoder = decoder
        greedy = TorchRows(decoder, 1)
        greedy.capture()
        self._rows = {1: greedy}

    @property
    def nbytes(self) -> int:
        """Bytes of the states of all texts, present or not."""
        return sum(rows.nbytes for rows in list(self._rows.values()))

    @property
    def broken(self) -> bool:
        """Whether the GPU rejects all further work."""
        return self._decoder.broken

    def rows(self, width: int) -> TorchRows:
        """States for texts with `width` rows each. Memory and graphs are kept for texts without
        beams, and for those with the last number of beams that was requested."""
        if width not in self._rows:
            self._rows = {1: self._rows[1]}
            self._rows[width] = TorchRows(self._decoder, width)
        self._rows[width].reset()
        return self._rows[width]
