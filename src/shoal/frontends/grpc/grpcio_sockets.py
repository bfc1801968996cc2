"""The sockets of grpcio, which it does not hand out: found among the files of this process.

    no new handshakes --> first calls of those who have connected --> idle connections end

When grpcio stops, it closes its listening sockets with the connections that wait there, and cancels
the calls that arrive before the client knows. So both are kept away from it first.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from shoal.frontends.closing import (
    LINGER_SECS,
    end,
    hold_input,
    release_input,
    stop_handshakes,
    unread_bytes,
)

_LOOK_SECS = 0.02
_QUIET_LOOKS = 10  # in a row without a change
_MOST_HELD_SECS = 1.0


async def close_gently(ports: set[int], busy_peers: Callable[[], set[str]]) -> None:
    """Let no more clients connect to `ports`, serve those that have, and close connections without
    calls so that their clients know what was not received.

    `busy_peers` are those of open calls, as grpcio writes them. Does nothing where the system does
    not list the files of a process.
    """
    wait_secs = 0.0
    for listening in _find(ports, listening=True):
        with listening:
            wait_secs = max(wait_secs, stop_handshakes(listening))
    if not wait_secs:
        return
    await asyncio.sleep(wait_secs)
    loop = asyncio.get_running_loop()
    linger_until = loop.time() + LINGER_SECS
    while loop.time() < linger_until:
        connections = _find(ports, listening=False)
        for connection in connections:
            connection.close()
        if not connections:
            return
        await asyncio.sleep(_LOOK_SECS)
    held = _find(ports, listening=False)
    for connection in held:
        hold_input(connection)
    quiet = await _become_quiet(busy_peers)
    busy_ports = {peer.rpartition(":")[2] for peer in busy_peers()}
    for connection in held:
        with connection:
            if quiet and not unread_bytes(connection) and _peer_port(connection) not in busy_ports:
                end(connection)
            else:  # grpcio cancels what it receives from now on
                release_input(connection)


async def _become_quiet(busy_peers: Callable[[], set[str]]) -> bool:
    """Wait until no call begins or ends for a while: then grpcio has passed on what it has read,
    and has sent the responses. False if the machine is too busy to tell."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _MOST_HELD_SECS
    looks, before = 0, busy_peers()
    while looks < _QUIET_LOOKS:
        began = loop.time()
        if began >= deadline:
            return False
        await asyncio.sleep(_LOOK_SECS)
        now = busy_peers()
        looks = 0 if now != before or loop.time() - began > 2 * _LOOK_SECS else looks + 1
        before = now
    return True


def _find(ports: set[int], *, listening: bool) -> list[socket.socket]:
    """Duplicates of this process's sockets on `ports`; the caller closes them."""
    found: list[socket.socket] = []
    folder = Path("/proc/self/fd")
    for file in list(folder.iterdir()) if ports and folder.is_dir() else ():
        try:
            if not str(file.readlink()).startswith("socket:"):
                continue
            sock = socket.socket(fileno=os.dup(int(file.name)))
        except OSError:  # it was closed meanwhile
            continue
        if (
            sock.family in (socket.AF_INET, socket.AF_INET6)
            and sock.getsockname()[1] in ports
            and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) is listening
        ):
            found.append(sock)
        else:
            sock.close()
    return found


def _peer_port(connection: socket.socket) -> str:
    try:
        return str(connection.getpeername()[1])
    except OSError:  # the client has left
        return ""
