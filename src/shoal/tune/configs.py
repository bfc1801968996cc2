"""Between configs and points of the search: what a config says, and a config that says it.

    ModelConfig --start_of--> ConfigPoint          ModelConfig, ConfigPoint --applied--> ModelConfig

A model is measured with its whole config, as the server completes it; what is written to disk is
the config.pbtxt that was there, with those fields changed that the search changed.
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

_CROWD = 2  # instances per core, at most


class Change(NamedTuple):
    """One field that differs."""

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the search goes."""

    most_rows: int
    most_instances: int = 0  # 0 goes by the cores
    rows: int = 1  # of one request


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as it is: its config as written, and as the server completes it."""

    whole: ModelConfig
    cores: int
    written: ModelConfig | None = None  # None where there is no config.pbtxt
    bare: bool = False  # a file without a folder: in a repository it will have the usual name

    def __post_init__(self) -> None:
        if self.whole.ensemble_scheduling is not None:
            names = [step.model_name for step in self.whole.ensemble_scheduling.step]
            raise InvalidArgument(
                f"model '{self.whole.name}' is an ensemble, which runs nothing itself; tune the "
                f"models it is made of: {', '.join(dict.fromkeys(names))}"
            )

    # ---- what there is to choose

    @property
    def batches(self) -> bool:
        """Whether requests can be merged. Sequences have a way of their own."""
        return self.whole.max_batch_size > 0 and self.whole.sequence_batching is None

    @property
    def on_gpu(self) -> bool:
        """Whether its instances are on GPUs."""
        return any(group.kind == "KIND_GPU" for group in self.whole.instance_group)

    @property
    def thread_parameter(self) -> str:
        """The parameter for threads, or nothing where they are not to be chosen."""
        backend = BACKENDS.get(self.whole.backend)
        return "" if self.on_gpu or backend is None else backend.thread_parameter

    @property
    def fixed(self) -> list[str]:
        """A sentence for each setting that stays as it is, and why."""
        notes = []
        if self.whole.sequence_batching is not None:
            notes.append("sequences are batched by a scheduler of their own: batches stay")
        elif not self.batches:
            notes.append("the model does not batch (max_batch_size is 0): batches stay")
        if len(self.whole.instance_group) > 1:
            notes.append("there are several instance groups: instances stay")
        if not self.thread_parameter:
            where = "on a GPU" if self.on_gpu else f"of the backend '{self.whole.backend}'"
            notes.append(f"a model {where} has no number of threads to set: threads stay")
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
        """What to try. Raises InvalidArgument when a request has more rows than a batch may."""
        rows, start = bounds.rows, self.start(bounds.rows)
        if rows > 1 and not self.whole.max_batch_size:
            raise InvalidArgument(
                f"model '{self.whole.name}' does not take batches (max_batch_size is 0); leave "
                f"--batch-size at 1"
            )
        batches: tuple[int, ...] = (start.batch,)
        delays_us: tuple[int, ...] = (start.delay_us,)
        if self.batches:
            # More rows than all clients send never come together.
            most = min(max(bounds.most_rows, rows), levels[-1] * rows)
            batches = with_value(doubling(rows, most), start.batch)
            # Where the wait alone is over the limit, answers are, too.
            allowed = [each for each in DELAYS_US if not limit_us or each < limit_us]
            delays_us = with_value(allowed, start.delay_us)
        instances: tuple[int, ...] = (start.instances,)
        if len(self.whole.instance_group) <= 1:
            most = bounds.most_instances or _CROWD * self.cores
            instances = with_value(doubling(1, max(1, min(most, levels[-1]))), start.instances)
        threads: tuple[int, ...] = (start.threads,)
        if self.thread_parameter:
            threads = with_value(doubling(1, self.cores), start.threads)
        return Space(batches, delays_us, instances, threads, levels, rows)

    # ---- a config for a point

    def measured(self, point: ConfigPoint, rows: int = 1) -> ModelConfig:
        """The config to load for a measurement: whole, and without a cache, which would answer
        in the model's place."""
        made = self._applied(self.whole, point, rows)
        return dataclasses.replace(made, response_cache=None)

    def output(self, point: ConfigPoint, rows: int = 1) -> ModelConfig:
        """The config to write. Fields that the search left alone are as they were."""
        base = self._short() if self.written is None else self.written
        if point == self.start(rows):
            return base
        unmerged = self.batches and point.batch <= rows
        if unmerged and self.whole.dynamic_batching is not None:
            # A config that lists no tensors is completed with dynamic batching.
            base = dataclasses.replace(base, input=self.whole.input, output=self.whole.output)
        return self._applied(base, point, rows)

    def _short(self) -> ModelConfig:
        """A config for a model that has none: without what is a default wherever it lies."""
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
        """What the point changes of the config."""
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
        """What an instance gets where nobody says how many threads it has."""
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
            # Requests are not merged; what a client may send in one of them stays as it was.
            most = max(self.whole.max_batch_size, rows)
            return dataclasses.replace(config, max_batch_size=most, dynamic_batching=None)
        dynamic = dynamic or ModelDynamicBatching()
        # A size that is the whole batch of before is no wish but a default.
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
    """Whether clients may rely on more in the block than on batches."""
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
