"""One loaded version of an ensemble: to its callers a model like any other.

    engine --accept--> EnsembleScheduler --infer--> the models it is made of

It has no backend and no instances. Its graph was checked against its models when the repository
made the spec; a change to one of them makes a new spec.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

from shoal.core.request import Request
from shoal.core.validate import validate
from shoal.instance.pace import Pace
from shoal.model import Model, ModelSpec, build_signature
from shoal.scheduler.ensemble import EnsembleScheduler
from shoal.scheduler.ensemble_graph import with_labels

logger = logging.getLogger(__name__)


class EnsembleModel:
    """An ensemble that serves. Its public attributes do not change while it lives."""

    def __init__(self, spec: ModelSpec, version: int) -> None:
        assert spec.ensemble is not None
        assert spec.infer is not None
        self.spec = spec
        self.name = spec.name
        self.version = version
        self.config = spec.config
        self.signature = with_labels(build_signature(spec.config, spec.folder), spec.ensemble)
        self.statistics = spec.new_statistics(version)
        self.pace = Pace(allowed=False, why="an ensemble runs where its models run")
        self._scheduler = EnsembleScheduler(
            spec.ensemble, self.signature, version, spec.infer, self.statistics
        )

    @classmethod
    def load(cls, spec: ModelSpec, version: int) -> EnsembleModel:
        """Make the ensemble ready. Raises ConfigError when a label file cannot be read."""
        limit = spec.ensemble.max_inflight if spec.ensemble is not None else 0
        if limit:
            logger.info(
                "Ensemble model '%s' configured with max_inflight_requests: %d", spec.name, limit
            )
        return cls(spec, version)

    @property
    def decoupled(self) -> bool:
        """Whether a request may have any number of responses: a step of it is decoupled."""
        return self._scheduler.graph.decoupled

    @property
    def asks_readiness(self) -> bool:
        """Whether `ready` may take a while."""
        return False

    def ready(self) -> bool:
        """Whether it can be asked now."""
        return True

    def accept(self, request: Request) -> None:
        """Check the request and start it. If this raises, it is still the caller's to answer."""
        validate(request, self.signature)
        self.accept_checked(request)

    def accept_checked(self, request: Request) -> None:
        """Start a request known to be valid for this ensemble. Raises as `accept` does."""
        request.served_by = self
        self._scheduler.enqueue(request)

    def resize(self, spec: ModelSpec) -> None:
        """Take `spec`; there are no instances to change."""
        self.spec = spec
        self.config = spec.config

    def in_flight(self) -> int:
        """Requests accepted and not yet answered to the end."""
        return self._scheduler.in_flight()

    def begin_exit(self) -> None:
        """Nothing to do: sequences begin and end in the models of the steps."""

    def close(self) -> None:
        """Refuse new requests and wait until those at hand are answered. Blocks."""
        self._scheduler.close()


ServedModel: TypeAlias = Model | EnsembleModel  # whatever serves requests under a name


def load_version(spec: ModelSpec, version: int) -> ServedModel:
    """Load a version of whatever `spec` describes. On failure nothing stays behind."""
    if spec.ensemble is not None:
        return EnsembleModel.load(spec, version)
    return Model.load(spec, version)
