"""Server-sent events: a response in pieces."""

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
    """Wait while the client reads more slowly than the server writes."""
    readable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def resume() -> None:
        if not readable.done():
            readable.set_result(None)

    exchange.when_room(resume)
    await readable
