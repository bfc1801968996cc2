"""Preparing an ensemble: find the models that it runs, and check the whole graph.

config --> the models of its steps, which serve already --> EnsembleGraph --> ModelSpec
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shoal.backends.base import OtherModels
from shoal.config.model import ModelConfig, ModelEnsembling
from shoal.core.request import Request
from shoal.errors import ConfigError
from shoal.models.served import ServedModel
from shoal.models.spec import ModelSpec
from shoal.repository.lifecycle import UnreadableModel
from shoal.scheduler import ensemble_graph
from shoal.scheduler.ensemble_graph import ComposingModel, EnsembleGraph

PLATFORM = "ensemble"
_STEPS = "ensemble_scheduling.step"
_NEWEST = -1


class RepositoryModels(OtherModels, Protocol):
    """The other models of the repository, as an ensemble needs them."""

    def serving(self, name: str, version: int = -1) -> ServedModel | None:
        """The model that serves requests for `name`, or None."""

    def ready_versions(self, name: str) -> list[int]:
        """The versions of a model that serve."""

    def why_not(self, name: str) -> str:
        """Why a model does not serve, if a reason is known."""

    def seen_from(self, namespace: str) -> RepositoryModels:
        """The models as those of one namespace see them; the same without namespaces."""

    def infer(self, request: Request) -> None:
        """Take over a request for any of them, or raise a ShoalError."""


def is_ensemble(config: ModelConfig) -> bool:
    """Whether a config describes an ensemble."""
    return config.platform == PLATFORM or config.ensemble_scheduling is not None


def composing_names(config: ModelConfig) -> list[str]:
    """The models that an ensemble runs, each once; none for other models."""
    scheduling = config.ensemble_scheduling
    steps = () if scheduling is None else scheduling.step
    return list(dict.fromkeys(step.model_name for step in steps if step.model_name))


def prepared(spec: ModelSpec, models: RepositoryModels, *, file: str) -> ModelSpec:
    """The spec of an ensemble with its graph. Its config has passed the rules for configs.

    Raises UnreadableModel, whose cause names the field of `file` that does not fit the models.
    """
    config = _normalised(spec.config)
    try:
        composing = _find(config, models, file)
        graph = ensemble_graph.build(config, composing, file=file)
    except ConfigError as error:
        raise UnreadableModel(sorted(spec.version_folders)) from error
    config = ensemble_graph.with_transaction_policy(config, graph)
    prints: dict[int, object] = {
        version: (spec.fingerprints[version], graph) for version in spec.version_folders
    }
    return dataclasses.replace(
        spec,
        config=config,
        fingerprints=prints,
        ensemble=graph,
        infer=models.infer,
        find=models.serving,
    )


def renewed(spec: ModelSpec, models: RepositoryModels) -> ModelSpec:
    """The spec of an ensemble that serves, for the models as they are now; raises as `prepared`."""
    assert spec.ensemble is not None
    prints = {version: _own_print(spec, version) for version in spec.version_folders}
    bare = dataclasses.replace(spec, fingerprints=prints)
    return prepared(bare, models, file=spec.ensemble.file)


def _own_print(spec: ModelSpec, version: int) -> object:
    """The fingerprint of the ensemble's own folder, without its models."""
    both = spec.fingerprints[version]
    assert isinstance(both, tuple)
    own, graph = both
    assert isinstance(graph, EnsembleGraph)
    return own


def version_folders(available: dict[int, Path], folder: Path) -> dict[int, Path]:
    """An ensemble's versions. Without a version folder (git keeps no empty ones) it is 1."""
    return available or {1: folder / "1"}


def _normalised(config: ModelConfig) -> ModelConfig:
    """The config with -1, the newest version, where a step does not name one."""
    scheduling = config.ensemble_scheduling
    assert scheduling is not None
    steps = tuple(
        dataclasses.replace(step, model_version=step.model_version or _NEWEST)
        for step in scheduling.step
    )
    return dataclasses.replace(
        config, ensemble_scheduling=dataclasses.replace(scheduling, step=steps)
    )


def _find(config: ModelConfig, models: RepositoryModels, file: str) -> Sequence[ComposingModel]:
    scheduling = config.ensemble_scheduling
    assert scheduling is not None
    found: list[ComposingModel] = []
    for index, step in enumerate(scheduling.step):
        model = models.serving(step.model_name, step.model_version)
        if model is None:
            raise _missing(config.name, index, step, models, file)
        found.append(
            ComposingModel(
                step.model_name,
                step.model_version,
                model.signature,
                model.decoupled,
                model.takes_device_tensors,
                model.limits_latency,
            )
        )
    return found


def _missing(
    ensemble: str, index: int, step: ModelEnsembling.Step, models: RepositoryModels, file: str
) -> ConfigError:
    name, version = step.model_name, step.model_version
    at = f"{_STEPS}[{index}]"
    ready = models.ready_versions(name)
    if ready:
        there = ", ".join(map(str, ready))
        return ConfigError(
            f"ensemble '{ensemble}' depends on '{name}' whose required version {version} is not "
            "loaded",
            file=file,
            field=f"{at}.model_version",
            fix=f"Write -1 for the newest, or one that is served ({there}), or let the "
            f"version_policy of {name} serve it",
        )
    why = models.why_not(name)
    if why:
        return ConfigError(
            f"ensemble '{ensemble}' depends on '{name}' which has no loaded version. Model "
            f"'{name}' loading failed with error: {why}",
            file=file,
            field=f"{at}.model_name",
        )
    return ConfigError(
        f"ensemble {ensemble} contains models that are not available or ambiguous: {name}",
        file=file,
        field=f"{at}.model_name",
        fix=f"Put a model named {name} into the repository, or load it, or correct the name",
    )


def circular(path: Sequence[str], *, file: str) -> ConfigError:
    """The error of an ensemble that is, directly or not, a step of itself."""
    return ConfigError(
        f"circular dependency between ensembles: {' -> '.join(path)}",
        file=file,
        field=_STEPS,
        fix="Remove the step that closes the cycle",
    )
