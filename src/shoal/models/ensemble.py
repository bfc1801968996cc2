"""One loaded version of an ensemble, which callers use as any other model.

    engine --accept--> EnsembleScheduler --infer--> the models that it runs

It has no backend and no instances. Its graph was checked against its models when the repository
made the spec; a change of one of them makes a new spec.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from shoal.cache.caching_scheduler import CachingScheduler
from shoal.cache.key import combined_identity
from shoal.cache.store import CacheStore
from shoal.core.planned import PlannedRequest
from shoal.core.request import Request
from shoal.core.validate import validate
from shoal.errors import ConfigError
from shoal.instance.execution_placement import ExecutionPlacement
from shoal.models.spec import ModelSpec, build_signature
from shoal.models.version import Model
from shoal.scheduler.ensemble import EnsembleScheduler
from shoal.scheduler.ensemble_graph import with_labels
from shoal.statistics.footprint import footprint_meter
from shoal.tasks.endpoint import TaskEndpoint, open_endpoint

logger = logging.getLogger(__name__)


class EnsembleModel:
    """A loaded ensemble. Its public attributes do not change."""

    def __init__(self, spec: ModelSpec, version: int) -> None:
        assert spec.ensemble is not None
        assert spec.infer is not None
        self.spec = spec
        self.name = spec.name
        self.version = version
        self.config = spec.config
        self.signature = with_labels(build_signature(spec.config, spec.folder), spec.ensemble)
        self.statistics = spec.new_statistics(version)
        self.execution_placement = ExecutionPlacement(
            allowed=False, why="an ensemble runs where its models run"
        )
        self._scheduler = EnsembleScheduler(
            spec.ensemble, self.signature, version, spec.infer, self.statistics
        )
        self._own_identity = b""
        self._cache: CachingScheduler | None = None
        self._enqueue = self._scheduler.enqueue
        if spec.cache is not None:
            self._use_cache(spec.cache)
        self.task: TaskEndpoint | None = open_endpoint(self, spec.folder, spec.task_workers)
        if self.task is not None:
            self.statistics.task = self.task.statistics

    def _use_cache(self, store: CacheStore) -> None:
        """Set the identity for cache keys and, if the config enables it, use the cache."""
        spec = self.spec
        self._own_identity = store.identity(self.version, spec.config, spec.folder)
        if not spec.caches_responses:
            return
        self._cache = CachingScheduler(
            store,
            lambda: self.cache_identity,
            self._scheduler.enqueue,
            self.statistics,
            loop=spec.loop,
        )
        self._enqueue = self._cache.enqueue

    @property
    def cache_identity(self) -> bytes:
        """Identifies it, and the models that it runs now, in the keys of cached responses."""
        find, steps = self.spec.find, self._scheduler.graph.steps
        models = [find(step.model.name, step.model.version) for step in steps] if find else ()
        return combined_identity(
            self._own_identity, [model.cache_identity if model else b"" for model in models]
        )

    @classmethod
    def load(cls, spec: ModelSpec, version: int) -> EnsembleModel:
        """Make the ensemble ready.

        Raises ConfigError when a label file cannot be read, or when responses are to be cached
        that cannot be.
        """
        _check_cacheable(spec)
        limit = spec.ensemble.max_inflight if spec.ensemble is not None else 0
        if limit:
            logger.info(
                "Ensemble model '%s' configured with max_inflight_requests: %d", spec.name, limit
            )
        model = cls(spec, version)
        model.statistics.ready(0.0)
        return model

    @property
    def decoupled(self) -> bool:
        """Whether a request may have any number of responses, as with a decoupled step."""
        return self._scheduler.graph.decoupled

    @property
    def takes_device_tensors(self) -> bool:
        """It passes its inputs on without tracking their readers."""
        return False

    @property
    def asks_readiness(self) -> bool:
        """Whether `ready` may block."""
        return False

    def ready(self) -> bool:
        """Whether it is ready."""
        return True

    def accept(self, request: Request) -> None:
        """Check the request and start it. If this raises, it is still the caller's to answer."""
        validate(request, self.signature)
        self.accept_checked(request)

    def accept_checked(self, request: Request) -> None:
        """Start a request known to be valid for this ensemble. Raises as `accept` does."""
        request.served_by = self
        self._enqueue(request)

    def accept_group(self, requests: Sequence[PlannedRequest]) -> bool:  # noqa: ARG002
        """Takes none of them: pass each to `accept_checked`."""
        return False

    def resize(self, spec: ModelSpec) -> None:
        """Take `spec`; there are no instances to change."""
        self.spec = spec
        self.config = spec.config

    def in_flight(self) -> int:
        """Requests whose final response has not been sent."""
        pending = self._cache.pending if self._cache is not None else 0
        pending += self.task.calls if self.task is not None else 0
        return pending + self._scheduler.in_flight()

    def idle(self) -> bool:
        """Whether it is unused now."""
        return not self.in_flight()

    def counters(self) -> Mapping[str, object]:
        """No additional counters."""
        return {}

    def memory_bytes(self) -> int:
        """None: the models that it runs count their own."""
        return 0

    def begin_exit(self) -> None:
        """Nothing to do: sequences begin and end in the models of the steps."""

    def close(self) -> None:
        """Refuse new requests and wait until all others are answered. Blocks."""
        if self.task is not None:
            self.task.finish()
        if self._cache is not None:
            self._cache.close()
        self._scheduler.close()


def _check_cacheable(spec: ModelSpec) -> None:
    """An ensemble can be cached if all models that it runs could be."""
    wanted = spec.config.response_cache
    if wanted is None or not wanted.enable:
        return
    assert spec.ensemble is not None
    reason = "a decoupled step" if spec.ensemble.decoupled else ""
    if any(model.config.sequence_batching is not None for model in _models_of(spec)):
        reason = "a step that has sequences"
    if reason:
        raise ConfigError(
            f"Response Cache does not currently support model {spec.name} with {reason}. Please "
            "disable the response cache",
            file=spec.ensemble.file,
            field="response_cache.enable",
            fix="Write response_cache: { enable: false }",
        )


def _models_of(spec: ModelSpec) -> Iterator[ServedModel]:
    """The models that an ensemble runs, directly or through others."""
    if spec.ensemble is None or spec.find is None:
        return
    for step in spec.ensemble.steps:
        model: ServedModel | None = spec.find(step.model.name, step.model.version)
        if model is not None:
            yield model
            yield from _models_of(model.spec)


ServedModel: TypeAlias = Model | EnsembleModel


def load_version(spec: ModelSpec, version: int) -> ServedModel:
    """Load a version of the model or ensemble `spec`. On failure, release everything."""
    if spec.ensemble is not None:
        return EnsembleModel.load(spec, version)
    with footprint_meter.measure(spec.bare_file or spec.version_folders[version]) as footprint:
        model = Model.load(spec, version)
    model.held_bytes = footprint.memory_bytes
    return model
