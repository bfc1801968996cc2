"""Which versions of a model to serve: the version policy as a pure function."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from shoal.config.model import ModelVersionPolicy

logger = logging.getLogger(__name__)


def select(policy: ModelVersionPolicy | None, available: Iterable[int], model: str) -> list[int]:
    """The versions to serve, ascending. A version asked for that is not there is only logged."""
    there = sorted(available)
    if policy is None:
        return there[-1:]
    if policy.all is not None:
        return there
    if policy.specific is not None:
        for version in policy.specific.versions:
            if version not in there:
                logger.warning("version %d of model '%s' is not there", version, model)
        return [version for version in there if version in policy.specific.versions]
    count = policy.latest.num_versions if policy.latest is not None else 1
    return there[-max(1, count) :]
