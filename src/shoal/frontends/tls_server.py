"""A listening socket whose clients speak TLS.

    accept --> first byte --TLS--> queue --a few per loop iteration--> handshake --> protocol
                   '------no TLS--> an error that the client can read

An event loop's own server has one context for all its life, and would begin the handshakes of all
clients at once: here each connection gets the certificate of that moment, a client that sends
nothing costs a socket, and a thousand that begin together leave the other connections their turn.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from shoal.frontends.accepting import Acceptor
from shoal.frontends.client_limits import ConnectionLimits
from shoal.frontends.closing import LINGER_SECS, unread_bytes
from shoal.frontends.http.message import error_body
from shoal.frontends.tls import ServerTls

logger = logging.getLogger(__name__)

HANDSHAKE_SECS = 10.0  # for the first byte, and once more for the handshake

_HANDSHAKE = b"\x16"  # the first byte of TLS
_MOST_BEGUN = 8  # in one loop iteration; each takes up to a millisecond
_SWEEP_SECS = 1.0
_LAST_SWEEP_SECS = 0.1  # once no more are accepted
_LINGER_SECS = 2.0  # for a client that does not speak TLS, to read why
_LINGER_BYTES = 1 << 20
# Connections are closed by the sweeps of their listeners: only those know what a client that reads
# slowly is still to get. The loops of Python 3.10 have a fixed limit, or none.
_FOREVER_SECS = 86_400.0
_SHUTDOWN: dict[str, Any] = (
    {"ssl_shutdown_timeout": _FOREVER_SECS} if sys.version_info >= (3, 11) else {}
)

_BODY = error_body(
    "this port speaks HTTPS, not plain HTTP: use https://, or a secure channel for gRPC"
)
# Clients of gRPC understand this, too: they report a server of HTTP/1, and do not hurry to retry.
_REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)


class _Arrival:
    """A client that has not begun its handshake, or will not."""

    __slots__ = ("address", "discarded_bytes", "refused", "socket", "until_secs")

    def __init__(self, connection: socket.socket, address: str, until_secs: float) -> None:
        self.socket = connection
        self.address = address
        self.until_secs = until_secs
        self.refused = False
        self.discarded_bytes = 0


class TlsServer:
    """Accepts the connections of one socket, on the loop on which it was made."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        tls: ServerTls,
        handshake_secs: float = HANDSHAKE_SECS,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`make_protocol` is called for each connection; it is connected after the handshake, and
        counts itself among `limits` then."""
        self._loop = asyncio.get_running_loop()
        self._make_protocol = make_protocol
        self._tls = tls
        self._handshake_secs = handshake_secs or _FOREVER_SECS
        self._limits = limits or ConnectionLimits()
        self._unfinished: Counter[str] = Counter()  # by address: before the end of the handshake
        self._waiting = 0  # all of them
        self._arrivals: set[_Arrival] = set()
        self._ready: deque[_Arrival] = deque()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._accepting = True
        self._closed = False
        self._acceptor = Acceptor(listening, self._accepted, self._limits)

    @property
    def unfinished(self) -> int:
        """How many clients are connected and may still begin or finish their handshake."""
        return self._waiting - sum(arrival.refused for arrival in self._arrivals)

    async def stop(self) -> None:
        """Accept the clients that have connected, then close the socket. Those that send something
        now may finish their handshake."""
        if not self._accepting:
            return
        self._accepting = False
        await self._acceptor.stop()
        if self._closed:
            return
        until_secs = self._loop.time() + LINGER_SECS
        for arrival in self._arrivals:
            arrival.until_secs = min(arrival.until_secs, until_secs)
        if self._timer is not None:
            self._timer.cancel()
        self._sweep()

    def close(self) -> None:
        """Accept no more, and drop those who have not finished their handshake."""
        if self._closed:
            return
        self._closed = True
        self._acceptor.close()
        self._accepting = False
        if self._timer is not None:
            self._timer.cancel()
        for arrival in list(self._arrivals):
            self._drop(arrival)
        while self._ready:
            self._ready.popleft().socket.close()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing of it runs any more."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    # ---- before the first byte

    def _accepted(self, connection: socket.socket, address: str) -> None:
        here = self._unfinished[address]
        if not self._limits.has_room(address, self._waiting, here):
            connection.close()
            return
        self._unfinished[address] = here + 1
        self._waiting += 1
        self._limits.opening(1)
        arrival = _Arrival(connection, address, self._loop.time() + self._handshake_secs)
        self._arrivals.add(arrival)
        self._loop.add_reader(connection, self._arrived, arrival)
        if self._timer is None:
            self._timer = self._loop.call_later(_SWEEP_SECS, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time()
        for arrival in [each for each in self._arrivals if each.until_secs <= now]:
            if arrival.refused or not unread_bytes(arrival.socket):
                self._drop(arrival)
        if self._arrivals:
            secs = _SWEEP_SECS if self._accepting else _LAST_SWEEP_SECS
            self._timer = self._loop.call_later(secs, self._sweep)

    def _arrived(self, arrival: _Arrival) -> None:
        """A client has sent something, or has gone."""
        try:
            if arrival.refused:
                size = len(arrival.socket.recv(1 << 16))
                arrival.discarded_bytes += size
                if not size or arrival.discarded_bytes > _LINGER_BYTES:
                    self._drop(arrival)
                return
            start = arrival.socket.recv(3, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            start = b""
        if not start:
            self._drop(arrival)
        elif start[:1] == _HANDSHAKE:
            self._loop.remove_reader(arrival.socket)
            self._arrivals.discard(arrival)
            if not self._ready:
                self._loop.call_soon(self._begin)
            self._ready.append(arrival)
        else:
            self._refuse(arrival, start)

    def _refuse(self, arrival: _Arrival, start: bytes) -> None:
        """Send an error, and wait until the client has read it: to close a socket with unread
        bytes would take the error back."""
        if not start.isascii() or not start.isalpha():
            self._drop(arrival)
            return
        try:
            arrival.socket.send(_REFUSAL)
            arrival.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(arrival)
            return
        arrival.refused = True
        arrival.until_secs = self._loop.time() + _LINGER_SECS

    def _drop(self, arrival: _Arrival) -> None:
        self._loop.remove_reader(arrival.socket)
        arrival.socket.close()
        self._arrivals.discard(arrival)
        self._finished(arrival)

    def _finished(self, arrival: _Arrival) -> None:
        self._waiting -= 1
        self._limits.opening(-1)
        self._unfinished[arrival.address] -= 1
        if not self._unfinished[arrival.address]:
            del self._unfinished[arrival.address]

    # ---- handshakes

    def _begin(self) -> None:
        for _ in range(min(_MOST_BEGUN, len(self._ready))):
            handshake = self._loop.create_task(self._shake_hands(self._ready.popleft()))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)
        if self._ready:
            self._loop.call_soon(self._begin)

    async def _shake_hands(self, arrival: _Arrival) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                arrival.socket,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._handshake_secs,
                **_SHUTDOWN,
            )
        except OSError as error:  # those of TLS and of time-outs are some
            logger.debug("no TLS connection with %s: %s", arrival.address, error)
        finally:
            self._finished(arrival)
