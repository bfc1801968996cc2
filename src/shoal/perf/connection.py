"""Connections to the server under load.

Connecting blocks, because it happens between measurements; sending and receiving do not.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shoal.client.address import Address
from shoal.client.connecting import open_socket
from shoal.errors import ShoalError, Unavailable
from shoal.perf.poller import SocketPoller
from shoal.perf.requests import Replay, SequencePosition
from shoal.perf.sequences import RunningSequence

CONNECT_SECS = 10
RECEIVE_BYTES = 262_144


class LoadError(ShoalError):
    """The load ended: the server refused a request or closed a connection."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS settings of a connection; the files are PEM."""

    authorities: str = ""
    certificate: str = ""
    key: str = ""
    verify_peer: bool = True
    verify_host: bool = True


@dataclass(frozen=True, slots=True)
class Endpoint(Address):
    """The address of the server, and its TLS settings."""

    tls: Tls | None = None


class RequestSlot(Protocol):
    """Sends one request at a time."""

    start_ns: int  # when its request was sent, or was due in a load by schedule
    position: SequencePosition | None
    sequence: RunningSequence | None  # the one in progress
    moments: list[int]  # when responses arrived, of models that send several

    def start(self, replay: Replay, position: SequencePosition | None) -> None:
        """Send a request. Raises LoadError."""
        ...


class SlotOwner(Protocol):
    """The owner of slots: the worker."""

    send_ns: int  # spent on sending, in all
    receive_ns: int  # spent on receiving, in all

    def finished(self, slot: RequestSlot, end_ns: int) -> None:
        """The slot's request was answered and the slot is free."""
        ...

    def refused(self, slot: RequestSlot, reason: str, status: str = "") -> None:
        """The server refused the slot's request; the slot is free. May raise LoadError."""
        ...


class ConnectionSetup(NamedTuple):
    """What the connections of a worker share."""

    endpoint: Endpoint
    context: ssl.SSLContext | None
    poller: SocketPoller
    owner: SlotOwner


def tls_context(tls: Tls, *, h2: bool) -> ssl.SSLContext:
    """The TLS context of sockets. Raises Unavailable when a file cannot be read."""
    try:
        context = ssl.create_default_context(cafile=tls.authorities or None)
        if tls.certificate:
            context.load_cert_chain(tls.certificate, tls.key or None)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(filter(None, (tls.authorities, tls.certificate, tls.key)))
        raise Unavailable(f"the TLS files cannot be used ({named}): {error}") from None
    context.check_hostname = tls.verify_host and tls.verify_peer
    context.verify_mode = ssl.CERT_REQUIRED if tls.verify_peer else ssl.CERT_NONE
    if h2:
        context.set_alpn_protocols(["h2"])
    return context


class LoadConnection(ABC):
    """A non-blocking socket: it sends what it can, and the rest when the socket is writable."""

    def __init__(self, setup: ConnectionSetup) -> None:
        self._endpoint, self._context, self._poller, self.owner = setup
        self._left: memoryview | None = None  # not sent yet
        self.opened = False

    @property
    def file(self) -> int:
        """The file descriptor."""
        return self._socket.fileno()

    @abstractmethod
    def on_readable(self) -> None:
        """The socket is readable. Raises LoadError."""

    def on_writable(self) -> None:
        """The socket is writable. Raises LoadError."""
        left, self._left = self._left, None
        self._poller.watch_writable(self.file, False)
        if left is not None:
            self.write(left)

    def open(self) -> None:
        """Connect. Raises ClientError."""
        self._socket = open_socket(self._endpoint, self._context, CONNECT_SECS)
        self._socket.setblocking(False)
        self._encrypted = self._context is not None
        self._receive: Callable[[int], bytes] = self._socket.recv
        self._poller.watch(self.file, self)
        self.opened = True

    def close(self) -> None:
        """Close the socket; `open` makes a new one."""
        if self.opened:
            self.opened = False
            self._left = None
            self._poller.unwatch(self.file)
            self._socket.close()

    def write(self, data: bytes | memoryview) -> bool:
        """Send; returns false when a part was queued."""
        if self._left is not None:
            self._left = memoryview(bytes(self._left) + bytes(data))
            return False
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = 0
        except OSError as error:
            raise LoadError(f"the connection to {self._endpoint.shown} broke: {error}") from None
        if sent == len(data):
            return True
        self._left = memoryview(data)[sent:]
        self._poller.watch_writable(self.file, True)
        return False

    def _read(self) -> bytes:
        """The received bytes; empty if there are none yet. Raises LoadError at the end of input."""
        try:
            data = self._receive(RECEIVE_BYTES)
            if self._encrypted:
                data = self._read_on(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except OSError as error:
            raise LoadError(f"the connection to {self._endpoint.shown} broke: {error}") from None
        if not data:
            self._ended()
        return data

    def _read_on(self, data: bytes) -> bytes:
        """Add what TLS has decrypted already: the poller does not report it."""
        parts = [data]
        assert isinstance(self._socket, ssl.SSLSocket)
        while parts[-1] and self._socket.pending():
            parts.append(self._receive(RECEIVE_BYTES))
        return b"".join(parts)

    def _ended(self) -> None:
        raise LoadError(f"the server at {self._endpoint.shown} closed the connection")


class SlotConnection(LoadConnection):
    """A connection that carries one request after the other."""

    def __init__(self, setup: ConnectionSetup) -> None:
        self.start_ns = 0
        self.position: SequencePosition | None = None
        self.sequence: RunningSequence | None = None
        self.moments: list[int] = []
        self.waiting = False  # for a response
        super().__init__(setup)

    @abstractmethod
    def start(self, replay: Replay, position: SequencePosition | None) -> None:
        """Send a request. Raises LoadError."""

    def close(self) -> None:
        """Close the socket and give the request up."""
        self.waiting = False
        super().close()
