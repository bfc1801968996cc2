"""The responses to one request: waited for by a thread or by a coroutine.

engine --send--> ResponseQueue      --next-->  a thread       (`Responses`)
engine --send--> AsyncResponseQueue --next-->  a coroutine    (`AsyncResponses`)
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType

import numpy as np

from shoal.core.dtypes import BF16
from shoal.core.request import Request
from shoal.core.response import ParameterValue, Response
from shoal.core.tensor import Tensor
from shoal.engine.local import LocalEngine
from shoal.inprocess.inference import Deadline, PreparedRequest, submit


class ResponseQueue:
    """A `Reply` for a thread."""

    def __init__(self) -> None:
        self._responses: queue.SimpleQueue[Response] = queue.SimpleQueue()

    def send(self, response: Response) -> None:
        """Add one response; see `shoal.core.reply.Reply`."""
        self._responses.put(response)

    def next(self, deadline: Deadline) -> Response:
        """Wait for the next response; DeadlineExceeded if there is none in time."""
        try:
            return self._responses.get(timeout=deadline.left_secs())
        except queue.Empty:
            raise deadline.error() from None


class AsyncResponseQueue:
    """A `Reply` for a coroutine of the loop that is running when this is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._responses: deque[Response] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def send(self, response: Response) -> None:
        """Add one response; see `shoal.core.reply.Reply`."""
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed
            self._loop.call_soon_threadsafe(self._arrived, response)

    def _arrived(self, response: Response) -> None:
        self._responses.append(response)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, deadline: Deadline) -> Response:
        """Wait for the next response; DeadlineExceeded if there is none in time."""
        while not self._responses:
            self._waiter = self._loop.create_future()
            try:
                await asyncio.wait_for(self._waiter, deadline.left_secs())
            except (asyncio.TimeoutError, TimeoutError):  # two classes on Python 3.10
                raise deadline.error() from None
        return self._responses.popleft()


class Result(dict[str, np.ndarray]):
    """The arrays of one response by output name, and what else the response tells."""

    def __init__(self, response: Response) -> None:
        super().__init__({tensor.name: _own_array(tensor) for tensor in response.outputs})
        self.model_name = response.model_name
        self.model_version = response.model_version
        self.id = response.request_id
        self.parameters: Mapping[str, ParameterValue] = response.parameters


def _own_array(tensor: Tensor) -> np.ndarray:
    """The elements as an array that belongs to the caller alone: a copy where that is needed."""
    array = tensor.array
    if tensor.datatype is BF16:  # numpy does not have it; wider numbers are exact
        wide: np.ndarray = (array.astype(np.uint32) << 16).view(np.float32)
        return wide
    is_view = array.base is not None
    if is_view or not array.flags.writeable or sys.getrefcount(array) > _SOLE:
        array = array.copy()
    return array


def _sole_count() -> int:
    """The count of references to an array that only its tensor and a variable refer to.

    Versions of Python differ in what they count while a function runs.
    """
    tensor = Tensor.from_array("", np.empty(0, np.float32))
    array = tensor.array
    return sys.getrefcount(array)


_SOLE = _sole_count()


class _Pending:
    """A request whose last response has not come yet, or has."""

    _request: Request | None = None  # once it is submitted
    _over = False

    def cancel(self) -> None:
        """Cancel the request; any thread may. What waits for a response gets Cancelled."""
        if self._request is not None:
            self._request.cancel()

    def _taken(self, response: Response) -> Result | None:
        """The result of a response; None if it only marks the end. Raises its error."""
        self._over = response.final
        if response.error is not None:
            raise response.error
        return None if response.is_end_only else Result(response)

    def _end(self) -> None:
        """Cancel the request unless its last response has come."""
        if not self._over:
            self._over = True
            self.cancel()

    def __del__(self) -> None:
        self._end()


class Responses(_Pending):
    """An iterator over the responses to one request. Closing it early cancels the request."""

    def __init__(self, engine: LocalEngine, prepared: PreparedRequest) -> None:
        """Submits the request. Raises the ShoalError of a request that is refused."""
        self._deadline = prepared.deadline
        self._queue = ResponseQueue()
        submit(engine, prepared.request, self._queue)
        self._request = prepared.request

    def __iter__(self) -> Responses:
        return self

    def __next__(self) -> Result:
        while not self._over:
            result = self._taken(self._next())
            if result is not None:
                return result
        raise StopIteration

    def only(self) -> Result:
        """The response of a model that sends exactly one."""
        response = self._next()
        return self._taken(response) or Result(response)

    def _next(self) -> Response:
        try:
            return self._queue.next(self._deadline)
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Cancel the request unless its last response has come."""
        self._end()

    def __enter__(self) -> Responses:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncResponses(_Pending):
    """As `Responses`, for `async for`. The first iteration submits the request."""

    def __init__(
        self, engine: LocalEngine, prepare: Callable[[], Awaitable[PreparedRequest]]
    ) -> None:
        self._engine = engine
        self._prepare = prepare
        self._queue: AsyncResponseQueue | None = None
        self._deadline = Deadline(None)

    def __aiter__(self) -> AsyncResponses:
        return self

    async def __anext__(self) -> Result:
        while not self._over:
            result = self._taken(await self._next())
            if result is not None:
                return result
        raise StopAsyncIteration

    async def only(self) -> Result:
        """The response of a model that sends exactly one."""
        response = await self._next()
        return self._taken(response) or Result(response)

    async def _next(self) -> Response:
        try:
            if self._queue is None:
                prepared = await self._prepare()
                self._deadline = prepared.deadline
                self._queue = AsyncResponseQueue()
                submit(self._engine, prepared.request, self._queue)
                self._request = prepared.request
            return await self._queue.next(self._deadline)
        except BaseException:  # also if the task is cancelled
            self._end()
            raise

    async def aclose(self) -> None:
        """Cancel the request unless its last response has come."""
        self._end()

    async def __aenter__(self) -> AsyncResponses:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
