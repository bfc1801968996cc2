"""The whole backend contract: what a runtime implements so that Shoal can serve its models.

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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from shoal.backends.files import config_file
from shoal.config.model import ModelConfig
from shoal.config.parameters import Parameters
from shoal.core.buffers import pool
from shoal.core.concurrency import ExpectedConcurrency
from shoal.core.device_tensor import DeviceTensor, OnDevice
from shoal.core.interface import FunctionInterface
from shoal.core.request import Request
from shoal.core.response import ParameterValue
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import InvalidArgument, ShoalError
from shoal.statistics.custom import CustomMetrics

if TYPE_CHECKING:
    from shoal.tasks.images.plan import PhotoPlan


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one instance runs. `device_id` counts GPUs; it is 0 on a CPU."""

    kind: str  # "KIND_CPU" | "KIND_GPU" | "KIND_MODEL"
    device_id: int = 0
    name: str = ""  # "<group>_<index>", as Triton names instances


class OtherModels(Protocol):
    """The server's interface for a model that calls or manages other models."""

    def infer(self, request: Request) -> None:
        """Submit a request. If this raises, the request was rejected and the caller responds."""

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a model is decoupled. Raises NotFound or Unavailable."""

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model is ready. May block; NotFound for an unknown one."""

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model. Blocks."""

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model. Blocks."""


@dataclass(frozen=True, slots=True)
class LoadContext:
    """Everything that a backend needs to load one version of a model."""

    model_folder: Path  # holds config.pbtxt, labels, warm-up data
    version_folder: Path  # holds the model file
    version: int
    config: ModelConfig
    placements: Sequence[Placement]  # of all instances that are created first
    settings: Mapping[str, str] = field(default_factory=dict)  # --backend-config of this backend
    cores: int = 1  # that this process may use, with container limits
    models: OtherModels | None = None  # None: the model runs without a server
    metrics: CustomMetrics | None = None  # for the model's own metrics
    # How many executions run at the same time, for backends that choose their threads by that.
    concurrency: ExpectedConcurrency = field(default_factory=ExpectedConcurrency)

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


class ArrayForm(NamedTuple):
    """An array without its contents."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


# Takes the contents of all inputs, one behind the other, and returns those of all outputs.
BoundRun: TypeAlias = Callable[[Buffer], bytes]


class RowsRefused(InvalidArgument):
    """Some rows of a batch are invalid: their requests fail, and the others run without them."""

    def __init__(self, rows: Mapping[int, InvalidArgument]) -> None:
        """`rows` has the error of each, by its number in the batch."""
        super().__init__(next(iter(rows.values())).message)
        self.rows = rows


class InstanceExecutor:
    """One instance, whatever it is given to run: see `Executor` and `RequestExecutor`."""

    # Runs the model's warm-up; set after it was created, for executors that are restarted.
    warm_up: Callable[[Executor | RequestExecutor], None] | None = None

    def prepare(self) -> None:
        """Wait until an execution can begin, such as for a process that is being restarted. Called
        before each execution of a model with a time limit, and not counted to that."""
        return

    def end_execution(self, reason: str) -> bool:  # noqa: ARG002 - for subclasses
        """End the execution that runs now, which takes too long; called from another thread.

        False where that is impossible: it is left alone then, and the instance is not used again;
        `close` is called if it ever returns.
        """
        return False

    def close(self) -> None:
        """Release the instance's resources. Called once, after its last execution."""
        return


class Executor(InstanceExecutor, ABC):
    """One instance: runs a batch whose inputs have been joined along the batch dimension."""

    # For how long the last `run` was blocked by a device, which is time of the model like CPU time.
    blocked_ns: int = 0

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Compute the named outputs, in that order.

        BYTES tensors are object arrays of `bytes`, BF16 tensors are `uint16`. The returned arrays
        must stay valid after the next call. An exception fails the batch with its text, except for
        RowsRefused, which is raised before anything was computed.
        """

    def bind(
        self,
        inputs: Sequence[ArrayForm],  # noqa: ARG002 - for subclasses
        outputs: Sequence[ArrayForm],  # noqa: ARG002
    ) -> BoundRun | None:
        """A faster `run` for batches of exactly these arrays, which are small and have just run;
        None if there is none now. It is asked a few times. Where it raises, the batch goes to
        `run`; where that succeeds, all later ones do."""
        return None

    def input_memory(self, size: int) -> memoryview:
        """Memory that a large input of the next batch is joined in; free again when nothing refers
        to it any more. Devices have memory that they read best."""
        return pool.take(size)


class DeviceExecutor(Executor):
    """An instance on a device that reads tensors on the device and can leave its results there.

    Tensors of ensembles stay on the device between the steps of such instances.
    """

    @abstractmethod
    def run_on_device(
        self,
        inputs: Mapping[str, np.ndarray | Sequence[DeviceTensor]],
        outputs: Sequence[str],
        keep: Collection[str],
    ) -> Sequence[np.ndarray | OnDevice]:
        """As `run`. An input on a device comes in parts, to be joined along the first dimension.

        Outputs in `keep` may stay on the device. When this returns they must have been computed,
        and must not be written to any more.
        """


class PhotoExecutor(Executor):
    """An instance that also decodes and classifies photos itself; see `shoal.core.photos`."""

    @abstractmethod
    def classify(
        self, photos: Sequence[Buffer], frames: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Index (INT32) and score (FP32) of the best labels of each JPEG, the best first.

        `frames` has width, height, EXIF orientation and sampling of each. The first index of a
        photo without labels is UNREADABLE or NOT_FINITE.
        """


class PendingRequest(Protocol):
    """One request that a RequestExecutor runs, and the way to respond to it.

    `send` may be called from any thread, and for decoupled models also after `execute` has
    returned. It raises Internal if the final response was sent before.
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
        """Send one response. Outputs that the client did not request are left out."""

    def defer(self) -> None:
        """Announce that the response follows after `execute` has returned."""

    def reschedule(self) -> None:
        """Run the request again, as the next of its sequence; nothing more may be sent from here.

        Raises InvalidArgument unless sequences are iterative.
        """


class RequestExecutor(InstanceExecutor, ABC):
    """One instance that receives the single requests of a batch and responds to each."""

    # How many more queued batches to pass along with one, which are run one after the other: for
    # instances whose communication takes long compared with the computation.
    ahead: int = 0
    # Whether responses follow long after `execute` has returned, as in text generation. Then each
    # request is counted when its final response is sent.
    answers_later: bool = False

    @abstractmethod
    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Run a batch. When this returns, every request of a model that is not decoupled must have
        its final response, or be deferred. An exception fails the others with its text."""

    def execute_several(self, batches: Sequence[Sequence[PendingRequest]]) -> Sequence[int]:
        """Run batches one after the other with `execute`; returns how many ns each took."""
        took: list[int] = []
        for batch in batches:
            start_ns = time.monotonic_ns()
            self.execute(batch)
            took.append(time.monotonic_ns() - start_ns)
        return took


class LoadedModel(ABC):
    """One loaded version of a model, which creates instances."""

    # Whether `run` only computes, on the CPU or on one device, and never waits for a lock or the
    # network. Then the event loop may run short executions itself.
    may_run_on_loop: bool = False
    # The model file's names for dimensions, by tensor, including the batch; None for dimensions
    # without a name. Dimensions of one name have one size.
    axis_names: Mapping[str, Sequence[str | None]] = MappingProxyType({})
    # Whether an executor may run several batches at the same time, on as many threads. An isolated
    # model of this kind has one process for all instances.
    reentrant: bool = False
    # Whether some of its executors are DeviceExecutors.
    takes_device_tensors: bool = False
    # Whether `ready` calls the model itself, which may take long.
    asks_readiness: bool = False
    # What callers know of a function; None for models that have tensors only.
    interface: FunctionInterface | None = None

    @abstractmethod
    def executor(self, placement: Placement) -> Executor | RequestExecutor:
        """Create an instance at `placement`; raises a ShoalError if that fails."""

    def classify_photos(self, plan: PhotoPlan) -> bool:  # noqa: ARG002 - for subclasses
        """Make PhotoExecutors from now on, which work by `plan`; false if there are none."""
        return False

    def ready(self) -> bool:
        """Whether the loaded model is ready for requests."""
        return True

    def owed(self) -> int:
        """How many requests have no final response after their execution."""
        return 0

    def counters(self) -> Mapping[str, object]:
        """Further counters for the model's statistics."""
        return {}

    def memory_elsewhere(self) -> int:
        """Bytes that the model uses in other processes."""
        return 0

    def gpu_memory(self) -> Mapping[int, int]:
        """Bytes that the model uses on each GPU, as far as its library knows."""
        return {}

    def process_restarts(self) -> int | None:
        """How often processes of its instances were restarted; None if it has none."""
        return None

    def close(self) -> None:
        """Free the model's memory. Called once, after all its executors are closed."""
        return


class Backend(ABC):
    """One runtime. To serve a model in another process, the backend is pickled: by its class."""

    name: str
    default_cpu_instances: int = 1  # the default of instance_group on a CPU
    uses_gpus: bool = True  # false: KIND_AUTO is the CPU, also on a machine with GPUs
    # Whether `complete`, `load` and `executor` may run while other models' Python code is imported
    # and initialised, for backends of other packages; see `backends.initialisation`.
    loads_in_parallel: bool = False
    # Whether its models are `TritonPythonModel`s: they decide themselves whether they run in
    # processes, and have the settings of `python`, too.
    runs_python_models: bool = False
    # Whether an instance keeps nothing from one execution to the next and reads only the model's
    # files, so that front-end processes may have instances of their own.
    stateless: bool = False
    code_folder: Path | None = None  # of a Python-based backend: its model.py, for all its models

    def why_not_on_gpus(self) -> str:
        """Why KIND_AUTO is the CPU on a machine with GPUs, and what to change; "" if it is not."""
        return ""

    def __reduce__(self) -> tuple[Callable[..., Backend], tuple[Any, ...]]:
        return type(self), ()

    @abstractmethod
    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """Complete the config from the model file. Only max_batch_size, input, output, the
        scheduling choice and the transaction policy may change. Raises ConfigError."""

    @abstractmethod
    def load(self, context: LoadContext) -> LoadedModel:
        """Load one version and check its config. Raises a ShoalError with a sentence for the
        operator; on failure nothing stays allocated."""
