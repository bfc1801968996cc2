"""The model under load as its server describes it: inputs, outputs and capabilities.

metadata + config  --read-->  ModelFacts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.dtypes import from_name
from shoal.errors import InvalidArgument
from shoal.perf.server_side import Key

ENSEMBLE_DEPTH = 16


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """An input or an output; -1 is a dynamic size."""

    name: str
    datatype: str
    shape: tuple[int, ...]  # without the batch
    optional: bool = False

    @property
    def dynamic(self) -> bool:
        """Whether it has a dynamic size."""
        return any(size < 0 for size in self.shape)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The properties of a model that determine its requests."""

    name: str
    version: str  # as requested; "" lets the server choose
    max_batch: int  # 0: no batching
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    sequences: bool = False
    decoupled: bool = False
    ensemble: bool = False
    cached: bool = False  # it or a composing model has a response cache
    composing: tuple[Key, ...] = ()

    def check_batch(self, batch: int) -> None:
        """Raises InvalidArgument when the model does not accept batches of this size."""
        if batch > 1 and not self.max_batch:
            raise InvalidArgument(
                f"model '{self.name}' does not take batches (max_batch_size is 0); leave -b at 1"
            )
        if batch > max(1, self.max_batch):
            raise InvalidArgument(
                f"model '{self.name}' takes batches of at most {self.max_batch}, -b asks for "
                f"{batch}"
            )


def read(
    metadata: Mapping[str, Any],
    config: Mapping[str, Any],
    version: str,
    config_of: Callable[[str, str], Mapping[str, Any]],
    bls: Sequence[Key] = (),
) -> ModelFacts:
    """The facts; `config_of(name, version)` reads the config of a composing model.

    `bls` names models that this one calls.
    """
    max_batch = int(config.get("max_batch_size", 0))
    optional = {entry["name"] for entry in config.get("input", ()) if entry.get("optional")}
    composing, cached = _composing(config, config_of, ENSEMBLE_DEPTH)
    composing += [key for key in bls if key not in composing]
    return ModelFacts(
        name=str(metadata["name"]),
        version=version,
        max_batch=max_batch,
        inputs=_tensors(metadata.get("inputs", ()), max_batch, optional),
        outputs=_tensors(metadata.get("outputs", ()), max_batch, set()),
        sequences=bool(config.get("sequence_batching")) or _has_sequences(config, config_of),
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled")),
        ensemble=bool(config.get("ensemble_scheduling")),
        cached=cached,
        composing=tuple(composing),
    )


def _tensors(
    entries: Sequence[Mapping[str, Any]], max_batch: int, optional: set[str]
) -> tuple[TensorFacts, ...]:
    made = []
    for entry in entries:
        from_name(str(entry["datatype"]))  # raises InvalidArgument if unknown
        shape = tuple(int(size) for size in entry.get("shape", ()))
        made.append(
            TensorFacts(
                str(entry["name"]),
                str(entry["datatype"]),
                shape[1:] if max_batch else shape,
                entry["name"] in optional,
            )
        )
    return tuple(made)


def _steps(config: Mapping[str, Any]) -> list[Key]:
    steps = (config.get("ensemble_scheduling") or {}).get("step", ())
    keys = []
    for step in steps:
        version = int(step.get("model_version", -1))
        keys.append((str(step["model_name"]), "" if version < 0 else str(version)))
    return keys


def _composing(
    config: Mapping[str, Any],
    config_of: Callable[[str, str], Mapping[str, Any]],
    depth: int,
) -> tuple[list[Key], bool]:
    """All composing models, once each, and whether one of them has a cache."""
    cached = bool((config.get("response_cache") or {}).get("enable"))
    found: list[Key] = []
    if not depth:
        return found, cached
    for key in _steps(config):
        below, cached_below = _composing(config_of(*key), config_of, depth - 1)
        cached = cached or cached_below
        # A nested ensemble is replaced by its models.
        found += [each for each in (below or [key]) if each not in found]
    return found, cached


def _has_sequences(
    config: Mapping[str, Any], config_of: Callable[[str, str], Mapping[str, Any]]
) -> bool:
    composing, _ = _composing(config, config_of, ENSEMBLE_DEPTH)
    return any(config_of(*key).get("sequence_batching") for key in composing)
