"""The server's side of a process with a `model.py`: see `shoal.backends.model_process`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shoal.backends.base import PendingRequest
from shoal.backends.model_process import ModelProcess
from shoal.backends.python.api.errors import TritonError, to_shoal
from shoal.backends.python.api.host import Context
from shoal.backends.python.loading import ModelSource
from shoal.backends.python.outgoing import Outputs
from shoal.backends.python.process.server_calls import ServerCalls
from shoal.backends.python.server_host import ServerHost
from shoal.core.request import RequestTrace
from shoal.errors import BackendFailure, Internal, ShoalError, Unavailable
from shoal.link.channel import ChannelClosed
from shoal.link.process import ChildProcess

CHILD = "shoal.backends.python.process.child"
LONGER = "--backend-config=python,stub-timeout-seconds"


class PythonProcess(ModelProcess):
    """A process that serves a Python model, or is starting to."""

    def __init__(
        self,
        process: ChildProcess,
        context: Context,
        server: ServerHost,
        outputs: Outputs,
        ended: Callable[[PythonProcess, str], None],
        *,
        decoupled: bool,
    ) -> None:
        self._outputs = outputs
        self._decoupled = decoupled
        self._server_calls = ServerCalls(process.link, context, server, self._trace)
        self.has_is_ready = False
        super().__init__(process, context.instance_name, ended, always_watch=decoupled)

    def _make_handlers(self) -> dict[str, Callable[..., None]]:
        return {
            **super()._make_handlers(),
            "readiness": self._answered,
            **self._server_calls.handlers(),
        }

    def start(self, source: ModelSource, arguments: dict[str, str]) -> None:
        """Send it the model to serve; `wait_started` waits for the outcome."""
        names = sorted(self._outputs.names)
        try:
            self._link.send("serve", *map(str, source), arguments, names, self._decoupled)
        except ChannelClosed:  # if it has ended, its message says why
            return

    def wait_started(self) -> None:
        """Wait until the model is initialised; Internal with its traceback when it fails."""
        (self.has_is_ready,) = self._wait_started(Internal)

    def _settle(
        self, keyed: Sequence[tuple[int, PendingRequest]], outcome: Sequence[Any]
    ) -> int | None:
        again, ns = outcome
        if again:
            for key, pending in keyed:
                if key in again:
                    self._reschedule(key, pending)
        self._defer_rest(keyed)
        return int(ns)

    def _trace(self, key: int) -> RequestTrace | None:
        """The trace of a request that is being executed."""
        pending = self._open.get(key)
        return None if pending is None else pending.request.trace

    def ready(self, timeout_secs: float) -> bool:
        """Call the model's `is_ready`. Blocks."""
        call = next(self._numbers)
        try:
            self._link.send("ready", call, timeout_secs)
        except ChannelClosed:
            return False
        # Not read here: a process that hangs would block the caller for ever.
        self._pipe_reader.follow(lambda: call in self._answers, timeout_secs + 1.0)
        return bool(self._answers.pop(call, False))

    def _respond(
        self, pending: PendingRequest, error: Any, parameters: Any, packed: Any, *, final: bool
    ) -> None:
        if error is not None:
            code, text = error
            pending.send(error=to_shoal(TritonError(text, code)), final=final)
        else:
            self._outputs.send_core(pending, self._link.unpack(packed), parameters, final=final)

    def _lost(self) -> ShoalError:
        return unhealthy(self._name, self._ending, stopping=self._stopping)

    def _release(self) -> None:
        self._server_calls.close()


def unhealthy(name: str, ending: str = "", *, stopping: bool = False) -> ShoalError:
    """The error for clients when there is no process."""
    if stopping:
        return Unavailable(f"model instance '{name}' was unloaded before it responded")
    detail = f" Its process ended: {ending}." if ending else ""
    return BackendFailure(
        f"Failed to process the request(s) for model instance '{name}', message: Stub process "
        f"'{name}' is not healthy.{detail}"
    )
