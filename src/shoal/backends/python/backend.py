"""The backend of Python models: completes their configs and makes their instances.

complete    auto_complete_config, in a temporary process
load        reads how the instances run: thread, process, own Python environment

A Python-based backend is this one with a name and a model.py of its own, which serves all of its
models (decisions/0031):

    --backend-directory=backends    backends/vllm/model.py    class TritonPythonModel
    backend: "vllm"                 models/m/1/…              whatever that class reads
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shoal.backends.base import Backend, LoadContext, LoadedModel, Placement, RequestExecutor
from shoal.backends.python import completion
from shoal.backends.python.environment import Environment
from shoal.backends.python.loading import ModelSource
from shoal.backends.python.outgoing import Outputs
from shoal.backends.python.process.executor import ProcessExecutor
from shoal.backends.python.process.parent import PythonProcess
from shoal.backends.python.server_host import ServerHost
from shoal.backends.python.settings import AUTO, PROCESS, THREAD, PythonSettings, read
from shoal.backends.python.thread import ThreadExecutor
from shoal.config import codec
from shoal.config.backends import PYTHON, PYTHON_RUNTIME
from shoal.config.model import ModelConfig
from shoal.statistics.footprint import resident_bytes


class PythonBackend(Backend):
    """Serves `class TritonPythonModel`, of each model or of a Python-based backend."""

    name = PYTHON
    loads_in_parallel = True  # what must not is in `initialising`
    runs_python_models = True

    def __init__(self, name: str = PYTHON, code_folder: Path | None = None) -> None:
        """`code_folder` has the model.py of a Python-based backend."""
        self.name = name
        self.code_folder = code_folder

    def __reduce__(self) -> tuple[type[Backend], tuple[Any, ...]]:
        return type(self), (self.name, self.code_folder)

    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """Complete the config with the model's `auto_complete_config`, if it has one."""
        source = self._source(config, version_folder)
        chosen = read(config, model_folder, version_folder, settings, self.code_folder)
        return completion.complete(config, source, chosen)

    def load(self, context: LoadContext) -> LoadedModel:
        """Check the settings and prepare the Python environment; models start with instances."""
        source = self._source(context.config, context.version_folder)
        chosen = read(
            context.config,
            context.model_folder,
            context.version_folder,
            context.settings,
            self.code_folder,
        )
        environment = Environment.prepare(chosen) if chosen.brings_python else None
        return PythonModel(context, source, chosen, environment)

    def _source(self, config: ModelConfig, version_folder: Path) -> ModelSource:
        if self.code_folder is not None:
            return ModelSource(self.code_folder / PYTHON_RUNTIME, version_folder)
        file = version_folder / (config.default_model_filename or "model.py")
        return ModelSource(file, file.parent)


class PythonModel(LoadedModel):
    """One version of a Python model."""

    def __init__(
        self,
        context: LoadContext,
        source: ModelSource,
        chosen: PythonSettings,
        environment: Environment | None,
    ) -> None:
        self._context = context
        self._source = source
        self._settings = chosen
        self._environment = environment
        self._outputs = Outputs(context.config)
        self._server = ServerHost(context.models, context.metrics)
        self._config = json.dumps(codec.to_dict(context.config))
        policy = context.config.model_transaction_policy
        self._decoupled = policy is not None and policy.decoupled
        self._lock = threading.Lock()  # guards _executors
        self._executors: list[ThreadExecutor | ProcessExecutor] = []
        self._closed_restarts: int | None = None  # of processes that are closed
        self.asks_readiness = False

    def executor(self, placement: Placement) -> RequestExecutor:
        """An instance, on a thread of this process or in its own process."""
        if self._mode() == THREAD:
            made: ThreadExecutor | ProcessExecutor = ThreadExecutor(
                self._source,
                self._arguments(placement),
                self._server,
                self._outputs,
                decoupled=self._decoupled,
            )
        else:
            made = ProcessExecutor(
                self._source,
                self._arguments(placement),
                self._server,
                self._outputs,
                decoupled=self._decoupled,
                environment=self._environment,
                start_secs=self._settings.start_secs,
            )
            if self._context.config.sequence_batching is None:  # else requests belong to one
                made.supervisor.stand_in = partial(self._stand_in, made)
        made.on_close = self._closed
        with self._lock:
            self._executors.append(made)
            self._note_readiness()
        return made

    def _mode(self) -> str:
        if self._settings.execution != AUTO:
            return self._settings.execution
        alone = len(self._context.placements) <= 1 and not self._executors
        return THREAD if alone else PROCESS

    def _arguments(self, placement: Placement) -> dict[str, str]:
        """The arguments of `initialize`, all of them strings."""
        return {
            "model_config": self._config,
            "model_instance_kind": placement.kind.removeprefix("KIND_"),
            "model_instance_name": placement.name,
            "model_instance_device_id": str(placement.device_id),
            "model_repository": str(self._context.model_folder),
            "model_version": str(self._context.version),
            "model_name": self._context.config.name,
        }

    def _stand_in(self, absent: ProcessExecutor) -> PythonProcess | None:
        """The process of another instance, to stand in for one without a process."""
        with self._lock:
            executors = list(self._executors)
        for other in executors:
            if isinstance(other, ProcessExecutor) and other.device == absent.device:
                serving = other.serving
                if serving is not None:
                    return serving
        return None

    def ready(self) -> bool:
        """Whether an instance runs and `is_ready` of all running ones, if any, returns true."""
        with self._lock:
            executors = list(self._executors)
        running = [one for one in executors if isinstance(one, ThreadExecutor) or one.serving]
        return bool(running) and all(executor.ready() for executor in running)

    def owed(self) -> int:
        """Requests whose responses follow later."""
        with self._lock:
            executors = list(self._executors)
        return sum(executor.owed() for executor in executors)

    def memory_elsewhere(self) -> int:
        """The memory of the instances' processes."""
        with self._lock:
            executors = list(self._executors)
        pids = [made.pid for made in executors if isinstance(made, ProcessExecutor)]
        return sum(resident_bytes(pid) for pid in pids if pid is not None)

    def process_restarts(self) -> int | None:
        """Restarts of the instances' processes; None if no instance has had one."""
        with self._lock:
            return self._count_restarts(self._executors)

    def _count_restarts(self, executors: Sequence[ThreadExecutor | ProcessExecutor]) -> int | None:
        counts = [one.restarts for one in executors if isinstance(one, ProcessExecutor)]
        if not counts:
            return self._closed_restarts
        return sum(counts) + (self._closed_restarts or 0)

    def _closed(self, executor: ThreadExecutor | ProcessExecutor) -> None:
        with self._lock:
            if executor in self._executors:
                self._closed_restarts = self._count_restarts([executor])
                self._executors.remove(executor)
            self._note_readiness()

    def _note_readiness(self) -> None:
        self.asks_readiness = any(executor.asks_readiness for executor in self._executors)
