"""Accepting the connections of a listening socket, evenly with other processes that share it.

    readable --fewest connections here--> accept one after the other
             --others have fewer--------> wait some milliseconds for them; what is left is accepted

The kernel wakes all processes that listen, and the fastest would get nearly all connections of
clients that connect together and stay. A process that is stopped delays a few connections by some
milliseconds each; then the others no longer leave it any.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

from shoal.frontends.client_limits import ConnectionLimits
from shoal.frontends.closing import accept_waiting, stop_handshakes

logger = logging.getLogger(__name__)

MOST_ACCEPTED = 64  # in one loop iteration
_LOOK_SECS = 0.001  # between two looks at the other processes' connections
_PAUSE_SECS = 1.0  # when the process has no file descriptors left
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts the connections of one socket, on the loop on which it was made."""

    def __init__(
        self,
        listening: socket.socket,
        accepted: Callable[[socket.socket, str], None],
        limits: ConnectionLimits,
    ) -> None:
        """`accepted` gets each connection, which does not block, and its address without the port;
        it tells `limits` of those that are not counted yet."""
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._accepted = accepted
        self._limits = limits
        self._stopping = False
        self._waits_since: float | None = None  # while connections are left to other processes
        self._timer: asyncio.TimerHandle | None = None  # instead of the reader
        self._loop.add_reader(listening, self._accept)

    def _accept(self) -> None:
        for _ in range(MOST_ACCEPTED):
            lead = self._limits.lead()
            if lead and not self._has_waited(lead * _LOOK_SECS):
                self._repoll(_LOOK_SECS)
                return
            try:
                connection, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                self._pause(error)
                return
            if lead:
                self._waits_since = None
                self._limits.not_accepted_elsewhere()
            connection.setblocking(False)
            self._accepted(connection, address_of(peer))
        self._waits_since = None
        if self._timer is not None:
            self._timer = None
            self._loop.add_reader(self._listening, self._accept)

    def _has_waited(self, secs: float) -> bool:
        now = self._loop.time()
        if self._waits_since is None:
            self._waits_since = now
        return now - self._waits_since >= secs

    def _repoll(self, secs: float) -> None:
        if self._timer is None:
            self._loop.remove_reader(self._listening)
        self._timer = self._loop.call_later(secs, self._accept)

    def _pause(self, error: OSError) -> None:
        """Accept again later: the reason will not be gone at once, and the loop must not spin."""
        if error.errno == errno.EINVAL:  # another process has shut it down, and this one will stop
            self._loop.remove_reader(self._listening)
            return
        logger.error("cannot accept a connection: %s", error.strerror or error)
        self._repoll(_PAUSE_SECS if error.errno in _NO_RESOURCES else 0.1)

    async def stop(self) -> None:
        """Accept the clients that have connected, then close the socket."""
        if self._stopping:
            return
        self._stopping = True
        if self._listening.family == socket.AF_UNIX:
            self._ignore()
        await asyncio.sleep(stop_handshakes(self._listening))  # clients are accepted meanwhile
        if self._listening.fileno() < 0:
            return
        self._ignore()
        for connection, peer in accept_waiting(self._listening):
            self._accepted(connection, address_of(peer))
        self._listening.close()

    def close(self) -> None:
        """Accept no more, at once."""
        self._stopping = True
        if self._listening.fileno() >= 0:
            self._ignore()
            self._listening.close()

    def _ignore(self) -> None:
        self._loop.remove_reader(self._listening)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class SharedServer:
    """A listening socket that several processes accept from. As `sockets.LoopServer`."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        limits: ConnectionLimits,
    ) -> None:
        """`make_protocol` is called for each connection, which counts itself among `limits`."""
        self._openings = Openings(make_protocol, limits)
        self._acceptor = Acceptor(listening, self._openings.begin, limits)

    @property
    def unfinished(self) -> int:
        """How many clients are connected without a protocol."""
        return self._openings.count

    async def stop(self) -> None:
        """Accept the clients that have connected, then close the socket."""
        await self._acceptor.stop()
        await self.wait_closed()

    def close(self) -> None:
        """Close the socket at once; connections that were not accepted are left to others."""
        self._acceptor.close()

    async def wait_closed(self) -> None:
        """Wait until nothing of it runs any more."""
        await self._openings.wait()


class Openings:
    """Gives accepted connections their protocols, on the loop on which it was made."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Until a connection counts itself among `limits`, it is counted as opening."""
        self._loop = asyncio.get_running_loop()
        self._make_protocol = make_protocol
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many clients are connected without a protocol."""
        return len(self._tasks)

    def begin(self, connection: socket.socket, address: str) -> None:
        """Take over a connection, which does not block."""
        if self._limits is not None:
            self._limits.opening(1)
        task = self._loop.create_task(self._open(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, connection: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:  # the client has left
            logger.debug("no connection with %s: %s", address, error)
            connection.close()
        finally:
            if self._limits is not None:
                self._limits.opening(-1)

    async def wait(self) -> None:
        """Wait until all of them have their protocol, or have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)


def address_of(peer: Any) -> str:
    """A client's address without the port; empty for a Unix socket."""
    return str(peer[0]) if isinstance(peer, tuple) else ""
