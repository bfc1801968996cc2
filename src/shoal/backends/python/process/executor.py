"""A Python model in its own process: isolated, and in parallel with everything else.

    running --process gone--> starting --initialised--> running
                                  └─failed or short-lived─> resting --back-off over--> starting

A crash fails the requests in flight, with a message about it. The process is restarted at once, or
with increasing back-off if it keeps crashing. Meanwhile other instances do its work; without any,
requests wait while it starts and are rejected during the back-off.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.backends.base import PendingRequest, RequestExecutor
from shoal.backends.python.api.host import Context
from shoal.backends.python.environment import Environment
from shoal.backends.python.instance import READY_SECS
from shoal.backends.python.outgoing import Outputs
from shoal.backends.python.process.launch import ChildProcess
from shoal.backends.python.process.parent import ModelProcess, unhealthy
from shoal.backends.python.server_host import ServerHost
from shoal.backends.python.thread import LAST_ANSWERS_SECS
from shoal.errors import Internal, ShoalError

logger = logging.getLogger(__name__)

_FIRST_REST_SECS = 0.5
_LONGEST_REST_SECS = 30.0
_TURN_NS = 500_000  # of work per message: waking a process costs 50 µs
_MOST_AHEAD = 15
_SLOW_NS = 1_000_000
_MOST_SLOW = 2
_FIRST_STREAK = 32
_LONGEST_STREAK = 1 << 16
_KILL_SECS = 10.0
_LONG_LIFE_SECS = 60.0  # a process that lived this long is restarted at once


class ProcessState(enum.Enum):
    """Where the process is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    RESTING = "resting"
    CLOSED = "closed"


class ProcessExecutor(RequestExecutor):
    """One instance in another process."""

    def __init__(
        self,
        file: Path,
        arguments: dict[str, str],
        server: ServerHost,
        outputs: Outputs,
        *,
        decoupled: bool,
        environment: Environment | None = None,
        start_secs: float = 30.0,
    ) -> None:
        """Start the process and initialise the model; Internal with its traceback if it fails."""
        self._file = file
        self._arguments = arguments
        self._server = server
        self._outputs = outputs
        self._decoupled = decoupled
        self._environment = environment
        self._start_secs = start_secs
        self._context = Context(
            server, arguments["model_name"], arguments["model_instance_name"], str(file.parent)
        )
        self.device = (arguments["model_instance_kind"], arguments["model_instance_device_id"])
        self.on_close: Callable[[ProcessExecutor], None] = lambda _: None
        self.stand_in: Callable[[], ModelProcess | None] = lambda: (
            None
        )  # another instance's process
        self._changed = threading.Condition()  # guards what follows
        self._state = ProcessState.STARTING
        self._serving: ModelProcess | None = None
        self._started_at = 0.0
        self._rest_secs = 0.0
        self.restarts = 0
        self._using: ModelProcess | None = None  # what ran the last batch, or runs it now
        self._usual_ns = _TURN_NS  # of a batch, smoothed
        self._slow_among_recent = 0  # one bit per batch, the latest is the lowest
        self._quick_in_a_row = 0
        self._needed_in_a_row = _FIRST_STREAK
        self._start()
        server.waits.join(self._context)

    @property
    def pid(self) -> int | None:
        """The process's number, while it runs."""
        serving = self._serving
        return serving.pid if serving is not None else None

    @property
    def state(self) -> ProcessState:
        """Where the process is in its life."""
        return self._state

    # ---- requests

    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Run the batch in the process; raises the error for clients if that fails."""
        self._using = self._running()
        self._judge(self._using.execute([batch]))

    def execute_several(self, batches: Sequence[Sequence[PendingRequest]]) -> Sequence[int]:
        """Run the batches in the process, with one message for all of them."""
        self._using = self._running()
        took_ns = self._using.execute(batches)
        self._judge(took_ns)
        return took_ns

    def prepare(self) -> None:
        """Wait while the process starts."""
        with contextlib.suppress(ShoalError):  # `execute` raises it
            self._using = self._running()

    def end_execution(self, reason: str) -> bool:
        """Kill the process that runs the batch; it is restarted."""
        del reason
        process = self._using
        if process is None:
            return False
        process.kill()
        with self._changed:  # the next batch must not go to it
            self._changed.wait_for(lambda: self._serving is not process, _KILL_SECS)
        return True

    def _judge(self, took_ns: Sequence[int]) -> None:
        """Request as many batches at a time as take about `_TURN_NS` together.

        Only for a model that has been fast for some time: behind a slow batch the others would
        wait although another instance may be idle. Each time it becomes slow that time grows; a
        single slow batch does not count, because a busy machine slows any batch now and then.
        """
        for ns in took_ns:
            self._usual_ns += (ns - self._usual_ns) // 8
            self._slow_among_recent = (self._slow_among_recent << 1 | (ns > _SLOW_NS)) & 0xFF
            self._quick_in_a_row += 1
            if self._slow_among_recent.bit_count() > _MOST_SLOW:
                self._slow_among_recent = self._quick_in_a_row = 0
                self._needed_in_a_row = min(4 * self._needed_in_a_row, _LONGEST_STREAK)
        quick = self._quick_in_a_row >= self._needed_in_a_row
        self.ahead = min(_MOST_AHEAD, _TURN_NS // max(1, self._usual_ns)) if quick else 0

    @property
    def serving(self) -> ModelProcess | None:
        """The process, while it runs."""
        return self._serving if self._state is ProcessState.RUNNING else None

    def _running(self) -> ModelProcess:
        """The process or, while there is none, another instance's. If there is no other, this waits
        while it starts."""
        serving = self.serving or self.stand_in()
        if serving is not None:
            return serving
        with self._changed:
            while self._state is ProcessState.STARTING:
                self._changed.wait()
            if self._state is not ProcessState.RUNNING or self._serving is None:
                raise unhealthy(self._context.instance_name)
            return self._serving

    def owed(self) -> int:
        """Requests without a final response."""
        serving = self._serving
        return serving.owed() if serving is not None else 0

    @property
    def asks_readiness(self) -> bool:
        """Whether the model implements `is_ready`."""
        serving = self._serving
        return serving is not None and serving.has_is_ready

    def ready(self) -> bool:
        """Whether the process runs and the model's `is_ready`, if any, returns true."""
        serving = self.serving
        if serving is None:
            return False
        return serving.ready(READY_SECS) if serving.has_is_ready else True

    # ---- start and end

    def _start(self) -> None:
        """Start a process and wait until the model is initialised."""
        name = self._context.instance_name
        process = ChildProcess(self._environment, self._start_secs, f"model instance '{name}'")
        serving = ModelProcess(
            process,
            self._context,
            self._server,
            self._outputs,
            self._ended,
            decoupled=self._decoupled,
        )
        process.start(
            self._file, self._arguments, sorted(self._outputs.names), decoupled=self._decoupled
        )
        serving.wait_started()
        with self._changed:
            if serving.gone:  # its end was reported before any request was affected
                raise Internal(f"the process ended after the model was initialised: {serving.end}")
            self._serving = serving
            self._started_at = time.monotonic()
            if self._state is not ProcessState.CLOSED:
                self._state = ProcessState.RUNNING
            self._changed.notify_all()

    def _ended(self, serving: ModelProcess, epitaph: str) -> None:
        """The process ended unexpectedly. Called by the thread that read from it."""
        name = self._context.instance_name
        with self._changed:
            if self._state is ProcessState.CLOSED or self._serving is not serving:
                return
            self.restarts += 1
            lived_secs = time.monotonic() - self._started_at
            if lived_secs > _LONG_LIFE_SECS:
                self._rest_secs = 0.0
            self._serving = None
            self.ahead = self._quick_in_a_row = 0  # the next batch is sent alone
            self._state = ProcessState.RESTING if self._rest_secs else ProcessState.STARTING
            self._changed.notify_all()
        logger.error(
            "the process of model instance '%s' has ended: %s; it is restarted%s",
            name,
            epitaph,
            f" in {self._rest_secs:g} s" if self._rest_secs else "",
        )
        threading.Thread(target=self._restart, name=f"shoal-{name}-restart", daemon=True).start()

    def _restart(self) -> None:
        """Restart it until it runs."""
        while True:
            with self._changed:
                deadline = time.monotonic() + self._rest_secs
                while self._state is not ProcessState.CLOSED and time.monotonic() < deadline:
                    self._changed.wait(deadline - time.monotonic())
                if self._state is ProcessState.CLOSED:
                    return
                self._state = ProcessState.STARTING
                self._rest_secs = min(
                    max(_FIRST_REST_SECS, 2 * self._rest_secs), _LONGEST_REST_SECS
                )
            try:
                self._start()
            except ShoalError as error:
                with self._changed:
                    if self._state is not ProcessState.CLOSED:
                        self._state = ProcessState.RESTING
                    self._changed.notify_all()
                logger.error(  # noqa: TRY400 - a sentence, not a traceback
                    "model instance '%s' does not start: %s; next try in %g s",
                    self._context.instance_name,
                    error.message,
                    self._rest_secs,
                )
            else:
                return

    def close(self) -> None:
        """Wait for outstanding responses, finalise the model and end the process."""
        with self._changed:
            while self._state is ProcessState.STARTING:
                self._changed.wait()
            self._state = ProcessState.CLOSED
            serving = self._serving
            self._changed.notify_all()
        if serving is not None:
            serving.stop(LAST_ANSWERS_SECS)
        self._server.waits.leave(self._context)
        self.on_close(self)
