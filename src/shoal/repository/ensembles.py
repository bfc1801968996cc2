"""Making ready an ensemble: find the models it is made of, and check the whole graph.

config --> the models of its steps, which serve by now --> EnsembleGraph --> ModelSpec
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
from shoal.models.ensemble import ServedModel
from shoal.models.spec import ModelSpec
from shoal.repository.lifecycle import Unreadable
from shoal.scheduler import ensemble_graph
from shoal.scheduler.ensemble_graph import ComposingModel, EnsembleGraph

PLATFORM = "ensemble"
_STEPS = "ensemble_scheduling.step"
_NEWEST = -1


class Models(OtherModels, Protocol):
    """The other models of the repository, as an ensemble needs them."""

    def serving(self, name: str, version: int = -1) -> ServedModel | None:
        """The model that serves requests for `name`, or None."""

    def ready_versions(self, name: str) -> list[int]:
        """The versions of a model that serve."""

    def why_not(self, name: str) -> str:
        """Why a model does not serve, where there is more to say than that it does not."""

    def seen_from(self, namespace: str) -> Models:
        """The models as those of one repository see them; the same where names are unique."""

    def infer(self, request: Request) -> None:
        """Take over a request for any of them, or raise a ShoalError."""


def is_ensemble(config: ModelConfig) -> bool:
    """Whether a config describes an ensemble."""
    return config.platform == PLATFORM or config.ensemble_scheduling is not None


def composing_names(config: ModelConfig) -> list[str]:
    """The models an ensemble is made of, each once; none for other models."""
    scheduling = config.ensemble_scheduling
    steps = () if scheduling is None else scheduling.step
    return list(dict.fromkeys(step.model_name for step in steps if step.model_name))


def prepared(spec: ModelSpec, models: Models, *, file: str) -> ModelSpec:
    """The spec of an ensemble with its graph. Its config has passed the rules for configs.

    Raises Unreadable, whose cause says which field of `file` does not fit the models there are.
    """
    config = _normalised(spec.config)
    try:
        composing = _find(config, models, file)
        graph = ensemble_graph.build(config, composing, file=file)
    except ConfigError as error:
        raise Unreadable(sorted(spec.version_folders)) from error
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


def renewed(spec: ModelSpec, models: Models) -> ModelSpec:
    """The spec of an ensemble that serves, for the models as they are now; raises as `prepared`."""
    assert spec.ensemble is not None
    prints = {version: _own_print(spec, version) for version in spec.version_folders}
    bare = dataclasses.replace(spec, fingerprints=prints)
    return prepared(bare, models, file=spec.ensemble.file)


def _own_print(spec: ModelSpec, version: int) -> object:
    """What the ensemble's own folder looked like, without its models."""
    both = spec.fingerprints[version]
    assert isinstance(both, tuple)
    own, graph = both
    assert isinstance(graph, EnsembleGraph)
    return own


def version_folders(available: dict[int, Path], folder: Path) -> dict[int, Path]:
    """An ensemble's versions. It has no file, and git keeps no empty folder: none means 1."""
    return available or {1: folder / "1"}


def _normalised(config: ModelConfig) -> ModelConfig:
    """The config with -1 for the newest version, where a step does not name one."""
    scheduling = config.ensemble_scheduling
    assert scheduling is not None
    steps = tuple(
        dataclasses.replace(step, model_version=step.model_version or _NEWEST)
        for step in scheduling.step
    )
    return dataclasses.replace(
        config, ensemble_scheduling=dataclasses.replace(scheduling, step=steps)
    )


def _find(config: ModelConfig, models: Models, file: str) -> Sequence[ComposingModel]:
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
            )
        )
    return found


def _missing(
    ensemble: str, index: int, step: ModelEnsembling.Step, models: Models, file: str
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
    """The error of an ensemble that is, through others, a step of its own."""
    return ConfigError(
        f"circular dependency between ensembles: {' -> '.join(path)}",
        file=file,
        field=_STEPS,
        fix="Take the step out that leads back",
    )
