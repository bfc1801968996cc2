"""Lazy mode: what the repositories hold is known, and loaded when somebody asks for it.

    first request --> room is made, the model loads --> served --> unused for longest --> unloaded

Loads on demand are `OnDemand`'s, what has to go is `MemoryBudget`'s to say; here they meet the
repository.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from shoal.errors import ShoalError
from shoal.repository import layout
from shoal.repository.budget import MemoryBudget, Resident, spoken
from shoal.repository.lifecycle import UNLOADED, ModelLife, State, Status
from shoal.repository.loader import ModelLoader, RepositorySettings
from shoal.repository.namespaces import plain_name
from shoal.repository.on_demand import LOADS_AGAIN, OnDemand
from shoal.statistics.custom import COUNTER, GAUGE, CustomMetrics
from shoal.statistics.footprint import file_bytes

EVICTED = f"{UNLOADED} to make room within --model-memory-budget"
_UNUSED_SECS = 10.0  # so long a model that was loaded for somebody is kept for them
_TRIES = 2


class LazyModels:
    """The models of one server that load on demand. Any thread may call any method."""

    def __init__(self, settings: RepositorySettings, loader: ModelLoader) -> None:
        self._paths = settings.paths
        self._namespaced = settings.namespacing
        self._loader = loader
        self._counts = _Counts(settings.preparation.metrics or CustomMetrics())
        self._loads = OnDemand(
            self._load,
            self._serves,
            threads=settings.load_threads,
            waiting=lambda key, count: self._counts.waiting(plain_name(key), count),
        )
        self._budget: MemoryBudget | None = None
        if settings.memory_budget_bytes:
            limit = settings.memory_budget_bytes
            self._budget = MemoryBudget(limit, self._residents, self._evict)
        self._sizes: dict[str, int] = {}  # what models held when they were loaded last

    # ---- start and stop

    def start(self, keys: Iterable[str]) -> None:
        """Know the models in the repositories, and look after the budget."""
        for key in keys:
            self._loader.know(key)
        if self._budget is not None:
            self._counts.limit(self._budget.limit_bytes)
            self._budget.start()

    def stop(self) -> None:
        """Load and evict no more. Blocks until what is under way is done."""
        self._loads.close()
        if self._budget is not None:
            self._budget.stop()

    # ---- what there is

    def has(self, name: str) -> bool:
        """Whether there is a folder for a model called `name`; looks at no other folder."""
        return bool(layout.folders_named(self._paths, name))

    def discover(self, name: str) -> None:
        """Know the models called `name`, which came after the start."""
        for folder in layout.folders_named(self._paths, name):
            self._loader.know(folder.as_posix() if self._namespaced else name)

    def absent(self, life: ModelLife) -> ShoalError:
        """The error for a model that does not serve: ModelLoading, or why its last load failed."""
        return self._loads.absent(life.name)

    def would_serve(self, life: ModelLife, version: int) -> bool:
        """Whether a request for a model that is not loaded has a chance."""
        if self._loads.has_failed(life.name):
            return False
        found = self._loader.found().get(life.name, [])  # folders, or files that declare models
        return any(
            version == -1 or (path / str(version)).is_dir() or (path.is_file() and version == 1)
            for path in found
        )

    def told(self, life: ModelLife, version: int, status: Status) -> str:
        """What the index says beside the state of a version."""
        if status.state is State.UNAVAILABLE and status.on_purpose:
            return f"{status.reason}; {LOADS_AGAIN}"
        model = life.serving.get(version)
        if status.state is State.READY and model is not None and not status.reason:
            held = model.memory_bytes()
            return f"holds about {spoken(held)}" if held else ""
        return status.reason

    # ---- loads

    def asked(self, key: str) -> None:
        """Somebody has loaded or unloaded a model by name."""
        self._loads.forget_failure(key)
        if self._budget is not None:
            self._budget.loads_changed()

    def _serves(self, key: str) -> bool:
        life = self._loader.lives.get(key)
        return life is not None and life.newest is not None

    def _load(self, key: str) -> None:
        """Load a model for a request that waits. Blocks; raises as `ModelLoader.load`."""
        self._counts.load(plain_name(key))
        for tries_left in reversed(range(_TRIES)):
            evictions = self._make_room(key)
            try:
                self._loader.load_again(key)
            except ShoalError:
                # A model that this one is made of may have been evicted this very moment.
                if not tries_left or self._evictions() == evictions:
                    raise
            else:
                break
        life = self._loader.lives[key]
        self._sizes[key] = sum(model.memory_bytes() for model in life.serving.values())
        if self._budget is not None:
            self._budget.loads_changed()

    # ---- memory

    def _make_room(self, key: str) -> int:
        """Have others go for a model about to be loaded; how many have gone so far."""
        if self._budget is not None and not self._loads.has_failed(key):
            needed = self._sizes.get(key)
            self._budget.make_room(key, self._on_disk(key) if needed is None else needed)
        return self._evictions()

    def _evictions(self) -> int:
        return 0 if self._budget is None else self._budget.evictions

    def _on_disk(self, key: str) -> int:
        """The files of the version that would most likely be served."""
        for folder in layout.folders_named(self._paths, plain_name(key)):
            if not self._namespaced or folder.as_posix() == key:
                versions = layout.version_folders(folder)
                return file_bytes(versions[max(versions)]) if versions else 0
        return 0

    def _residents(self) -> list[Resident]:
        now_ms = time.time_ns() // 1_000_000
        found: list[Resident] = []
        for key, life in list(self._loader.lives.items()):
            models = list(life.serving.values())
            if not models:
                continue
            busy = self._loads.is_loading(key)
            for model in models:
                counted = model.statistics
                fresh = now_ms - counted.loaded_ms < _UNUSED_SECS * 1000
                busy = busy or not model.idle() or (fresh and not counted.last_inference_ms)
            needed = any(
                self._serves(other) or self._loads.is_loading(other)
                for other in self._loader.dependents(key)
            )
            found.append(
                Resident(
                    key,
                    sum(model.memory_bytes() for model in models),
                    max(model.statistics.last_used_ns for model in models),
                    busy=busy,
                    needed=needed,
                )
            )
        return found

    def _evict(self, key: str) -> None:
        self._counts.eviction(plain_name(key))
        self._loader.evict(key, EVICTED)


class _Counts:
    """The metrics of lazy mode."""

    def __init__(self, metrics: CustomMetrics) -> None:
        self._loads = metrics.family(
            "shoal_on_demand_loads_total", "Loads that a request asked for", COUNTER
        )
        self._waiting = metrics.family(
            "shoal_on_demand_waiting", "Requests that wait for a model to be loaded", GAUGE
        )
        self._evictions = metrics.family(
            "shoal_model_evictions_total", "Times a model was unloaded to make room", COUNTER
        )
        self._budget = metrics.family(
            "shoal_model_memory_budget_bytes", "Memory that models may hold together", GAUGE
        )

    def limit(self, limit_bytes: int) -> None:
        """There is a budget."""
        self._budget.metric({}, None).set(limit_bytes)

    def load(self, name: str) -> None:
        """A request has a model loaded."""
        self._loads.metric({"model": name}, None).increment(1)

    def waiting(self, name: str, count: int) -> None:
        """So many requests wait for a model now."""
        self._waiting.metric({"model": name}, None).set(count)

    def eviction(self, name: str) -> None:
        """A model makes room for others."""
        self._evictions.metric({"model": name}, None).increment(1)
