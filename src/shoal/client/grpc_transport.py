"""gRPC on blocking sockets: one call at a time on a connection, connections from a pool.

With a connection to itself a call needs no thread that reads for all of them and wakes the right
one: it sends and receives on the caller's thread, which is what makes it cheap.
"""

from __future__ import annotations

import ssl
import time

from shoal.client.address import Address
from shoal.client.codec import Answer
from shoal.client.connecting import Limits, late, lost, open_socket
from shoal.client.duplex import Duplex
from shoal.client.errors import ProtocolError
from shoal.client.http2 import Connection
from shoal.client.http2_stream import Ended
from shoal.client.pool import Pool
from shoal.client.sockets import Deadline, Line
from shoal.client.steps import Exchange

_RECEIVE_BYTES = 1 << 18


class GrpcTransport:
    """Calls to one server. Any thread may call any method."""

    def __init__(self, address: Address, encryption: ssl.SSLContext | None, limits: Limits) -> None:
        self._address = address
        self._pool = Pool(
            lambda: Channel(Line(open_socket(address, encryption, limits.connect_secs))),
            limits.connections,
        )

    def exchange(self, step: Exchange) -> Answer:
        """Make a call and wait for its answer. Raises ConnectionFailed, Timeout and more."""
        channel, used = self._pool.take(step.timeout_secs)
        if used and not channel.usable():
            self._pool.drop(channel)
            channel, used = self._pool.fresh(), False
        while True:
            try:
                answer, ended = channel.call(step)
            except ProtocolError as error:
                self._pool.drop(channel)
                raise foreign(self._address, error) from None
            except _Late:
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
                # The server closed an idle connection while the request was on its way to it.
                channel, used = self._pool.fresh(), False
                continue
            if ended.code < 0:
                raise lost(self._address, channel.error)
            return answer

    def duplex(self, block: bytes) -> Duplex:
        """A call of many messages in both directions, on a connection of its own."""
        channel = self._pool.fresh()
        try:
            return Duplex(
                self._address,
                channel.line,
                channel.connection,
                block,
                lambda: self._pool.drop(channel),
            )
        except BaseException:
            self._pool.drop(channel)
            raise

    def close(self) -> None:
        """Close all connections; those in use when their calls are done."""
        self._pool.close()


class Channel:
    """A socket, and HTTP/2 on it."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.connection = Connection()
        self.error: OSError | None = None  # why it broke
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def call(self, step: Exchange) -> tuple[Answer, Ended]:
        """One call. A code of -1 says that the connection broke; raises _Late."""
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
                self.error = error  # it may have said why before it closed
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
            raise _Late from None
        except OSError as error:
            self.error = error
            connection.lost()
        line.used_secs = time.monotonic()
        ended = stream.ended
        assert ended is not None
        body = stream.messages[0] if stream.messages else b""
        return Answer(max(ended.code, 0), ended.headers, body, ended.message), ended

    def usable(self) -> bool:
        """Whether calls can be made; what arrived meanwhile is seen to."""
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


class _Late(Exception):
    """There was no answer in time."""


def foreign(address: Address, error: ProtocolError) -> ProtocolError:
    """What to say when something other than gRPC answers."""
    where = address.authority
    return ProtocolError(
        f"what answers at {where} does not speak gRPC ({error}); for HTTP write 'http://{where}'"
    )
