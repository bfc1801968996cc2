"""Lazy mode: models are loaded at their first request, and evicted when memory is short.

    first request --> others are evicted, the model loads --> served --> least recently used: gone

`OnDemand` loads models, `MemoryBudget` decides which are evicted; here they are connected to the
repository.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from shoal.errors import ShoalError
from shoal.repository import layout
from shoal.repository.budget import MemoryBudget, ResidentModel, format_bytes
from shoal.repository.lifecycle import UNLOADED, ModelLifecycle, VersionState, VersionStatus
from shoal.repository.loader import ModelLoader, RepositorySettings
from shoal.repository.namespaces import namespace_of, plain_name
from shoal.repository.on_demand import LOADS_AGAIN, OnDemand
from shoal.statistics.custom import COUNTER, GAUGE, CustomFamily, CustomMetric, CustomMetrics
from shoal.statistics.footprint import file_bytes

EVICTED = f"{UNLOADED} to make room within --model-memory-budget"
_UNUSED_SECS = 10.0  # for which a model is kept that was loaded and not used yet
_TRIES = 2


class LazyModels:
    """The models of one server that load on demand. Any thread may call any method."""

    def __init__(self, settings: RepositorySettings, loader: ModelLoader) -> None:
        self._paths = settings.paths
        self._poll_secs = settings.poll_secs
        self._namespaced = settings.namespacing
        self._loader = loader
        self._metrics = _Metrics(settings.preparation.metrics or CustomMetrics())
        self._loads = OnDemand(
            self._load,
            self._serves,
            threads=settings.load_threads,
            waiting=lambda key, count: _of(self._metrics.waiting, key).set(count),
        )
        self._budget: MemoryBudget | None = None
        if settings.memory_budget_bytes:
            limit = settings.memory_budget_bytes
            self._budget = MemoryBudget(limit, self._residents, self._evict)
        self._sizes: dict[str, int] = {}  # memory of models when they were loaded last

    # ---- start and stop

    def start(self, keys: Iterable[str]) -> None:
        """Register the models of the repositories, and enforce the budget."""
        for key in keys:
            self._loader.know(key)
        if self._budget is not None:
            self._metrics.budget.metric({}, None).set(self._budget.limit_bytes)
            self._budget.start()

    def stop(self) -> None:
        """Load and evict no more. Blocks until loads and evictions in progress have ended."""
        self._loads.close()
        if self._budget is not None:
            self._budget.stop()

    # ---- models

    def has(self, name: str) -> bool:
        """Whether there is a folder for a model called `name`; reads no other folder."""
        if layout.folders_named(self._paths, name) or self._loader.folders.remote_models(name):
            return True
        self._loader.folders.refresh_later(self._poll_secs)
        return False

    def discover(self, name: str) -> None:
        """Register the models called `name`, which were added after the start."""
        for folder in layout.folders_named(self._paths, name):
            self._loader.know(folder.as_posix() if self._namespaced else name)
        for key in self._loader.folders.remote_models(name):
            self._loader.know(key)

    def absent(self, lifecycle: ModelLifecycle) -> ShoalError:
        """The error for a model that does not serve: ModelLoading, or why its last load failed."""
        return self._loads.absent(lifecycle.name)

    def would_serve(self, lifecycle: ModelLifecycle, version: int) -> bool:
        """Whether a request for a model that is not loaded could succeed."""
        if self._loads.has_failed(lifecycle.name):
            return False
        found = self._loader.found().get(
            lifecycle.name, []
        )  # folders, or files that declare models
        return any(version == -1 or self._has_version(path, version) for path in found)

    def waiting(self) -> list[tuple[Mapping[str, str], int]]:
        """How many requests wait for models to be loaded, after the labels of their metrics: the
        version is the newest, which is most likely served."""
        return [(self._labels(key), count) for key, count in self._loads.waiting().items()]

    def _labels(self, key: str) -> dict[str, str]:
        namespace = namespace_of(key)
        return {
            "model": plain_name(key),
            "version": str(max(self._versions(self._folder(key)), default=1)),
            **({"namespace": namespace} if namespace else {}),
        }

    def _folder(self, key: str) -> Path | None:
        """The folder of a model; None if it is declared in a file."""
        for folder in layout.folders_named(self._paths, plain_name(key)):
            if not self._namespaced or folder.as_posix() == key:
                return folder
        return self._loader.folders.remote_models(plain_name(key)).get(key)

    def _versions(self, folder: Path | None) -> Collection[int]:
        if folder is None:
            return ()
        remote = self._loader.folders.remote(folder)
        return layout.version_folders(folder) if remote is None else remote.versions(folder)

    def _has_version(self, path: Path, version: int) -> bool:
        remote = self._loader.folders.remote(path)
        if remote is not None:
            return version in remote.versions(path)
        return (path / str(version)).is_dir() or (path.is_file() and version == 1)

    def reason(self, lifecycle: ModelLifecycle, version: int, status: VersionStatus) -> str:
        """The reason that the index shows with the state of a version."""
        if status.state is VersionState.UNAVAILABLE and status.on_purpose:
            return f"{status.reason}; {LOADS_AGAIN}"
        model = lifecycle.serving.get(version)
        if status.state is VersionState.READY and model is not None and not status.reason:
            held = model.memory_bytes()
            return f"holds about {format_bytes(held)}" if held else ""
        return status.reason

    # ---- loads

    def loaded_by_name(self, key: str) -> None:
        """A client has loaded or unloaded a model by name."""
        self._loads.forget_failure(key)
        if self._budget is not None:
            self._budget.loads_changed()

    def _serves(self, key: str) -> bool:
        lifecycle = self._loader.lifecycles.get(key)
        return lifecycle is not None and lifecycle.newest is not None

    def _load(self, key: str) -> None:
        """Load a model for a request that waits. Blocks; raises as `ModelLoader.load`."""
        _of(self._metrics.loads, key).increment(1)
        for tries_left in reversed(range(_TRIES)):
            evictions = self._make_room(key)
            try:
                self._loader.folders.refresh(self._poll_secs)
                self._loader.load_again(key)
            except ShoalError:
                # A model that this one runs may have been evicted at this moment.
                if not tries_left or self._evictions() == evictions:
                    raise
            else:
                break
        lifecycle = self._loader.lifecycles[key]
        self._sizes[key] = sum(model.memory_bytes() for model in lifecycle.serving.values())
        if self._budget is not None:
            self._budget.loads_changed()

    # ---- memory

    def _make_room(self, key: str) -> int:
        """Evict others for a model about to be loaded; returns the evictions so far."""
        if self._budget is not None and not self._loads.has_failed(key):
            needed = self._sizes.get(key)
            self._budget.make_room(key, self._on_disk(key) if needed is None else needed)
        return self._evictions()

    def _evictions(self) -> int:
        return 0 if self._budget is None else self._budget.evictions

    def _on_disk(self, key: str) -> int:
        """The size of the files of the version that is most likely served."""
        folder = self._folder(key)
        newest = max(self._versions(folder), default=0)
        if folder is None or not newest:
            return 0
        remote = self._loader.folders.remote(folder)
        return file_bytes(folder / str(newest)) if remote is None else remote.size(folder, newest)

    def _residents(self) -> list[ResidentModel]:
        now_ns = time.monotonic_ns()
        found: list[ResidentModel] = []
        for key, lifecycle in list(self._loader.lifecycles.items()):
            models = list(lifecycle.serving.values())
            if not models:
                continue
            busy = self._loads.is_loading(key)
            for model in models:
                counted = model.statistics
                fresh = now_ns - counted.loaded_ns < _UNUSED_SECS * 1e9
                busy = busy or not model.idle() or (fresh and not counted.last_inference_ms)
            needed = any(
                self._serves(other) or self._loads.is_loading(other)
                for other in self._loader.dependents(key)
            )
            found.append(
                ResidentModel(
                    key,
                    sum(model.memory_bytes() for model in models),
                    max(model.statistics.last_used_ns for model in models),
                    busy=busy,
                    needed=needed,
                )
            )
        return found

    def _evict(self, key: str) -> None:
        _of(self._metrics.evictions, key).increment(1)
        self._loader.evict(key, EVICTED)


class _Metrics:
    """The metrics of lazy mode."""

    def __init__(self, metrics: CustomMetrics) -> None:
        self.loads = metrics.family("shoal_on_demand_loads_total", "Loads for a request", COUNTER)
        self.waiting = metrics.family(
            "shoal_on_demand_waiting", "Requests waiting for a model to load", GAUGE
        )
        self.evictions = metrics.family(
            "shoal_model_evictions_total", "Models unloaded to meet the memory budget", COUNTER
        )
        self.budget = metrics.family(
            "shoal_model_memory_budget_bytes", "Memory budget of all models together", GAUGE
        )


def _of(family: CustomFamily, key: str) -> CustomMetric:
    """The metric of one model."""
    return family.metric({"model": plain_name(key)}, None)
