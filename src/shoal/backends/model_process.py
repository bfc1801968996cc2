"""The server's side of a process that serves an instance of a model, from its start to its end.

wait_started --> execute(batches) ... --> stop        ended: called once, if it ends by itself

The reading thread passes the messages of the process on: responses to their requests, and what the
subclasses handle. When the process ends unexpectedly, all outstanding requests fail with an error.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from shoal.backends.base import PendingRequest, RequestExecutor
from shoal.backends.request_entry import entry_of
from shoal.core.request import Request
from shoal.errors import Internal, ShoalError, Unavailable
from shoal.link.channel import ChannelClosed
from shoal.link.pipe_reader import PipeReader
from shoal.link.process import ChildProcess

logger = logging.getLogger(__name__)

_STOP_SECS = 30.0  # for the model to close; then the process is ended
_STARTED, _STOP = -1, -2  # keys of answers that come once


class ModelProcess(ABC):
    """A process that serves a model, or is starting to."""

    def __init__(
        self,
        process: ChildProcess,
        name: str,
        ended: Callable[[Any, str], None],
        *,
        always_watch: bool,
    ) -> None:
        """`name` is that of the instance. `ended` is called with this object and how the process
        ended, unless it was stopped. With `always_watch` one thread does all the reading."""
        self._process = process
        self._link = process.link
        self._name = name
        self._ended = ended
        self._stopping = False
        self._ending = ""
        self._numbers = itertools.count(1)
        self._lock = threading.Condition()  # guards the two below
        self._open: dict[int, PendingRequest] = {}  # without a final response
        self._gone = False
        self._answers: dict[int, Any] = {}  # by number, set by the reading thread
        self._late = process.end_if_silent()
        self._handlers = self._make_handlers()
        self._pipe_reader = PipeReader(
            self._link.connection,
            self._receive,
            self._hang_up,
            self._link.close,
            name=f"shoal-{name}-pipe",
            always_watch=always_watch,
        )

    def _make_handlers(self) -> dict[str, Callable[..., None]]:
        """A function for each kind of message, called by the reading thread."""
        return {
            "hello": self._on_hello,
            "started": lambda *facts: self._answered(_STARTED, (facts, None)),
            "failed": lambda error: self._answered(_STARTED, ((), error)),
            "stopped": lambda: self._answered(_STOP, True),
            "done": lambda batch, *outcome: self._answered(batch, outcome),
            "response": self._on_response,
        }

    @abstractmethod
    def _lost(self) -> ShoalError:
        """The error for clients whose requests the process did not answer before its end."""

    @abstractmethod
    def _settle(
        self,
        keyed: Sequence[tuple[int, PendingRequest]],
        outcome: Sequence[Any],
    ) -> int | None:
        """Handle the requests of a batch after its execution; returns the ns that it took."""

    @abstractmethod
    def _respond(
        self, pending: PendingRequest, error: Any, parameters: Any, packed: Any, *, final: bool
    ) -> None:
        """Send one response of the process."""

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether the process has ended. True before `ended` is called."""
        return self._gone

    @property
    def ending(self) -> str:
        """How the process ended, after its end."""
        return self._ending

    def owed(self) -> int:
        """Requests without a final response."""
        return len(self._open)

    def kill(self) -> None:
        """End the process at once, as if it had crashed."""
        self._process.kill()

    def wait_gone(self, timeout_secs: float) -> None:
        """Wait until its end is known."""
        with self._lock:
            self._lock.wait_for(lambda: self._gone, timeout_secs)

    def _wait_started(self, to_error: Callable[[Any], ShoalError]) -> tuple[Any, ...]:
        """Wait until the process has answered; returns what it reports.

        Raises its error, or Internal if it ends. There is no time limit, once its interpreter has
        started.
        """
        outcome = self._wait_for(_STARTED)
        if outcome is None:
            self._process.end()
            raise Internal(f"the process ended before the model was initialised: {self._ending}")
        facts, error = outcome
        if error is not None:
            self._process.end()
            raise to_error(error)
        return tuple(facts)

    # ---- messages and replies

    def _on_hello(self, version: int) -> None:
        self._late.cancel()
        try:
            self._process.check_version(version)
        except Internal as error:
            self._answered(_STARTED, ((), error.message))

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
                logger.exception("cannot handle a message of the process of '%s'", self._name)
                raise ChannelClosed from None

    # ---- requests

    def execute(self, batches: Sequence[Sequence[PendingRequest]]) -> list[int]:
        """Run batches one after the other; returns when the model's last execution has.

        Returns how many nanoseconds each took, if all of them were run.
        """
        numbers = self._numbers
        keyed = [[(next(numbers), pending) for pending in batch] for batch in batches]
        named = [(next(numbers), own) for own in keyed]
        work = [
            (batch, [entry_of(key, pending.request, self._link) for key, pending in own])
            for batch, own in named
        ]
        with self._lock:
            if self._gone:
                raise self._lost()
            for own in keyed:
                self._open.update(own)
        with contextlib.suppress(ChannelClosed):  # then the reading thread answers them
            self._link.send("execute", work)
        for own in keyed:
            for key, pending in own:
                self._watch(key, pending.request)
        took_ns: list[int] = []
        for batch, own in named:
            outcome = self._wait_for(batch)
            ns = None if outcome is None else self._settle(own, outcome)
            if ns is not None:
                took_ns.append(ns)
        return took_ns

    def _defer_rest(self, keyed: Sequence[tuple[int, PendingRequest]]) -> None:
        """After an execution: responses that are missing follow later."""
        late = False
        for key, pending in keyed:
            if key in self._open:
                late = True
                pending.defer()
        if late:
            self._pipe_reader.attend()

    def _watch(self, key: int, request: Request) -> None:
        """Notify the process when the client cancels the request."""

        def cancelled() -> None:
            with contextlib.suppress(ChannelClosed):
                self._link.send("cancel", key)

        request.on_cancel = cancelled
        if request.cancelled:
            cancelled()

    def _remove(self, key: int, pending: PendingRequest) -> None:
        """No response to this request will come from the process."""
        with self._lock:
            self._open.pop(key, None)
        pending.request.on_cancel = None

    def _reschedule(self, key: int, pending: PendingRequest) -> None:
        """Run a request again, as the next of its sequence."""
        self._remove(key, pending)
        try:
            pending.reschedule()
        except ShoalError as error:
            logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback
            with contextlib.suppress(Internal):
                pending.send(error=error)

    def _on_response(
        self,
        key: int,
        final: bool,
        error: Any,
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
            try:
                self._respond(pending, error, parameters, packed, final=final)
            except Unavailable as unread:  # no memory for its tensors
                pending.send(error=unread, final=final)

    # ---- the end

    def stop(self, last_answers_secs: float) -> None:
        """Wait for outstanding responses, close the model and end the process. Blocks."""
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

    def end(self) -> None:
        """End the process without closing the model."""
        self._stopping = True
        self._process.end()
        self._pipe_reader.join()

    def use_or_end(self, use: Callable[[], None]) -> None:
        """Call `use`; if that raises, end the process, which nothing else uses yet."""
        try:
            use()
        except BaseException:
            self.end()
            raise

    def _hang_up(self) -> None:
        """The process has ended or is unusable: fail everything outstanding."""
        self._late.cancel()
        self._ending = self._process.ending()
        with self._lock:
            self._gone = True
            owed, self._open = self._open, {}
            self._lock.notify_all()
        self._release()
        for pending in owed.values():
            pending.request.on_cancel = None
            with contextlib.suppress(Internal):  # it was answered this very moment
                pending.send(error=self._lost())
        if not self._stopping:
            self._ended(self, self._ending)

    def _release(self) -> None:
        """Release what was held for the process, which has ended."""
        return


class DirectExecutor(RequestExecutor):
    """Runs requests on one process, also before it is used for others: to warm it up."""

    def __init__(self, process: ModelProcess) -> None:
        self._process = process

    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Run the batch in the process."""
        self._process.execute([batch])
