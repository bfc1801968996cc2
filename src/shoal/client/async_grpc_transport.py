"""gRPC on an event loop: calls share connections.

What several tasks send in one loop iteration is sent together.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable

from shoal.client.address import Address
from shoal.client.codec import SMALL_BYTES, RawRequest, RawResponse
from shoal.client.connecting import Limits, foreign, late, lost, open_transport, refused
from shoal.client.errors import ClientError, ProtocolError, Timeout
from shoal.client.http2 import Http2Connection
from shoal.client.http2_stream import Ended, Http2Stream
from shoal.client.steps import RoundTrip
from shoal.core.tensor import Buffer


class AsyncGrpcTransport:
    """Calls to one server, on the event loop of the first of them."""

    def __init__(self, address: Address, encryption: ssl.SSLContext | None, limits: Limits) -> None:
        self._address = address
        self._encryption = encryption
        self._limits = limits
        self._links: list[_Link] = []
        self._connecting: asyncio.Lock | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def exchange(self, step: RoundTrip) -> RawResponse:
        """Make a call and wait for its response. Raises ConnectionFailed, Timeout and more."""
        link = await self._link(step.timeout_secs)
        used = link.used
        stream, ended = await self._call(link, step)
        if ended.untouched and used and (step.repeatable or ended.code >= 0):
            # The server closed an idle connection while the request was being sent.
            link = await self._link(step.timeout_secs)
            stream, ended = await self._call(link, step)
        if ended.code < 0:
            raise link.failure or lost(self._address, link.error)
        body = stream.messages[0] if stream.messages else b""
        return RawResponse(ended.code, ended.headers, body, ended.message)

    async def duplex(
        self, request: RawRequest, closed: Callable[[], None] | None = None
    ) -> AsyncDuplex:
        """A call of many messages in both directions; `closed` is called once, at its end."""
        link = await self._link(None)
        return AsyncDuplex(self._address, link, request.block, closed)

    async def close(self) -> None:
        """Close all connections; calls in flight fail."""
        self._closed = True
        for link in self._links:
            link.close()
        self._links.clear()
        self._wake()
        await asyncio.sleep(0)  # transports close in the next loop iteration

    async def _call(self, link: _Link, step: RoundTrip) -> tuple[Http2Stream, Ended]:
        stream = link.connection.open(step.request.block)
        answered: asyncio.Future[None] = link.loop.create_future()

        def news() -> None:
            if stream.ended is not None and not answered.done():
                answered.set_result(None)

        stream.news = news
        stream.send(step.request.parts, step.request.size, end=True)
        link.flush_soon()
        timer = None
        if step.timeout_secs is not None:
            timer = link.loop.call_later(step.timeout_secs, _expire, answered)
        try:
            await answered
        except _Expired:
            raise late(self._address, step.timeout_secs) from None
        finally:
            if timer is not None:
                timer.cancel()
            if stream.ended is None:
                stream.cancel()
                link.flush_soon()
            if self._waiting:
                self._wake()
        assert stream.ended is not None
        return stream, stream.ended

    async def _link(self, timeout_secs: float | None) -> _Link:
        """A connection with capacity for one more call. Raises Timeout when there is none."""
        while True:
            if self._closed:
                raise ClientError("this client is closed")
            for link in self._links:
                if link.usable:
                    return link
            self._links = [link for link in self._links if not link.connection.closing]
            if self._connecting is None:
                self._connecting = asyncio.Lock()
            if len(self._links) < self._limits.connections:
                async with self._connecting:
                    if any(link.usable for link in self._links):
                        continue
                    link = await self._connect()
                    self._links.append(link)
                    return link
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await asyncio.wait_for(waiter, timeout_secs)
            except asyncio.TimeoutError:
                raise Timeout(
                    f"the server at {self._address.shown} accepted no more calls for "
                    f"{timeout_secs:g} s"
                ) from None

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _connect(self) -> _Link:
        loop = asyncio.get_running_loop()
        link = _Link(loop, self._address)
        try:
            await asyncio.wait_for(
                open_transport(self._address, self._encryption, link),
                self._limits.connect_secs,
            )
        except asyncio.TimeoutError:
            raise refused(self._address, TimeoutError(), self._limits.connect_secs) from None
        except OSError as error:
            raise refused(self._address, error, self._limits.connect_secs) from None
        if link.connection.closing:  # closed before this task continued: no call would ever end
            closed = link.failure or lost(self._address, link.error)
            closed.not_connected = True
            raise closed
        return link


class _Expired(Exception):
    """There was no response in time."""


def _expire(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_exception(_Expired())


class _Link(asyncio.Protocol):
    """One connection, as an asyncio protocol."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address) -> None:
        self.loop = loop
        self.connection = Http2Connection()
        self.error: OSError | None = None
        self.failure: ClientError | None = None
        self.used = False  # something was received on it
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._flushing = False

    @property
    def usable(self) -> bool:
        """Whether one more call may be made on it."""
        connection = self.connection
        return not connection.closing and len(connection.streams) < connection.max_streams

    def flush_soon(self) -> None:
        """Send at the end of this loop iteration, together with other calls."""
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def close(self) -> None:
        """Close the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = transport  # type: ignore[assignment]
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Frames were received."""
        self.used = True
        try:
            self.connection.receive(data)
        except ProtocolError as error:
            self.failure = foreign(self._address, error)
            self.connection.lost()
            self.close()
            return
        if self.connection.pending:
            self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection was closed."""
        self.error = error if isinstance(error, OSError) else None
        self._transport = None
        self.connection.lost()

    def _flush(self) -> None:
        self._flushing = False
        parts, size = self.connection.take()
        if self._transport is None or not parts:
            return
        if size <= SMALL_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)


class AsyncDuplex:
    """A call with many messages in both directions."""

    def __init__(
        self, address: Address, link: _Link, block: bytes, closed: Callable[[], None] | None
    ) -> None:
        self._address = address
        self._link = link
        self._stream = link.connection.open(block)
        self._stream.news = self._news
        self._changed: asyncio.Future[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._closed = False
        self._on_close = closed
        link.flush_soon()

    async def send(self, parts: list[Buffer], size: int) -> None:
        """Send one message; waits for the server's flow control."""
        if self._closed or self._stream.ended is not None:
            ended = self._stream.ended
            why = f": {ended.message}" if ended is not None and ended.message else ""
            raise ClientError(f"this stream has ended{why}")
        self._stream.send(parts, size)
        self._link.flush_soon()
        while self._stream.blocked and self._stream.ended is None:
            self._sent = self._link.loop.create_future()
            await self._sent

    async def finish(self) -> None:
        """End the sending side."""
        if self._stream.ended is None and not self._closed:
            self._stream.finish()
            self._link.flush_soon()

    async def receive(self, timeout_secs: float | None) -> memoryview | Ended:
        """The next message, or how the call ended. Raises Timeout and ConnectionFailed."""
        stream = self._stream
        timer = None
        try:
            while True:
                if stream.messages:
                    return stream.messages.popleft()
                if stream.ended is not None:
                    if stream.ended.code < 0:
                        raise self._link.failure or lost(self._address, self._link.error)
                    return stream.ended
                self._changed = self._link.loop.create_future()
                if timer is None and timeout_secs is not None:
                    timer = self._link.loop.call_later(timeout_secs, self._expire)
                await self._changed
        except _Expired:
            raise late(self._address, timeout_secs) from None
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Cancel the call if it is still in progress."""
        if not self._closed:
            self._closed = True
            self._stream.cancel()
            self._link.flush_soon()
            if self._on_close is not None:
                self._on_close()

    def _news(self) -> None:
        for waiter in (self._changed, self._sent):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _expire(self) -> None:
        if self._changed is not None:
            _expire(self._changed)
