"""Running a quick model on the event loop: the requests of one poll become one batch.

    enqueue --> call_soon(flush) --> take_now --> execute --> replies, all on one thread
    a group of one template ------> run_group --> execute --> replies

No thread is woken and no lock is contended. When executions become slow, the queue goes back to
the worker threads, which wait all the while.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence

from shoal.backends.base import Executor, RequestExecutor
from shoal.core.concurrency import LoneClient
from shoal.core.planned import LARGE_BYTES, PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.request import Request
from shoal.core.tensor import Buffer
from shoal.instance.busy_poll import LIMIT_NS, BusyPoll
from shoal.instance.execution import Execution
from shoal.instance.execution_placement import (
    LOOP,
    SLOW_NS,
    THREADS,
    ExecutionMode,
    ExecutionPlacement,
)
from shoal.instance.own_time import ComputeTime
from shoal.scheduler.base import Scheduler

logger = logging.getLogger(__name__)

_ITERATION_NS = 200_000  # in which the loop starts batches of a model; then sockets are read again
_QUEUED_GROUPS = 32  # after an iteration with several: those of a model are joined in its queue
_MOST_EARLY_NS = 2 * SLOW_NS  # of executions before all sockets are read, in one iteration


def runs_apart(batch: Sequence[Request]) -> bool:
    """Whether the loop runs each request of a batch alone: where inputs are large, this needs no
    copy, and costs a quick model less than joining them."""
    first = batch[0]
    if first.turn is not None:
        return False
    if isinstance(first, PlannedRequest) and first.template is not None:
        return first.template.large
    tensors = first.inputs.values()
    return any(tensor.has_raw and tensor.nbytes >= LARGE_BYTES for tensor in tensors)


class LoopHandle:
    """The event loop that quick models may run on, once there is one.

    sockets are read --> after_reading: frontends submit --> call_soon: batches run
                                        after_batches: responses are written <---'
                         '-- all in one loop iteration, without polling the sockets again --'
    """

    def __init__(self, *, polls_for_lone_client: bool = False) -> None:
        """With `polls_for_lone_client`, the loop may poll instead of sleeping, see `busy_poll`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._after_reading: list[Callable[[], None]] = []
        self._due: list[Callable[[], None]] = []
        self._after_batches: list[Callable[[], None]] = []
        self._scheduled = False
        self.sockets_are_read = False  # while callbacks run: all of this iteration's requests exist
        self.early_ns = 0  # that executions took in this iteration before that
        self.iteration = 1
        self.lone_client = LoneClient()
        self._busy_poll = BusyPoll(self.lone_client) if polls_for_lone_client else None
        self._poll_until_ns = 0
        self.ran_count = 0  # requests in this iteration
        self.last_ran: Request | None = None  # the first request of the last batch

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use `loop`; call this on its thread."""
        self._thread = threading.get_ident()
        self._loop = loop

    def release(self) -> None:
        """The loop is about to end: schedule nothing on it any more."""
        self._loop = None

    @property
    def bound(self) -> bool:
        """Whether there is a loop."""
        return self._loop is not None

    def here(self) -> bool:
        """Whether this is the loop's thread."""
        return self._loop is not None and threading.get_ident() == self._thread

    def after_reading(self, callback: Callable[[], None]) -> None:
        """Have the loop call `callback` after this iteration's I/O, before those of `call_soon`.
        Only on the loop's own thread."""
        self._after_reading.append(callback)
        self._schedule()

    def after_batches(self, callback: Callable[[], None]) -> None:
        """Have the loop call `callback` after those of `call_soon`, also if this is called by one
        of them. Only on the loop's own thread."""
        self._after_batches.append(callback)
        self._schedule()

    def call_soon(self, callback: Callable[[], None]) -> bool:
        """Have the loop call `callback` after this iteration's I/O; false without a loop."""
        loop = self._loop
        if loop is None:
            return False
        try:
            if threading.get_ident() == self._thread:
                self._due.append(callback)
                self._schedule()
            else:
                loop.call_soon_threadsafe(callback)
        except RuntimeError:  # closed meanwhile
            return False
        return True

    def _schedule(self) -> None:
        if not self._scheduled and self._loop is not None:
            self._loop.call_soon(self._run_callbacks)
            self._scheduled = True

    def _run_callbacks(self) -> None:
        """Call everything in order, also what callbacks add to a later list than their own; what
        they add to others is for the next iteration."""
        arrived_ns = time.monotonic_ns()
        self.iteration += 1
        self.sockets_are_read = True
        self.early_ns = 0
        first, self._after_reading = self._after_reading, []
        for callback in first:
            self._call(callback)
        due, self._due = self._due, []
        for callback in due:
            self._call(callback)
        self.sockets_are_read = False
        last, self._after_batches = self._after_batches, []
        for callback in last:
            self._call(callback)
        self._scheduled = False
        if self._after_reading or self._due or self._after_batches:
            self._schedule()
        last_ran, self.last_ran = self.last_ran, None
        ran_count, self.ran_count = self.ran_count, 0
        if last_ran is not None and self._busy_poll is not None:
            client = getattr(last_ran.reply, "connection", None)
            if ran_count > 1 or client is None:
                self._busy_poll.reset()
            elif self._busy_poll.answered(client, arrived_ns, now_ns := time.monotonic_ns()):
                self._poll_until_ns = now_ns + LIMIT_NS
                self._poll()

    def _poll(self) -> None:
        """Have the loop poll its sockets once more, unless a request has arrived."""
        if self._scheduled or self._loop is None:
            return
        if time.monotonic_ns() < self._poll_until_ns:
            self._loop.call_soon(self._poll)
        elif self._busy_poll is not None:
            self._busy_poll.reset()

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("a callback of the event loop failed")

    def call_later(self, delay_secs: float, callback: Callable[[], None]) -> None:
        """Have the loop call `callback` after a while. Only on the loop's own thread."""
        if self._loop is not None:
            self._loop.call_later(delay_secs, callback)


class LoopInstance:
    """The loop as an instance of one model; idle while the worker threads have the queue."""

    __slots__ = (
        "_batcher",
        "_executing",
        "_execution",
        "_executor",
        "_groups_to_queue",
        "_handle",
        "_is_measured",
        "_last_iteration",
        "_placement",
        "_rest",
        "_run_alone",
        "_run_batch",
        "_scheduled",
        "_stopped",
        "busy_with",
    )

    def __init__(
        self,
        handle: LoopHandle,
        batcher: Scheduler,
        execution: Execution,
        executor: Executor | RequestExecutor,
        placement: ExecutionPlacement,
    ) -> None:
        self._handle = handle
        self._batcher = batcher
        self._is_measured = batcher.measures_executions
        self._execution = execution
        self._run_batch = execution.run
        self._run_alone = execution.run_alone
        self._executor = executor
        self._placement = placement
        self._last_iteration = 0  # in which a group arrived
        self._groups_to_queue = 0  # before one may run at once again
        self._scheduled = False
        self._stopped = False
        self._rest: Sequence[Request] = ()  # of a batch whose requests run one by one
        self._executing = threading.Lock()  # held while a batch runs, so that `stop` can wait
        self.busy_with = 0

    def start(self) -> None:
        """Take the queue at once if the config sets that mode."""
        if self._placement.mode is LOOP:
            self._take_over()

    def observe(self, batch: Sequence[Request], took: ComputeTime) -> None:
        """A worker thread has run a batch: the loop may take over from here."""
        rows, model_ns, _ = took
        mode = self._placement.observe_on_thread(
            rows,
            model_ns,
            waiting_rows=self._batcher.pending() * rows // len(batch),
            rows_alone=batch[0].rows if runs_apart(batch) else 0,
        )
        if mode is LOOP and not self._stopped:
            self._take_over()

    def _take_over(self) -> None:
        if self._handle.bound:
            self._batcher.hand_to_loop(self._arrived)

    def run_group(self, requests: Sequence[Request]) -> bool:
        """Run requests of one template at once, if they would be the next batch anyway; false, with
        nothing done, if not. A large request runs apart, so that it need not wait for others."""
        handle = self._handle
        if self._scheduled:
            return False
        begun_ns = 0
        count = len(requests)
        if not handle.sockets_are_read:
            if count > 1 or handle.early_ns > _MOST_EARLY_NS or not runs_apart(requests):
                return False
            begun_ns = time.monotonic_ns()
        else:
            iteration = handle.iteration
            if self._last_iteration == iteration:  # the second group: one batch is better
                self._groups_to_queue = _QUEUED_GROUPS
            self._last_iteration = iteration
            if self._groups_to_queue:
                self._groups_to_queue -= 1
                return False
            if count > 1 and runs_apart(requests):
                return False
        batcher = self._batcher
        request = requests[0]
        with self._executing:
            if self._stopped:
                return False
            if count == 1:
                if not batcher.start_alone(request):
                    return False
                self.busy_with = 1
                took = self._run_alone(self._executor, request, request.queued_ns)
            else:
                if not batcher.start_group(requests):
                    return False
                self.busy_with = count
                took = self._run_batch(self._executor, requests)
            if self._is_measured:
                batcher.finished(requests)
            mode = self._placement.observe(*took)
            self.busy_with = 0
        if begun_ns:
            handle.early_ns += time.monotonic_ns() - begun_ns
        handle.ran_count += count
        handle.last_ran = request
        if mode is THREADS:
            batcher.hand_to_instances()
        return True

    def run_block(
        self, template: RequestTemplate, columns: Sequence[Buffer], started: list[int]
    ) -> PlannedResponses | None:
        """Run requests of one template at once, if they would be the next batch anyway; see
        `Execution.run_block`. None, with nothing done, if not."""
        executor = self._executor
        if self._scheduled or template.large or not isinstance(executor, Executor):
            return None
        count = len(started)
        with self._executing:
            if self._stopped or not self._batcher.start_block(
                template.rows, template.batch_key, count
            ):
                return None
            self.busy_with = count
            ran = self._execution.run_block(
                executor, template, columns, started, time.monotonic_ns()
            )
            self.busy_with = 0
        if ran is None:
            return None
        responses, took = ran
        if self._placement.observe(*took) is THREADS:
            self._batcher.hand_to_instances()
        return responses

    def _arrived(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            if not self._handle.call_soon(self._flush):
                self._scheduled = False
                self._batcher.hand_to_instances()  # the loop has ended

    def _flush(self) -> None:
        self._scheduled = False
        until_ns = 0
        while True:
            with self._executing:
                if self._stopped:
                    return
                batch, wait_ns = self._rest, None
                if not batch:
                    batch, wait_ns = self._batcher.take_now()
                if not batch:
                    if wait_ns is not None:
                        self._handle.call_later(wait_ns / 1e9, self._arrived)
                    return
                self.busy_with = len(batch)
                mode = self._run(batch)
                if mode is THREADS and self._rest and self._batcher.give_back(self._rest):
                    self._rest = ()
                self.busy_with = len(self._rest)
            self._handle.ran_count += len(batch)
            self._handle.last_ran = batch[0]
            if mode is THREADS:
                self._batcher.hand_to_instances()
            if not self._rest and (mode is THREADS or not self._batcher.pending()):
                return
            now_ns = time.monotonic_ns()
            until_ns = until_ns or now_ns + _ITERATION_NS
            if now_ns > until_ns:
                break
        self._arrived()

    def _run(self, batch: Sequence[Request]) -> ExecutionMode:
        """Execute a batch, or the first requests of one that runs apart; returns the mode for the
        next one. Sockets do not wait longer than for a slow batch."""
        if len(batch) == 1 or not (self._batcher.runs_one_by_one or runs_apart(batch)):
            self._rest = ()
            return self._execute(batch)
        mode = LOOP
        until_ns = time.monotonic_ns() + SLOW_NS
        while batch:
            count, took = self._execution.run_one_by_one(self._executor, batch)
            self._batcher.finished(batch[:count])
            mode = self._placement.observe(*took)
            batch = batch[count:]
            if mode is THREADS or time.monotonic_ns() > until_ns:
                break
        self._rest = batch
        return mode

    def _execute(self, batch: Sequence[Request]) -> ExecutionMode:
        rows, model_ns, elapsed_ns = self._run_batch(self._executor, batch)
        self._batcher.finished(batch)
        return self._placement.observe(rows, model_ns, elapsed_ns)

    def stop(self) -> None:
        """Give the queue back and wait for the batch at hand, if another thread runs one."""
        self._stopped = True
        self._batcher.hand_to_instances()
        with self._executing:
            while self._rest:
                self._run(self._rest)
            self._execution.close(self._executor)
