"""Running a model on a GPU: one stream per instance, page-locked memory in both directions.

    array --> pinned memory ==> GPU --stream: run--> GPU ==> pinned memory --> array
                            copies that the CPU does not wait for; it waits once, at the end

The memory comes from PyTorch's caches of device and pinned memory. Batches of the sizes that CUDA
graphs were captured for are replayed. Tensors of an ensemble stay on the GPU from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shoal.backends import graph_config
from shoal.backends.base import DeviceExecutor
from shoal.backends.pytorch.executor import Inputs, TorchExecutor
from shoal.backends.pytorch.graphs import CapturedGraphs
from shoal.backends.pytorch.library import TORCH_TYPES, clean_message, to_array, to_tensor
from shoal.backends.pytorch.program import Program
from shoal.backends.pytorch.settings import GRAPHS, PyTorchSettings
from shoal.config.model import ModelConfig
from shoal.core.device_tensor import OnDevice
from shoal.core.dtypes import BYTES
from shoal.errors import ConfigError


class CudaExecutor(TorchExecutor, DeviceExecutor):
    """One instance on a GPU, with its own stream."""

    def __init__(
        self,
        program: Program,
        config: ModelConfig,
        settings: PyTorchSettings,
        file: str,
        *,
        owns: bool = False,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        """Raises as TorchExecutor, and ConfigError when CUDA graphs cannot be captured."""
        super().__init__(program, config, settings, file, owns=owns, on_failure=on_failure)
        device = self.device
        self._stream: Any = torch.cuda.Stream(device)
        with torch.cuda.device(device):
            # A blocking event frees the CPU; a busy one reacts sooner.
            self._done: Any = torch.cuda.Event(blocking=not settings.busy_wait)
        self._graphs: CapturedGraphs | None = None
        if settings.graph_sizes:
            self._graphs = self._capture(config, settings.graph_sizes, file)

    def run_on_device(
        self, inputs: Inputs, outputs: Sequence[str], keep: Collection[str]
    ) -> Sequence[np.ndarray | OnDevice]:
        """As `run`; outputs in `keep` stay on the GPU."""
        return self._run(inputs, outputs, keep)

    def close(self) -> None:
        """Release the model, its graphs and their GPU memory."""
        super().close()
        self._graphs = None

    def _run(
        self, inputs: Inputs, outputs: Sequence[str], keep: Collection[str]
    ) -> Sequence[np.ndarray | OnDevice]:
        with torch.cuda.stream(self._stream):
            try:
                return super()._run(inputs, outputs, keep)
            finally:
                if self._settings.clean_cache:
                    torch.cuda.empty_cache()

    def _execute(self, inputs: Inputs, outputs: Sequence[str]) -> Sequence[Any]:
        graphs = self._graphs
        rows = self._rows(inputs)
        if graphs is None or not graphs.fits(rows, inputs):
            return super()._execute(inputs, outputs)
        tensors = {
            name: self._pinned(name, given)
            if isinstance(given, np.ndarray)
            else self._joined(given)
            for name, given in inputs.items()
        }
        results = graphs.replay(rows, tensors)
        return [results[name] for name in outputs]

    def _feed(self, name: str, given: Any) -> Any:
        if not isinstance(given, np.ndarray) or self._input_types[name] is BYTES:
            return super()._feed(name, given)
        tensor = self._pinned(name, given).to(self.device, non_blocking=True)
        return self._formatted(tensor)

    def _pinned(self, name: str, array: np.ndarray) -> torch.Tensor:
        """The array in memory that the GPU can read directly."""
        tensor = to_tensor(self._shaped(name, array), self._input_types[name])
        if not self._settings.pin_inputs:
            return tensor
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor)

    def _fetch_all(
        self, outputs: Sequence[str], values: Sequence[Any], rows: int | None, keep: Collection[str]
    ) -> list[np.ndarray | OnDevice]:
        """Start all copies, then wait once."""
        fetched: list[Any] = []
        for name, value in zip(outputs, values, strict=True):
            if not isinstance(value, torch.Tensor) or value.device != self.device:
                fetched.append(self._fetch(name, value, rows))
            elif name in keep:
                fetched.append(OnDevice(self._kept(name, value), to_array))
            else:
                tensor = self._typed(name, value).detach().contiguous()
                pinned = self._settings.pin_outputs
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
                fetched.append(host.copy_(tensor, non_blocking=True))
        self._done.record(self._stream)
        self._done.synchronize()
        return [
            self._with_dims(name, to_array(item)) if isinstance(item, torch.Tensor) else item
            for name, item in zip(outputs, fetched, strict=True)
        ]

    def _kept(self, name: str, value: torch.Tensor) -> torch.Tensor:
        tensor = self._typed(name, value).detach()
        # The next replay of a graph writes to the same memory.
        own = self._own_outputs or self._graphs is not None
        return tensor.clone() if own else tensor.contiguous()

    def _capture(self, config: ModelConfig, sizes: Sequence[int], file: str) -> CapturedGraphs:
        field = f"parameters['{GRAPHS}']"
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        dims = {tensor.name: graph_config.model_dims(tensor) for tensor in config.input}
        for name, datatype in self._input_types.items():
            if datatype is BYTES or -1 in dims.get(name, (-1,)):
                raise ConfigError(
                    f"a CUDA graph has fixed shapes, and input '{name}' has none",
                    file=file,
                    field=field,
                    fix="Write fixed dims, or leave CUDA graphs out",
                )
            shapes[name] = (dims[name], TORCH_TYPES[datatype])

        def call(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
            names = list(self._output_types)
            shaped = {
                name: tensor.reshape(()) if name in self._scalars else tensor
                for name, tensor in tensors.items()
            }
            values = {name: self._formatted(tensor) for name, tensor in shaped.items()}
            return dict(zip(names, self._results.pick(self._compute(values), names), strict=True))

        try:
            with self._mode():
                return CapturedGraphs(
                    call, shapes, sizes, self.device, self._stream, batched=self._batched
                )
        except Exception as error:
            raise ConfigError(
                f"model '{config.name}' cannot be captured as a CUDA graph: {clean_message(error)}",
                file=file,
                field=field,
                fix="Leave CUDA graphs out for this model",
            ) from error
