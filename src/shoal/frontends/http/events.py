"""Server-sent events: an answer that comes in pieces."""

from __future__ import annotations

import asyncio

from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.message import Header

EVENT_HEADERS: tuple[Header, ...] = (
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"Cache-Control", b"no-cache"),
)


def event(data: bytes) -> bytes:
    """One event; `data` has no line breaks."""
    return b"data: %b\n\n" % data


async def room(exchange: Exchange) -> None:
    """Wait while the client reads more slowly than it is written to."""
    readable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def go_on() -> None:
        if not readable.done():
            readable.set_result(None)

    exchange.when_room(go_on)
    await readable
