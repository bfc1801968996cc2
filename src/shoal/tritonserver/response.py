"""`tritonserver.InferenceResponse`, and iterators over the responses to one request.

engine --send--> _Responses --converted--> the iterator, and the queue of the program if it has one
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.core.request import Request
from shoal.core.response import Response
from shoal.tritonserver import memory
from shoal.tritonserver.enums import MemoryType
from shoal.tritonserver.errors import InvalidArgumentError, TritonError, converted
from shoal.tritonserver.request import InferenceRequest
from shoal.tritonserver.tensor import Tensor

if TYPE_CHECKING:
    from shoal.tritonserver.model import Model

logger = logging.getLogger(__name__)


@dataclass
class InferenceResponse:
    """One response. The last one to a request is `final`, and may have no outputs."""

    model: Model
    request_id: str | None = None
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: TritonError | None = None
    classification_label: str | None = None
    final: bool = False


def _from_core(request: InferenceRequest, response: Response) -> InferenceResponse:
    """A response of the server; an error of its own if the memory for its outputs cannot be had."""
    made = InferenceResponse(
        request.model._answered_by(response.model_name, response.model_version),
        response.request_id,
        dict(response.parameters),
        final=response.final,
    )
    try:
        made.outputs = {
            tensor.name: _placed(request, tensor.name, Tensor._from_core(tensor))
            for tensor in response.outputs
        }
        if response.error is not None:
            made.error = converted(response.error)
    except TritonError as error:
        made.error = InvalidArgumentError(
            f"Memory type {request.output_memory_type} not supported: {error}"
        )
    if made.error is not None:
        made.error.args += (made,)
    return made


def _placed(request: InferenceRequest, name: str, tensor: Tensor) -> Tensor:
    """An output in the memory that the request asks for."""
    allocator = request.output_memory_allocator
    if allocator is not None:
        kind, number = memory.parse_device_or_memory_type(
            request.output_memory_type or MemoryType.CPU
        )
        buffer = allocator.allocate(tensor.size, kind, number, name)
        if buffer.memory_type is MemoryType.GPU:
            tensor = tensor.to_device((MemoryType.GPU, buffer.memory_type_id))
            target = Tensor(tensor.data_type, tensor.shape, buffer)
            target._of_cupy(as_bytes=True)[:] = tensor._of_cupy(as_bytes=True)
            return target
        memory.as_bytes(buffer)[: tensor.size] = memory.as_bytes(tensor.memory_buffer)
        return Tensor(tensor.data_type, tensor.shape, buffer)
    if request.output_memory_type is not None:
        return tensor.to_device(request.output_memory_type)
    return tensor


class _Iterator:
    """What both iterators have: the request, and whether its last response has been returned."""

    def __init__(self, request: InferenceRequest, raise_on_error: bool) -> None:
        self._inference_request = request
        self._raise_on_error = raise_on_error
        self._complete = False
        self._request: Request | None = None  # until its last response has come

    def cancel(self) -> None:
        """Cancel the request. It is still answered once."""
        request = self._request
        if request is not None:
            request.cancel()

    def _arrived(self, response: Response, put: Callable[[InferenceResponse], Any]) -> None:
        """Pass a response to the iterator, and to the program's queue if there is one."""
        made = _from_core(self._inference_request, response)
        if response.final:
            self._request = None  # which refers to this iterator
        put(made)
        if self._inference_request.response_queue is not None:
            try:
                self._inference_request.response_queue.put_nowait(made)
            except (queue.Full, asyncio.QueueFull):
                logger.error(  # noqa: TRY400 - a sentence, not a traceback
                    "a response to request '%s' does not fit into its response_queue, which is "
                    "full; use one without a limit",
                    response.request_id,
                )

    def _returned(self, response: InferenceResponse) -> InferenceResponse:
        self._complete = response.final
        if response.error is not None and self._raise_on_error:
            raise response.error
        return response


class ResponseIterator(_Iterator):
    """The responses to one request, as they arrive."""

    def __init__(self, request: InferenceRequest, raise_on_error: bool) -> None:
        super().__init__(request, raise_on_error)
        self._responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()

    def send(self, response: Response) -> None:
        """For the server: add a response; see `shoal.core.reply.Reply`."""
        self._arrived(response, self._responses.put)

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        if self._complete:
            raise StopIteration
        return self._returned(self._responses.get())


class AsyncResponseIterator(_Iterator):
    """The responses to one request, for `async for`."""

    def __init__(self, request: InferenceRequest, raise_on_error: bool) -> None:
        super().__init__(request, raise_on_error)
        self._loop = asyncio.get_running_loop()
        self._responses: asyncio.Queue[InferenceResponse] = asyncio.Queue()

    def send(self, response: Response) -> None:
        """For the server: add a response; see `shoal.core.reply.Reply`."""
        with contextlib.suppress(RuntimeError):  # the program's loop is closed
            self._loop.call_soon_threadsafe(self._arrived, response, self._responses.put_nowait)

    def __aiter__(self) -> AsyncResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._complete:
            raise StopAsyncIteration
        return self._returned(await self._responses.get())
