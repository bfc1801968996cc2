"""HTTP/1.1 on blocking sockets: one request at a time on a connection, connections from a pool."""

from __future__ import annotations

import ssl
import time
from collections.abc import Generator

from shoal.client.address import Address
from shoal.client.codec import RawRequest, RawResponse
from shoal.client.connecting import Limits, NoResponse, foreign, late, lost, open_socket
from shoal.client.errors import ClientError, ProtocolError
from shoal.client.http1 import Http1Response
from shoal.client.pool import Pool
from shoal.client.sockets import RECEIVE_BYTES, Deadline, SocketConnection
from shoal.client.steps import RoundTrip


class HttpTransport:
    """Requests to one server. Thread-safe."""

    def __init__(self, address: Address, encryption: ssl.SSLContext | None, limits: Limits) -> None:
        self._address = address
        self._pool = Pool(
            lambda: SocketConnection(open_socket(address, encryption, limits.connect_secs)),
            limits.connections,
        )

    def exchange(self, step: RoundTrip) -> RawResponse:
        """Send a request and wait for its response. Raises ConnectionFailed, Timeout and more."""
        line, used = self._pool.take(step.timeout_secs)
        if used and line.stale():
            self._pool.drop(line)
            line, used = self._pool.fresh(), False
        while True:
            response = Http1Response()
            try:
                self._exchange(line, step, response)
                break
            except NoResponse as error:
                self._pool.drop(line)
                if not used or not step.repeatable:
                    raise lost(self._address, error.reason) from None
            except ProtocolError as error:
                self._pool.drop(line)
                raise foreign(self._address, error) from None
            except BaseException:
                self._pool.drop(line)
                raise
            # The server closed an idle connection while the request was being sent.
            line, used = self._pool.fresh(), False
        head = response.head
        assert head is not None
        if head.keep_alive:
            self._pool.give_back(line)
        else:
            self._pool.drop(line)
        return RawResponse(head.status, head.headers, response.body)

    def events(
        self, request: RawRequest, timeout_secs: float | None
    ) -> Generator[RawResponse, None, None]:
        """Send a request and yield the body of the response in pieces, as they arrive.

        The first piece has the status; where that is not 200, it is the whole response. Closing the
        iterator early closes the connection, which cancels the request.
        """
        line = self._pool.fresh()  # it may be in use for long, so it is not pooled
        try:
            deadline = Deadline(timeout_secs)
            line.limit(timeout_secs)
            response = Http1Response()
            try:
                line.send(request.parts, request.size)
                while not response.done:
                    line.limit(deadline.left())
                    data = line.socket.recv(RECEIVE_BYTES)
                    if not data:
                        if response.end():
                            break
                        raise lost(self._address, None)
                    response.feed(data)
                    head = response.head
                    if (
                        head is not None
                        and head.status == 200
                        and isinstance(response.body, bytearray)
                    ):
                        yield RawResponse(200, head.headers, response.drain())
            except TimeoutError:
                raise late(self._address, timeout_secs) from None
            except ProtocolError as error:
                raise foreign(self._address, error) from None
            except ClientError:
                raise
            except OSError as error:
                raise lost(self._address, error) from None
            assert response.head is not None
            yield RawResponse(response.head.status, response.head.headers, response.body)
        finally:
            self._pool.drop(line)

    def close(self) -> None:
        """Close all connections; those in use are closed after their calls."""
        self._pool.close()

    def _exchange(self, line: SocketConnection, step: RoundTrip, response: Http1Response) -> None:
        """One request and its response. Raises NoResponse when the connection was closed."""
        deadline = Deadline(step.timeout_secs)
        broken: OSError | None = None
        try:
            line.limit(step.timeout_secs)
            try:
                line.send(step.request.parts, step.request.size)
            except (BrokenPipeError, ConnectionResetError) as error:
                broken = error  # the reason may have been sent before closing, e.g. too large
            first = True
            while True:
                if not first:
                    line.limit(deadline.left())
                first = False
                room = response.room()
                if room is not None and len(room) > RECEIVE_BYTES:
                    count = line.socket.recv_into(room)
                    if count and response.received(count):
                        break
                else:
                    data = line.socket.recv(RECEIVE_BYTES)
                    count = len(data)
                    if count and response.feed(data):
                        break
                if not count:
                    if response.end():
                        break
                    raise NoResponse(broken)
        except TimeoutError:
            raise late(self._address, step.timeout_secs) from None
        except OSError as error:
            if response.begun:
                raise lost(self._address, error) from None
            raise NoResponse(broken or error) from None
        line.used_secs = time.monotonic()
