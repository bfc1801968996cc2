"""The model under load, as its server describes it: what to send, and what to expect back.

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
    """An input or an output; -1 stands for a size that requests choose."""

    name: str
    datatype: str
    shape: tuple[int, ...]  # without the batch
    optional: bool = False

    @property
    def dynamic(self) -> bool:
        """Whether a request must choose."""
        return any(size < 0 for size in self.shape)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What requests to a model look like."""

    name: str
    version: str  # as asked for; "" leaves the choice to the server
    max_batch: int  # 0: it takes no batches
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    sequences: bool = False
    decoupled: bool = False
    ensemble: bool = False
    cached: bool = False  # it or a model it is composed of may answer from a cache
    composing: tuple[Key, ...] = ()

    def check_batch(self, batch: int) -> None:
        """InvalidArgument when the model does not take batches of this size."""
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
    """The facts; `config_of(name, version)` asks for the configs of an ensemble's models.

    `bls` names models that this one calls by itself.
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
        from_name(str(entry["datatype"]))  # InvalidArgument for one nobody knows
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
    """Every model below, once, and whether one of them has a cache."""
    cached = bool((config.get("response_cache") or {}).get("enable"))
    found: list[Key] = []
    if not depth:
        return found, cached
    for key in _steps(config):
        below, cached_below = _composing(config_of(*key), config_of, depth - 1)
        cached = cached or cached_below
        # An ensemble in an ensemble does nothing itself: its models count.
        found += [each for each in (below or [key]) if each not in found]
    return found, cached


def _has_sequences(
    config: Mapping[str, Any], config_of: Callable[[str, str], Mapping[str, Any]]
) -> bool:
    composing, _ = _composing(config, config_of, ENSEMBLE_DEPTH)
    return any(config_of(*key).get("sequence_batching") for key in composing)
