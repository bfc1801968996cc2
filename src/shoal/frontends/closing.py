"""Closing sockets so that nothing is lost which the kernel has received.

    stop_handshakes(listening) --> accept until there are none left --> close
    close_unless_unread(transport) --> closed, or false: a request has arrived

The kernel completes connections and receives bytes while the process does something else. A plain
`close` resets such connections, and their clients see a request lost that the server has received.
So input is stopped first, then looked at, then closed. On Linux a socket filter stops it: a packet
that is dropped is not acknowledged, so its sender knows that it was not received. Elsewhere a
moment of a few microseconds remains between the look and the close.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import sys
from typing import Any

LINGER_SECS = 0.5  # after a port has closed, for requests on connections that are idle
LAST_RESPONSES_SECS = 1.0  # after the exit timeout, for clients to read the errors
EXIT_TIMEOUT = "the server exits and could not finish this request within --exit-timeout-secs"

# For handshakes that have begun when new ones are stopped: their clients may be connected already.
_HANDSHAKE_SECS = 0.1
_LOCAL_HANDSHAKE_SECS = 0.002

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27

# Classic BPF as (code, jump if true, jump if false, operand); packets begin with the TCP header.
_LOAD_BYTE, _LOAD_LENGTH, _AND, _SHIFT_RIGHT = 0x30, 0x80, 0x54, 0x74
_COPY_TO_X, _SUBTRACT_X, _JUMP_EQUAL, _RETURN = 0x07, 0x1C, 0x15, 0x06
_PASS, _DROP = (_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0)
_NO_NEW_HANDSHAKE = (
    (_LOAD_BYTE, 0, 0, 13),  # the flags
    (_AND, 0, 0, 0x12),
    (_JUMP_EQUAL, 0, 1, 0x02),  # SYN without ACK
    _DROP,
    _PASS,
)
_NO_PAYLOAD = (
    (_LOAD_BYTE, 0, 0, 12),  # the length of the header, in words, in the upper half
    (_AND, 0, 0, 0xF0),
    (_SHIFT_RIGHT, 0, 0, 2),
    (_COPY_TO_X, 0, 0, 0),
    (_LOAD_LENGTH, 0, 0, 0),
    (_SUBTRACT_X, 0, 0, 0),
    (_JUMP_EQUAL, 0, 1, 0),
    _PASS,
    _DROP,
)


def stop_handshakes(listening: socket.socket) -> float:
    """Let no more clients connect; those that have begun to may finish.

    Returns the seconds after which these have been added to the queue of `listening`. Clients that
    come later try again, and find the port closed then, or another server on it.
    """
    if listening.family == getattr(socket, "AF_UNIX", None):
        listening.shutdown(socket.SHUT_RD)  # connecting is one step: there is nothing to wait for
        return 0.0
    _filter(listening, _NO_NEW_HANDSHAKE)
    address = str(listening.getsockname()[0])
    local = address.startswith("127.") or address == "::1"
    return _LOCAL_HANDSHAKE_SECS if local else _HANDSHAKE_SECS


def accept_waiting(listening: socket.socket) -> list[tuple[socket.socket, Any]]:
    """The connections that wait to be accepted, with their addresses."""
    accepted: list[tuple[socket.socket, Any]] = []
    while True:
        try:
            connection, address = listening.accept()
        except (InterruptedError, ConnectionAbortedError):
            continue
        except OSError:  # none is left, or the process has no file descriptors
            return accepted
        connection.setblocking(False)
        accepted.append((connection, address))


def close_unless_unread(transport: asyncio.Transport) -> bool:
    """Close an idle connection, unless bytes wait to be read from it or sent to it: false then, and
    the event loop goes on with them.

    After true, the client's kernel knows of everything it has sent later that it was not received.
    """
    peer = transport.get_extra_info("socket")
    if peer is None or os.name != "posix":
        transport.close()
        return True
    if transport.get_write_buffer_size():
        return False
    try:
        own = socket.socket(fileno=os.dup(peer.fileno()))
    except OSError:  # it is closed, or there are no file descriptors
        transport.close()
        return True
    # The transport of TLS does not know whether the one below it has sent everything.
    encrypted = transport.get_extra_info("ssl_object") is not None
    if not unread_bytes(own) and not (encrypted and _unsent_bytes(own)):
        hold_input(own)
        if not unread_bytes(own):
            transport.close()
            if encrypted:  # the end of the session leaves with the next two loop iterations
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, end, own)
            else:
                end(own)
            return True
        release_input(own)
    own.close()
    return False


def end(own: socket.socket) -> None:
    """Send FIN, and a reset to whatever the client still sends; closes this descriptor."""
    with own:
        with contextlib.suppress(OSError):  # the client was faster
            own.shutdown(socket.SHUT_RDWR)
        release_input(own)


def unread_bytes(sock: socket.socket) -> int:
    """How many bytes have been received by the kernel and not been read; 0 if that is not known."""
    return _count(sock, "FIONREAD")


def _unsent_bytes(sock: socket.socket) -> int:
    """How many bytes the client's kernel has not confirmed."""
    return _count(sock, "TIOCOUTQ")


def _count(sock: socket.socket, name: str) -> int:
    if os.name != "posix":
        return 0
    import fcntl
    import termios

    count = array.array("i", [0])
    try:
        fcntl.ioctl(sock.fileno(), getattr(termios, name), count)
    except (OSError, ValueError):  # it is closed
        return 0
    return count[0]


def hold_input(sock: socket.socket) -> None:
    """Receive no more from the client, without confirming what it sends; see `release_input`. A
    client of a Unix socket cannot send any more."""
    if sock.family == getattr(socket, "AF_UNIX", None):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RD)  # from now on the client cannot send
    else:
        _filter(sock, _NO_PAYLOAD)


def release_input(sock: socket.socket) -> None:
    """Receive again what the client sends, and what it has sent meanwhile: TCP repeats that."""
    _filter(sock, None)


def _filter(sock: socket.socket, program: tuple[tuple[int, int, int, int], ...] | None) -> None:
    """Drop the packets for which `program` returns 0; None ends that. Only Linux can do this."""
    if sys.platform != "linux" or sock.family == socket.AF_UNIX:
        return
    with contextlib.suppress(OSError):  # a sandbox may not have filters
        if program is None:
            sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            return
        code = b"".join(struct.pack("HBBI", *step) for step in program)
        memory = ctypes.create_string_buffer(code, len(code))
        described = struct.pack("HP", len(program), ctypes.addressof(memory))
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
