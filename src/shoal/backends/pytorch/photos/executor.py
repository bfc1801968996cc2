"""An instance on a GPU that decodes and classifies photos, too."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from shoal.backends import graph_config
from shoal.backends.base import PhotoExecutor
from shoal.backends.pytorch.cuda import CudaExecutor
from shoal.backends.pytorch.library import TORCH_TYPES, process
from shoal.backends.pytorch.photos.nvjpeg import JpegDecoder, NvJpeg
from shoal.backends.pytorch.photos.pipeline import PhotoPipeline
from shoal.backends.pytorch.program import Program
from shoal.backends.pytorch.settings import PyTorchSettings
from shoal.config.model import ModelConfig
from shoal.core.tensor import Buffer
from shoal.errors import ShoalError
from shoal.tasks.images.plan import PhotoPlan

logger = logging.getLogger(__name__)

_lock = threading.Lock()  # guards those below, by GPU
_libraries: dict[int, NvJpeg] = {}  # they last as long as the process
# Instances share a decoder, which lasts as long as one of them.
_decoders: weakref.WeakValueDictionary[int, JpegDecoder] = weakref.WeakValueDictionary()


def library_of(device: torch.device) -> NvJpeg:
    """The library for a GPU. Raises OSError or RuntimeError if there is no decoder."""
    index = device.index or 0
    with _lock:
        found = _libraries.get(index)
        if found is None:
            found = _libraries[index] = NvJpeg(torch.device("cuda", index))
        return found


def decoder_of(device: torch.device) -> JpegDecoder:
    """The decoder of a GPU. Raises as `library_of`, and RuntimeError without memory for it."""
    library = library_of(device)
    index = device.index or 0
    with _lock:
        found = _decoders.get(index)
        if found is None:
            found = _decoders[index] = JpegDecoder(library)
        return found


class CudaPhotoExecutor(CudaExecutor, PhotoExecutor):
    """One instance on a GPU, for tensors and for photos."""

    def __init__(
        self,
        program: Program,
        config: ModelConfig,
        settings: PyTorchSettings,
        file: str,
        *,
        plan: PhotoPlan,
        owns: bool = False,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        """Raises as CudaExecutor, and what CUDA raises if there is no memory for photos."""
        super().__init__(program, config, settings, file, owns=owns, on_failure=on_failure)
        self._plan = plan
        dims = {tensor.name: graph_config.model_dims(tensor) for tensor in config.input}
        shape = (config.max_batch_size, *dims[plan.input])
        process.prepare(settings.intra_op_threads, settings.switches)
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream), self._mode():
            kind = TORCH_TYPES[self._input_types[plan.input]]
            rows = self._formatted(torch.zeros(shape, dtype=kind, device=self.device))
            self._photos: PhotoPipeline | None = PhotoPipeline(
                plan, self._network, rows, decoder_of(self.device), self._stream
            )

    def _network(self, rows: torch.Tensor) -> torch.Tensor:
        (value,) = self._results.pick(self._compute({self._plan.input: rows}), (self._plan.output,))
        return self._typed(self._plan.output, value)

    def classify(
        self, photos: Sequence[Buffer], frames: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `PhotoExecutor`. Raises BackendFailure with the model's exception."""
        assert self._photos is not None
        # On several threads a copy of 50 files takes ten times the CPU's time, and is slower.
        process.prepare(1, self._settings.switches)
        before = torch.cuda.current_stream(self.device)
        torch.cuda.set_stream(self._stream)  # as in CudaExecutor
        try:
            with self._mode():
                return self._photos.classify(photos, frames)
        except ShoalError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        finally:
            torch.cuda.set_stream(before)

    @property
    def own_bytes(self) -> int:
        """GPU memory of this instance alone, as far as it is known."""
        return super().own_bytes + (0 if self._photos is None else self._photos.nbytes)

    def close(self) -> None:
        """Release the model, its graphs and their GPU memory."""
        super().close()
        self._photos = None


def can_classify(devices: Sequence[Any], model: str) -> bool:
    """Whether these devices have decoders for photos; the reason is logged if not."""
    for device in devices:
        if device is None or device.type != "cuda":
            return False
        try:
            library_of(device)
        except (OSError, RuntimeError) as error:
            logger.warning(
                "photos for model '%s' are decoded on the CPU, which is slower: %s", model, error
            )
            return False
    return True
