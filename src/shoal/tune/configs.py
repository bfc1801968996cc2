"""Converts between configs and points of the search.

    ModelConfig --start_of--> ConfigPoint          ModelConfig, ConfigPoint --applied--> ModelConfig

A model is measured with its complete config; the output is the existing config.pbtxt with only the
searched fields changed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from shoal.config.backends import BACKENDS
from shoal.config.model import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInstanceGroup,
    ModelParameter,
)
from shoal.errors import InvalidArgument
from shoal.tune.space import DELAYS_US, ConfigPoint, Space, doubling, with_value

_INSTANCES_PER_CORE = 2  # at most


class Change(NamedTuple):
    """One changed field."""

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of the search."""

    most_rows: int
    most_instances: int = 0  # 0: derived from the cores
    rows: int = 1  # per request


@dataclass(frozen=True, slots=True)
class Subject:
    """A model: its config as written and as completed by the server."""

    whole: ModelConfig
    cores: int
    written: ModelConfig | None = None  # None where there is no config.pbtxt
    bare: bool = False  # a file without a folder: in a repository it has the default name

    def __post_init__(self) -> None:
        if self.whole.ensemble_scheduling is not None:
            names = [step.model_name for step in self.whole.ensemble_scheduling.step]
            raise InvalidArgument(
                f"model '{self.whole.name}' is an ensemble, which runs no model itself; tune "
                f"its models: {', '.join(dict.fromkeys(names))}"
            )

    # ---- the search space

    @property
    def batches(self) -> bool:
        """Whether requests can be merged; sequences have their own scheduler."""
        return self.whole.max_batch_size > 0 and self.whole.sequence_batching is None

    @property
    def on_gpu(self) -> bool:
        """Whether its instances are on GPUs."""
        return any(group.kind == "KIND_GPU" for group in self.whole.instance_group)

    @property
    def thread_parameter(self) -> str:
        """The parameter for threads; empty where they are not tuned."""
        backend = BACKENDS.get(self.whole.backend)
        return "" if self.on_gpu or backend is None else backend.thread_parameter

    @property
    def fixed(self) -> list[str]:
        """A sentence for each setting that is not tuned, with the reason."""
        notes = []
        if self.whole.sequence_batching is not None:
            notes.append("sequences have their own scheduler: batching is not tuned")
        elif not self.batches:
            notes.append("the model does not batch (max_batch_size is 0): batching is not tuned")
        if len(self.whole.instance_group) > 1:
            notes.append("there are several instance groups: instances are not tuned")
        if not self.thread_parameter:
            where = "on a GPU" if self.on_gpu else f"of the backend '{self.whole.backend}'"
            notes.append(f"a model {where} has no thread setting: threads are not tuned")
        return notes

    def start(self, rows: int = 1) -> ConfigPoint:
        """The config as it is."""
        whole = self.whole
        groups = whole.instance_group or (ModelInstanceGroup(count=1),)
        dynamic = whole.dynamic_batching
        batch, delay_us = 0, 0
        if self.batches:
            batch = max(rows, whole.max_batch_size) if dynamic is not None else rows
            delay_us = dynamic.max_queue_delay_microseconds if dynamic is not None else 0
        return ConfigPoint(batch, delay_us, groups[0].count, self._threads(groups[0].count))

    def space(self, bounds: Bounds, levels: tuple[int, ...], limit_us: float = 0.0) -> Space:
        """The space to search. Raises InvalidArgument when a request has more rows than a batch."""
        rows, start = bounds.rows, self.start(bounds.rows)
        if rows > 1 and not self.whole.max_batch_size:
            raise InvalidArgument(
                f"model '{self.whole.name}' does not take batches (max_batch_size is 0); leave "
                f"--batch-size at 1"
            )
        batches: tuple[int, ...] = (start.batch,)
        delays_us: tuple[int, ...] = (start.delay_us,)
        if self.batches:
            # A batch never has more rows than all clients send.
            most = min(max(bounds.most_rows, rows), levels[-1] * rows)
            batches = with_value(doubling(rows, most), start.batch)
            # A delay above the limit alone exceeds it.
            allowed = [each for each in DELAYS_US if not limit_us or each < limit_us]
            delays_us = with_value(allowed, start.delay_us)
        instances: tuple[int, ...] = (start.instances,)
        if len(self.whole.instance_group) <= 1:
            most = bounds.most_instances or _INSTANCES_PER_CORE * self.cores
            instances = with_value(doubling(1, max(1, min(most, levels[-1]))), start.instances)
        threads: tuple[int, ...] = (start.threads,)
        if self.thread_parameter:
            threads = with_value(doubling(1, self.cores), start.threads)
        return Space(batches, delays_us, instances, threads, levels, rows)

    # ---- the config of a point

    def measured(self, point: ConfigPoint, rows: int = 1) -> ModelConfig:
        """The config to load for a measurement: complete, and without a response cache, which
        would answer instead of the model."""
        made = self._applied(self.whole, point, rows)
        return dataclasses.replace(made, response_cache=None)

    def output(self, point: ConfigPoint, rows: int = 1) -> ModelConfig:
        """The config to write. Fields that were not searched are unchanged."""
        base = self._short() if self.written is None else self.written
        if point == self.start(rows):
            return base
        unmerged = self.batches and point.batch <= rows
        if unmerged and self.whole.dynamic_batching is not None:
            # A config without tensors would be completed with dynamic batching.
            base = dataclasses.replace(base, input=self.whole.input, output=self.whole.output)
        return self._applied(base, point, rows)

    def _short(self) -> ModelConfig:
        """A config for a model without one, without default values."""
        whole = self.whole
        groups = tuple(dataclasses.replace(group, name="") for group in whole.instance_group)
        dynamic = whole.dynamic_batching
        return dataclasses.replace(
            whole,
            name="",
            version_policy=None,
            optimization=None,
            default_model_filename="" if self.bare else whole.default_model_filename,
            instance_group=groups,
            dynamic_batching=dynamic and dataclasses.replace(dynamic, preferred_batch_size=()),
        )

    def changes(self, point: ConfigPoint, rows: int = 1) -> list[Change]:
        """The fields that the point changes."""
        before, after = self.measured(self.start(rows), rows), self.measured(point, rows)
        found = [
            Change("max_batch_size", f"{before.max_batch_size}", f"{after.max_batch_size}"),
            Change("dynamic_batching.max_queue_delay_microseconds", _delay(before), _delay(after)),
            Change("instance_group.count", _count(before), _count(after)),
        ]
        key = self.thread_parameter
        if key:
            budget = "the cores divided among instances"
            values = [each.parameters.get(key) for each in (before, after)]
            texts = [budget if value is None else value.string_value for value in values]
            found.append(Change(f"parameters.{key}", texts[0], texts[1]))
        return [change for change in found if change.before != change.after]

    def _threads(self, instances: int) -> int:
        if not self.thread_parameter:
            return 0
        written = self.whole.parameters.get(self.thread_parameter)
        text = written.string_value if written is not None else ""
        return int(text) if text.isdecimal() and int(text) else self._share(instances)

    def _share(self, instances: int) -> int:
        """The default number of threads of an instance."""
        return max(1, self.cores // max(1, instances))

    def _applied(self, config: ModelConfig, point: ConfigPoint, rows: int) -> ModelConfig:
        if self.batches:
            config = self._with_batching(config, point, rows)
        start = self.start(rows)
        if point.instances != start.instances:
            whole = self.whole.instance_group or (ModelInstanceGroup(kind="KIND_CPU"),)
            groups = config.instance_group or (ModelInstanceGroup(kind=whole[0].kind),)
            group = dataclasses.replace(groups[0], count=point.instances)
            config = dataclasses.replace(config, instance_group=(group,))
        key = self.thread_parameter
        if key and (key in config.parameters or point.threads != self._share(point.instances)):
            parameters = {**config.parameters, key: ModelParameter(str(point.threads))}
            config = dataclasses.replace(config, parameters=parameters)
        return config

    def _with_batching(self, config: ModelConfig, point: ConfigPoint, rows: int) -> ModelConfig:
        dynamic = config.dynamic_batching
        if point.batch <= rows and not _promises(dynamic):
            # Requests are not merged; the limit on the rows of one request stays.
            most = max(self.whole.max_batch_size, rows)
            return dataclasses.replace(config, max_batch_size=most, dynamic_batching=None)
        dynamic = dynamic or ModelDynamicBatching()
        # A preferred size equal to the previous maximum is a default, not a preference.
        preferred = tuple(
            size
            for size in dynamic.preferred_batch_size
            if size < point.batch and size != self.whole.max_batch_size
        )
        dynamic = dataclasses.replace(
            dynamic,
            preferred_batch_size=preferred,
            max_queue_delay_microseconds=point.delay_us,
        )
        return dataclasses.replace(config, max_batch_size=point.batch, dynamic_batching=dynamic)


def _promises(dynamic: ModelDynamicBatching | None) -> bool:
    """Whether the block has guarantees other than batching, such as ordering and priorities."""
    return dynamic is not None and bool(
        dynamic.preserve_ordering
        or dynamic.priority_levels
        or dynamic.default_queue_policy
        or dynamic.priority_queue_policy
    )


def _delay(config: ModelConfig) -> str:
    dynamic = config.dynamic_batching
    return "no dynamic batching" if dynamic is None else f"{dynamic.max_queue_delay_microseconds}"


def _count(config: ModelConfig) -> str:
    return ", ".join(f"{group.count}" for group in config.instance_group)
