"""A Python model in its own process: isolated, and in parallel with everything else.

A crash fails the requests in flight, with a message about it. `shoal.link.supervisor` restarts the
process. Meanwhile other instances do its work; without any, requests wait while it starts and are
rejected during a long back-off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from shoal.backends.base import PendingRequest, RequestExecutor
from shoal.backends.model_process import DirectExecutor
from shoal.backends.python.api.host import Context
from shoal.backends.python.environment import Environment
from shoal.backends.python.instance import READY_SECS
from shoal.backends.python.loading import ModelSource
from shoal.backends.python.outgoing import Outputs
from shoal.backends.python.process.parent import CHILD, LONGER, PythonProcess, unhealthy
from shoal.backends.python.server_host import ServerHost
from shoal.backends.python.thread import LAST_ANSWERS_SECS
from shoal.errors import ShoalError
from shoal.link.process import START_SECS, ChildProcess
from shoal.link.supervisor import ProcessState, Supervisor

_TURN_NS = 500_000  # of work per message: waking a process costs 50 µs
_MOST_AHEAD = 15
_SLOW_NS = 1_000_000
_MOST_SLOW = 2
_FIRST_STREAK = 32
_LONGEST_STREAK = 1 << 16
_KILL_SECS = 10.0


class ProcessExecutor(RequestExecutor):
    """One instance in another process."""

    def __init__(
        self,
        source: ModelSource,
        arguments: dict[str, str],
        server: ServerHost,
        outputs: Outputs,
        *,
        decoupled: bool,
        environment: Environment | None = None,
        start_secs: float = START_SECS,
    ) -> None:
        """Start the process and initialise the model; Internal with its traceback if it fails."""
        self._source = source
        self._arguments = arguments
        self._server = server
        self._outputs = outputs
        self._decoupled = decoupled
        self._environment = environment
        self._start_secs = start_secs
        self._context = Context(
            server,
            arguments["model_name"],
            arguments["model_instance_name"],
            str(source.model_folder),
        )
        self.device = (arguments["model_instance_kind"], arguments["model_instance_device_id"])
        self.on_close: Callable[[ProcessExecutor], None] = lambda _: None
        self._using: PythonProcess | None = None  # what ran the last batch, or runs it now
        self._usual_ns = _TURN_NS  # of a batch, smoothed
        self._slow_among_recent = 0  # one bit per batch, the latest is the lowest
        self._quick_in_a_row = 0
        self._needed_in_a_row = _FIRST_STREAK
        name = f"model instance '{self._context.instance_name}'"
        self.supervisor: Supervisor[PythonProcess] = Supervisor(name, self._start)
        self.supervisor.start()
        server.waits.join(self._context)

    @property
    def pid(self) -> int | None:
        """The process's number, while it runs."""
        serving = self.serving
        return serving.pid if serving is not None else None

    @property
    def state(self) -> ProcessState:
        """Where the process is in its life."""
        return self.supervisor.state

    @property
    def restarts(self) -> int:
        """How often the process had to be restarted."""
        return self.supervisor.restarts

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
        process.wait_gone(_KILL_SECS)  # the next batch must not go to it
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
    def serving(self) -> PythonProcess | None:
        """The process, while it runs."""
        return self.supervisor.process

    def _running(self) -> PythonProcess:
        """The process, or another instance's that stands in for it."""
        serving = self.supervisor.running()
        if serving is None:
            raise unhealthy(self._context.instance_name)
        return serving

    def owed(self) -> int:
        """Requests without a final response."""
        serving = self.serving
        return serving.owed() if serving is not None else 0

    @property
    def asks_readiness(self) -> bool:
        """Whether the model implements `is_ready`."""
        serving = self.serving
        return serving is not None and serving.has_is_ready

    def ready(self) -> bool:
        """Whether the process runs and the model's `is_ready`, if any, returns true."""
        serving = self.serving
        if serving is None:
            return False
        return serving.ready(READY_SECS) if serving.has_is_ready else True

    # ---- start and end

    def _start(self) -> PythonProcess:
        """Start a process and wait until the model is initialised."""
        environment = self._environment
        process = ChildProcess(
            CHILD,
            f"model instance '{self._context.instance_name}'",
            interpreter=None if environment is None else environment.interpreter(),
            start_secs=self._start_secs,
            longer=LONGER,
        )
        serving = PythonProcess(
            process,
            self._context,
            self._server,
            self._outputs,
            self._ended,
            decoupled=self._decoupled,
        )
        serving.start(self._source, self._arguments)
        serving.wait_started()
        warm_up = self.warm_up
        if warm_up is not None:  # it is a restart
            serving.use_or_end(lambda: warm_up(DirectExecutor(serving)))
        return serving

    def _ended(self, serving: PythonProcess, ending: str) -> None:
        self.ahead = self._quick_in_a_row = 0  # the next batch is sent alone
        self.supervisor.ended(serving, ending)

    def close(self) -> None:
        """Wait for outstanding responses, finalise the model and end the process."""
        serving = self.supervisor.close()
        if serving is not None:
            serving.stop(LAST_ANSWERS_SECS)
        self._server.waits.leave(self._context)
        self.on_close(self)
