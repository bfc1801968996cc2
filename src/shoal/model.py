"""One loaded version of a model: its config, its queue, its instances, its statistics.

    engine --accept--> [ batcher ] <--pull-- instances

Made whole or not at all: `Model.load` returns a model that is warmed up and pulling, or raises
and leaves nothing behind. `close` serves what is queued, then gives everything back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.backends.base import Backend, LoadContext, LoadedModel, OtherModels, Placement
from shoal.config.model import ModelConfig, ModelDynamicBatching, ModelQueuePolicy
from shoal.core import dtypes
from shoal.core.request import Request
from shoal.core.signature import Signature, TensorSpec
from shoal.core.validate import validate
from shoal.errors import ConfigError, QueueRejected, ShoalError
from shoal.instance.execution import Execution
from shoal.instance.group import InstanceGroup, slots
from shoal.instance.inline import LoopHandle, LoopInstance
from shoal.instance.pace import Mode, Pace
from shoal.instance.warmup import warm_up
from shoal.scheduler import sequence_setup
from shoal.scheduler.base import Scheduler
from shoal.scheduler.batcher import Batcher, OnDropped
from shoal.scheduler.ensemble_graph import Graph
from shoal.scheduler.policy import BatchPolicy, OneByOne, Policy
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from shoal.scheduler.sequence import SequenceBatcher
from shoal.statistics.custom import CustomMetrics
from shoal.statistics.model import (
    FIRST_RESPONSE_EDGES_MS,
    FIRST_RESPONSE_FAMILY,
    FailureReason,
    ModelStatistics,
    StatisticsOptions,
)

logger = logging.getLogger(__name__)

_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything known about a model before it is loaded: what the repository found and decided."""

    name: str
    folder: Path
    config: ModelConfig  # completed, normalised, instance groups resolved
    backend: Backend | None  # None: an ensemble, which runs other models
    version_folders: dict[int, Path]  # the versions to serve, by the version policy
    fingerprints: dict[int, object]  # changes when the files behind a version change
    settings: dict[str, str] = field(default_factory=dict)
    cores: int = 1
    hold_until: int = 0
    loop: LoopHandle | None = None  # where quick models may run
    execution: str = "auto"  # auto | loop | threads, unless the config says
    ensemble: Graph | None = None  # for an ensemble: its steps, checked
    infer: Callable[[Request], None] | None = None  # the way to other models
    models: OtherModels | None = None  # for models that ask or manage others
    metrics: CustomMetrics | None = None  # for metrics of models' own
    counted: StatisticsOptions = field(default_factory=StatisticsOptions)
    namespace: str = ""  # its repository, where models are told apart by that

    def serves_like(self, other: ModelSpec, version: int) -> bool:
        """Whether `version` would be the same model, instance groups aside."""
        return (
            self.fingerprints.get(version) == other.fingerprints.get(version)
            and replace(self.config, instance_group=()) == replace(other.config, instance_group=())
            and self.settings == other.settings
        )

    def new_statistics(self, version: int) -> ModelStatistics:
        """The counters of a version that is about to serve, with the config's tags as labels."""
        return ModelStatistics(
            self.name,
            version,
            summaries=self.counted.summaries,
            first_response_edges_ms=_first_response_edges(self),
            labels={
                **({"namespace": self.namespace} if self.namespace else {}),
                **{f"_{key}": value for key, value in self.config.metric_tags.items()},
            },
        )


class Model:
    """A version that serves. Its public attributes do not change while it lives."""

    def __init__(self, spec: ModelSpec, version: int, loaded: LoadedModel) -> None:
        self.spec = spec
        self.name = spec.name
        self.version = version
        self.config = spec.config
        self.signature = build_signature(spec.config, spec.folder)
        self.statistics = spec.new_statistics(version)
        self._loaded = loaded
        self._batcher = _build_batcher(spec, self._dropped)
        self.statistics.pending = self._batcher.pending
        execution = Execution(self.signature, version, self.statistics, decoupled=self.decoupled)
        sequences = self._batcher if isinstance(self._batcher, SequenceBatcher) else None
        self._sequences = sequences
        warm = warm_up(
            spec.config.model_warmup,
            self.signature,
            spec.folder,
            sequences.lone_inputs if sequences is not None else None,
        )
        self.pace = _build_pace(spec, loaded)
        self.statistics.on_loop = self.pace.on_loop
        on_loop = None
        if spec.loop is not None and loaded.may_run_on_loop:
            placement = Placement("KIND_CPU", 0, f"{spec.name}_loop")
            executor = loaded.executor(placement)
            on_loop = LoopInstance(spec.loop, self._batcher, execution, executor, self.pace)
        self._instances = InstanceGroup(loaded, self._batcher, execution, warm, on_loop)
        self._on_loop = on_loop

    @classmethod
    def load(cls, spec: ModelSpec, version: int) -> Model:
        """Load `version`, warm it up and start its instances. On failure nothing stays behind."""
        started = time.monotonic()
        wanted = slots(spec.config.instance_group)
        assert spec.backend is not None
        loaded = spec.backend.load(
            LoadContext(
                model_folder=spec.folder,
                version_folder=spec.version_folders[version],
                version=version,
                config=spec.config,
                placements=[slot.placement for slot in wanted],
                settings=spec.settings,
                cores=spec.cores,
                models=spec.models,
                metrics=spec.metrics,
            )
        )
        try:
            model = cls(spec, version, loaded)
            model._instances.resize(wanted)
            if model._on_loop is not None:
                model._on_loop.start()
        except BaseException:
            loaded.close()
            raise
        model.statistics.load_duration_secs = time.monotonic() - started
        return model

    @property
    def decoupled(self) -> bool:
        """Whether it may send any number of responses to a request."""
        policy = self.config.model_transaction_policy
        return policy is not None and policy.decoupled

    @property
    def asks_readiness(self) -> bool:
        """Whether `ready` asks the model itself, which may take a while."""
        return self._loaded.asks_readiness

    def ready(self) -> bool:
        """Whether it can be asked now. Blocks where it `asks_readiness`."""
        return self._loaded.ready()

    def accept(self, request: Request) -> None:
        """Check the request and queue it. If this raises, it is still the caller's to answer."""
        validate(request, self.signature)
        self.accept_checked(request)

    def accept_checked(self, request: Request) -> None:
        """Queue a request known to be valid for this model. Raises as `accept` does."""
        request.served_by = self
        try:
            self._batcher.enqueue(request)
        except QueueRejected:
            self.statistics.failed(request, FailureReason.REJECTED, time.monotonic_ns())
            raise

    def _dropped(self, request: Request, error: ShoalError) -> None:
        self.statistics.failed(request, FailureReason.of(error), time.monotonic_ns())
        request.fail(error, self.version)

    def resize(self, spec: ModelSpec) -> None:
        """Take the instance groups of `spec`, in place. On failure the old ones stay."""
        self._instances.resize(slots(spec.config.instance_group))
        self.spec = spec
        self.config = spec.config

    def in_flight(self) -> int:
        """Requests accepted and not yet answered, give or take those being handed over."""
        return self._batcher.pending() + self._instances.busy()

    def begin_exit(self) -> None:
        """The server is going: sequences that have begun may go on, no other begins."""
        if self._sequences is not None:
            self._sequences.refuse_new()

    def close(self) -> None:
        """Refuse new requests, serve the queued ones, then give everything back. Blocks."""
        self._batcher.close()
        self._instances.finish()
        self._loaded.close()


def _first_response_edges(spec: ModelSpec) -> Sequence[float]:
    """The bounds of the first-response histogram: the config's, or Triton's; none without one."""
    if not spec.counted.first_response:
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
    """The config's tensors in the form validation needs, with their labels read in."""
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


def _build_batcher(spec: ModelSpec, on_dropped: OnDropped) -> Scheduler:
    config = spec.config
    if config.sequence_batching is not None:
        return sequence_setup.build(
            config, spec.folder, on_dropped=on_dropped, hold_until=spec.hold_until
        )
    batching = config.dynamic_batching
    policy: Policy
    if batching is None:
        policy, queue, ordered = OneByOne(), RequestQueue(_policy_of_parameters(config)), False
    else:
        policy = BatchPolicy(
            max(1, config.max_batch_size),
            frozenset(batching.preferred_batch_size),
            batching.max_queue_delay_microseconds * _NS_PER_US,
        )
        queue, ordered = _queue_of(batching), batching.preserve_ordering
    return Batcher(
        policy,
        queue,
        on_dropped=on_dropped,
        preserve_ordering=ordered,
        hold_until=spec.hold_until,
    )


def _build_pace(spec: ModelSpec, loaded: LoadedModel) -> Pace:
    """Whether the model may run on the event loop: `parameters { key: "execution" … }`."""
    parameter = spec.config.parameters.get("execution")
    text = spec.execution if parameter is None else parameter.string_value
    if text not in ("auto", *(mode.value for mode in Mode)):
        raise ConfigError(
            f"found '{text}'",
            file="config.pbtxt",
            field="parameters['execution']",
            fix="Write auto, loop or threads",
        )
    forced = None if text == "auto" else Mode(text)
    if spec.loop is None:
        return Pace(allowed=False, why="there is no event loop to run it on")
    return Pace(allowed=loaded.may_run_on_loop, forced=forced)


def _queue_of(batching: ModelDynamicBatching) -> RequestQueue:
    return RequestQueue(
        _queue_policy(batching.default_queue_policy),
        levels=max(1, batching.priority_levels),
        default_level=max(1, batching.default_priority_level),
        level_policies={
            level: _queue_policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
    )


def _queue_policy(policy: ModelQueuePolicy | None) -> QueuePolicy:
    if policy is None:
        return QueuePolicy()
    return QueuePolicy(
        default_timeout_ns=policy.default_timeout_microseconds * _NS_PER_US,
        allow_override=policy.allow_timeout_override,
        delay_expired=policy.timeout_action == "DELAY",
        max_size=policy.max_queue_size,
    )


def _policy_of_parameters(config: ModelConfig) -> QueuePolicy:
    """Queue limits where the config has no `dynamic_batching` block to say them in."""
    return QueuePolicy(
        default_timeout_ns=_whole(config, "default_timeout_microseconds") * _NS_PER_US,
        max_size=_whole(config, "max_queue_size"),
        timeout_from_request=True,
    )


def _whole(config: ModelConfig, key: str) -> int:
    parameter = config.parameters.get(key)
    text = "0" if parameter is None else parameter.string_value
    if not text.isdecimal():
        raise ConfigError(
            f"found '{text}'",
            file="config.pbtxt",
            field=f"parameters['{key}']",
            fix="Write a whole number, 0 for no limit",
        )
    return int(text)
