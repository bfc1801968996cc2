"""A gRPC port: accepts connections, runs their timers, drains them.

    start --> serving --drain--> no new connections or calls --> all answered, or aborted

One timer sweeps all connections and one more waits for the next deadline; no call has a timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

from shoal.core import buffers
from shoal.core.buffers import BufferPool
from shoal.frontends.access_log import AccessLog
from shoal.frontends.client_limits import ClientLimits
from shoal.frontends.closing import EXIT_TIMEOUT, LAST_RESPONSES_SECS
from shoal.frontends.grpc.call import Service
from shoal.frontends.grpc.dispatch import Dispatcher
from shoal.frontends.grpc.settings import GrpcSettings
from shoal.frontends.grpc.transport import ConnectionRegistry, Transport
from shoal.frontends.sockets import SocketFile, SocketServer, bind_tcp, bind_unix, serve
from shoal.frontends.tls import ServerTls

_LEAST_TIMER_SECS = 0.001  # event loops count milliseconds
_LONGEST_TIMER_SECS = 3_600.0  # and not all of them count to the end of time
_LOOK_SECS = 0.05  # between two looks at the connections, while it drains


class GrpcListener:
    """One listening port and its connections. Everything happens on the loop that started it."""

    def __init__(
        self,
        service: Service,
        settings: GrpcSettings | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        pool: BufferPool = buffers.pool,
        clients: ClientLimits | None = None,
        access_log: AccessLog | None = None,
        after_batches: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`after_batches` calls its argument in a loop iteration, once batches have run."""
        self._after_batches = after_batches
        self._settings = settings or GrpcSettings()
        self._clock = clock
        self._dispatcher = Dispatcher(
            service, self._settings, self._deadline_earlier, clock, pool, clients, access_log
        )
        self._registry: ConnectionRegistry | None = None
        self._servers: list[SocketServer] = []
        self._files: list[SocketFile] = []
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._deadline_timer_ns = 0
        self._sweep_timer: asyncio.TimerHandle | None = None

    async def start(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        tls: ServerTls | None = None,
        reuse_port: bool = False,
    ) -> int:
        """Listen, and return the port: with 0 the system chooses one.

        Raises OSError when the address is not available; then nothing listens that did not before.
        """
        sockets = await bind_tcp(host, port, reuse_port=reuse_port)
        bound: int = sockets[0].getsockname()[1]
        await self._serve(sockets, tls)
        return bound

    async def start_unix(self, path: str, mode: int) -> None:
        """Listen on a Unix socket, whose file has these permissions and is removed at the end.

        Raises OSError, with EADDRINUSE if another server listens there.
        """
        sock, file = bind_unix(path, mode)
        self._files.append(file)
        await self._serve([sock], None)

    async def _serve(self, sockets: list[socket.socket], tls: ServerTls | None) -> None:
        loop = asyncio.get_running_loop()
        if self._registry is None:
            self._registry = ConnectionRegistry(self._dispatcher, loop, self._after_batches)
            self._sweep_timer = loop.call_later(self._settings.sweep_secs, self._sweep)
        registry = self._registry
        handshake_secs = self._settings.limits.handshake_secs
        clients = self._dispatcher.clients.connections
        self._servers += await serve(
            sockets, lambda: Transport(registry), tls, handshake_secs, clients
        )

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        handshakes = sum(server.unfinished for server in self._servers)
        return handshakes + (0 if self._registry is None else len(self._registry.transports))

    @property
    def streams(self) -> int:
        """How many calls are open or still being sent."""
        if self._registry is None:
            return 0
        return sum(len(transport.connection.streams) for transport in self._registry.transports)

    @property
    def pending_deadlines(self) -> int:
        """How many open calls have a deadline."""
        return len(self._dispatcher.deadlines)

    @property
    def unfinished_bytes(self) -> int:
        """What has arrived of large messages that are not complete yet."""
        return self._dispatcher.memory.unfinished_bytes

    @property
    def lent_buffers(self) -> int:
        """How many large messages are still in use."""
        return self._dispatcher.memory.pool.lent

    async def stop_accepting(self) -> None:
        """Accept the clients that have connected, and no more; notify all of them."""
        registry = self._registry
        if registry is None:
            return
        registry.draining = True
        for transport in list(registry.transports):
            transport.drain()
        self._remove_files()
        await asyncio.gather(*(server.stop() for server in self._servers))
        registry.linger()

    async def drain(self, timeout_secs: float) -> bool:
        """Take no more connections and calls, and wait until those that are open have ended.

        Clients that have connected already may send their first calls, and calls that were sent
        before the client knows of the drain are served. Returns False when that took longer than
        `timeout_secs`; the rest got an error then. The port is free in either case.
        """
        registry = self._registry
        if registry is None:
            return True
        loop = registry.loop
        deadline = loop.time() + timeout_secs
        await self.stop_accepting()
        in_time = await self._wait_for_end(deadline)
        if not in_time:
            for transport in list(registry.transports):
                transport.give_up(EXIT_TIMEOUT)
            await self._wait_for_end(loop.time() + LAST_RESPONSES_SECS)
            self.abort_all()
            await registry.idle.wait()
        self._stop_timers()
        for server in self._servers:
            await server.wait_closed()
        return in_time

    async def _wait_for_end(self, deadline: float) -> bool:
        """Wait until all connections are closed; false at the `deadline`."""
        registry = self._registry
        assert registry is not None
        while self.connections:
            now = registry.loop.time()
            if now >= deadline:
                return False
            if now >= registry.linger_until:
                for transport in list(registry.transports):
                    transport.end_drain()
            wait_secs = min(_LOOK_SECS, deadline - now)
            if registry.transports:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(registry.idle.wait(), wait_secs)
            else:
                await asyncio.sleep(wait_secs)
        return True

    def abort_all(self) -> None:
        """Close the port and every connection at once; open calls are cancelled."""
        for server in self._servers:
            server.close()
        self._remove_files()
        if self._registry is not None:
            for transport in list(self._registry.transports):
                transport.abort()
        self._stop_timers()

    def _remove_files(self) -> None:
        for file in self._files:
            file.remove()
        self._files.clear()

    def _sweep(self) -> None:
        registry = self._registry
        assert registry is not None
        self._sweep_timer = registry.loop.call_later(self._settings.sweep_secs, self._sweep)
        now_ns = self._clock()
        for transport in list(registry.transports):
            transport.sweep(now_ns)

    def _deadline_earlier(self, deadline_ns: int) -> None:
        """A deadline is earlier than all others: set the timer to it.

        A timer that is too early is not changed: most calls end long before their deadlines.
        """
        assert self._registry is not None
        if self._deadline_timer is not None:
            if self._deadline_timer_ns <= deadline_ns:
                return
            self._deadline_timer.cancel()
        delay_secs = (deadline_ns - self._clock()) / 1e9
        delay_secs = min(max(delay_secs, _LEAST_TIMER_SECS), _LONGEST_TIMER_SECS)
        self._deadline_timer = self._registry.loop.call_later(delay_secs, self._expire)
        self._deadline_timer_ns = deadline_ns

    def _expire(self) -> None:
        self._deadline_timer = None
        next_ns = self._dispatcher.deadlines.expire(self._clock())
        if next_ns is not None:
            self._deadline_earlier(next_ns)

    def _stop_timers(self) -> None:
        for timer in (self._deadline_timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()
        self._deadline_timer = self._sweep_timer = None
        self._dispatcher.shared.turns.close()
