"""The instances of one model: made from its instance groups, changed in place when those change.

A removed instance finishes the batch at hand; one that stays keeps its executor, so changing the
count never reloads the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from shoal.backends.base import Executor, Placement, RequestExecutor
from shoal.config.model import ModelInstanceGroup, ModelRateLimiter
from shoal.instance.execution import Execution
from shoal.instance.health import ModelHealth
from shoal.instance.inline import LoopInstance
from shoal.instance.rate_limiter import IdleInstances, RateLimiter
from shoal.instance.warmup import WarmUp
from shoal.instance.watched_worker import WatchedWorker
from shoal.instance.worker import InstanceWorker
from shoal.scheduler.base import Scheduler


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance of a config."""

    placement: Placement
    passive: bool = False
    rate_limiter: ModelRateLimiter | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Instances with equal keys are interchangeable."""
        placement = self.placement
        return (placement.kind, placement.device_id, self.passive, self.rate_limiter)


def instance_specs(groups: Sequence[ModelInstanceGroup]) -> list[InstanceSpec]:
    """Every instance of the (resolved) groups: `count` each, for each of their GPUs."""
    result: list[InstanceSpec] = []
    for group in groups:
        devices = group.gpus if group.kind == "KIND_GPU" else (0,)
        index = 0
        for device in devices:
            for _ in range(group.count):
                placement = Placement(group.kind, device, f"{group.name}_{index}")
                result.append(InstanceSpec(placement, group.passive, group.rate_limiter))
                index += 1
    return result


class InstanceGroup:
    """All workers of one model version."""

    def __init__(
        self,
        make_executor: Callable[[Placement], Executor | RequestExecutor],
        batcher: Scheduler,
        execution: Execution,
        warm_up: WarmUp,
        on_loop: LoopInstance | None = None,
        limiter: RateLimiter | None = None,
        health: ModelHealth | None = None,
    ) -> None:
        """`on_loop` runs batches on the event loop while the model is quick.

        With a `limiter` every batch waits for the resources that it needs. With a `health`
        executions have a time limit, and instances that hang are replaced.
        """
        self._make_executor = make_executor
        self._on_loop = on_loop
        self._batcher = batcher
        self._execution = execution
        self._warm_up = warm_up
        self._limiter = limiter
        self._health = health
        # Where instances have sequences of their own, none can take another's batch.
        one_queue = limiter is not None and not batcher.instances_linger
        self._idle_instances = IdleInstances() if one_queue else None
        self._lock = threading.Lock()  # guards _workers and serialises changes
        self._workers: list[InstanceWorker] = []
        self._leaving: list[tuple[InstanceWorker, threading.Thread]] = []

    def resize(self, wanted: Sequence[InstanceSpec]) -> None:
        """Make the instances be `wanted`, keeping what can be kept.

        New ones are warmed up before they pull. If making one fails, the error is raised and the
        instances stay as they were.
        """
        with self._lock:
            spare = list(self._workers)
            kept: list[InstanceWorker] = []
            missing: list[InstanceSpec] = []
            for spec in wanted:
                match = next((w for w in spare if _key(w) == spec.key), None)
                if match is None:
                    missing.append(spec)
                else:
                    spare.remove(match)
                    kept.append(match)
            made: list[InstanceWorker] = []
            try:
                for spec in missing:
                    made.append(self._make(spec))  # noqa: PERF401 - keep what was made for the undo
            except BaseException:
                for worker in made:
                    worker.discard()
                raise
            for worker in made:
                worker.start()
            self._workers = kept + made
            self._retire(spare)

    def _make(self, spec: InstanceSpec) -> InstanceWorker:
        grant = None
        if self._limiter is not None and not spec.passive:
            grant = self._limiter.register(spec.placement, spec.rate_limiter)
        try:
            executor = self._warmed(spec.placement)
        except BaseException:
            if grant is not None:
                grant.leave()
            raise
        make_worker: Callable[..., InstanceWorker] = InstanceWorker
        if self._health is not None:
            make_worker = partial(
                WatchedWorker,
                health=self._health,
                make_executor=partial(self._warmed, spec.placement),
            )
        return make_worker(
            spec.placement,
            executor,
            self._batcher,
            self._execution,
            passive=spec.passive,
            observe=self._on_loop.observe if self._on_loop is not None else None,
            rate_limiter=spec.rate_limiter,
            grant=grant,
            idle_instances=self._idle_instances,
        )

    def _warmed(self, placement: Placement) -> Executor | RequestExecutor:
        executor = self._make_executor(placement)
        try:
            self._warm_up(executor)
        except BaseException:
            executor.close()
            raise
        executor.warm_up = self._warm_up
        return executor

    def count(self) -> int:
        """How many instances there are."""
        return len(self._workers)

    @property
    def join_rows(self) -> bool:
        """Whether they run joined batches and not requests, which would show what was joined."""
        return all(isinstance(worker.executor, Executor) for worker in self._workers)

    def busy(self) -> int:
        """How many requests are being executed."""
        return sum(self.running())

    def running(self) -> list[int]:
        """How many requests are being executed by each instance that executes any."""
        instances = [*self._workers, *[worker for worker, _ in self._leaving]]
        found = [worker.busy_with for worker in instances]
        if self._on_loop is not None:
            found.append(self._on_loop.busy_with)
        return [count for count in found if count]

    def finish(self) -> None:
        """Wait until every instance has ended; the batcher must have been closed before."""
        with self._lock:
            if self._on_loop is not None:
                self._on_loop.stop()
            for worker in self._workers:
                worker.join()
            self._workers = []
            for _, thread in self._leaving:
                thread.join()
            self._leaving = []

    def _retire(self, workers: Sequence[InstanceWorker]) -> None:
        """Have instances end; wait for them unless they have sequences to see through."""
        for worker in workers:
            worker.stop()
        self._leaving = [entry for entry in self._leaving if entry[1].is_alive()]
        for worker in workers:
            if self._batcher.instances_linger:
                name = f"shoal-leaving-{worker.placement.name}"
                thread = threading.Thread(target=worker.join, name=name, daemon=True)
                self._leaving.append((worker, thread))
                thread.start()
            else:
                worker.join()


def _key(worker: InstanceWorker) -> tuple[object, ...]:
    return InstanceSpec(worker.placement, worker.passive, worker.rate_limiter).key
