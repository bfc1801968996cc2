"""One loaded version of a model: its config, queue, instances and statistics.

    engine --accept--> [ batcher ] <--pull-- instances

`Model.load` returns a model that is warmed up and pulling, or raises and leaves nothing behind.
`close` serves queued requests, then releases everything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.backends.base import (
    Executor,
    LoadContext,
    LoadedModel,
    Placement,
    RequestExecutor,
)
from shoal.backends.initialisation import initialising_with
from shoal.config.model import ModelConfig
from shoal.core.concurrency import ExpectedConcurrency
from shoal.core.named_frame import named_frame
from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.readiness import Problem
from shoal.core.reply import DISCARD
from shoal.core.request import Request
from shoal.core.tensor import Buffer
from shoal.errors import QueueRejected, ShoalError
from shoal.instance.execution import Execution
from shoal.instance.group import InstanceGroup, instance_specs
from shoal.instance.inline import LoopInstance
from shoal.instance.warmup import warm_up
from shoal.models.replicas import ModelReplicas, Report
from shoal.models.served import ServedModel
from shoal.models.setup import build_execution_placement, build_health, build_scheduler
from shoal.models.spec import ModelSpec, build_signature
from shoal.scheduler import assembly, padding_setup
from shoal.scheduler.admission import Expectation
from shoal.scheduler.drain import Load, TimeToDrain
from shoal.scheduler.policy import Reason
from shoal.scheduler.sequence import SequenceBatcher
from shoal.statistics.model import FailureReason

if TYPE_CHECKING:
    from shoal.tasks.images.plan import PhotoPlan


class Model(ServedModel):
    """A version with a backend and instances."""

    __slots__ = ("_batcher", "_on_loop")

    def __init__(
        self,
        spec: ModelSpec,
        version: int,
        loaded: LoadedModel,
        expected: ExpectedConcurrency | None = None,
    ) -> None:
        """`expected` tells the backend how many executions run at the same time."""
        signature = build_signature(spec.config, spec.folder)
        super().__init__(
            spec, version, padding_setup.padded(signature, spec.config, loaded.axis_names)
        )
        self.statistics.memory_bytes = self.memory_bytes
        self.statistics.gpu_memory = loaded.gpu_memory
        self.held_bytes = 0  # estimate, in this process; set after its load was measured
        self._loaded = loaded
        self.interface = loaded.interface
        self._batcher = build_scheduler(spec, self._dropped, expected)
        self.statistics.pending = lambda: self._batcher.waiting().requests
        self.statistics.admission = self._batcher.admission
        batching = spec.config.dynamic_batching
        batches = batching is not None or spec.config.sequence_batching is not None
        self._drain = TimeToDrain(spec.config.max_batch_size if batches else 0)
        self._use_scheduler(
            self._batcher.enqueue,
            version_folder=spec.version_folders[version],
            preserve_ordering=batching is not None and batching.preserve_ordering,
        )
        built = assembly.build(spec.config, self.signature)
        self._plain = built is None and not self.signature.state_outputs
        self._joins_rows = self._plain and self._cache is None and _joins_rows(spec.config)
        self._classifies_photos = False
        if built is not None and self.signature.padding is not None:
            self.statistics.padded = built.padded
        execution = Execution(
            self.signature,
            version,
            self.statistics,
            decoupled=self.decoupled,
            assembly=built,
            takes_device_tensors=loaded.takes_device_tensors,
        )
        sequences = self._batcher if isinstance(self._batcher, SequenceBatcher) else None
        self._sequences = sequences
        warm = warm_up(
            spec.config.model_warmup,
            self.signature,
            spec.folder,
            sequences.lone_inputs if sequences is not None else None,
            built,
        )
        self._health = build_health(spec)
        if self._health is not None:
            self.statistics.health = self._health.read
        self._open_task()  # which may ask for instances that classify photos
        self.execution_placement = build_execution_placement(spec, loaded)
        self.statistics.on_loop = self.execution_placement.on_loop
        on_loop = None
        may_run_on_loop = loaded.may_run_on_loop and not spec.limited and self._health is None
        if spec.context.loop is not None and may_run_on_loop:
            executor = self._make_executor(_loop_placement(spec))
            on_loop = LoopInstance(
                spec.context.loop, self._batcher, execution, executor, self.execution_placement
            )
        limiter = spec.context.limiter if spec.limited else None
        self._instances = InstanceGroup(
            self._make_executor, self._batcher, execution, warm, on_loop, limiter, self._health
        )
        self._on_loop = on_loop
        self.statistics.instances = self._instances.count
        self.statistics.process_restarts = loaded.process_restarts

    @classmethod
    def load(cls, spec: ModelSpec, version: int) -> Model:
        """Load `version`, warm it up and start its instances. On failure, release everything."""
        loading = f"model '{spec.name}' version {version} was being loaded"  # should it crash
        made: Model = named_frame(cls._load.__func__, loading)(cls, spec, version)  # type: ignore[attr-defined]
        return made

    @classmethod
    def _load(cls, spec: ModelSpec, version: int) -> Model:
        started = time.monotonic()
        wanted = instance_specs(spec.config.instance_group)
        assert spec.backend is not None
        loop = spec.context.loop
        expected = ExpectedConcurrency(loop.lone_client if loop else None)
        context = LoadContext(
            model_folder=spec.folder,
            version_folder=spec.version_folders[version],
            version=version,
            config=spec.config,
            placements=[one.placement for one in wanted],
            settings=spec.settings,
            cores=spec.cores,
            models=spec.context.models,
            metrics=spec.context.metrics,
            concurrency=expected,
        )
        with initialising_with(spec.backend, spec.name):
            loaded = spec.backend.load(context)
        try:
            model = cls(spec, version, loaded, expected)
            model._instances.resize(wanted)
            if model._on_loop is not None:
                model._on_loop.start()
        except BaseException:
            loaded.close()
            raise
        model.statistics.ready(time.monotonic() - started)
        return model

    def _make_executor(self, placement: Placement) -> Executor | RequestExecutor:
        assert self.spec.backend is not None
        with initialising_with(self.spec.backend, self.name):
            return self._loaded.executor(placement)

    @property
    def decoupled(self) -> bool:
        """Whether it may send any number of responses to a request."""
        policy = self.config.model_transaction_policy
        return policy is not None and policy.decoupled

    @property
    def takes_device_tensors(self) -> bool:
        """Whether other steps of an ensemble may pass it tensors on a device."""
        return self._loaded.takes_device_tensors

    @property
    def asks_readiness(self) -> bool:
        """Whether `ready` calls the model itself, which may block."""
        return self._loaded.asks_readiness

    def ready(self) -> bool:
        """Whether it is ready. May block where it `asks_readiness`."""
        return self.is_healthy() and self._loaded.ready()

    def is_healthy(self) -> bool:
        """Whether an instance takes requests."""
        return self._health is None or self._health.serves()

    def problems(self) -> Sequence[Problem]:
        """What is wrong with its instances."""
        if self._health is None:
            return ()
        blocks = not self.is_healthy()
        return [
            Problem(f"model '{self.name}', {text}", self.name, blocks)
            for text in self._health.problems()
        ]

    @property
    def classifies_photos(self) -> bool:
        """Whether its instances decode and classify photos themselves."""
        return self._classifies_photos

    def offer_photos(self, plan: PhotoPlan) -> bool:
        """See `ServedModel`. Batches of photos are plain rows, and no other reply stands in."""
        config, signature = self.config, self.signature
        batching = config.dynamic_batching
        ordered = batching is not None and batching.preserve_ordering
        reshaped = signature.has_reshape or signature.outputs[plan.output].reshape is not None
        wrapped = ordered or self._cache is not None
        batched = self._plain and self._sequences is None and config.max_batch_size > 0
        if not batched or reshaped or wrapped or self.decoupled:
            return False
        self._classifies_photos = self._loaded.classify_photos(plan)
        return self._classifies_photos

    def accept_group(self, requests: Sequence[PlannedRequest]) -> int:
        """Queue valid requests that arrived at the same moment; see `ServedModel`."""
        if self._cache is not None:
            return 0
        if self._on_loop is not None and self._on_loop.run_group(requests):
            return len(requests)
        return self._batcher.enqueue_group(requests)

    def joins_rows(self) -> int:
        """See `ServedModel`."""
        if not self._joins_rows or not self._instances.join_rows:
            return 0
        return 1 if self.execution_placement.on_loop() else max(1, self._instances.count())

    def run_block(
        self, template: RequestTemplate, columns: Sequence[Buffer], started: list[int]
    ) -> PlannedResponses | None:
        """See `ServedModel`."""
        if self._cache is not None or self._on_loop is None:
            return None
        return self._on_loop.run_block(template, columns, started)

    def expectation(self, request: Request) -> Expectation:
        """Whether such a request would be admitted now, and how long it would take."""
        return self._batcher.expectation(request)

    def refusal(self, requests: Sequence[Request] = ()) -> QueueRejected | None:
        """The error for all of the requests, if none would be accepted now; see `ServedModel`."""
        if self._cache is not None:  # it may have the response
            return None
        rows = requests[0].rows if requests else 1
        error = self._batcher.refusal(rows, len(requests) or 1)
        if error is not None:
            now_ns = time.monotonic_ns()
            for request in requests or [Request(self.name, {}, DISCARD)]:
                self.statistics.failed(request, FailureReason.REJECTED, now_ns)
        return error

    def _dropped(self, request: Request, error: ShoalError) -> None:
        self.statistics.failed(request, FailureReason.of(error), time.monotonic_ns())
        request.fail(error, self.version)

    def resize(self, spec: ModelSpec) -> None:
        """Take the instance groups of `spec`, in place. On failure the old ones stay."""
        self._instances.resize(instance_specs(spec.config.instance_group))
        super().resize(spec)

    def _scheduled(self) -> int:
        return self._batcher.pending() + self._instances.busy()

    def load_now(self) -> Load:
        """What waits and what runs, without what front ends run themselves."""
        running = self._instances.running()
        # Each request that is answered after its execution takes as long as any of them.
        running += [1] * (self._loaded.owed() - sum(running))
        count = 1 if self.execution_placement.on_loop() else self._instances.count()
        return Load(self._batcher.waiting(), running, count)

    def time_to_drain_ns(self) -> float | None:
        """See `ServedModel`. With a target latency, it is the estimate that refuses requests."""
        load = self.load_now()
        if self.replicas is not None:
            load = self.replicas.add_loads(load)
        elif not self._loaded.owed():
            measured_ns = self._batcher.drain_ns()
            if measured_ns is not None:
                return measured_ns
        return self._drain.read_ns(*self.statistics.read_executions(), load)

    def idle(self) -> bool:
        """Whether it is unused: no request, no pending response, no open sequence."""
        sequences = self._sequences.under_way() if self._sequences is not None else 0
        return not (self.in_flight() or sequences or self._loaded.owed())

    def recent_cuts(self) -> list[tuple[Reason, int]]:
        """Of the last batches, the oldest first: why each was closed, and its rows."""
        return [*self._batcher.recent, *(self.replicas.cuts() if self.replicas is not None else ())]

    def counters(self) -> Mapping[str, object]:
        """The additional counters of its backend."""
        return self._loaded.counters()

    def memory_bytes(self) -> int:
        """Its estimated memory, in this process, in others of its own, and on GPUs."""
        on_gpus = sum(self._loaded.gpu_memory().values())
        return self.held_bytes + self._loaded.memory_elsewhere() + on_gpus

    def take_report(self, owner: object, report: Report | None) -> None:
        """Count what the replica of a front end has done; None: it is closed. For one thread."""
        if self.replicas is None:
            self.replicas = ModelReplicas(self)
        if report is None:
            self.replicas.leave(owner)
        else:
            self.replicas.take(owner, report)

    def begin_exit(self) -> None:
        """The server exits: sequences that have begun may continue, no new one begins."""
        if self._sequences is not None:
            self._sequences.refuse_new()

    def _close(self) -> None:
        self._batcher.close()
        self._instances.finish()
        if self._health is None:
            self._loaded.close()
        else:
            self._health.close(self._loaded.close)


def _joins_rows(config: ModelConfig) -> bool:
    """Whether a request with the rows of several is batched as these would be, and not refused or
    dropped where they would not be."""
    batching = config.dynamic_batching
    return (
        config.max_batch_size > 0
        and batching is not None
        and set(batching.preferred_batch_size) <= {config.max_batch_size}
        and batching.default_queue_policy is None
        and not batching.priority_queue_policy
        and not (config.model_transaction_policy and config.model_transaction_policy.decoupled)
    )


def _loop_placement(spec: ModelSpec) -> Placement:
    """Where the event loop's instance runs: on the GPU of the others, or on the CPU."""
    name = f"{spec.name}_loop"
    for one in instance_specs(spec.config.instance_group):
        if one.placement.kind == "KIND_GPU":
            return replace(one.placement, name=name)
    return Placement("KIND_CPU", 0, name)
