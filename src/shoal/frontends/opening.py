"""Opening the ports and sockets of a server, with errors that name the options to change."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from shoal.errors import Unavailable

logger = logging.getLogger(__name__)


async def open_port(
    name: str, endpoint: tuple[str, int], start: Callable[..., Awaitable[int]], **settings: Any
) -> int:
    """Call `start` to listen for `name` ("http", "grpc" …); returns the port, or Unavailable."""
    address, port = endpoint
    try:
        bound = await start(address, port, **settings)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"--{name}-port={port} is in use: another process listens on {address}:{port}; "
                "stop it or choose another port"
            ) from None
        reason = error.strerror or str(error)
        raise Unavailable(f"--{name}-address={address} --{name}-port={port}: {reason}") from None
    encrypted = " (TLS)" if settings.get("tls") is not None else ""
    logger.info("listening for %s on %s:%d%s", name, address, bound, encrypted)
    return bound


async def open_unix(
    name: str, path: str, mode: int, start: Callable[[str, int], Awaitable[None]]
) -> None:
    """Call `start` to listen for `name` on a Unix socket. Raises Unavailable."""
    flag = f"--{name}-unix-socket={path}"
    try:
        await start(path, mode)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"{flag} is in use: another process listens there; stop it or choose another path"
            ) from None
        raise Unavailable(f"{flag}: {error.strerror or error}") from None
    logger.info("listening for %s on unix:%s", name, path)
