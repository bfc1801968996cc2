"""gRPC on blocking sockets: one call at a time on a connection, connections from a pool.

A call has a connection to itself, so no extra thread has to read for all calls: the caller's thread
sends and receives, which is cheap.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

from shoal.client.address import Address
from shoal.client.codec import RawRequest, RawResponse
from shoal.client.connecting import Limits, foreign, late, lost, open_socket
from shoal.client.duplex import Duplex
from shoal.client.errors import ProtocolError
from shoal.client.http2 import Http2Connection
from shoal.client.http2_stream import Ended
from shoal.client.pool import Pool
from shoal.client.sockets import Deadline, SocketConnection
from shoal.client.steps import RoundTrip

_RECEIVE_BYTES = 1 << 18


class GrpcTransport:
    """Calls to one server. Thread-safe."""

    def __init__(self, address: Address, encryption: ssl.SSLContext | None, limits: Limits) -> None:
        self._address = address
        self._pool = Pool(
            lambda: GrpcChannel(
                SocketConnection(open_socket(address, encryption, limits.connect_secs))
            ),
            limits.connections,
        )

    def exchange(self, step: RoundTrip) -> RawResponse:
        """Make a call and wait for its response. Raises ConnectionFailed, Timeout and more."""
        channel, used = self._pool.take(step.timeout_secs)
        if used and not channel.usable():
            self._pool.drop(channel)
            channel, used = self._pool.fresh(), False
        while True:
            try:
                response, ended = channel.call(step)
            except ProtocolError as error:
                self._pool.drop(channel)
                raise foreign(self._address, error) from None
            except TimeoutError:
                self._pool.drop(channel)
                raise late(self._address, step.timeout_secs) from None
            except BaseException:
                self._pool.drop(channel)
                raise
            if channel.connection.closing:
                self._pool.drop(channel)
            else:
                self._pool.give_back(channel)
            if ended.untouched and used and (step.repeatable or ended.code >= 0):
                # The server closed an idle connection while the request was being sent.
                channel, used = self._pool.fresh(), False
                continue
            if ended.code < 0:
                raise lost(self._address, channel.error)
            return response

    def duplex(self, request: RawRequest, closed: Callable[[], None] | None = None) -> Duplex:
        """A call of many messages in both directions, on a separate connection.

        `closed` is called once, at its end.
        """
        channel = self._pool.fresh()

        def drop() -> None:
            self._pool.drop(channel)
            if closed is not None:
                closed()

        try:
            return Duplex(
                self._address,
                channel.line,
                channel.connection,
                request.block,
                drop,
            )
        except BaseException:
            self._pool.drop(channel)
            raise

    def close(self) -> None:
        """Close all connections; those in use are closed after their calls."""
        self._pool.close()


class GrpcChannel:
    """A socket, and HTTP/2 on it."""

    def __init__(self, line: SocketConnection) -> None:
        self.line = line
        self.connection = Http2Connection()
        self.error: OSError | None = None  # why it failed
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def call(self, step: RoundTrip) -> tuple[RawResponse, Ended]:
        """One call. A code of -1 means that the connection was lost. Raises TimeoutError."""
        connection, line = self.connection, self.line
        request = step.request
        deadline = Deadline(step.timeout_secs)
        stream = connection.open(request.block)
        stream.send(request.parts, request.size, end=True)
        try:
            line.limit(step.timeout_secs)
            try:
                line.send(*connection.take())
            except (BrokenPipeError, ConnectionResetError) as error:
                self.error = error  # the reason may have been sent before closing
            while stream.ended is None:
                count = line.socket.recv_into(self._buffer)
                if not count:
                    connection.lost()
                    break
                connection.receive(self._buffer[:count])
                if stream.ended is None:
                    line.limit(deadline.left())
                    if connection.pending:
                        line.send(*connection.take())
        except TimeoutError:
            raise
        except OSError as error:
            self.error = error
            connection.lost()
        line.used_secs = time.monotonic()
        ended = stream.ended
        assert ended is not None
        body = stream.messages[0] if stream.messages else b""
        return RawResponse(max(ended.code, 0), ended.headers, body, ended.message), ended

    def usable(self) -> bool:
        """Whether calls can be made; received frames are processed."""
        if self.connection.closing:
            return False
        if not self.line.stale():
            return True
        try:
            self.line.limit(0.0)
            count = self.line.socket.recv_into(self._buffer)
            if not count:
                return False
            self.connection.receive(self._buffer[:count])
        except (OSError, ProtocolError):
            return False
        self.line.used_secs = time.monotonic()
        return not self.connection.closing

    def close(self) -> None:
        """Close the socket."""
        self.line.close()
