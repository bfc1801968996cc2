"""A listening HTTP port: binds, accepts, watches the clocks of its connections, drains.

    start ─▶ connections come and go ─▶ stop_accepting ─▶ drain ─▶ abort_all

One timer serves all connections: what each may take its time for is in `limits`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from typing import TYPE_CHECKING

from shoal.frontends.access_log import AccessLog
from shoal.frontends.client_limits import ClientLimits
from shoal.frontends.closing import EXIT_TIMEOUT, LINGER_SECS
from shoal.frontends.http.head import CheckHead, RewriteHead
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.listener_state import Handler, ListenerState
from shoal.frontends.http.message import date_line
from shoal.frontends.http.protocol import HttpConnection
from shoal.frontends.sockets import SocketFile, SocketServer, bind_tcp, bind_unix, serve
from shoal.frontends.tls import ServerTls
from shoal.frontends.tls_server import HANDSHAKE_SECS

if TYPE_CHECKING:
    from shoal.frontends.http.fast_path import HttpFastPath

_LOOK_SECS = 0.05  # between two looks at idle connections, while it drains


class HttpListener:
    """Serves `handle` on one or more addresses. Everything happens on the loop of `start`."""

    def __init__(
        self,
        handle: Handler,
        limits: HttpLimits | None = None,
        fast_path: HttpFastPath | None = None,
        clients: ClientLimits | None = None,
        check_head: CheckHead | None = None,
        access_log: AccessLog | None = None,
        rewrite: RewriteHead | None = None,
    ) -> None:
        """`handle` gets what does not match a template of `fast_path`; `clients` may be shared with
        other listeners. `check_head` may refuse a request before its body arrives; `rewrite` makes
        requests of another API to ours."""
        self._limits = limits or HttpLimits()
        self._state = ListenerState(
            handle, self._limits, fast_path, clients, check_head, access_log, rewrite
        )
        self._connection_type = HttpConnection if fast_path is None else fast_path.connection_type
        self._state.on_empty = self._all_gone
        self._servers: list[SocketServer] = []
        self._accepting = False
        self._files: list[SocketFile] = []
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None
        self.addresses: list[tuple[str, int]] = []

    async def start(
        self, host: str | None, port: int, *, reuse_port: bool = False, tls: ServerTls | None = None
    ) -> int:
        """Listen on every address of `host` (None: on all interfaces); returns the port.

        With port 0 the system picks one, the same for all addresses. Raises OSError, with
        EADDRINUSE for a taken port, and then nothing listens that did not before.
        """
        sockets = await bind_tcp(host, port, reuse_port=reuse_port)
        bound = [sock.getsockname()[:2] for sock in sockets]
        await self._serve(sockets, tls)
        self.addresses += bound
        return int(bound[0][1])

    async def start_unix(self, path: str, mode: int) -> None:
        """Listen on a Unix socket, whose file has these permissions and is removed at the end.

        Raises OSError, with EADDRINUSE if another server listens there.
        """
        sock, file = bind_unix(path, mode)
        self._files.append(file)
        await self._serve([sock], None)

    async def _serve(self, sockets: list[socket.socket], tls: ServerTls | None) -> None:
        handshake_secs = min(HANDSHAKE_SECS, self._limits.head_timeout_secs or HANDSHAKE_SECS)
        clients = self._state.clients
        self._servers += await serve(sockets, self._accept, tls, handshake_secs, clients)
        self._accepting = True
        if self._timer is None:
            self._sweep(asyncio.get_running_loop())

    @property
    def open_connections(self) -> int:
        """How many clients are connected."""
        handshakes = sum(server.unfinished for server in self._servers)
        return len(self._state.connections) + handshakes

    @property
    def in_flight(self) -> int:
        """How many requests are with the application."""
        return sum(connection.busy for connection in self._state.connections)

    def announce_close(self) -> None:
        """From now on the last response that is due ends its connection, so that clients connect
        elsewhere."""
        self._state.linger_until = math.inf
        self._state.draining = True

    async def stop_accepting(self, linger_secs: float = LINGER_SECS) -> None:
        """Accept the clients that have connected, then close the listening sockets.

        Existing connections stay open; `drain` closes those that are idle after `linger_secs`.
        """
        self.announce_close()
        for file in self._files:
            file.remove()
        self._files.clear()
        await asyncio.gather(*(server.stop() for server in self._servers))
        self._accepting = False
        self._state.linger(linger_secs)
        self._stop_timer_when_done()

    def close_idle(self) -> None:
        """Close the connections on which no part of a request has arrived."""
        for connection in list(self._state.connections):
            connection.close_if_idle()

    async def drain(self, timeout_secs: float) -> bool:
        """Let pending requests finish, close everything else; true when no connection is open.

        Waits no longer than `timeout_secs`; the caller aborts the rest.
        """
        state = self._state
        state.draining = True
        deadline = time.monotonic() + timeout_secs
        while True:
            if not state.lingers:
                self.close_idle()
            if not self.open_connections:
                return True
            left_secs = deadline - time.monotonic()
            if left_secs <= 0:
                return False
            self._drained = asyncio.Event()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._drained.wait(), min(left_secs, _LOOK_SECS))

    def give_up(self) -> None:
        """The exit timeout has passed: respond with 503 to the requests in flight, and close all
        connections after that."""
        self._state.draining = True
        self._state.linger_until = -math.inf
        for connection in list(self._state.connections):
            connection.give_up(EXIT_TIMEOUT)

    def abort_all(self) -> None:
        """Cut every connection; requests in flight see their client go away."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._accepting = False
        for connection in list(self._state.connections):
            connection.abort()
        self._stop_timer_when_done()

    def _accept(self) -> HttpConnection:
        return self._connection_type(self._state)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.date_line = date_line(time.time())
        now = loop.time()
        for connection in list(self._state.connections):
            connection.sweep(now)
        self._timer = loop.call_later(self._limits.sweep_secs, self._sweep, loop)
        self._stop_timer_when_done()

    def _all_gone(self) -> None:
        if self._drained is not None:
            self._drained.set()
        self._stop_timer_when_done()

    def _stop_timer_when_done(self) -> None:
        if self._timer is not None and not self._accepting and not self.open_connections:
            self._timer.cancel()
            self._timer = None
