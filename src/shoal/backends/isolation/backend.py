"""A backend whose models run in processes of their own, one for each instance."""

from __future__ import annotations

import dataclasses
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from shoal.backends.base import (
    Backend,
    Executor,
    LoadContext,
    LoadedModel,
    Placement,
    RequestExecutor,
)
from shoal.backends.isolation.executors import (
    DirectTensorExecutor,
    IsolatedExecutor,
    IsolatedPhotoExecutor,
    IsolatedRequestExecutor,
)
from shoal.backends.isolation.process import CHILD, IsolatedProcess
from shoal.backends.model_process import DirectExecutor
from shoal.config import codec
from shoal.config.model import ModelConfig
from shoal.config.parameters import Parameters
from shoal.errors import ConfigError, Internal
from shoal.link import failure
from shoal.link.process import ChildProcess
from shoal.link.supervisor import Supervisor
from shoal.statistics.footprint import resident_bytes

if TYPE_CHECKING:
    from shoal.tasks.images.plan import PhotoPlan

PARAMETER, NONE, PROCESS = "isolation", "none", "process"
WarmUp: TypeAlias = Callable[[Executor | RequestExecutor], None]
# The fields that a backend may set.
_COMPLETED = (
    *("max_batch_size", "input", "output", "dynamic_batching", "sequence_batching"),
    *("ensemble_scheduling", "model_transaction_policy", "instance_group"),
)


def with_isolation(
    backend: Backend | None, config: ModelConfig, default: str, file: str
) -> Backend | None:
    """The backend of a model, isolated if its config says so, or does not say and the server's
    `default` does. ConfigError for a wrong value."""
    written = Parameters("", config, {}, file).text(PARAMETER)
    if backend is None and written == PROCESS:
        raise ConfigError(
            "an ensemble has no instances that could run in a process",
            file=file,
            field=f"parameters['{PARAMETER}']",
            fix="Write it in the configs of the models that the ensemble runs",
        )
    # Python models have processes of another kind.
    if backend is None or backend.runs_python_models or (written or default) != PROCESS:
        return backend
    return IsolatedBackend(backend)


class IsolatedBackend(Backend):
    """Another backend, in processes of its own."""

    default_cpu_instances = 1  # each has its own copy of the model
    loads_in_parallel = True  # in processes

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        self.uses_gpus = backend.uses_gpus
        self._backend = backend

    def why_not_on_gpus(self) -> str:
        """As the backend itself."""
        return self._backend.why_not_on_gpus()

    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """Complete the config in a temporary process, because this reads the model file, too."""
        content = pickle.dumps((self._backend, config, model_folder, version_folder, settings))
        process = ChildProcess(CHILD, f"model '{config.name}'")
        kind, (answer,) = process.ask("complete", sys.path, content)
        if kind != "completed":
            raise failure.unpack(answer)
        completed = codec.parse_json(answer, f"the completed config of model '{config.name}'")
        return dataclasses.replace(
            config, **{name: getattr(completed, name) for name in _COMPLETED}
        )

    def load(self, context: LoadContext) -> LoadedModel:
        """Load one version in the process of its first instance. Raises what the backend raises."""
        return IsolatedModel(self._backend, context)


class _Instances:
    """A supervised process, and its instances: several, where the model is reentrant, or those of
    a group that have the same GPU."""

    def __init__(self, placement: Placement, supervisor: Supervisor[IsolatedProcess]) -> None:
        self.placement = placement
        self.supervisor = supervisor
        self.count = 0
        self.warm_up: Callable[[], WarmUp | None] = lambda: None


class IsolatedModel(LoadedModel):
    """One version of a model. Each instance has a process, in which the model is loaded; on a GPU,
    those of a group share one, so that they share the weights, too."""

    def __init__(self, backend: Backend, context: LoadContext) -> None:
        self._backend = backend
        self._context = context
        self._lock = threading.Lock()  # guards what follows
        self._instances: list[_Instances] = []
        self._closed_restarts = 0
        self._photo_plan: PhotoPlan | None = None
        first = next(iter(context.placements), Placement("KIND_CPU"))
        self._spare: IsolatedProcess | None = IsolatedProcess(backend, context, first)
        self._one_process = self._spare.reentrant
        self.axis_names = self._spare.axis_names
        self.interface = self._spare.interface

    def executor(self, placement: Placement) -> Executor | RequestExecutor:
        """Start the process of an instance; after a crash it is restarted."""
        with self._lock:
            found = next((one for one in self._instances if self._is_home(one, placement)), None)
            if found is not None:
                found.count += 1
        shared = found is not None
        if found is None:
            found = self._start(placement)
        name, supervisor = self._context.config.name, found.supervisor
        process = supervisor.running()
        try:
            if process is None:
                ending = supervisor.last_ending
                raise Internal(f"the process of model '{name}' ended: {ending}")
            if shared and not self._one_process:
                process.make_instance()
        except BaseException:
            self._closed(supervisor)
            raise
        release = (name, supervisor, self._closed, lambda: found.count > 1)
        made: IsolatedExecutor | IsolatedRequestExecutor
        if process.takes_requests:
            made = IsolatedRequestExecutor(*release)
            made.answers_later = process.answers_later
        elif self._photo_plan is not None:
            made = IsolatedPhotoExecutor(*release)
        else:
            made = IsolatedExecutor(*release)
        found.warm_up = lambda: made.warm_up
        return made

    def classify_photos(self, plan: PhotoPlan) -> bool:
        """See `LoadedModel`."""
        if self._spare is None or not self._spare.classify_photos(plan):
            return False
        self._photo_plan = plan
        return True

    def _is_home(self, instances: _Instances, placement: Placement) -> bool:
        """Whether an instance belongs into the process of others. The lock is held."""
        if self._one_process:
            return True
        process = instances.supervisor.process
        takes_requests = process is None or process.takes_requests
        return _home(instances.placement) == _home(placement) is not None and not takes_requests

    def _start(self, placement: Placement) -> _Instances:
        """A process with an instance."""
        instances: _Instances

        def start() -> IsolatedProcess:
            process = self._take_spare(placement)
            if process is None:
                process = IsolatedProcess(self._backend, self._context, placement)
                if self._photo_plan is not None:
                    process.classify_photos(self._photo_plan)
            for _ in range(1 if self._one_process else max(1, instances.count)):
                process.make_instance()
            warm_up = instances.warm_up()
            if warm_up is not None:  # it is a restart
                direct = DirectExecutor if process.takes_requests else DirectTensorExecutor
                process.use_or_end(lambda: warm_up(direct(process)))
            process.supervisor = instances.supervisor
            return process

        name = f"model '{self._context.config.name}' (instance '{placement.name}')"
        instances = _Instances(placement, Supervisor(name, start))
        instances.supervisor.start()
        if self._context.config.sequence_batching is None:  # else requests belong to one
            instances.supervisor.stand_in = lambda: self._stand_in(placement)
        instances.count = 1
        with self._lock:
            self._instances.append(instances)
        return instances

    def _take_spare(self, placement: Placement) -> IsolatedProcess | None:
        """The process that loading has started, if it suits an instance at `placement`."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None or _device(spare.placement) == _device(placement):
            return spare
        spare.end()
        return None

    def _stand_in(self, placement: Placement) -> IsolatedProcess | None:
        """The process of another instance on the same device, else on another one of its kind."""
        with self._lock:
            others = [each for each in self._instances if each.placement.kind == placement.kind]
        others.sort(key=lambda each: each.placement.device_id != placement.device_id)
        for each in others:
            process = each.supervisor.process
            if process is not None:
                return process
        return None

    def _closed(self, supervisor: Supervisor[IsolatedProcess]) -> bool:
        """An instance ends; returns whether it was the last one of its process."""
        with self._lock:
            (found,) = [each for each in self._instances if each.supervisor is supervisor]
            found.count -= 1
            if not found.count:
                self._instances.remove(found)
                self._closed_restarts += supervisor.restarts
            return not found.count

    def _processes(self) -> list[IsolatedProcess]:
        with self._lock:
            supervisors = [each.supervisor for each in self._instances]
        return [process for each in supervisors if (process := each.process) is not None]

    def ready(self) -> bool:
        """Whether a process runs."""
        return bool(self._processes())

    def owed(self) -> int:
        """Requests without a final response, after their execution or during it."""
        return sum(process.owed() for process in self._processes())

    def counters(self) -> Mapping[str, object]:
        """The counters of all processes that run, since their starts."""
        total: dict[str, Any] = {}
        for process in self._processes():
            total = _sum(total, process.counters)
        return total

    def memory_elsewhere(self) -> int:
        """The memory of the processes."""
        return sum(resident_bytes(process.pid) for process in self._processes())

    def process_restarts(self) -> int:
        """Restarts of all processes."""
        with self._lock:
            restarts = sum(each.supervisor.restarts for each in self._instances)
            return restarts + self._closed_restarts

    def close(self) -> None:
        """End the process that has no instance, if there is one."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.end()


def _device(placement: Placement) -> tuple[str, int]:
    return placement.kind, placement.device_id


def _home(placement: Placement) -> tuple[str, int] | None:
    """The group and the GPU of an instance on one: such instances are alike."""
    if placement.kind != "KIND_GPU":
        return None
    return placement.name.rpartition("_")[0], placement.device_id


def _sum(first: Any, second: Any) -> Any:
    """Two counters together: numbers are added, tables of batch sizes joined."""
    if isinstance(second, dict):
        left = first if isinstance(first, dict) else {}
        return {**left, **{key: _sum(left.get(key), value) for key, value in second.items()}}
    if isinstance(second, list) and all(isinstance(row, dict) for row in second):
        rows: dict[int, int] = {}
        for row in [*(first or ()), *second]:
            rows[row["batch_size"]] = rows.get(row["batch_size"], 0) + row["count"]
        return [{"batch_size": size, "count": rows[size]} for size in sorted(rows)]
    if isinstance(second, (int, float)) and isinstance(first, (int, float)):
        return first + second
    return second
