"""One loaded version of an ensemble, which callers use as any other model.

    engine --accept--> EnsembleScheduler --infer--> the models that it runs

It has no backend and no instances. Its graph was checked against its models when the repository
made the spec; a change of one of them makes a new spec.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from shoal.cache.key import combined_identity
from shoal.core.planned import PlannedRequest
from shoal.core.request import Request
from shoal.errors import ConfigError
from shoal.instance.execution_placement import ExecutionPlacement
from shoal.models.served import ServedModel
from shoal.models.spec import ModelSpec, build_signature
from shoal.models.version import Model
from shoal.scheduler.admission import Expectation
from shoal.scheduler.batch import shared_template
from shoal.scheduler.ensemble import EnsembleScheduler
from shoal.scheduler.ensemble_admission import EnsembleAdmission
from shoal.scheduler.ensemble_graph import with_labels
from shoal.statistics.footprint import footprint_meter

logger = logging.getLogger(__name__)


class EnsembleModel(ServedModel):
    """A version that runs other models."""

    def __init__(self, spec: ModelSpec, version: int) -> None:
        assert spec.ensemble is not None
        assert spec.infer is not None
        signature = with_labels(build_signature(spec.config, spec.folder), spec.ensemble)
        super().__init__(spec, version, signature)
        self.execution_placement = ExecutionPlacement(
            allowed=False, why="an ensemble runs where its models run"
        )
        self._scheduler = EnsembleScheduler(
            spec.ensemble, signature, version, spec.infer, self.statistics
        )
        self._admission = EnsembleAdmission(spec.ensemble, spec.target_latency_ns, spec.find)
        self.statistics.admission = self._admission.reading
        self.statistics.pending = self._scheduler.waiting
        self._use_scheduler(self._enqueue_admitted)
        self._joins = (
            signature.max_batch_size > 0
            and self._cache is None
            and not self._admission.applies
            and not spec.ensemble.max_inflight
            and not self.decoupled
            and all(output.reshape is None for output in signature.outputs.values())
        )
        self._open_task()

    def _enqueue_admitted(self, request: Request) -> None:
        """Its steps are not refused half-way, so that it is decided here."""
        if not request.admitted:
            self._admission.check(request)
        self._scheduler.enqueue(request)

    def accept_group(self, requests: Sequence[PlannedRequest]) -> int:
        """See `ServedModel`: they run as one request where all models can join their rows."""
        template = shared_template(requests)
        if len(requests) == 1 or template is None or template.large or template.timeout_us:
            return 0
        size = self._most_joined(len(requests), template.rows)
        if size < 2 or any([request.trace is not None for request in requests]):  # noqa: C419 - faster
            return 0
        taken = self._scheduler.enqueue_joined(requests, template, size)
        return len(requests) if taken else 0

    def _most_joined(self, count: int, rows: int) -> int:
        """Up to how many of `count` requests to join; 0 where they must run one by one.

        A model with several instances gets as many requests, so that none is idle.
        """
        graph, find = self._scheduler.graph, self.spec.find
        if not self._joins or find is None:
            return 0
        instances = 1
        for step in graph.steps:
            model = find(step.model.name, step.model.version)
            own = 0 if model is None else model.joins_rows()
            if not own:
                return 0
            instances = max(instances, own)
        return min(self.signature.max_batch_size // rows, -(-count // instances))

    @property
    def limits_latency(self) -> bool:
        """Whether it, or one of its models, may refuse requests because of a target latency."""
        return self._admission.applies

    def expectation(self, request: Request) -> Expectation:
        """Whether such a request would be admitted now, and how long it would take."""
        return self._admission.expectation(request)

    def time_to_drain_ns(self) -> float | None:
        """See `ServedModel`: from its models, where its requests wait and run."""
        return self._admission.drain_ns() if self._scheduler.in_flight() else 0.0

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

    def _scheduled(self) -> int:
        return self._scheduler.in_flight()

    def _close(self) -> None:
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


def load_version(spec: ModelSpec, version: int) -> ServedModel:
    """Load a version of the model or ensemble `spec`. On failure, release everything."""
    if spec.ensemble is not None:
        return EnsembleModel.load(spec, version)
    with footprint_meter.measure(spec.bare_file or spec.version_folders[version]) as footprint:
        model = Model.load(spec, version)
    model.held_bytes = footprint.memory_bytes
    return model
