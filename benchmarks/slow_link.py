"""A network between two programs of this machine: a proxy that adds latency and limits the speed.

    with slow_link(port, latency_ms=10, megabytes_per_sec=80) as port: ...

Each direction of a connection delivers its bytes after half the latency, and no connection is
faster than the limit, as with a bucket in the same region. It runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

_CHUNK_BYTES = 256 << 10


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float, rate: float
) -> None:
    """Pass bytes on, each after `delay` seconds, and not more than `rate` of them in a second."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

    async def receive() -> None:
        free_at = 0.0
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK_BYTES):
                free_at = max(free_at, time.monotonic()) + len(chunk) / rate
                await waiting.put((free_at + delay, chunk))
        await waiting.put((0.0, b""))

    receiving = asyncio.ensure_future(receive())
    with contextlib.suppress(ConnectionError):
        while True:
            due, chunk = await waiting.get()
            if not chunk:
                break
            await asyncio.sleep(due - time.monotonic())
            writer.write(chunk)
            await writer.drain()
    receiving.cancel()
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        await receiving
    writer.close()


def _serve(target: int, latency_secs: float, rate: float, ready: Connection) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(latency_secs)  # of the handshake
        inside, outside = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(
            _pump(reader, outside, latency_secs / 2, rate),
            _pump(inside, writer, latency_secs / 2, rate),
        )

    async def main() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_CHUNK_BYTES * 4)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())


@contextlib.contextmanager
def slow_link(port: int, latency_ms: float, megabytes_per_sec: float) -> Iterator[int]:
    """The port of a proxy for `port` of this machine."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(
        target=_serve, args=(port, latency_ms / 1e3, megabytes_per_sec * 1e6, there), daemon=True
    )
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()
