"""A stream of an `AsyncClient`: many requests and their answers on one call.

async with client.stream("words") as stream:
    await stream.send({"text": ["one two three"]})
    async for result in stream:          # until everything sent is answered
        print(result["word"])
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from shoal.client.async_grpc_transport import AsyncDuplex
from shoal.client.codec import RawRequest
from shoal.client.errors import ClientError
from shoal.client.result import Result
from shoal.client.steps import Steps
from shoal.client.streaming import Streaming


class AsyncStream:
    """One stream; it begins with `async with`. One task may send while another receives."""

    def __init__(
        self,
        streaming: Streaming,
        run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]],
        connect: Callable[[RawRequest], Coroutine[Any, Any, AsyncDuplex]],
    ) -> None:
        self._streaming = streaming
        self._run = run
        self._connect = connect
        self._timeout_secs = streaming.session.timeout_secs
        self._duplex: AsyncDuplex | None = None

    @property
    def waiting(self) -> int:
        """The number of requests in progress."""
        return self._streaming.waiting

    async def send(self, inputs: Mapping[str, Any], **arguments: Any) -> None:
        """As `Stream.send`."""
        parts, size = await self._run(self._streaming.outgoing(inputs, **arguments))
        duplex = self._begun()
        self._streaming.waiting += 1
        await duplex.send(parts, size)

    async def finish(self) -> None:
        """End the sending side; responses still arrive."""
        await self._begun().finish()

    async def receive(self, timeout: float | None = None) -> Result | None:
        """As `Stream.receive`."""
        limit = self._timeout_secs if timeout is None else timeout
        duplex = self._begun()
        while True:
            result, done = self._streaming.received(await duplex.receive(limit))
            if done:
                return result

    async def __aiter__(self) -> AsyncIterator[Result]:
        """Responses until all requests sent so far are answered. Raises as `receive` does."""
        while self._streaming.waiting > 0:
            found = await self.receive()
            if found is not None:
                yield found

    async def close(self) -> None:
        """End the stream; requests in progress are cancelled."""
        if self._duplex is not None:
            self._duplex.close()

    async def __aenter__(self) -> AsyncStream:  # noqa: PYI034 - Python 3.10 has no Self
        self._duplex = await self._connect(self._streaming.request)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begun(self) -> AsyncDuplex:
        if self._duplex is None:
            raise ClientError("begin the stream with 'async with client.stream(…) as stream:'")
        return self._duplex
