"""Listening sockets: addresses and ports, and files for clients on the same machine.

bind_tcp("localhost", 0) --> one socket per address, all on one port
bind_unix("/run/shoal.sock", 0o600) --> a socket, and its file to remove at the end
serve(sockets, make_protocol, tls) --> connections, until it is stopped or closed
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from shoal.frontends.accepting import MOST_ACCEPTED, Openings, SharedServer, address_of
from shoal.frontends.client_limits import ConnectionLimits
from shoal.frontends.closing import accept_waiting, stop_handshakes
from shoal.frontends.tls import ServerTls
from shoal.frontends.tls_server import HANDSHAKE_SECS, TlsServer

_BACKLOG = 1024
_inherited: dict[tuple[str, int] | str, list[socket.socket]] = {}
_LOOK_EVERY_SECS = 0.001  # for connections that wait: an idle loop accepts many in this time
_PORT_TRIES = 8  # for a free port that is free in every address family


def inherit(place: tuple[str, int] | str, sockets: list[socket.socket]) -> None:
    """Use sockets that another process has bound, instead of binding some: the next time that
    `place` is asked for, a host and port or the path of a Unix socket."""
    for sock in sockets:
        sock.setblocking(False)
    _inherited[place] = sockets


async def bind_tcp(host: str | None, port: int, *, reuse_port: bool) -> list[socket.socket]:
    """Listen on every address of `host` (None: on all interfaces).

    With port 0 the system picks one, the same for all addresses. Raises OSError, with EADDRINUSE
    for a taken port, and then nothing listens.
    """
    inherited = _inherited.pop((host or "", port), None)
    if inherited is not None:
        return inherited
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        text = f"cannot listen on '{host}': no address is known for that name"
        raise socket.gaierror(error.errno, text) from None
    return _bind_all([(info[0], info[4]) for info in found], reuse_port)


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
    # asyncio sends small responses at once only where the protocol is named.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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


class SocketFile:
    """The file of a Unix socket that this process has made."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self._made = self._identity()

    def remove(self) -> None:
        """Remove the file, unless another server has put its own in this place."""
        if self._made is not None and self._identity() == self._made:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._path.lstat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def bind_unix(path: str, mode: int) -> tuple[socket.socket, SocketFile]:
    """Listen on a Unix socket with these permissions; raises OSError as `clear_unix` does."""
    inherited = _inherited.pop(path, None)
    if inherited is not None:
        return inherited[0], SocketFile(path)
    clear_unix(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        file = SocketFile(path)
        Path(path).chmod(mode)  # no client can connect before `listen`
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, error.strerror or str(error)) from None
    return sock, file


def clear_unix(path: str) -> None:
    """Remove the file that a server has left at `path` when it was killed.

    Raises OSError: with EADDRINUSE if a server listens there, with EEXIST if it is no socket.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise OSError(errno.EAFNOSUPPORT, "this system has no Unix sockets")
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise FileExistsError(errno.EEXIST, "there is a file which is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:  # no one listens
            Path(path).unlink()
            return
        except BlockingIOError:  # someone does, with a full queue
            pass
    raise OSError(errno.EADDRINUSE, "a server listens there")


class LoopServer:
    """The event loop's own server of one listening socket, on that loop.

    uvloop accepts one connection in an iteration. If many clients connect to a busy server, the
    last one would wait for as many batches as there are clients; so all that wait are accepted
    together now and then, which takes more CPU time for each.
    """

    def __init__(
        self, listening: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        """`make_protocol` is called for each connection."""
        self._listening = listening
        self._make_protocol = make_protocol
        self._openings = Openings(make_protocol)
        self._server: asyncio.AbstractServer | None = None
        self._look_at = 0.0  # when to accept all that wait, if one is accepted
        self._accepting = True

    async def start(self, tls: ServerTls | None, handshake_secs: float) -> None:
        """Accept connections from now on."""
        loop = asyncio.get_running_loop()
        if is_unix(self._listening):
            self._server = await loop.create_unix_server(
                self._connected, sock=self._listening, backlog=_BACKLOG
            )
            return
        self._server = await loop.create_server(
            self._connected if tls is None and os.name == "posix" else self._make_protocol,
            sock=self._listening,
            backlog=_BACKLOG,
            ssl=None if tls is None else tls.context,
            ssl_handshake_timeout=None if tls is None else handshake_secs or None,
        )

    @property
    def unfinished(self) -> int:
        """How many clients are connected without a protocol."""
        return self._openings.count

    def _connected(self) -> asyncio.BaseProtocol:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_SECS
            loop.call_soon(self._accept_others)
        return self._make_protocol()

    def _accept_others(self) -> None:
        for _ in range(MOST_ACCEPTED):
            try:
                connection, peer = self._listening.accept()
            except OSError:  # none is left; the loop reports other reasons
                return
            connection.setblocking(False)
            self._openings.begin(connection, address_of(peer))

    async def stop(self) -> None:
        """Accept the clients that have connected, then close the socket."""
        if not self._accepting or self._server is None:
            return
        self._accepting = False
        if os.name != "posix":
            self._server.close()
            return
        loop = asyncio.get_running_loop()
        with self._listening.dup() as listening:
            if not is_unix(listening):
                await asyncio.sleep(stop_handshakes(listening))  # the loop accepts meanwhile
            if self._listening.fileno() >= 0:
                # asyncio accepts in two steps; to close between them would lose a connection.
                # uvloop has no such reader, and accepts in one.
                loop.remove_reader(self._listening)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            self._server.close()
            if is_unix(listening):
                stop_handshakes(listening)
            for connection, peer in accept_waiting(listening):
                self._openings.begin(connection, address_of(peer))
        await self._openings.wait()

    def close(self) -> None:
        """Close the socket at once; connections that were not accepted are lost."""
        self._accepting = False
        if self._server is not None:
            self._server.close()

    async def wait_closed(self) -> None:
        """Wait until nothing of it runs any more."""
        await self._openings.wait()
        if self._server is not None:
            await self._server.wait_closed()


SocketServer: TypeAlias = LoopServer | SharedServer | TlsServer


async def serve(
    sockets: list[socket.socket],
    make_protocol: Callable[[], asyncio.BaseProtocol],
    tls: ServerTls | None = None,
    handshake_secs: float = HANDSHAKE_SECS,
    limits: ConnectionLimits | None = None,
) -> list[SocketServer]:
    """Accept the connections of listening sockets on this loop, with TLS if given.

    Connections count themselves among `limits`, which also hold before the end of a handshake, and
    are spread evenly over processes that share them.
    The sockets are closed with their servers, or when this fails.
    """
    servers: list[SocketServer] = []
    try:
        for sock in sockets:
            if tls is not None and os.name == "posix":
                servers.append(TlsServer(sock, make_protocol, tls, handshake_secs, limits))
                continue
            if limits is not None and limits.shared:
                servers.append(SharedServer(sock, make_protocol, limits))
                continue
            own = LoopServer(sock, make_protocol)
            await own.start(tls, handshake_secs)
            servers.append(own)
    except BaseException:
        for server in servers:
            server.close()
        for sock in sockets:
            sock.close()
        raise
    return servers


def is_unix(sock: socket.socket | None) -> bool:
    """Whether a connection is from the same machine through a file."""
    return sock is not None and sock.family == getattr(socket, "AF_UNIX", None)
