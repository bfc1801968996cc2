"""Calling another model from inside one (business logic scripting).

    request.exec()            waits on this thread
    request.async_exec()      a future of the running event loop
exec(decoupled=True)      an iterator, returned with the first response

Errors on the way are errors in the response, like errors of the other model.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from shoal.backends.python.api import host
from shoal.backends.python.api.errors import TritonModelException
from shoal.backends.python.api.response import InferenceResponse
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.backends.python.api.request import InferenceRequest


def run(request: InferenceRequest, *, decoupled: bool) -> InferenceResponse | ResponseIterator:
    """Send `request` and wait for its response, or for the first of several."""
    arrived = threading.Event()
    call = _ModelCall(arrived.set, decoupled=decoupled)
    call.start(request, waits=True)
    arrived.wait()
    return call.outcome()


def run_async(
    request: InferenceRequest, *, decoupled: bool
) -> Awaitable[InferenceResponse | ResponseIterator]:
    """Send `request`; the future has its response, or the iterator over all of them."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[InferenceResponse | ResponseIterator] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(call.outcome())

    def arrived() -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop was closed: no caller waits
            return

    call = _ModelCall(arrived, decoupled=decoupled)
    call.start(request, waits=False)
    return future


class _ModelCall:
    """The reply of a request to another model, which signals when there is a result."""

    __slots__ = ("_arrived", "_iterator", "_response", "_shared", "_told")

    def __init__(self, arrived: Callable[[], None], *, decoupled: bool) -> None:
        self._arrived = arrived
        self._told = False
        self._shared = True  # whether the response's memory may be shared
        self._response: InferenceResponse | None = None
        self._iterator = ResponseIterator() if decoupled else None

    def start(self, request: InferenceRequest, *, waits: bool) -> None:
        """Submit the request to the server. A rejected one has its response at once.

        `waits` if this thread blocks until the response arrives.
        """
        context = host.current()
        if not context.serving:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        self._shared = context.host.shares_memory
        core = request._outgoing(self, waits=waits)
        decoupled = self._iterator is not None
        if self._iterator is not None:
            self._iterator._core = core
        waiting = context if waits and not decoupled and host.is_known() else None
        try:
            context.host.infer(core, decoupled=decoupled, waiting=waiting)
        except ShoalError as error:
            self.send(Response(core.model_name, -1, core.id, error=error))

    def send(self, response: Response) -> None:
        """Receive a response of the other model, on any thread."""
        made = InferenceResponse._from_core(response, shared=self._shared)
        if self._iterator is not None:
            self._iterator._take(made, last=response.final)
        elif response.final:
            self._response = made
        else:
            return
        if not self._told:
            self._told = True
            self._arrived()

    def outcome(self) -> InferenceResponse | ResponseIterator:
        """What the model is given."""
        if self._iterator is not None:
            return self._iterator
        assert self._response is not None
        return self._response


class ResponseIterator:
    """The responses of a decoupled model. Can be iterated again after the end."""

    def __init__(self) -> None:
        self._core: Request | None = None
        self._changed = threading.Condition()  # guards what follows
        self._waiting: deque[tuple[InferenceResponse, bool]] = deque()
        self._seen: list[InferenceResponse] = []
        self._finished = False
        self._position = 0

    def __iter__(self) -> ResponseIterator:
        if self._finished and self._position >= len(self._seen):
            self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        """The next response; waits for it. The last one may have no tensors."""
        if self._finished:
            if self._position >= len(self._seen):
                raise StopIteration
            self._position += 1
            return self._seen[self._position - 1]
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            response, self._finished = self._waiting.popleft()
        self._seen.append(response)
        if self._finished:
            self._position = len(self._seen)
            self._core = None
        return response

    def cancel(self) -> None:
        """Cancel the request; its model may still send responses."""
        core = self._core
        if core is not None:
            core.cancel()

    def _take(self, response: InferenceResponse, *, last: bool) -> None:
        with self._changed:
            self._waiting.append((response, last))
            self._changed.notify_all()
