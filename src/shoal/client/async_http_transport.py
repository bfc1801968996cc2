"""HTTP/1.1 on an event loop: one request at a time on a connection, connections from a pool."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator

from shoal.client.address import Address
from shoal.client.codec import SMALL_BYTES, RawRequest, RawResponse
from shoal.client.connecting import Limits, NoResponse, foreign, late, lost, open_transport, refused
from shoal.client.errors import ClientError, ProtocolError, Timeout
from shoal.client.http1 import Http1Response
from shoal.client.steps import RoundTrip


class AsyncHttpTransport:
    """Requests to one server, on the event loop of the first of them."""

    def __init__(self, address: Address, encryption: ssl.SSLContext | None, limits: Limits) -> None:
        self._address = address
        self._encryption = encryption
        self._limits = limits
        self._idle: list[_Connection] = []
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def exchange(self, step: RoundTrip) -> RawResponse:
        """Send a request and wait for its response. Raises ConnectionFailed, Timeout and more."""
        connection, used = await self._take(step.timeout_secs)
        while True:
            try:
                response = await connection.exchange(step.request, step.timeout_secs)
                break
            except NoResponse as error:
                self._drop(connection)
                if not used or not step.repeatable:
                    raise lost(self._address, error.reason) from None
            except ProtocolError as error:
                self._drop(connection)
                raise foreign(self._address, error) from None
            except BaseException:
                self._drop(connection)
                raise
            # The server closed an idle connection while the request was being sent.
            self._count += 1
            connection, used = await self._connect(), False
        head = response.head
        assert head is not None
        if head.keep_alive and not self._closed:
            self._idle.append(connection)
            self._wake()
        else:
            self._drop(connection)
        return RawResponse(head.status, head.headers, response.body)

    async def events(
        self, request: RawRequest, timeout_secs: float | None
    ) -> AsyncIterator[RawResponse]:
        """Send a request and yield the body of the response in pieces, as they arrive.

        The first piece has the status; where that is not 200, it is the whole response. Closing the
        iterator early closes the connection, which cancels the request.
        """
        self._count += 1
        connection = await self._connect()
        try:
            try:
                async for response in connection.pieces(request, timeout_secs):
                    yield response
            except NoResponse as error:
                raise lost(self._address, error.reason) from None
            except ProtocolError as error:
                raise foreign(self._address, error) from None
        finally:
            self._drop(connection)

    async def close(self) -> None:
        """Close all connections; those in use are closed after their calls."""
        self._closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        while self._waiting:
            self._wake()
        await asyncio.sleep(0)  # transports close in the next loop iteration

    async def _take(self, timeout_secs: float | None) -> tuple[_Connection, bool]:
        while True:
            if self._closed:
                raise ClientError("this client is closed")
            while self._idle:
                connection = self._idle.pop()
                if not connection.lost:
                    return connection, True
                self._drop(connection)
            if self._count < self._limits.connections:
                self._count += 1
                return await self._connect(), False
            await self._wait_for_connection(timeout_secs)

    async def _wait_for_connection(self, timeout_secs: float | None) -> None:
        """Wait until a connection is free."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await asyncio.wait_for(waiter, timeout_secs)
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not isinstance(error, asyncio.CancelledError) or waiter.done():
                self._wake()  # wake the next waiter instead
            if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
                raise Timeout(
                    f"all {self._limits.connections} connections stayed busy for "
                    f"{timeout_secs:g} s; allow more with connections="
                ) from None
            raise

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _connect(self) -> _Connection:
        """A new connection; the caller has counted it."""
        loop = asyncio.get_running_loop()
        made = _Connection(loop, self._address)
        try:
            await asyncio.wait_for(
                open_transport(self._address, self._encryption, made),
                self._limits.connect_secs,
            )
        except BaseException as error:
            self._count -= 1
            self._wake()
            if isinstance(error, asyncio.TimeoutError):
                raise refused(self._address, TimeoutError(), self._limits.connect_secs) from None
            if isinstance(error, OSError):
                raise refused(self._address, error, self._limits.connect_secs) from None
            raise
        return made

    def _drop(self, connection: _Connection) -> None:
        connection.close()
        self._count -= 1
        self._wake()


class _Connection(asyncio.Protocol):
    """One connection with at most one request in flight."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address) -> None:
        self._loop = loop
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._response: Http1Response | None = None
        self._news: asyncio.Future[None] | None = None  # the response is complete, or failed
        self._piecewise = False
        self._error: Exception | None = None
        self.lost = False

    # ---- for callers

    async def exchange(self, request: RawRequest, timeout_secs: float | None) -> Http1Response:
        """Send a request and wait for the whole response."""
        response = self._begin(request)
        timer = None
        if timeout_secs is not None:
            timer = self._loop.call_later(timeout_secs, self._expire, timeout_secs)
        try:
            if self._news is not None:
                await self._news
        finally:
            if timer is not None:
                timer.cancel()
            self._news = self._response = None
        return response

    async def pieces(
        self, request: RawRequest, timeout_secs: float | None
    ) -> AsyncIterator[RawResponse]:
        """Send a request and yield the body in pieces; see `AsyncHttpTransport.events`."""
        self._piecewise = True
        response = self._begin(request)
        timer = None
        if timeout_secs is not None:
            timer = self._loop.call_later(timeout_secs, self._expire, timeout_secs)
        try:
            while not response.done:
                if self._error is not None:
                    raise self._error
                if self._news is None:
                    self._news = self._loop.create_future()
                await self._news
                self._news = None
                head = response.head
                if head is not None and head.status == 200 and isinstance(response.body, bytearray):
                    yield RawResponse(200, head.headers, response.drain())
            assert response.head is not None
            yield RawResponse(response.head.status, response.head.headers, response.body)
        finally:
            if timer is not None:
                timer.cancel()
            self._news = self._response = None

    def close(self) -> None:
        """Close the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, request: RawRequest) -> Http1Response:
        assert self._transport is not None
        if self.lost:
            raise NoResponse(None)
        self._response = response = Http1Response()
        self._news = self._loop.create_future()
        if request.size <= SMALL_BYTES:
            parts = request.parts
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        else:
            self._transport.writelines(request.parts)
        return response

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Part of a response was received."""
        response = self._response
        if response is None or response.done:  # unexpected data on an idle connection
            self.lost = True
            self.close()
            return
        try:
            if response.feed(data) or (self._piecewise and response.head is not None):
                self._notify()
        except ProtocolError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        """The server closed its side."""
        return False  # close our side, too

    def connection_lost(self, error: Exception | None) -> None:
        """The connection was closed."""
        self.lost = True
        response = self._response
        if response is None or response.done:
            return
        reason = error if isinstance(error, OSError) else None
        if response.end():
            self._notify()
        elif response.begun:
            self._fail(lost(self._address, reason))
        else:
            self._fail(NoResponse(reason))

    def _notify(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._error = error
        if self._news is not None and not self._news.done():
            self._news.set_exception(error)

    def _expire(self, timeout_secs: float) -> None:
        self._fail(late(self._address, timeout_secs))
        self.close()
