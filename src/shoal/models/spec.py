"""Everything known about a model before it is loaded, and its signature from the config."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.backends.base import Backend, OtherModels
from shoal.cache.store import CacheStore
from shoal.config.model import ModelConfig
from shoal.config.parameters import value_of
from shoal.core import dtypes
from shoal.core.request import Request
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import ConfigError
from shoal.instance.inline import LoopHandle
from shoal.instance.rate_limiter import RateLimiter, is_limited
from shoal.scheduler.ensemble_graph import EnsembleGraph
from shoal.statistics.custom import CustomMetrics
from shoal.statistics.model import (
    FIRST_RESPONSE_EDGES_MS,
    FIRST_RESPONSE_FAMILY,
    ModelStatistics,
    StatisticsOptions,
)
from shoal.tasks.workers import Workers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServingContext:
    """What the server provides for its models."""

    loop: LoopHandle | None = None  # where quick models may run
    execution: str = "auto"  # auto | loop | threads, for models without the parameter
    target_latency_ms: float = 0.0  # for models without the parameter; 0: none
    models: OtherModels | None = None  # for models that call or manage others
    metrics: CustomMetrics | None = None  # for metrics that models define
    counted: StatisticsOptions = field(default_factory=StatisticsOptions)
    namespace: str = ""  # the repository of the model, with namespaces
    cache: CacheStore | None = None  # for responses of models that enable it
    limiter: RateLimiter | None = None  # grants resources to instances before they run
    task_workers: Callable[[], Workers] | None = None  # the threads of tasks, made when needed
    hold_until: int = 0  # TRITONSERVER_DELAY_SCHEDULER


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything the repository found and decided about a model before it is loaded."""

    name: str
    folder: Path
    config: ModelConfig  # completed, normalised, instance groups resolved
    backend: Backend | None  # None: an ensemble, which runs other models
    version_folders: dict[int, Path]  # the versions to serve, by the version policy
    fingerprints: dict[int, object]  # changes when the files behind a version change
    settings: dict[str, str] = field(default_factory=dict)
    cores: int = 1
    context: ServingContext = field(default_factory=ServingContext)
    ensemble: EnsembleGraph | None = None  # for an ensemble: its steps, checked
    infer: Callable[[Request], None] | None = None  # for requests of an ensemble's steps
    bare_file: Path | None = None  # the model, if its version's folder has other files, too
    find: Callable[[str, int], Any] | None = None  # for an ensemble: the model of a step now

    @property
    def caches_responses(self) -> bool:
        """Whether responses are cached: the server has a cache and the config enables it."""
        wanted = self.config.response_cache
        return self.context.cache is not None and wanted is not None and wanted.enable

    @property
    def limited(self) -> bool:
        """Whether its instances wait for the rate limiter."""
        return self.context.limiter is not None and is_limited(self.config.instance_group)

    @property
    def target_latency_ns(self) -> int:
        """The latency beyond which requests are refused; 0: none are."""
        own: int | None = value_of(self.config, "target_latency_ms")
        return int(1e6 * (self.context.target_latency_ms if own is None else own))

    def serves_like(self, other: ModelSpec, version: int) -> bool:
        """Whether `version` would be the same model, except for instance groups."""
        return (
            self.fingerprints.get(version) == other.fingerprints.get(version)
            and replace(self.config, instance_group=()) == replace(other.config, instance_group=())
            and self.settings == other.settings
            and self.limited == other.limited  # one that is not may run on the event loop
        )

    def new_statistics(self, version: int) -> ModelStatistics:
        """The counters of a version that is about to serve, with the config's tags as labels."""
        namespace = self.context.namespace
        return ModelStatistics(
            self.name,
            version,
            summaries=self.context.counted.summaries,
            first_response_edges_ms=_first_response_edges(self),
            labels={
                **({"namespace": namespace} if namespace else {}),
                **{f"_{key}": value for key, value in self.config.metric_tags.items()},
            },
        )


def _first_response_edges(spec: ModelSpec) -> Sequence[float]:
    """The bounds of the first-response histogram: the config's, or Triton's; none if it is off."""
    if not spec.context.counted.first_response:
        return ()
    metrics = spec.config.model_metrics
    for control in metrics.metric_control if metrics is not None else ():
        family, options = control.metric_identifier, control.histogram_options
        if family is not None and options is not None:
            if family.family == FIRST_RESPONSE_FAMILY:
                return options.buckets
            logger.warning(
                "model_metrics of model '%s': the buckets of '%s' cannot be chosen, only those of "
                "'%s'",
                spec.name,
                family.family,
                FIRST_RESPONSE_FAMILY,
            )
    return FIRST_RESPONSE_EDGES_MS


def build_signature(config: ModelConfig, folder: Path) -> Signature:
    """The config's tensors as validation needs them, with their labels."""
    inputs = {
        tensor.name: TensorSpec(
            tensor.name,
            dtypes.BY_CONFIG_NAME[tensor.data_type],
            tuple(tensor.dims),
            None if tensor.reshape is None else tuple(tensor.reshape.shape),
            optional=tensor.optional,
            ragged=tensor.allow_ragged_batch,
        )
        for tensor in config.input
    }
    outputs = {
        tensor.name: TensorSpec(
            tensor.name,
            dtypes.BY_CONFIG_NAME[tensor.data_type],
            tuple(tensor.dims),
            None if tensor.reshape is None else tuple(tensor.reshape.shape),
            labels=_labels(folder, tensor.name, tensor.label_filename),
        )
        for tensor in config.output
    }
    states = config.sequence_batching.state if config.sequence_batching is not None else ()
    kept = {
        state.output_name: TensorSpec(
            state.output_name, dtypes.BY_CONFIG_NAME[state.data_type], tuple(state.dims)
        )
        for state in states
    }
    return Signature(config.name, config.max_batch_size, inputs, outputs, kept)


def _labels(folder: Path, output: str, filename: str) -> tuple[str, ...]:
    if not filename:
        return ()
    base = folder.resolve()
    path = (base / filename).resolve()
    where = f"output '{output}'.label_filename"
    if not path.is_relative_to(base):
        raise ConfigError(
            f"'{filename}' lies outside the model's folder", file="config.pbtxt", field=where
        )
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the label file '{filename}': {error}",
            file="config.pbtxt",
            field=where,
            fix="Put the file into the model's folder, one label per line, as UTF-8 text",
        ) from None
