"""What a frontend may ask of the engine: every frontend calls these methods, and nothing else.

    full request   --infer-------> engine --> validation --> the model's queue --> request.reply
    template hits  --infer_group-> engine -----------------> the model's queue --> request.reply

Methods return plain data in the protocol's terms (field names of KServe v2), so that HTTP and
gRPC only have to write it down. Those that look up a model raise ModelLoading while something has
to be fetched first: callers wait for it and ask again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import shoal
from shoal.config import codec
from shoal.config.model import ModelConfig
from shoal.core.interface import FunctionInterface, FunctionRoute
from shoal.core.planned import PlannedRequest
from shoal.core.readiness import Readiness
from shoal.core.request import Request
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import InvalidArgument, NotFound
from shoal.statistics.trace_settings import Changes
from shoal.statistics.tracer import RequestTracer
from shoal.tasks.endpoint import EndpointClosed, TaskCall, TaskEndpoint

CUDA = "cuda_shared_memory"  # where there is a GPU

# What this server does, in the order Triton lists it; clients read this before they use it.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    CUDA,
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class EngineModel(Protocol):
    """One version of a model that serves, as frontends see it."""

    name: str
    version: int
    config: ModelConfig
    signature: Signature
    task: TaskEndpoint | None
    interface: FunctionInterface | None  # of a function

    @property
    def decoupled(self) -> bool:
        """Whether it may send any number of responses to a request."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """Its folder, and that of the version if it has one."""

    @property
    def loaded_ms(self) -> int:
        """When it was loaded, in milliseconds since the epoch."""


class Engine(ABC):
    """What the server can do, whatever the protocol."""

    tracer: RequestTracer  # which requests are traced; used by the frontends

    # ---- inference

    @abstractmethod
    def infer(self, request: Request) -> None:
        """Take the request over; its reply gets exactly one final response, from any thread.

        If this raises (a ShoalError), the request was refused and the caller answers it.
        """

    @abstractmethod
    def infer_group(
        self, requests: Sequence[PlannedRequest], model: Any
    ) -> Sequence[PlannedRequest]:
        """Take over requests made from one template of `model`, which need no validation.

        They are queued as a group, or one by one where the model needs that; those that are refused
        are answered together. Returns those it did not take because `model` no longer serves:
        `infer` checks them anew.
        """

    def client_has_read(self, request: Request, count: int) -> None:
        """A client has read `count` bytes of the responses to `request`, whose model waits for
        slow clients. On the event loop's thread."""
        request.client_has_read(count)

    @abstractmethod
    def check_room(self, name: str, version: int = -1) -> None:
        """Raise QueueRejected if a model would refuse any request now. Call it before a request
        is decoded that takes long; it is counted as one that was refused."""

    # ---- health

    @property
    def asks_process(self) -> bool:
        """Whether `ready`, `readiness` and `model_ready` ask another process, so that they must be
        called off the event loop."""
        return False

    @abstractmethod
    def exiting(self) -> bool:
        """Whether the server is on its way out."""

    def ready(self) -> bool:
        """Whether traffic should come here: started, and (if strict) every model is ready."""
        return self.readiness().ready

    @abstractmethod
    def readiness(self) -> Readiness:
        """Whether traffic should come here, and every problem, including those that do not matter
        for that. Calls no model."""

    @abstractmethod
    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model (version) is ready. NotFound for names that were never loaded.

        Blocks where `asks_readiness`: call it off the event loop then.
        """

    @abstractmethod
    def asks_readiness(self, name: str, version: int = -1) -> bool:
        """Whether `model_ready` calls the model or another process: it may take a while."""

    # ---- what there is

    @abstractmethod
    def find(self, name: str, version: int = -1) -> EngineModel:
        """The model that serves a name, in its newest version unless one is named.

        Raises NotFound, Unavailable or InvalidArgument; ModelLoading if that is not known yet.
        """

    @abstractmethod
    def newest_models(self) -> list[EngineModel]:
        """Every model that is loaded, each in the newest version that serves. ModelLoading if that
        is not known yet."""

    @abstractmethod
    def ready_versions(self, name: str) -> list[int]:
        """The versions of a model that serve, ascending."""

    @abstractmethod
    def routes(self) -> Sequence[FunctionRoute]:
        """The routes of functions that serve, or that their first request loads; the same object
        until they change. ModelLoading if they are not known yet."""

    @abstractmethod
    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions."""

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """A model's inputs and outputs, shapes with the batch dimension in front."""
        model = self.find(name, version)
        versions = self.ready_versions(name) if version == -1 else [version]
        batch = (-1,) if model.config.max_batch_size > 0 else ()
        return {
            "name": name,
            "versions": [str(number) for number in versions],
            "platform": model.config.platform or model.config.backend,
            "inputs": [_described(spec, batch) for spec in model.signature.inputs.values()],
            "outputs": [_described(spec, batch) for spec in model.signature.outputs.values()],
        }

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        """The config a model runs with: completed and with every default written out."""
        return codec.to_dict(self.find(name, version).config)

    def signature(self, name: str, version: int = -1) -> Signature:
        """A model's tensors."""
        return self.find(name, version).signature

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a model may send any number of responses."""
        return self.find(name, version).decoupled

    # ---- tasks

    def task(self, operation: str, name: str = "", version: int = -1) -> TaskCall:
        """Begin a call of a task: of the named model's, or of the only one with that operation.

        The caller must `leave` it. NotFound where no model offers the operation, InvalidArgument
        where the named one does not or where several do; raises as `find` does, too.
        """
        while True:
            endpoint = self._task_endpoint(operation, name, version)
            try:
                return endpoint.enter()
            except EndpointClosed:  # replaced between looking it up and entering: ask again
                if self._task_endpoint(operation, name, version) is endpoint:
                    raise

    def tasks(self) -> list[tuple[str, int, TaskEndpoint]]:
        """Every model that has a task: its name, newest serving version, and the task."""
        return [
            (model.name, model.version, model.task)
            for model in self._task_models()
            if model.task is not None
        ]

    @abstractmethod
    def _task_models(self) -> Iterable[EngineModel]:
        """The models that have a task, each in its newest version that has one; may have others."""

    def _task_endpoint(self, operation: str, name: str, version: int) -> TaskEndpoint:
        if name:
            endpoint = self.find(name, version).task
            if endpoint is None or endpoint.operation != operation:
                offered = (
                    "names no task in its config"
                    if endpoint is None
                    else f"has the task '{endpoint.name}', which offers '{endpoint.operation}'"
                )
                raise InvalidArgument(f"model '{name}' does not offer '{operation}': it {offered}")
            return endpoint
        found = [entry for entry in self.tasks() if entry[2].operation == operation]
        if not found:
            raise NotFound(
                f"no loaded model offers '{operation}': load one whose config names such a task"
            )
        if len(found) > 1:
            names = ", ".join(sorted(entry[0] for entry in found))
            raise InvalidArgument(
                f"several models offer '{operation}' ({names}): say which one with "
                f"/v2/models/NAME/{operation}"
            )
        return found[0][2]

    # ---- what follows may block: call it off the event loop

    @abstractmethod
    def statistics(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Counters of one version, of a model's versions, or of all models.

        In addition to Triton's counters, `execution` is where a model runs and why.
        """

    @abstractmethod
    def explain(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Why batches are as they are, of one version (by default the newest) or of all models.

        See `shoal.scheduler.explain`. Raises as `statistics` for a model that does not serve.
        """

    @abstractmethod
    def trace_settings(self, model: str = "") -> dict[str, list[str]]:
        """The trace settings of a model, or of all; InvalidArgument for one that does not serve."""

    @abstractmethod
    def update_trace_settings(self, model: str, changes: Changes) -> None:
        """Change them; see `Tracer.update`. Raises as `trace_settings` does, too."""

    @abstractmethod
    def record_traces(self, model: str, count: int) -> None:
        """Keep traces of a model's next `count` requests in memory; see `TraceRecording.start`.

        Raises as `trace_settings` does, too.
        """

    @abstractmethod
    def recorded_traces(self, model: str) -> dict[str, Any]:
        """Those that were kept, and how many are to come; see `TraceRecording.document`."""

    @abstractmethod
    def log_settings(self) -> dict[str, Any]:
        """What is logged and how, by the names of the logging API."""

    @abstractmethod
    def update_log_settings(self, changes: Mapping[str, Any]) -> None:
        """Change some of them. The values have been checked."""

    @abstractmethod
    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """Every model and version with its state."""

    @abstractmethod
    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model; see `ModelRepository.load`."""

    @abstractmethod
    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model; see `ModelRepository.unload`."""

    @abstractmethod
    def register_repository(self, path: Path, names: Mapping[str, str]) -> None:
        """Add a model repository; see `ModelRepository.register`."""

    @abstractmethod
    def unregister_repository(self, path: Path, *, wait_secs: float = 0.0) -> bool:
        """Remove a model repository; see `ModelRepository.unregister`."""


def described_server(server_id: str, *, has_gpus: bool) -> dict[str, Any]:
    """Name, version and extensions of a server."""
    return {
        "name": server_id,
        "version": shoal.__version__,
        "extensions": [name for name in EXTENSIONS if name != CUDA or has_gpus],
    }


def _described(spec: TensorSpec, batch: tuple[int, ...]) -> dict[str, Any]:
    return {
        "name": spec.name,
        "datatype": spec.datatype.name,
        "shape": [*batch, *spec.dims],
    }
