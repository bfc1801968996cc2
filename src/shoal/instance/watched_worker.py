"""An instance whose executions may take only so long.

    thread --pull--> execution ......................... hangs, maybe for ever
                          └─limit─> a new thread answers the requests, gets a new executor, pulls

Where the executor can end its execution (a process is killed), it is used again. Otherwise the old
thread is abandoned with its executor: nothing that it uses is freed before it returns, and what it
returns is discarded.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from shoal.backends.base import Executor, PendingRequest, Placement, RequestExecutor
from shoal.core.request import Request
from shoal.errors import DeadlineExceeded, ShoalError, Unavailable
from shoal.instance import watch
from shoal.instance.execution import Execution
from shoal.instance.failures import ExecutionAbandoned
from shoal.instance.health import ModelHealth
from shoal.instance.own_time import ComputeTime
from shoal.instance.watch import AnyWatched, ExecutionWatch, watched
from shoal.instance.worker import InstanceWorker
from shoal.scheduler.base import Scheduler
from shoal.scheduler.timer import Timer, shared_timer

logger = logging.getLogger(__name__)

_END_SECS = 10.0  # for a thread to return after its execution was ended
_NS_PER_MS = 1_000_000


class WatchedWorker(InstanceWorker):
    """An instance that survives executions that hang.

    One thread at a time is its own: the one that pulls, or that recovers from a timeout. Only that
    one changes its attributes.
    """

    def __init__(
        self,
        placement: Placement,
        executor: Executor | RequestExecutor,
        batcher: Scheduler,
        execution: Execution,
        *,
        health: ModelHealth,
        make_executor: Callable[[], Executor | RequestExecutor],
        timer: Timer = shared_timer,
        **options: Any,
    ) -> None:
        """`make_executor` makes another executor, warmed up; `options` are those of any worker."""
        self._stopped = False
        self._pausing = False  # it leaves the queue, to see whether it can be replaced
        super().__init__(placement, executor, batcher, execution, **options)
        self._health = health
        self._make_executor = make_executor
        self._timer = timer
        self._run = self._note_and_run
        self._run_batches = self._note_and_run_batches
        self._executing: Sequence[Sequence[Request]] = ()
        self._watched: AnyWatched | None = self._watch(executor)  # None: it has to be replaced
        self.executor = self._watched
        self._why_not_replaced = ""
        self._attached = True  # to the queue
        self._finishing = False
        self._ended = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether it takes no more batches, for good or for now."""
        return self._stopped or self._pausing

    @stopping.setter
    def stopping(self, stopped: bool) -> None:
        self._stopped = stopped

    def start(self) -> None:
        """Begin to pull, unless this instance is passive."""
        if not self.passive:
            self._health.join(self.placement.name, self._retry)
        super().start()

    # ---- running batches

    def _pull(self) -> None:
        """Run batches until it is stopped, or until an execution takes too long."""
        try:
            while self._has_work():
                self._pausing = False
                seen = self._health.changes
                if self._watched is None and not self._replace():
                    others_serve = self._refuse()
                    if self._health.changes != seen:
                        continue
                    if others_serve:
                        self._pausing = True
                        if self._attached:
                            self._pull_batches()  # of its sequences, to refuse them
                        if self._stopped or self._finishing:
                            break
                        self._health.wait_for_change(seen)
                        continue
                self._pull_batches()
                if not self._pausing:
                    break
        except ExecutionAbandoned as abandoned:
            if abandoned.on_return is not None:
                abandoned.on_return()
        else:
            self._ended.set()

    def _pull_batches(self) -> None:
        if not self._attached:
            self._batcher.attach(self)
        super()._pull()
        self._attached = not self._batcher.instances_linger  # else the queue has forgotten it

    def _note_and_run(
        self, executor: Executor | RequestExecutor, batch: Sequence[Request]
    ) -> ComputeTime:
        self._executing = (batch,)
        took = self._execution.run(executor, batch)
        self._executing = ()  # not if it was abandoned: another thread uses it then
        return took

    def _note_and_run_batches(
        self, executor: RequestExecutor, batches: Sequence[Sequence[Request]]
    ) -> None:
        self._executing = batches
        self._execution.run_several(executor, batches)
        self._executing = ()

    def _watch(self, executor: Executor | RequestExecutor) -> AnyWatched:
        limit_ns = self._health.limit_ms * _NS_PER_MS
        return watched(executor, ExecutionWatch(limit_ns, self._take_over, timer=self._timer))

    # ---- an execution takes too long

    def _take_over(self) -> None:
        """Called by the timer: go on with another thread."""
        hanging = self._thread
        assert hanging is not None
        self._thread = threading.Thread(
            target=self._recover, args=(hanging,), name=hanging.name, daemon=True
        )
        self._thread.start()

    def _recover(self, hanging: threading.Thread) -> None:
        """Answer the requests, end the execution or leave it alone, and pull again."""
        name, health, executor = self.placement.name, self._health, self._watched
        assert executor is not None
        reason = f"an execution took longer than {health.limit_ms} ms (execution_timeout_ms)"
        health.timed_out(name, reason)
        logger.error(
            "model '%s', instance '%s': %s. Its thread is at:\n%s",
            health.model,
            name,
            reason,
            _stack(hanging),
        )
        self._answer(
            executor,
            DeadlineExceeded(
                f"model '{health.model}', instance '{name}': {reason}. Raise that limit if the "
                "model needs longer; otherwise find out where it hangs: the server's log shows it"
            ),
        )
        if _end(executor, reason) and executor.watch.wait_for_return(_END_SECS):
            executor.prepare()
            health.healthy(name)
        else:
            self._watched = None
            self._abandon(executor)
        self._pull()

    def _answer(self, executor: AnyWatched, error: ShoalError) -> None:
        """Answer what is being executed, and let the queue and the rate limiter continue."""
        batches, pending = self._executing, executor.pending
        self._executing = executor.pending = ()
        for index, batch in enumerate(batches):
            self._execution.give_up(
                batch,
                pending[index] if pending else (),
                executor.watch.began_ns,
                error,
                later=executor.answers_later,
            )
        for batch in batches:
            self._batcher.finished(batch)
        self.busy_with = 0
        if self._grant is not None:
            self._grant.release()  # else one model that hangs would stop others

    def _abandon(self, executor: AnyWatched) -> None:
        """Leave the thread alone. If it returns, it closes its executor."""
        name, health = self.placement.name, self._health

        def close() -> None:
            try:
                self._execution.close(executor)
            except Exception:  # after such an execution it may be in any state
                logger.exception("closing an executor of '%s' failed", name)

        def return_late() -> None:
            close()
            health.returned(executor)

        health.abandon(name, executor)
        if not executor.watch.abandon(return_late):
            return_late()

    # ---- another executor

    def _has_work(self) -> bool:
        """Whether to pull; without an executor, only if there is something to answer."""
        if self._watched is not None or (self._attached and self._batcher.instances_linger):
            return True
        return not self._stopped and not (self._finishing and not self._batcher.pending())

    def _replace(self) -> bool:
        """Make another executor, if few threads of the model hang; whether there is one."""
        name, health = self.placement.name, self._health
        self._why_not_replaced = ""
        if not health.may_replace(name):
            return False
        try:
            executor = self._watch(self._make_executor())
        except Exception as error:
            logger.exception("instance '%s' cannot be replaced", name)
            self._why_not_replaced = f"it cannot be replaced: {error}"
            return False
        self.executor = self._watched = executor
        health.healthy(name)
        logger.info("instance '%s' has been replaced", name)
        return True

    def _refuse(self) -> bool:
        """Refuse requests from now on; returns whether other instances take them instead."""
        self.executor = _RefusingExecutor(self._health)
        return self._health.unhealthy(self.placement.name, self._why_not_replaced)

    def _retry(self) -> None:
        """A thread of the model has returned: this instance may be replaced. From any thread."""
        self._pausing = True
        self._wake()

    def _wake(self) -> None:
        self._batcher.wake()
        if self._idle_instances is not None:
            self._idle_instances.wake()

    # ---- the end

    def stop(self) -> None:
        """Finish the batch at hand and take no other. Returns at once; `join` waits."""
        super().stop()
        self._health.wake()

    def join(self) -> None:
        """Wait until it has ended; an execution that hangs is waited for until its limit."""
        if self._thread is not None:
            self._finishing = True
            self._health.wake()
            self._ended.wait()
        self.discard()

    def discard(self) -> None:
        """Release what is left of the executor and resources."""
        self._health.leave(self.placement.name)
        if self._watched is not None:
            self._execution.close(self._watched)
        if self._grant is not None:
            self._grant.leave()


class _RefusingExecutor(RequestExecutor):
    """In place of an executor of a model whose instances all hang."""

    def __init__(self, health: ModelHealth) -> None:
        self._health = health

    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Refuse the requests."""
        del batch
        raise Unavailable(
            f"model '{self._health.model}' has no healthy instance: "
            f"{'; '.join(self._health.problems())}. Load the model again or restart the server"
        )


def _end(executor: AnyWatched, reason: str) -> bool:
    try:
        return executor.end_execution(reason)
    except Exception:
        logger.exception("an execution cannot be ended")
        return False


def _stack(thread: threading.Thread) -> str:
    """Where a thread is in its executor, as in a traceback."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return "(it has returned)"
    stack = traceback.extract_stack(frame)
    ours = [index for index, entry in enumerate(stack) if entry.filename == watch.__file__]
    return "".join(traceback.format_list(stack[ours[-1] + 1 if ours else 0 :]))
