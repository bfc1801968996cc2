"""A listening HTTP port: binds, accepts, watches the clocks of its connections, drains.

    start ─▶ connections come and go ─▶ stop_accepting ─▶ drain ─▶ abort_all

One timer serves all connections: what each may take its time for is in `limits`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from typing import TYPE_CHECKING

from shoal.frontends.client_limits import ClientLimits
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import date_line
from shoal.frontends.http.protocol import Handler, HttpConnection, ListenerState

if TYPE_CHECKING:
    from shoal.frontends.http.fast_path import HttpFastPath

_BACKLOG = 1024
_PORT_TRIES = 8  # for a free port that is free in every address family


class HttpListener:
    """Serves `handle` on one or more addresses. Everything happens on the loop of `start`."""

    def __init__(
        self,
        handle: Handler,
        limits: HttpLimits | None = None,
        fast_path: HttpFastPath | None = None,
        clients: ClientLimits | None = None,
    ) -> None:
        """`handle` gets what does not match a template of `fast_path`; `clients` may be shared with
        other listeners."""
        self._limits = limits or HttpLimits()
        self._state = ListenerState(handle, self._limits, fast_path, clients)
        self._state.on_empty = self._all_gone
        self._servers: list[asyncio.AbstractServer] = []
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None
        self.addresses: list[tuple[str, int]] = []

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> int:
        """Listen on every address of `host` (None: on all interfaces); returns the port.

        With port 0 the system picks one, the same for all addresses. Raises OSError, with
        EADDRINUSE for a taken port, and then nothing listens that did not before.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except socket.gaierror as error:
            text = f"cannot listen on '{host}': no address is known for that name"
            raise socket.gaierror(error.errno, text) from None
        sockets = _bind_all([(info[0], info[4]) for info in found], reuse_port)
        bound = [sock.getsockname()[:2] for sock in sockets]
        servers: list[asyncio.AbstractServer] = []
        try:
            for sock in sockets:
                started = await loop.create_server(self._accept, sock=sock, backlog=_BACKLOG)
                servers.append(started)
        except BaseException:
            for server in servers:
                server.close()
            for sock in sockets:
                sock.close()
            raise
        self._servers += servers
        self.addresses += bound
        if self._timer is None:
            self._sweep(loop)
        return int(bound[0][1])

    @property
    def open_connections(self) -> int:
        """How many clients are connected."""
        return len(self._state.connections)

    @property
    def in_flight(self) -> int:
        """How many requests are with the application."""
        return sum(connection.busy for connection in self._state.connections)

    def announce_close(self) -> None:
        """From now on every response ends its connection, so that clients connect elsewhere."""
        self._state.draining = True

    def stop_accepting(self) -> None:
        """Close the listening sockets; existing connections stay open."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._stop_timer_when_done()

    def close_idle(self) -> None:
        """Close the connections on which no part of a request has arrived."""
        for connection in list(self._state.connections):
            connection.close_if_idle()

    async def drain(self, timeout_secs: float) -> bool:
        """Let pending requests finish, close everything else; true when no connection is open.

        Waits no longer than `timeout_secs`; the caller aborts the rest.
        """
        self.announce_close()
        self.close_idle()
        if not self._state.connections:
            return True
        self._drained = asyncio.Event()
        try:
            await asyncio.wait_for(self._drained.wait(), timeout_secs)
        except asyncio.TimeoutError:
            return not self._state.connections
        return True

    def abort_all(self) -> None:
        """Cut every connection; requests in flight see their client go away."""
        for connection in list(self._state.connections):
            connection.abort()

    def _accept(self) -> HttpConnection:
        return HttpConnection(self._state)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.date_line = date_line(time.time())
        now = loop.time()
        for connection in list(self._state.connections):
            connection.sweep(now)
        self._timer = loop.call_later(self._limits.sweep_secs, self._sweep, loop)

    def _all_gone(self) -> None:
        if self._drained is not None:
            self._drained.set()
        self._stop_timer_when_done()

    def _stop_timer_when_done(self) -> None:
        if self._timer is not None and not self._servers and not self._state.connections:
            self._timer.cancel()
            self._timer = None


def _bind_all(
    addresses: list[tuple[int, tuple[object, ...]]], reuse_port: bool
) -> list[socket.socket]:
    """A bound socket for every address, all on one port. Raises OSError and leaves none bound."""
    for attempt in range(1, _PORT_TRIES + 1):
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        port = 0
        try:
            for family, address in addresses:
                # `port` is what the system picked for the first address.
                wanted = (address[0], port, *address[2:]) if port else address
                try:
                    sock = _bind(family, wanted, reuse_port)
                except OSError as error:
                    if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                        raise
                    missing = error  # the name has an address of a family this machine lacks
                    continue
                sockets.append(sock)
                port = sock.getsockname()[1]
            if missing is not None and not sockets:
                raise missing
        except OSError as error:
            for sock in sockets:
                sock.close()
            picked = bool(sockets) and addresses[0][1][1] == 0
            if picked and error.errno == errno.EADDRINUSE and attempt < _PORT_TRIES:
                continue  # free in one family, taken in the other: let the system pick again
            raise
        return sockets
    raise AssertionError("unreachable: the last attempt returns or raises")


def _bind(family: int, address: tuple[object, ...], reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere this option would let two servers share the port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            if not hasattr(socket, "SO_REUSEPORT"):
                raise OSError(errno.ENOPROTOOPT, "this system cannot share a port (SO_REUSEPORT)")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # so that 0.0.0.0 and :: can be bound side by side
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)  # here, where a port that is bound twice is detected
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno, f"cannot listen on {address[0]}:{address[1]}: {error.strerror}"
        ) from None
    return sock
