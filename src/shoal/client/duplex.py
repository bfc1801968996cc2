"""A call with many messages in both directions, on blocking sockets.

    any thread --send--> socket            any thread --receive--> the next message

There is no extra thread: a thread that waits for a message reads the socket and shares received
messages with other waiting threads. A blocked sender reads, too, so that two sides that only send
cannot deadlock.
"""

from __future__ import annotations

import select
import ssl
import threading
import time
from collections.abc import Callable

from shoal.client.address import Address
from shoal.client.connecting import late, lost
from shoal.client.errors import ClientError, ProtocolError
from shoal.client.http2 import Http2Connection
from shoal.client.http2_stream import Ended
from shoal.client.sockets import SocketConnection
from shoal.core.tensor import Buffer

_RECEIVE_BYTES = 1 << 18
_MOST_PARTS = 512
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Duplex:
    """One call. Any thread may send, and any may receive."""

    def __init__(
        self,
        address: Address,
        line: SocketConnection,
        connection: Http2Connection,
        block: bytes,
        drop: Callable[[], None],
    ) -> None:
        """Begin the call; `drop` discards the connection."""
        self._address = address
        self._socket = line.socket
        self._connection = connection
        self._drop = drop
        self._socket.settimeout(0.0)
        self._state = threading.Lock()  # guards _connection and its stream
        self._sending = threading.Lock()  # held by the sending thread
        self._reading = threading.Lock()  # held by the reading thread
        self._io = threading.Lock()  # around one system call: TLS does not allow two at a time
        self._news = threading.Condition()  # guards _rounds
        self._rounds = 0  # counts reads
        self._failure: ClientError | None = None
        self._closed = False
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._stream = connection.open(block)
        self._push()

    def send(self, parts: list[Buffer], size: int) -> None:
        """Send one message; waits for the server's flow control. Raises when the call has ended."""
        with self._state:
            self._check()
            self._stream.send(parts, size)
        self._push()
        while self._stream.blocked and self._failure is None:
            self._read(None, sending=True)
        self._check()

    def finish(self) -> None:
        """End the sending side."""
        with self._state:
            if self._stream.ended is not None or self._closed:
                return
            self._stream.finish()
        self._push()

    def receive(self, timeout_secs: float | None) -> memoryview | Ended:
        """The next message, or how the call ended. Raises Timeout and ConnectionFailed."""
        end_secs = None if timeout_secs is None else time.monotonic() + timeout_secs
        while True:
            with self._state:
                if self._stream.messages:
                    return self._stream.messages.popleft()
                self._check_failure()
                if self._stream.ended is not None:
                    return self._stream.ended
            left = None if end_secs is None else end_secs - time.monotonic()
            if left is not None and left <= 0:
                raise late(self._address, timeout_secs)
            self._read(left)

    def close(self) -> None:
        """Cancel the call if it is still in progress, and discard the connection."""
        if self._closed:
            return
        self._closed = True
        with self._state:
            self._stream.cancel()
        try:
            self._push()
        except ClientError:
            pass  # the call has ended anyway
        finally:
            self._drop()

    def _check(self) -> None:
        self._check_failure()
        if self._closed or self._stream.ended is not None:
            ended = self._stream.ended
            why = f": {ended.message}" if ended is not None and ended.message else ""
            raise ClientError(f"this stream has ended{why}")

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _push(self) -> None:
        """Send queued bytes in order."""
        with self._sending:
            while True:
                with self._state:
                    parts, _ = self._connection.take()
                if not parts:
                    return
                views = [memoryview(part).cast("B") for part in parts if len(part)]
                while views and self._failure is None:
                    self._push_some(views)

    def _push_some(self, views: list[memoryview]) -> None:
        try:
            with self._io:
                sent = self._socket.send(
                    b"".join(views[:_MOST_PARTS]) if len(views) > 1 else views[0]
                )
        except _WOULD_BLOCK:
            self._read(None, sending=True, writing=True)
            return
        except OSError as error:
            self._fail(lost(self._address, error))
            return
        while views and sent >= len(views[0]):
            sent -= len(views[0])
            del views[0]
        if sent:
            views[0] = views[0][sent:]

    def _read(
        self, timeout_secs: float | None, *, sending: bool = False, writing: bool = False
    ) -> None:
        """Wait for received data and process it.

        With `sending`, the caller waits for flow control instead of messages; with `writing`,
        also until the socket is writable.
        """
        before = self._rounds
        if not self._reading.acquire(blocking=False):
            with self._news:
                if self._rounds == before and not writing:
                    self._news.wait(timeout_secs)
            if writing:  # another thread reads; wait until the socket is writable
                self._wait(timeout_secs, False, True)
            return
        try:
            if not self._settled(sending) and self._wait(timeout_secs, True, writing):
                self._receive()
        finally:
            self._reading.release()
            with self._news:
                self._rounds += 1
                self._news.notify_all()
        if not writing and self._connection.pending:
            self._push()

    def _settled(self, sending: bool) -> bool:
        """Whether the thread's condition was met before it could read."""
        with self._state:
            if self._stream.ended is not None:
                return True
            return not self._stream.blocked if sending else bool(self._stream.messages)

    def _wait(self, timeout_secs: float | None, reading: bool, writing: bool) -> bool:
        """Wait for the socket; returns whether it is readable."""
        if reading and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        try:
            readable, _, _ = select.select(
                [self._socket] if reading else [],
                [self._socket] if writing else [],
                [],
                timeout_secs,
            )
        except (OSError, ValueError):  # closed by another thread
            self._fail(lost(self._address, None))
            return False
        return bool(readable)

    def _receive(self) -> None:
        while self._failure is None:
            try:
                with self._io:
                    count = self._socket.recv_into(self._buffer)
            except _WOULD_BLOCK:
                return
            except OSError as error:
                self._fail(lost(self._address, error))
                return
            with self._state:
                try:
                    if not count:
                        if self._stream.ended is None:
                            self._failure = lost(self._address, None)
                        self._connection.lost()
                        return
                    self._connection.receive(self._buffer[:count])
                except ProtocolError as error:
                    self._failure = error
                if self._stream.ended is not None or count < _RECEIVE_BYTES:
                    return

    def _fail(self, error: ClientError) -> None:
        with self._state:
            if self._failure is None and self._stream.ended is None:
                self._failure = error
