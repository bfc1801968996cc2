"""Opening connections: TCP, TLS, Unix sockets, and the errors when that fails."""

from __future__ import annotations

import socket
import ssl as tls
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.client.address import GRPC, Address
from shoal.client.errors import (
    ClientError,
    ConnectionFailed,
    InvalidInput,
    ProtocolError,
    Timeout,
)

if TYPE_CHECKING:  # the blocking client does without it
    import asyncio


@dataclass(frozen=True, slots=True)
class Limits:
    """The time-out for connecting, and the maximum number of connections."""

    connect_secs: float | None
    connections: int


def context(
    address: Address,
    ssl: tls.SSLContext | bool | None,
    ca: str | Path | None,
    cert: str | Path | None,
    key: str | Path | None,
    verify: bool,
) -> tls.SSLContext | None:
    """The TLS context of these settings; None for an address without encryption.

    Raises InvalidInput when a file cannot be read or a setting does not apply.
    """
    if not address.encrypted:
        if any((ca, cert, key)):
            raise InvalidInput(
                "ca, cert and key are for encrypted connections; write the address with https:// "
                "or grpcs://, or give ssl=True"
            )
        return None
    made = ssl if isinstance(ssl, tls.SSLContext) else None
    if made is None:
        made = tls.create_default_context()
        try:
            if ca is not None:
                made.load_verify_locations(cafile=str(ca))
            if cert is not None:
                made.load_cert_chain(str(cert), None if key is None else str(key))
        except (OSError, tls.SSLError) as error:
            files = ", ".join(str(file) for file in (ca, cert, key) if file is not None)
            raise InvalidInput(f"{files}: invalid certificates or keys: {error}") from None
        if not verify:
            made.check_hostname = False
            made.verify_mode = tls.CERT_NONE
    if address.protocol == GRPC:
        made.set_alpn_protocols(["h2"])
    return made


def open_socket(
    address: Address, encryption: tls.SSLContext | None, connect_secs: float | None
) -> socket.socket:
    """A connected socket, with TLS if given. Raises ConnectionFailed and Timeout."""
    connection: socket.socket | None = None
    try:
        if address.socket:
            return _open_unix(address.socket, connect_secs)
        connection = socket.create_connection((address.host, address.port), connect_secs)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if encryption is not None:
            return encryption.wrap_socket(connection, server_hostname=address.host)
    except OSError as error:
        if connection is not None:
            connection.close()
        raise refused(address, error, connect_secs) from None
    return connection


def _open_unix(path: str, connect_secs: float | None) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise OSError("this system has no Unix sockets")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(connect_secs)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


async def open_transport(
    address: Address, encryption: tls.SSLContext | None, protocol: asyncio.Protocol
) -> None:
    """Connect `protocol` on this loop. Raises OSError."""
    import asyncio

    loop = asyncio.get_running_loop()
    if address.socket:
        await loop.create_unix_connection(lambda: protocol, address.socket)
    else:
        await loop.create_connection(lambda: protocol, address.host, address.port, ssl=encryption)


def refused(address: Address, error: OSError, connect_secs: float | None) -> ClientError:
    """The error when connecting failed."""
    made = _refused(address, error, connect_secs)
    made.not_connected = True
    return made


def _refused(address: Address, error: OSError, connect_secs: float | None) -> ClientError:
    where = address.shown
    if isinstance(error, tls.SSLCertVerificationError):
        return ConnectionFailed(
            f"the certificate of {where} is not trusted: {error.verify_message}; pass its "
            f"CA with ca=, or disable the check with verify=False"
        )
    if isinstance(error, tls.SSLError):
        return ConnectionFailed(
            f"no encrypted connection to {where}: {error.reason or error}; does the server use TLS?"
        )
    if isinstance(error, socket.gaierror):
        return ConnectionFailed(f"unknown host '{address.host}': {error.strerror}")
    if isinstance(error, TimeoutError):
        shown = "" if connect_secs is None else f" within {connect_secs:g} s"
        return Timeout(f"no connection to {where}{shown}; is the address right?")
    if address.socket:
        return ConnectionFailed(
            f"no server answers at {where}; is it running, and is this its socket for "
            f"{'gRPC' if address.protocol == GRPC else 'HTTP'}? ({error.strerror or error})"
        )
    port = "gRPC (8001)" if address.protocol == GRPC else "HTTP (8000)"
    return ConnectionFailed(
        f"no server answers at {where}; is it running? Start one with 'shoal serve', and check "
        f"that this is its port for {port} ({error.strerror or error})"
    )


def lost(address: Address, error: OSError | None) -> ConnectionFailed:
    """The error when a connection ends during a call."""
    reason = f" ({error.strerror or error})" if error is not None else ""
    return ConnectionFailed(
        f"the server at {address.shown} closed the connection before it answered{reason}"
    )


def late(address: Address, limit_secs: float | None) -> Timeout:
    """The error when a response does not arrive in time."""
    shown = "" if limit_secs is None else f" within {limit_secs:g} s"
    return Timeout(f"no response from {address.shown}{shown}")


def foreign(address: Address, error: ProtocolError) -> ProtocolError:
    """The error when something other than the expected protocol answers."""
    where = address.shown
    spoken, other, scheme = (
        ("gRPC", "HTTP", "http")
        if address.protocol == GRPC
        else (
            "HTTP/1.1",
            "gRPC",
            "grpc",
        )
    )
    return ProtocolError(
        f"what answers at {where} does not speak {spoken} ({error}); for {other} write "
        f"'{scheme}://{where}'"
    )


class NoResponse(Exception):
    """The connection ended before the first byte of the response."""

    def __init__(self, reason: OSError | None) -> None:
        super().__init__()
        self.reason = reason
