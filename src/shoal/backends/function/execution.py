"""Running a function: a batch of tensors in, one call, tensors out.

arrays --> arguments --> function --> result --> arrays                    FunctionExecutor
    pending --> arguments --> generator --> a response for each item           StreamExecutor

An `async def` runs on the model's event loop; the instance's thread waits for it. So there are as
many concurrent calls as instances, and time is measured as for any other model.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from shoal.backends.base import Executor, PendingRequest, RequestExecutor
from shoal.backends.function.declaration import Declaration
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure, Cancelled


class _Instance:
    """One instance of a function, whichever way it responds."""

    def __init__(
        self,
        declaration: Declaration,
        function: Callable[..., Any],
        loop: AsyncLoop,
        on_close: Callable[[], None],
    ) -> None:
        self._declaration = declaration
        self._function = function
        self._loop = loop
        self._on_close = on_close

    def close(self) -> None:
        """Release the function's object."""
        self._on_close()


class FunctionExecutor(_Instance, Executor):
    """One instance of a function that returns."""

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Call the function once for the whole batch."""
        declaration = self._declaration
        arguments = to_arguments(declaration, inputs)
        returned = self._function(**arguments)
        if asyncio.iscoroutine(returned):
            returned = self._loop.run(returned)
        rows = next(iter(inputs.values())).shape[0] if inputs and declaration.batch else 1
        given = to_arrays(declaration, returned, rows)
        return [given[name] for name in outputs]


class StreamExecutor(_Instance, RequestExecutor):
    """One instance of a function that yields: every item is a response."""

    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Stream to one request after the other."""
        for pending in batch:
            inputs = {name: tensor.array for name, tensor in pending.request.inputs.items()}
            stream = self._function(**to_arguments(self._declaration, inputs))
            if hasattr(stream, "__aiter__"):
                self._loop.run(self._send_later(pending, stream))
            else:
                self._send(pending, stream)

    def _send(self, pending: PendingRequest, stream: Iterator[Any]) -> None:
        try:
            for item in stream:
                self._respond(pending, item)
        finally:
            close = getattr(stream, "close", None)  # generators have one
            if close is not None:
                close()
        pending.send(final=True)

    async def _send_later(self, pending: PendingRequest, stream: AsyncIterator[Any]) -> None:
        try:
            async for item in stream:
                self._respond(pending, item)
        finally:
            close = getattr(stream, "aclose", None)  # generators have one
            if close is not None:
                await close()
        pending.send(final=True)

    def _respond(self, pending: PendingRequest, item: Any) -> None:
        """Send one item. Raises Cancelled if the client has cancelled the request."""
        if pending.request.cancelled:
            raise Cancelled(f"{pending.request.log_prefix()}the client cancelled the request")
        given = to_arrays(self._declaration, item, 1)
        tensors = [
            Tensor.from_array(port.name, given[port.name], port.datatype)
            for port in self._declaration.outputs
        ]
        pending.send(tensors, final=False)


def to_arguments(declaration: Declaration, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The arguments of the function; a missing input keeps its default."""
    return {
        port.argument: port.receive(inputs[port.name])
        for port in declaration.inputs
        if port.name in inputs
    }


def to_arrays(declaration: Declaration, returned: Any, rows: int) -> dict[str, np.ndarray]:
    """The function's result by output. Raises BackendFailure, which names the function."""
    values = declaration.unpack(returned)
    try:
        return {
            port.name: port.give(value, rows)
            for port, value in zip(declaration.outputs, values, strict=True)
        }
    except BackendFailure as failure:
        raise BackendFailure(f"{declaration.place.function}: {failure.message}") from None


class AsyncLoop:
    """An event loop in its own thread, started with the first coroutine."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._making = threading.Lock()  # guards _loop and _thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop and wait for it. Raises what it raises."""
        return self.start(coroutine).result()

    def post(self, callback: Callable[[], object]) -> None:
        """Have the loop call `callback`; nothing if it has ended."""
        with self._making, contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine on the loop; does not wait for it."""
        with self._making:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    def stop(self) -> None:
        """End the loop and cancel its tasks."""
        with self._making:
            if self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop = None
