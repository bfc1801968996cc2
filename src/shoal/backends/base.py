"""The backend contract, whole: what a runtime must offer to have its models served.

    Backend.complete(config) --> Backend.load(context) --> LoadedModel.executor(placement)
                                     one call per batch:      ├─ Executor.run: tensors in and out
                                                              └─ RequestExecutor.execute: requests

A backend is found by name through the `shoal.backends` entry points. One `Backend` object serves
the whole process; one `LoadedModel` is one version of one model; one executor is one instance.
Executors of a model may be called from different threads at once, each from one thread at a time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from shoal.backends.files import config_file
from shoal.config.model import ModelConfig
from shoal.config.parameters import Parameters
from shoal.core.device_tensor import DeviceTensor, OnDevice
from shoal.core.request import Request
from shoal.core.response import ParameterValue
from shoal.core.tensor import Tensor
from shoal.errors import ShoalError
from shoal.statistics.custom import CustomMetrics


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one instance runs. `device_id` counts GPUs; it is 0 on a CPU."""

    kind: str  # "KIND_CPU" | "KIND_GPU" | "KIND_MODEL"
    device_id: int = 0
    name: str = ""  # "<group>_<index>", as Triton names instances


class OtherModels(Protocol):
    """The server as a model sees it, for one that asks or manages others."""

    def infer(self, request: Request) -> None:
        """Take the request over; if this raises, it was refused and the caller answers it."""

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a model may answer any number of times. Raises NotFound or Unavailable."""

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model is ready. May block; NotFound for an unknown one."""

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model. Blocks."""

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model. Blocks."""


@dataclass(frozen=True, slots=True)
class LoadContext:
    """Everything a backend may look at while it loads one version of a model."""

    model_folder: Path  # holds config.pbtxt, labels, warm-up data
    version_folder: Path  # holds the model file
    version: int
    config: ModelConfig
    placements: Sequence[Placement]  # every instance that will be made at first
    settings: Mapping[str, str] = field(default_factory=dict)  # --backend-config of this backend
    cores: int = 1  # what this process may use (cgroup-aware), for thread budgets
    models: OtherModels | None = None  # None: there is no server around this model
    metrics: CustomMetrics | None = None  # for metrics of the model's own

    @property
    def file(self) -> str:
        """How messages name the model's config."""
        return config_file(self.model_folder)

    @property
    def threads(self) -> int:
        """The thread budget of one instance: the cores divided among the instances."""
        return max(1, self.cores // max(1, len(self.placements)))

    def parameters(self, backend: str) -> Parameters:
        """Reads the parameters of `backend` from the config and --backend-config."""
        return Parameters(backend, self.config, self.settings, self.file)


class Executor(ABC):
    """One instance: runs a batch whose inputs have been joined along the batch dimension."""

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Compute the named outputs, in that order.

        BYTES tensors are object arrays of `bytes`, BF16 tensors are `uint16`. The returned arrays
        must stay valid after the next call. An exception fails the whole batch with its text.
        """

    def close(self) -> None:
        """Give back what this instance holds. Called once, after its last `run`."""
        return


class DeviceExecutor(Executor):
    """An instance on a device that can be handed tensors there, and leave its results there.

    It takes part in ensembles whose tensors stay on the device from step to step.
    """

    @abstractmethod
    def run_on_device(
        self,
        inputs: Mapping[str, np.ndarray | Sequence[DeviceTensor]],
        outputs: Sequence[str],
        keep: Collection[str],
    ) -> Sequence[np.ndarray | OnDevice]:
        """As `run`. An input on a device comes in parts, to be joined along the first dimension.

        Those of the outputs that are in `keep` may be left on the device. When this returns they
        must have been computed, and must not be written to any more.
        """


class PendingRequest(Protocol):
    """One request in the hands of a RequestExecutor, and the way to answer it.

    `send` may be called from any thread, also after `execute` has returned where the model is
    decoupled. It raises Internal when the final response has been sent already.
    """

    @property
    def request(self) -> Request:
        """The request. Its tensors stay valid as long as they are referenced."""

    def send(
        self,
        outputs: Sequence[Tensor] = (),
        *,
        error: ShoalError | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        final: bool = True,
    ) -> None:
        """Send one response. Outputs the client did not ask for are left out."""

    def defer(self) -> None:
        """Promise an answer that comes after `execute` has returned."""

    def reschedule(self) -> None:
        """Have the request run again, as the next of its sequence; nothing more is sent from here.

        Raises InvalidArgument where sequences are not iterative.
        """


class RequestExecutor(ABC):
    """One instance that is handed the requests of a batch themselves and answers each of them."""

    # How many more batches it would like to have along with one, if they wait already: for an
    # instance that is far away compared with how long it computes. They are run one by one.
    ahead: int = 0
    # Whether requests are answered long after `execute` has returned, as those whose texts are
    # generated together. Each is counted once it has had its final response, then.
    answers_later: bool = False

    @abstractmethod
    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Run a batch. When this returns, every request of a model that is not decoupled must have
        had its final response, or be deferred. An exception fails the others, with its text."""

    def execute_several(self, batches: Sequence[Sequence[PendingRequest]]) -> Sequence[int]:
        """Run batches one after the other, as `execute` runs each; how many ns each took."""
        took: list[int] = []
        for batch in batches:
            start_ns = time.monotonic_ns()
            self.execute(batch)
            took.append(time.monotonic_ns() - start_ns)
        return took

    def close(self) -> None:
        """Give back what this instance holds. Called once, after its last `execute`."""
        return


class LoadedModel(ABC):
    """One version of a model, ready to make instances."""

    # Whether `run` only computes: never waits for a device, a lock or the network. Then, while
    # its executions are short, the event loop may run them itself.
    may_run_on_loop: bool = False
    # The names that the model file has for dimensions, by tensor, the batch counted; None where
    # it has none. Dimensions of one name have one size.
    axis_names: Mapping[str, Sequence[str | None]] = MappingProxyType({})
    # Whether some of its executors are DeviceExecutors.
    takes_device_tensors: bool = False
    # Whether `ready` asks the model itself, which may take a while.
    asks_readiness: bool = False

    @abstractmethod
    def executor(self, placement: Placement) -> Executor | RequestExecutor:
        """Make an instance at `placement`; raises a ShoalError when that cannot be."""

    def ready(self) -> bool:
        """Whether the model, which is loaded, can be asked now."""
        return True

    def owed(self) -> int:
        """How many requests are to be answered although their execution is over."""
        return 0

    def counters(self) -> Mapping[str, object]:
        """What the model counts beside what all models do, for its statistics."""
        return {}

    def memory_elsewhere(self) -> int:
        """Bytes that the model holds in processes of its own."""
        return 0

    def close(self) -> None:
        """Give the model's memory back. Called once, after all its executors are closed."""
        return


class Backend(ABC):
    """One runtime."""

    name: str
    default_cpu_instances: int = 1  # what an empty instance_group means on a CPU
    uses_gpus: bool = True  # false: KIND_AUTO is the CPU, also on a machine with GPUs

    @abstractmethod
    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """Fill what the config leaves out from the model file. Only max_batch_size, input, output,
        the scheduling choice and the transaction policy may change. Raises ConfigError."""

    @abstractmethod
    def load(self, context: LoadContext) -> LoadedModel:
        """Load one version and check it against its config. Raises a ShoalError with a sentence
        for the operator; on failure nothing stays allocated."""
