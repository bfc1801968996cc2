"""One instance: a thread that pulls batches and runs them until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from shoal.backends.base import Executor, Placement, RequestExecutor
from shoal.config.model import ModelRateLimiter
from shoal.core.request import Request
from shoal.instance.execution import Execution
from shoal.instance.own_time import ComputeTime
from shoal.instance.rate_limiter import IdleInstances, ResourceGrant
from shoal.scheduler.base import Scheduler


class InstanceWorker:
    """An executor with the thread that feeds it. A passive one is never scheduled."""

    def __init__(
        self,
        placement: Placement,
        executor: Executor | RequestExecutor,
        batcher: Scheduler,
        execution: Execution,
        *,
        passive: bool = False,
        observe: Callable[[Sequence[Request], ComputeTime], None] | None = None,
        rate_limiter: ModelRateLimiter | None = None,
        grant: ResourceGrant | None = None,
        idle_instances: IdleInstances | None = None,
    ) -> None:
        """`observe` is called with each batch and what it took to compute.

        With a `grant` every batch waits for the rate limiter; of the `idle_instances` the one
        that has run least takes the next batch.
        """
        self.placement = placement
        self.executor = executor
        self.passive = passive
        self.rate_limiter = rate_limiter  # from its config, limited or not
        self.stopping = False
        self.busy_with = 0  # how many requests are being executed
        self._batcher = batcher
        self._execution = execution
        self._observe = observe
        self._grant = grant
        self._idle_instances = idle_instances
        self._thread: threading.Thread | None = None
        self._run = execution.run
        self._run_batches = execution.run_several

    def start(self) -> None:
        """Begin to pull, unless this instance is passive."""
        if not self.passive:
            self._batcher.attach(self)
            name = f"shoal-{self.placement.name}"
            self._thread = threading.Thread(target=self._pull, name=name, daemon=True)
            self._thread.start()

    def _pull(self) -> None:
        takes_several = isinstance(self.executor, RequestExecutor)
        if self._grant is not None:
            self._pull_limited(self._grant)
            return
        while batch := self._batcher.next_batch(self):
            self.busy_with = len(batch)
            if takes_several and self.executor.ahead:  # type: ignore[union-attr]
                self._run_several(batch)
            else:
                took = self._run(self.executor, batch)
                if self._observe is not None:
                    self._observe(batch, took)
            self._batcher.finished(batch)
            self.busy_with = 0
            del batch  # an idle instance must not keep the last requests' tensors alive

    def _run_several(self, first: list[Request]) -> None:
        """Run a batch together with those behind it, as many as the executor takes at once."""
        assert isinstance(self.executor, RequestExecutor)
        others = self._batcher.more(self.executor.ahead)
        self.busy_with += sum(len(batch) for batch in others)
        self._run_batches(self.executor, [first, *others])
        for batch in others:
            self._batcher.finished(batch)

    def _pull_limited(self, grant: ResourceGrant) -> None:
        """As `_pull`, under the rate limiter: one batch at a time, each when resources are free."""
        batch = self._next_batch(grant)
        while batch:
            self.busy_with = len(batch)
            grant.acquire()
            self._run(self.executor, batch)
            self._batcher.finished(batch)
            # With more to do, it competes for the resources before they are given to another.
            batch = self._batcher.ready_batch(self)
            if not batch:
                grant.release()
                self.busy_with = 0
                batch = self._next_batch(grant)

    def _next_batch(self, grant: ResourceGrant) -> list[Request]:
        idle_instances = self._idle_instances
        if idle_instances is None:
            return self._batcher.next_batch(self)
        while True:
            permit = idle_instances.enter(grant, self, self._batcher.wake)
            batch = self._batcher.next_batch(permit)
            idle_instances.leave(permit)
            if batch or not permit.revoked:
                return batch

    def stop(self) -> None:
        """Finish the batch at hand and take no other. Returns at once; `join` waits."""
        self.stopping = True
        self._batcher.wake()
        if self._idle_instances is not None:
            self._idle_instances.wake()

    def join(self) -> None:
        """Wait until the thread has ended, then give the executor's resources back."""
        if self._thread is not None:
            self._thread.join()
        self.discard()

    def discard(self) -> None:
        """Release the executor and resources; the thread has ended, or was never started."""
        self._execution.close(self.executor)
        if self._grant is not None:
            self._grant.leave()
