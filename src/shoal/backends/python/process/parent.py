"""The server's side of the pipe: one process, from its start to its end.

wait_started --> execute(batch) ... --> stop        ended: called once, if it ends by itself

The reading thread passes messages of the process on: responses to their requests, calls to the
server. When the process ends unexpectedly, all outstanding requests fail with an error.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from shoal.backends.base import PendingRequest
from shoal.backends.python.api.errors import TritonError, to_shoal
from shoal.backends.python.api.host import Context
from shoal.backends.python.outgoing import Outputs
from shoal.backends.python.process.channel import ChannelClosed
from shoal.backends.python.process.launch import ChildProcess
from shoal.backends.python.process.pipe_reader import PipeReader
from shoal.backends.python.process.server_calls import ServerCalls
from shoal.backends.python.server_host import ServerHost
from shoal.core.request import Request, RequestTrace
from shoal.errors import BackendFailure, Internal, ShoalError, Unavailable

logger = logging.getLogger(__name__)

_STOP_SECS = 30.0  # for `finalize`; then the process is ended
_START, _STOP = -1, -2  # keys of replies that come once


class ModelProcess:
    """A process that serves a model, or is starting to."""

    def __init__(
        self,
        process: ChildProcess,
        context: Context,
        server: ServerHost,
        outputs: Outputs,
        ended: Callable[[ModelProcess, str], None],
        *,
        decoupled: bool,
    ) -> None:
        """`ended` is called with how the process ended, unless it was stopped."""
        self._process = process
        self._link = process.link
        self._context = context
        self._outputs = outputs
        self._ended = ended
        self._server_calls = ServerCalls(process.link, context, server, self._trace)
        self._stopping = False
        self._epitaph = ""
        self._numbers = itertools.count(1)
        self._lock = threading.Condition()  # guards the two below
        self._open: dict[int, PendingRequest] = {}  # without a final response
        self._gone = False
        self._answers: dict[int, Any] = {}  # by request, set by the reading thread
        self.has_is_ready = False
        self._late = process.end_if_silent()
        self._handlers: dict[str, Callable[..., None]] = {
            "hello": self._late.cancel,
            "started": lambda has_is_ready: self._answered(_START, (has_is_ready, None)),
            "failed": lambda text: self._answered(_START, (False, text)),
            "stopped": lambda: self._answered(_STOP, True),
            "done": lambda batch, again, ns: self._answered(batch, (again, ns)),
            "readiness": self._answered,
            "response": self._on_response,
            **self._server_calls.handlers(),
        }
        self._pipe_reader = PipeReader(
            self._link.connection,
            self._receive,
            self._hang_up,
            self._link.close,
            name=f"shoal-{context.instance_name}-pipe",
            always_watch=decoupled,
        )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether the process has ended. True before `ended` is called."""
        return self._gone

    @property
    def end(self) -> str:
        """How the process ended, after its end."""
        return self._epitaph

    def owed(self) -> int:
        """Requests without a final response."""
        return len(self._open)

    def wait_started(self) -> None:
        """Wait until the model is initialised; Internal with its traceback when it fails.

        The model has no time limit, once its interpreter has started.
        """
        outcome = self._wait_for(_START)
        if outcome is None or outcome[1] is not None:
            text = f"the process ended before the model was initialised: {self._epitaph}"
            self._process.end()
            raise Internal(text if outcome is None else outcome[1])
        self.has_is_ready = outcome[0]

    # ---- messages and replies

    def _wait_for(self, question: int) -> Any:
        """Wait for a reply; None if the process ends first."""
        answers = self._answers
        self._pipe_reader.wait_for(lambda: question in answers)
        return answers.pop(question, None)

    def _answered(self, question: int, answer: Any) -> None:
        self._answers[question] = answer
        self._pipe_reader.tell()

    def _receive(self) -> None:
        for kind, body in self._link.receive():
            try:
                self._handlers[kind](*body)
            except Exception:  # a message we cannot read is the end of it too
                name = self._context.instance_name
                logger.exception("cannot handle a message of the process of '%s'", name)
                raise ChannelClosed from None

    # ---- requests

    def execute(self, batches: Sequence[Sequence[PendingRequest]]) -> list[int]:
        """Run batches one after the other; returns when the model's last `execute` has.

        Returns how many nanoseconds each took, if all of them were run.
        """
        numbers = self._numbers
        keyed = [[(next(numbers), pending) for pending in batch] for batch in batches]
        named = [(next(numbers), own) for own in keyed]
        work = [
            (batch, [self._entry(key, pending.request) for key, pending in own])
            for batch, own in named
        ]
        with self._lock:
            if self._gone:
                raise unhealthy(self._context.instance_name)
            for own in keyed:
                self._open.update(own)
        with contextlib.suppress(ChannelClosed):  # then the reading thread answers them
            self._link.send("execute", work)
        for own in keyed:
            for key, pending in own:
                self._watch(key, pending.request)
        took_ns: list[int] = []
        for batch, own in named:
            again, ns = self._wait_for(batch) or ((), None)
            if ns is not None:
                took_ns.append(ns)
            self._look_after(own, again)
        return took_ns

    def _look_after(
        self, keyed: Sequence[tuple[int, PendingRequest]], again: Sequence[int]
    ) -> None:
        """Handle requests without a final response after an execution."""
        late = False
        for key, pending in keyed:
            if key in again:
                self._reschedule(key, pending)
            elif key in self._open:
                late = True
                pending.defer()
        if late:
            self._pipe_reader.attend()

    def _entry(self, key: int, request: Request) -> tuple[Any, ...]:
        packed = self._link.pack(request.inputs.values())
        wanted = list(request.requested_outputs)
        about = (request.id, request.correlation_id, request.flags, request.timeout_us)
        traced = None if request.trace is None else (request.trace.context(),)
        return (key, about, request.parameters, wanted, packed, traced)

    def _trace(self, key: int) -> RequestTrace | None:
        """The trace of a request that is being executed."""
        pending = self._open.get(key)
        return None if pending is None else pending.request.trace

    def _watch(self, key: int, request: Request) -> None:
        """Notify the model when the client cancels the request."""

        def cancelled() -> None:
            with contextlib.suppress(ChannelClosed):
                self._link.send("cancel", key)

        request.on_cancel = cancelled
        if request.cancelled:
            cancelled()

    def _reschedule(self, key: int, pending: PendingRequest) -> None:
        with self._lock:
            self._open.pop(key, None)
        pending.request.on_cancel = None
        try:
            pending.reschedule()
        except ShoalError as error:
            logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback
            with contextlib.suppress(Internal):
                pending.send(error=error)

    # ---- readiness

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

    # ---- responses of the process

    def _on_response(
        self,
        key: int,
        final: bool,
        error: tuple[int, str] | None,
        parameters: dict[str, Any],
        packed: list[Any],
    ) -> None:
        if final:
            with self._lock:
                pending = self._open.pop(key, None)
                if self._stopping:
                    self._lock.notify_all()
        else:
            pending = self._open.get(key)
        if pending is None:
            return
        if final:
            pending.request.on_cancel = None
        with contextlib.suppress(Internal):  # it was ended this very moment
            if error is not None:
                code, text = error
                pending.send(error=to_shoal(TritonError(text, code)), final=final)  # type: ignore[arg-type]
            else:
                self._outputs.send_core(pending, self._link.unpack(packed), parameters, final=final)

    # ---- the end

    def stop(self, last_answers_secs: float) -> None:
        """Wait for outstanding responses, finalise the model and end the process. Blocks."""
        with self._lock:
            self._stopping = True
            self._lock.wait_for(lambda: not self._open or self._gone, last_answers_secs)
        overdue = threading.Timer(_STOP_SECS, self._process.kill)
        overdue.daemon = True
        overdue.start()
        with contextlib.suppress(ChannelClosed):  # it is gone already
            self._link.send("stop")
            self._wait_for(_STOP)
        overdue.cancel()
        self._process.end(1.0)
        self._pipe_reader.join()

    def kill(self) -> None:
        """Kill the process, whose execution hangs; what is outstanding fails."""
        self._process.kill()

    def _hang_up(self) -> None:
        """The process has ended or is unusable: fail everything outstanding."""
        self._late.cancel()
        epitaph = self._epitaph = self._process.epitaph()
        name = self._context.instance_name
        with self._lock:
            self._gone = True
            owed, self._open = self._open, {}
            self._lock.notify_all()
        self._server_calls.close()
        for pending in owed.values():
            pending.request.on_cancel = None
            with contextlib.suppress(Internal):  # it was answered this very moment
                pending.send(error=unhealthy(name, epitaph, stopping=self._stopping))
        if not self._stopping:
            self._ended(self, epitaph)


def unhealthy(name: str, epitaph: str = "", *, stopping: bool = False) -> ShoalError:
    """The error for clients when there is no process."""
    if stopping:
        return Unavailable(f"model instance '{name}' was unloaded before it responded")
    detail = f" Its process ended: {epitaph}." if epitaph else ""
    return BackendFailure(
        f"Failed to process the request(s) for model instance '{name}', message: Stub process "
        f"'{name}' is not healthy.{detail}"
    )
