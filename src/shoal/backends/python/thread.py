"""A Python model in the server's process: its instance runs on its worker thread.

    pending --> InferenceRequest --> model.execute --> InferenceResponse --> pending

Inputs are not copied, and outputs only if the model could still change them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from shoal.backends.base import PendingRequest, RequestExecutor
from shoal.backends.initialisation import initialising
from shoal.backends.python import failure, loading, numpy_names
from shoal.backends.python.api import host
from shoal.backends.python.api.errors import TritonError, from_shoal
from shoal.backends.python.api.host import Context
from shoal.backends.python.api.request import (
    REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
)
from shoal.backends.python.api.response import InferenceResponse
from shoal.backends.python.api.sender import ResponseStream
from shoal.backends.python.instance import ModelInstance
from shoal.backends.python.loading import ModelSource
from shoal.backends.python.outgoing import Outputs
from shoal.backends.python.server_host import ServerHost
from shoal.errors import Internal, ShoalError

logger = logging.getLogger(__name__)

LAST_ANSWERS_SECS = 30.0  # for outstanding responses when a model is unloaded


class ThreadExecutor(RequestExecutor):
    """One instance in this process."""

    def __init__(
        self,
        source: ModelSource,
        arguments: dict[str, str],
        server: ServerHost,
        outputs: Outputs,
        *,
        decoupled: bool,
    ) -> None:
        """Import the model and initialise it; Internal with the model's traceback if it fails."""
        self._context = Context(
            server,
            arguments["model_name"],
            arguments["model_instance_name"],
            str(source.model_folder),
        )
        self._server = server
        self._outputs = outputs
        self._decoupled = decoupled
        self.on_close: Callable[[ThreadExecutor], None] = lambda _: None
        self._changed = threading.Condition()  # guards _open
        self._open: set[ThreadResponseStream] = set()  # requests the model answers later
        numpy_names.install()
        with initialising(self._context.model_name) as own:
            self._context.initialisation = own
            self._initialise(source, arguments)
        server.waits.join(self._context)

    def _initialise(self, source: ModelSource, arguments: dict[str, str]) -> None:
        token = host.enter(self._context)
        host.announce(self._context)  # for threads that the model starts meanwhile
        try:
            self._module = loading.PrivateModule(source.file, source.folders)
            try:
                found = loading.model_class(self._module.module, source.file)
                self._instance = ModelInstance(
                    found, arguments, self._context, decoupled=self._decoupled
                )
            except BaseException:
                self._module.close()
                raise
        except BaseException as error:
            host.release(self._context)
            raise Internal(failure.describe(error)) from error
        finally:
            host.leave(token)
        host.announce(self._context, self._module.package)

    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Run the batch; the model responds now or later."""
        names, decoupled = self._outputs.names, self._decoupled
        requests = [
            InferenceRequest._received(
                pending.request, names, ThreadResponseStream(pending, self, decoupled=decoupled)
            )
            for pending in batch
        ]
        self._instance.execute(requests)
        for pending, request in zip(batch, requests, strict=True):
            answer: ThreadResponseStream = request._stream  # type: ignore[assignment]
            if request._release_flags == REQUEST_RELEASE_RESCHEDULE:
                _reschedule(pending, answer)
            elif answer.promised or not answer._over:
                pending.defer()
                self._expect(answer)

    def _expect(self, answer: ThreadResponseStream) -> None:
        with self._changed:
            if not answer.over:
                answer.expected = True
                self._open.add(answer)

    def settled(self, answer: ThreadResponseStream) -> None:
        """A deferred request has its final response."""
        with self._changed:
            self._open.discard(answer)
            self._changed.notify_all()

    def owed(self) -> int:
        """Requests that the model answers later."""
        return len(self._open)

    def end_execution(self, reason: str) -> bool:
        """Impossible on a thread; from now on the model is ready or not without this instance."""
        del reason
        self._server.waits.leave(self._context)
        self.on_close(self)
        return False

    @property
    def asks_readiness(self) -> bool:
        """Whether the model implements `is_ready`."""
        return self._instance.has_is_ready

    def ready(self) -> bool:
        """Call the model's `is_ready`. Blocks."""
        return self._instance.ready()

    def close(self) -> None:
        """Wait for outstanding responses, then finalise the model and drop its modules."""
        deadline = time.monotonic() + LAST_ANSWERS_SECS
        with self._changed:
            while self._open and (left_secs := deadline - time.monotonic()) > 0:
                self._changed.wait(left_secs)
            owed = list(self._open)
        self._instance.finalize()
        for answer in owed:
            text = f"model '{self._context.model_name}' was unloaded before it responded"
            answer.end(InferenceResponse(error=TritonError(text, TritonError.UNAVAILABLE)))
        self._server.waits.leave(self._context)
        host.release(self._context, self._module.package)
        self._module.close()
        self.on_close(self)


class ThreadResponseStream(ResponseStream):
    """The responses to a request of this process."""

    __slots__ = ("_owner", "_pending", "expected")

    def __init__(self, pending: PendingRequest, owner: ThreadExecutor, *, decoupled: bool) -> None:
        super().__init__(decoupled=decoupled)
        self._pending = pending
        self._owner = owner
        self.expected = False  # whether it comes after the execution

    def _pass_on(
        self,
        response: InferenceResponse | None,
        *,
        final: bool,
        more: bool = False,  # noqa: ARG002 - nothing is gained by waiting here
    ) -> None:
        try:
            self._owner._outputs.send(self._pending, response, final=final)
        finally:
            if final and self.expected:
                self._owner.settled(self)

    def cancelled(self) -> bool:
        """Whether the client has cancelled the request."""
        return self._pending.request.cancelled


def _reschedule(pending: PendingRequest, answer: ResponseStream) -> None:
    """Run the request again; an error for a model that must not do that."""
    if answer.over:
        return
    try:
        pending.reschedule()
    except ShoalError as error:
        logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback
        answer.end(InferenceResponse(error=from_shoal(error)))
    else:
        answer.release()
