"""The engine whose repository, models and queues are in this process."""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.interface import FunctionRoute
from shoal.core.model_loading import ModelLoading
from shoal.core.pauses import Pauses
from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.readiness import Problem, Readiness
from shoal.core.request import Request
from shoal.core.tensor import Buffer
from shoal.engine.contract import Engine, EngineModel, described_server
from shoal.engine.start_up import StartPending, StartUp
from shoal.errors import InvalidArgument, ShoalError, Unavailable
from shoal.explanation import explained
from shoal.instance import device
from shoal.logs import Log
from shoal.models.served import ServedModel
from shoal.repository.repository import ModelRepository
from shoal.statistics.model import ModelStatistics
from shoal.statistics.trace_settings import Changes
from shoal.statistics.tracer import Tracer

logger = logging.getLogger(__name__)


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


class LocalEngine(Engine):
    """The engine of a server that is one process, and of the engine process of others."""

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
        self._start_up = StartUp()
        self._log = log or Log()
        self.tracer: Tracer = tracer or Tracer()

    # ---- inference

    def infer(self, request: Request) -> None:
        """See `Engine`."""
        self._repository.infer(request)

    def infer_group(
        self, requests: Sequence[PlannedRequest], model: ServedModel
    ) -> Sequence[PlannedRequest]:
        """See `Engine`."""
        first = requests[0]
        if self._repository.serving(first.model_name, first.model_version) is not model:
            return requests
        taken = model.accept_group(requests)
        return () if taken == len(requests) else model.accept_rest(requests[taken:])

    def run_block(
        self,
        model: ServedModel,
        template: RequestTemplate,
        columns: Sequence[Buffer],
        started: list[int],
    ) -> PlannedResponses | None:
        """Run requests of one template of `model` at once, without an object for each; see
        `ServedModel.run_block`. None, with nothing done, where they have to be queued."""
        if self._repository.serving(template.model_name, template.model_version) is not model:
            return None
        return model.run_block(template, columns, started)

    def check_room(self, name: str, version: int = -1) -> None:
        """See `Engine`."""
        model = self._repository.serving(name, version)
        if model is not None:
            model.check_room()

    # ---- health

    def started(self) -> None:
        """Start-up loads are over: readiness may be reported."""
        if self._phase is Phase.STARTING:
            self._phase = Phase.READY
        self._start_up.end()

    def begin_exit(self) -> None:
        """From now on the server reports that it is not ready; requests are still served."""
        self._phase = Phase.EXITING
        self._start_up.end(Unavailable("Server exiting"))
        for model in self._repository.models():
            model.begin_exit()

    def exiting(self) -> bool:
        """See `Engine`."""
        return self._phase is Phase.EXITING

    def ready(self) -> bool:
        """See `Engine`."""
        return not any(problem.blocks for problem in self._problems())

    def readiness(self) -> Readiness:
        """See `Engine`."""
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
        """See `Engine`."""
        return self._repository.model_ready(name, version)

    def asks_readiness(self, name: str, version: int = -1) -> bool:
        """See `Engine`."""
        return self._repository.asks_readiness(name, version)

    # ---- what there is

    def server_metadata(self) -> dict[str, Any]:
        """See `Engine`."""
        return described_server(self._server_id, has_gpus=bool(device.gpus()))

    def find(self, name: str, version: int = -1) -> ServedModel:
        """See `Engine`."""
        try:
            return self._repository.find(name, version)
        except ModelLoading:
            raise
        except ShoalError:
            if self._phase is Phase.STARTING:
                raise StartPending(self._start_up) from None
            raise

    def newest_models(self) -> list[EngineModel]:
        """See `Engine`."""
        return list({model.name: model for model in self._repository.models()}.values())

    def routes(self) -> Sequence[FunctionRoute]:
        """See `Engine`."""
        return self._repository.routes()

    def ready_versions(self, name: str) -> list[int]:
        """See `Engine`."""
        return self._repository.ready_versions(name)

    def _task_models(self) -> Iterator[EngineModel]:
        newest: dict[str, ServedModel] = {}
        for model in self._repository.models():
            known = newest.get(model.name)
            if model.task is not None and (known is None or known.version < model.version):
                newest[model.name] = model
        return iter(newest.values())

    def models_with_tasks(self) -> list[ServedModel]:
        """All versions that serve and have a task."""
        return [model for model in self._repository.models() if model.task is not None]

    def statistics(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """See `Engine`."""
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
        """See `Engine`."""
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

    # ---- settings that change while the server runs

    def trace_settings(self, model: str = "") -> dict[str, list[str]]:
        """See `Engine`."""
        self._check_traceable(model)
        return self.tracer.settings(model)

    def update_trace_settings(self, model: str, changes: Changes) -> None:
        """See `Engine`."""
        self._check_traceable(model)
        self.tracer.update(model, changes)

    def record_traces(self, model: str, count: int) -> None:
        """See `Engine`."""
        self._check_traceable(model)
        self.tracer.record(model, count)

    def recorded_traces(self, model: str) -> dict[str, Any]:
        """See `Engine`."""
        self._check_traceable(model)
        return self.tracer.recorded(model)

    def _check_traceable(self, model: str) -> None:
        known = self._repository.serving(model) or self._repository.loads_on_demand(model)
        if model and not known:
            raise InvalidArgument(f"Request for unknown model : {model}")

    def log_settings(self) -> dict[str, Any]:
        """See `Engine`."""
        return dataclasses.asdict(self._log.settings)

    def update_log_settings(self, changes: Mapping[str, Any]) -> None:
        """See `Engine`."""
        self._log.update(**changes)

    # ---- model control (blocking)

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """See `Engine`."""
        return self._repository.index(ready_only=ready_only)

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """See `Engine`."""
        self._repository.load(name, config_json, files)

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """See `Engine`."""
        self._repository.unload(name, unload_dependents=unload_dependents)

    def register_repository(self, path: Path, names: Mapping[str, str]) -> None:
        """Add a model repository; see `ModelRepository.register`."""
        self._repository.register(path, names)

    def unregister_repository(self, path: Path, *, wait_secs: float = 0.0) -> bool:
        """Remove a model repository; see `ModelRepository.unregister`."""
        return self._repository.unregister(path, wait_secs=wait_secs)

    def poll_repositories(self) -> None:
        """Load what has changed; see `ModelRepository.poll`."""
        self._repository.poll()


def _counted(model: ServedModel) -> dict[str, Any]:
    """A version's counters as Triton has them, where it runs and why, and those of its task."""
    execution = model.execution_report()
    task = {} if model.task is None else {"task": model.task.statistics.snapshot()}
    return {**model.statistics.snapshot(), "execution": execution, **task, **model.counters()}
