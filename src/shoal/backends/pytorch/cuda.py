"""Running a model on a GPU: one stream per instance, page-locked memory in both directions.

    array --> pinned memory ==> GPU --stream: run--> GPU ==> pinned memory --> array
                            copies that the CPU does not wait for; it waits once, at the end

Small inputs are copied together; large ones are joined in pinned memory to begin with. Batches of
the sizes that CUDA graphs were captured for are replayed. Tensors of an ensemble stay on the GPU
from step to step.
"""

from __future__ import annotations

import sys
import time
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
from shoal.backends.pytorch.settings import GRAPHS, GraphSpec, PyTorchSettings
from shoal.backends.pytorch.staging import Form, Staging
from shoal.config.model import ModelConfig
from shoal.core.device_tensor import OnDevice
from shoal.core.dtypes import BYTES
from shoal.errors import ConfigError

# Larger inputs are copied by themselves: from where they were joined, if that is page-locked.
_MOST_STAGED_BYTES = 64 << 10
_SHORT_WAIT_NS = 200_000
# For which a thread may keep the GIL while another one waits for it (Python's default is 5 ms): a
# GPU is idle until the thread of its instance has the GIL and launches the next batch.
_GIL_SECS = 1e-4
_SPIN_EVERY = 32  # waits


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
        sys.setswitchinterval(min(_GIL_SECS, sys.getswitchinterval()))
        device = self.device
        self._stream: Any = torch.cuda.Stream(device)
        with torch.cuda.device(device):
            # A blocking event frees the CPU; a spinning one reacts sooner.
            self._spinning: Any = torch.cuda.Event()
            self._blocking: Any = torch.cuda.Event(blocking=not settings.busy_wait)
        self._spins = True
        self._waits = 0
        self._staging = Staging(device, pinned=settings.pin_inputs)
        self._torch_types = {
            name: TORCH_TYPES[datatype]
            for name, datatype in self._input_types.items()
            if datatype is not BYTES
        }
        self._graphs: CapturedGraphs | None = None
        self._copying: Any = torch.cuda.Stream(device) if settings.output_copy_stream else None
        if settings.graphs:
            self._graphs = self._capture(config, settings.graphs, file)

    def run_on_device(
        self, inputs: Inputs, outputs: Sequence[str], keep: Collection[str]
    ) -> Sequence[np.ndarray | OnDevice]:
        """As `run`; outputs in `keep` stay on the GPU."""
        return self._run(inputs, outputs, keep)

    def input_memory(self, size: int) -> memoryview:
        """Page-locked memory, from which the GPU fetches inputs without another copy."""
        if not self._settings.pin_inputs:
            return super().input_memory(size)
        memory: np.ndarray = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return memory.data

    @property
    def has_graphs(self) -> bool:
        """Whether batches are replayed as CUDA graphs."""
        return self._graphs is not None

    def drop_graphs(self) -> None:
        """Run without CUDA graphs from now on."""
        self._graphs = None

    @property
    def own_bytes(self) -> int:
        """GPU memory of this instance alone, as far as it is known."""
        graphs = 0 if self._graphs is None else self._graphs.nbytes
        return graphs + (0 if self._program is None else self._program.nbytes or 0)

    def close(self) -> None:
        """Release the model, its graphs and their GPU memory."""
        super().close()
        self._graphs = None

    def _run(
        self, inputs: Inputs, outputs: Sequence[str], keep: Collection[str]
    ) -> Sequence[np.ndarray | OnDevice]:
        before = torch.cuda.current_stream(self.device)
        torch.cuda.set_stream(self._stream)  # `with torch.cuda.stream` costs ten times as much
        try:
            if self._graphs is not None and not keep:
                found = self._replay_all(self._graphs, inputs, outputs)
                if found is not None:
                    return found
            return super()._run(inputs, outputs, keep)
        finally:
            torch.cuda.set_stream(before)
            if self._settings.clean_cache:
                torch.cuda.empty_cache()

    def _replay_all(
        self, graphs: CapturedGraphs, inputs: Inputs, outputs: Sequence[str]
    ) -> list[np.ndarray] | None:
        """Replay a graph that copies its outputs, for inputs that are copied together; None, with
        nothing done, where there is no such graph."""
        rows = self._rows(inputs)
        graph = graphs.find(rows, inputs)
        arrays = _arrays(inputs)
        if graph is None or not graph.copies_outputs or len(arrays) < len(inputs):
            return None
        try:
            if not graph.upload(arrays):
                return None
            graph.graph.replay()
            self._wait()
        except Exception as error:
            raise self._failure(error) from error
        return [self._with_dims(name, graph.fetched(name, rows)) for name in outputs]

    def _execute(self, inputs: Inputs, outputs: Sequence[str]) -> Sequence[Any]:
        """Start an execution; its results are on the device."""
        rows = self._rows(inputs)
        graph = None if self._graphs is None else self._graphs.find(rows, inputs)
        if graph is None:
            values = self._uploaded(inputs)
            return self._results.pick(self._compute(values), outputs)
        for name, given in inputs.items():
            place = graph.inputs[name] if rows is None else graph.inputs[name][:rows]
            if isinstance(given, np.ndarray):
                tensor = self._pinned(name, given)
            else:
                tensor = self._joined(given)
            place.copy_(tensor.reshape(place.shape), non_blocking=True)
        graph.graph.replay()
        found = graph.outputs
        return [found[name] if rows is None else found[name][:rows] for name in outputs]

    def _uploaded(self, inputs: Inputs) -> dict[str, Any]:
        """All inputs as the model takes them: the small ones are copied to the GPU at once."""
        small: dict[str, np.ndarray] = {}
        values: dict[str, Any] = {}
        for name, given in inputs.items():
            array = given if isinstance(given, np.ndarray) else None
            if array is None or self._input_types[name] is BYTES:
                values[name] = super()._feed(name, given)
            elif array.nbytes <= _MOST_STAGED_BYTES:
                small[name] = self._shaped(name, array)
            else:
                tensor = self._pinned(name, array).to(self.device, non_blocking=True)
                values[name] = self._formatted(tensor)
        if small:
            for name, tensor in self._staging.upload(small, self._torch_types).items():
                values[name] = self._formatted(tensor)
        return values

    def _pinned(self, name: str, array: np.ndarray) -> torch.Tensor:
        """The array in memory that the GPU can read directly."""
        tensor = to_tensor(self._shaped(name, array), self._input_types[name])
        if not self._settings.pin_inputs or tensor.is_pinned():
            return tensor
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor)  # the GIL is released meanwhile

    def _fetch_all(
        self, outputs: Sequence[str], values: Sequence[Any], rows: int | None, keep: Collection[str]
    ) -> list[np.ndarray | OnDevice]:
        """Start all copies, then wait once."""
        if self._copying is not None:
            self._copying.wait_stream(self._stream)
            torch.cuda.set_stream(self._copying)
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
        self._wait()
        return [
            self._with_dims(name, to_array(item)) if isinstance(item, torch.Tensor) else item
            for name, item in zip(outputs, fetched, strict=True)
        ]

    def _wait(self) -> None:
        """Wait for everything on the stream: spinning while that is short.

        The time to get the GIL back afterwards must not count: so spinning is measured by its CPU
        time, and tried again after some waits that were not.
        """
        self._waits += 1
        spins = self._spins or not self._waits % _SPIN_EVERY
        clock = time.thread_time_ns if spins else time.monotonic_ns
        done = self._spinning if spins else self._blocking
        begun_ns = clock()
        done.record(self._copying or self._stream)
        done.synchronize()
        waited_ns = clock() - begun_ns
        self.blocked_ns = 0 if spins else waited_ns
        self._spins = waited_ns < _SHORT_WAIT_NS

    def _kept(self, name: str, value: torch.Tensor) -> torch.Tensor:
        tensor = self._typed(name, value).detach()
        # The next replay of a graph writes to the same memory.
        own = self._own_outputs or self._graphs is not None
        return tensor.clone() if own else tensor.contiguous()

    def _capture(
        self, config: ModelConfig, specs: Sequence[GraphSpec], file: str
    ) -> CapturedGraphs:
        field = f"parameters['{GRAPHS}']"
        forms: dict[str, Form] = {}
        dims = {tensor.name: graph_config.model_dims(tensor) for tensor in config.input}
        for name, datatype in self._input_types.items():
            own = dims.get(name, (-1,))
            if datatype is BYTES or (-1 in own and not all(name in spec.dims for spec in specs)):
                raise ConfigError(
                    f"a CUDA graph has fixed shapes, and input '{name}' has none",
                    file=file,
                    field=field,
                    fix="Write fixed dims, or optimization.cuda.graph_spec with the shapes of all "
                    "inputs, or leave CUDA graphs out",
                )
            forms[name] = Form(tuple(dims[name]), TORCH_TYPES[datatype])

        def call(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
            names = list(self._output_types)
            shaped = {
                name: tensor.reshape(()) if name in self._scalars else tensor
                for name, tensor in tensors.items()
            }
            values = {name: self._formatted(tensor) for name, tensor in shaped.items()}
            picked = zip(names, self._results.pick(self._compute(values), names), strict=True)
            return {
                name: self._typed(name, value) if isinstance(value, torch.Tensor) else value
                for name, value in picked
            }

        try:
            with self._mode():
                return CapturedGraphs(
                    call,
                    forms,
                    specs,
                    self.device,
                    self._stream,
                    batched=self._batched,
                    pinned=self._settings.pin_inputs,
                    copies_outputs=self._copying is None,
                )
        except Exception as error:
            raise ConfigError(
                f"model '{config.name}' cannot be captured as a CUDA graph: {clean_message(error)}",
                file=file,
                field=field,
                fix="Leave CUDA graphs out for this model",
            ) from error


def _arrays(inputs: Inputs) -> dict[str, np.ndarray]:
    return {name: given for name, given in inputs.items() if isinstance(given, np.ndarray)}
