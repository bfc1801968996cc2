"""The one entry point: every frontend calls these methods, and nothing else of the server.

    full request   --infer-------> engine --> validation --> the model's queue --> request.reply
    template hits  --infer_group-> engine -----------------> the model's queue --> request.reply

Methods return plain data in the protocol's terms (field names of KServe v2), so that HTTP and
gRPC only have to write it down. `index`, `load`, `unload` and `statistics` of all models block:
call them off the event loop.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import shoal
from shoal.config import codec
from shoal.core.pauses import Pauses
from shoal.core.planned import PlannedRequest
from shoal.core.readiness import Problem, Readiness
from shoal.core.request import DONE, Request
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import InvalidArgument, NotFound, ShoalError
from shoal.explanation import explained
from shoal.instance import device
from shoal.logs import Log
from shoal.models.served import ServedModel
from shoal.repository.repository import ModelRepository
from shoal.scheduler.batcher import BatcherClosed
from shoal.statistics.model import ModelStatistics
from shoal.statistics.trace_settings import Changes
from shoal.statistics.tracer import Tracer
from shoal.tasks.endpoint import EndpointClosed, TaskCall, TaskEndpoint

logger = logging.getLogger(__name__)

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


class Phase(enum.Enum):
    """The server's own life."""

    STARTING = "starting"
    READY = "ready"
    EXITING = "exiting"


# Why the server is not ready, by what it is doing.
_NOT_SERVING = {
    Phase.STARTING: Problem("the server is starting: its models are loading", public=True),
    Phase.EXITING: Problem("the server is shutting down: it will close its ports", public=True),
}


class Engine:
    """What the server can do, whatever the protocol."""

    def __init__(
        self,
        repository: ModelRepository,
        *,
        server_id: str = "triton",
        strict_readiness: bool = True,
        tracer: Tracer | None = None,
        log: Log | None = None,
    ) -> None:
        self._repository = repository
        self._server_id = server_id
        self._strict = strict_readiness
        self._phase = Phase.STARTING
        self._log = log or Log()
        self.tracer = tracer or Tracer()  # which requests are traced; used by the frontends

    # ---- inference

    def infer(self, request: Request) -> None:
        """Take the request over; its reply gets exactly one final response, from any thread.

        If this raises (a ShoalError), the request was refused and the caller answers it.
        """
        self._repository.infer(request)

    def infer_group(
        self, requests: Sequence[PlannedRequest], model: ServedModel
    ) -> Sequence[PlannedRequest]:
        """Take over requests made from one template of `model`, which need no validation.

        They are queued as a group, or one by one where the model needs that; those that are refused
        are answered together. Returns those it did not take because `model` no longer serves:
        `infer` checks them anew.
        """
        first = requests[0]
        if self._repository.serving(first.model_name, first.model_version) is not model:
            return requests
        taken = model.accept_group(requests)
        if taken == len(requests):
            return ()
        rest = requests[taken:]
        refusal = model.refusal(rest)
        if refusal is not None:
            template = first.template
            assert template is not None  # of all of them
            for request in rest:
                request.state = DONE
            template.replies.refuse_all(refusal, rest)
            return ()
        replaced: list[PlannedRequest] = []
        for request in rest:
            try:
                model.accept_checked(request)
            except BatcherClosed:  # it is being replaced at this moment
                replaced.append(request)
            except ShoalError as error:
                request.state = DONE
                request.fail(error)
        return replaced

    def check_room(self, name: str, version: int = -1) -> None:
        """Raise QueueRejected if a model would refuse any request now. Call it before a request
        is decoded that takes long; it is counted as one that was refused."""
        model = self._repository.serving(name, version)
        refusal = None if model is None else model.refusal()
        if refusal is not None:
            raise refusal.prefixed("[request id: <id_unknown>] ")

    # ---- health

    def started(self) -> None:
        """Start-up loads are over: readiness may be reported."""
        if self._phase is Phase.STARTING:
            self._phase = Phase.READY

    def begin_exit(self) -> None:
        """From now on the server reports that it is not ready; requests are still served."""
        self._phase = Phase.EXITING
        for model in self._repository.models():
            model.begin_exit()

    def exiting(self) -> bool:
        """Whether the server is on its way out."""
        return self._phase is Phase.EXITING

    def ready(self) -> bool:
        """Whether traffic should come here: started, and (if strict) every model is ready."""
        return not any(problem.blocks for problem in self._problems())

    def readiness(self) -> Readiness:
        """Whether traffic should come here, and every problem, including those that do not matter
        for that. Does not block and calls no model."""
        problems = tuple(self._problems())
        return Readiness(not any(problem.blocks for problem in problems), problems)

    def _problems(self) -> Iterator[Problem]:
        """What is wrong, with the server itself first."""
        if self._phase in _NOT_SERVING:
            yield _NOT_SERVING[self._phase]
        for problem in self._repository.problems():
            if problem.model and not self._strict:
                yield dataclasses.replace(problem, blocks=False)
            else:
                yield problem

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model (version) is ready. NotFound for names that were never loaded.

        Blocks where `asks_readiness`: call it off the event loop then.
        """
        return self._repository.model_ready(name, version)

    def asks_readiness(self, name: str, version: int = -1) -> bool:
        """Whether `model_ready` calls the model itself, which may take a while."""
        return self._repository.asks_readiness(name, version)

    def knows(self, name: str) -> bool:
        """Whether anybody has tried to load a model of that name, or in lazy mode could."""
        return self._repository.knows(name)

    # ---- what there is

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions."""
        return {
            "name": self._server_id,
            "version": shoal.__version__,
            "extensions": [name for name in EXTENSIONS if name != CUDA or device.gpus()],
        }

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """A model's inputs and outputs, shapes with the batch dimension in front."""
        model = self._repository.find(name, version)
        versions = self._repository.ready_versions(name) if version == -1 else [version]
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
        return codec.to_dict(self._repository.find(name, version).config)

    def signature(self, name: str, version: int = -1) -> Signature:
        """A model's tensors."""
        return self._repository.find(name, version).signature

    def find(self, name: str, version: int = -1) -> ServedModel:
        """The model that serves a name, for those who read what lies in its folder."""
        return self._repository.find(name, version)

    def newest_models(self) -> list[ServedModel]:
        """Every model that is loaded, each in the newest version that serves."""
        return list({model.name: model for model in self._repository.models()}.values())

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a model may send any number of responses."""
        return self._repository.find(name, version).decoupled

    def statistics(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Counters of one version, of a model's versions, or of all models.

        In addition to Triton's counters, `execution` is where a model runs and why. Those of all
        models take a while: call it on a thread, which pauses now and then.
        """
        if not name:
            pause = Pauses()
            found = []
            for model in self._repository.models():
                pause()
                found.append(_counted(model))
            return found
        first = self._repository.find(name, version)
        if version != -1:
            return [_counted(first)]
        return [_counted(model) for model in self._repository.models() if model.name == name]

    def explain(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Why batches are as they are, of one version (by default the newest) or of all models.

        See `shoal.scheduler.explain`. Raises as `statistics` for a model that does not serve.
        """
        models = [self._repository.find(name, version)] if name else self._repository.models()
        return [
            explained(model, self._repository.seen_from(model.spec.context.namespace).serving)
            for model in models
        ]

    def model_statistics(self) -> Iterator[ModelStatistics]:
        """The counters of every version that serves, for metrics."""
        return (model.statistics for model in self._repository.models())

    def in_flight(self) -> int:
        """Requests that were accepted and have no response yet."""
        return sum(model.in_flight() for model in self._repository.models())

    # ---- tasks

    def task(self, operation: str, name: str = "", version: int = -1) -> TaskCall:
        """Begin a call of a task: of the named model's, or of the only one with that operation.

        The caller must `leave` it. NotFound where no model offers the operation, InvalidArgument
        where the named one does not or where several do; raises as `signature` does, too.
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
        newest: dict[str, tuple[str, int, TaskEndpoint]] = {}
        for model in self._repository.models():
            known = newest.get(model.name)
            if model.task is not None and (known is None or known[1] < model.version):
                newest[model.name] = (model.name, model.version, model.task)
        return list(newest.values())

    def _task_endpoint(self, operation: str, name: str, version: int) -> TaskEndpoint:
        if name:
            endpoint = self._repository.find(name, version).task
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

    # ---- settings that change while the server runs

    def trace_settings(self, model: str = "") -> dict[str, list[str]]:
        """The trace settings of a model, or of all; InvalidArgument for one that does not serve."""
        self._check_traceable(model)
        return self.tracer.settings(model)

    def update_trace_settings(self, model: str, changes: Changes) -> None:
        """Change them; see `Tracer.update`. Raises as `trace_settings` does, too."""
        self._check_traceable(model)
        self.tracer.update(model, changes)

    def _check_traceable(self, model: str) -> None:
        known = self._repository.serving(model) or self._repository.loads_on_demand(model)
        if model and not known:
            raise InvalidArgument(f"Request for unknown model : {model}")

    def log_settings(self) -> dict[str, Any]:
        """What is logged and how, by the names of the logging API."""
        return dataclasses.asdict(self._log.settings)

    def update_log_settings(self, changes: Mapping[str, Any]) -> None:
        """Change some of them. The values have been checked."""
        self._log.update(**changes)

    # ---- model control (blocking)

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """Every model and version with its state."""
        return self._repository.index(ready_only=ready_only)

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model; see `ModelRepository.load`."""
        self._repository.load(name, config_json, files)

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model; see `ModelRepository.unload`."""
        self._repository.unload(name, unload_dependents=unload_dependents)


def _counted(model: ServedModel) -> dict[str, Any]:
    """A version's counters as Triton has them, where it runs and why, and those of its task."""
    execution = model.execution_placement.report()
    task = {} if model.task is None else {"task": model.task.statistics.snapshot()}
    return {**model.statistics.snapshot(), "execution": execution, **task, **model.counters()}


def _described(spec: TensorSpec, batch: tuple[int, ...]) -> dict[str, Any]:
    return {
        "name": spec.name,
        "datatype": spec.datatype.name,
        "shape": [*batch, *spec.dims],
    }
