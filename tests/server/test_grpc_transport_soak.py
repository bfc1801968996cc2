"""Thousands of mixed calls over many connections, some taken back: afterwards nothing is left."""

from __future__ import annotations

import asyncio
import gc
import random

import grpc
import pytest
import uvloop

from shoal.core.buffers import BufferPool
from shoal.frontends.grpc import (
    Call,
    CompressionLevel,
    GrpcListener,
    GrpcSettings,
    Kind,
    Method,
    StatusCode,
)
from tests.support.fakes import WAIT_SECS

CONNECTIONS = 20
WORKERS = 4  # on each connection
ROUNDS = 50  # calls of each worker


class Echo:
    """Echoes at once, later, in a stream, or never."""

    def __init__(self, loop) -> None:
        self.loop = loop
        self.waiting = 0
        self.cancelled = 0
        self._methods = {
            "/test.Echo/Unary": Method(Kind.UNARY, self._unary),
            "/test.Echo/Later": Method(Kind.UNARY, self._later),
            "/test.Echo/Stream": Method(Kind.STREAM, self._stream),
            "/test.Echo/Never": Method(Kind.UNARY, self._never),
        }

    def method(self, path: str) -> Method | None:
        return self._methods.get(path)

    def _unary(self, call: Call) -> None:
        call.on_message = lambda message: call.reply((message,))

    def _later(self, call: Call) -> None:
        call.on_message = lambda message: self.loop.call_later(0.002, call.reply, (message,))

    def _stream(self, call: Call) -> None:
        call.on_message = lambda message: call.send((message,))
        call.on_half_close = lambda: call.finish(StatusCode.OK, "", [("said", "all")])

    def _never(self, call: Call) -> None:
        self.waiting += 1

        def gone():
            self.waiting -= 1
            self.cancelled += 1

        call.on_cancel = gone


class Worker:
    """One client among many on a channel; checks each answer against its own question."""

    def __init__(self, channel, seed) -> None:
        self.channel = channel
        self.chance = random.Random(seed)
        self.answered = self.given_up = 0

    async def run(self) -> None:
        kinds = [self.unary, self.unary, self.later, self.stream, self.cancel, self.deadline]
        for _ in range(ROUNDS):
            await self.chance.choice(kinds)()

    def message(self) -> bytes:
        size = self.chance.choice([0, 3, 200, 5_000, 40_000, 150_000])
        return self.chance.randbytes(min(size, 100)) * (size // 100 or 1)

    async def unary(self, name="Unary") -> None:
        message = self.message()
        compression = self.chance.choice([None, grpc.Compression.Gzip])
        call = self.channel.unary_unary(f"/test.Echo/{name}")
        assert await call(message, compression=compression, timeout=WAIT_SECS) == message
        self.answered += 1

    async def later(self) -> None:
        await self.unary("Later")

    async def stream(self) -> None:
        messages = [self.message() for _ in range(self.chance.randrange(5))]
        call = self.channel.stream_stream("/test.Echo/Stream")(timeout=WAIT_SECS)
        for message in messages:
            await call.write(message)
        await call.done_writing()
        assert [answer async for answer in call] == messages
        self.answered += 1

    async def cancel(self) -> None:
        name = self.chance.choice(["Never", "Later", "Unary"])
        call = self.channel.unary_unary(f"/test.Echo/{name}")(self.message())
        for _ in range(self.chance.randrange(20)):
            await asyncio.sleep(0)
        call.cancel()
        self.given_up += 1

    async def deadline(self) -> None:
        call = self.channel.unary_unary("/test.Echo/Never")(self.message(), timeout=0.02)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        self.given_up += 1


async def until(condition) -> None:
    """Wait until `condition` holds; a transport has no events for its own insides."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def soak() -> None:
    loop = asyncio.get_running_loop()
    service = Echo(loop)
    listener = GrpcListener(
        service, GrpcSettings(compression=CompressionLevel.LOW), pool=BufferPool()
    )
    port = await listener.start("127.0.0.1")
    tasks_before = len(asyncio.all_tasks())
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(CONNECTIONS)
    ]
    workers = [
        Worker(channel, n * WORKERS + m)
        for n, channel in enumerate(channels)
        for m in range(WORKERS)
    ]
    await asyncio.gather(*(worker.run() for worker in workers))
    assert listener.connections == CONNECTIONS
    assert sum(w.answered + w.given_up for w in workers) == CONNECTIONS * WORKERS * ROUNDS

    await asyncio.wait_for(until(lambda: listener.streams == 0), WAIT_SECS)
    assert service.waiting == 0
    assert service.cancelled > 0
    assert listener.pending_deadlines == 0
    assert listener.unfinished_bytes == 0
    for transport in listener._registry.transports:
        assert transport.connection.sender.queued_bytes == 0
        assert not transport.connection.fault
    for channel in channels:
        await channel.close()
    assert await listener.drain(WAIT_SECS)
    gc.collect()
    assert listener.lent_buffers == 0
    await asyncio.wait_for(until(lambda: len(asyncio.all_tasks()) <= tasks_before + 1), WAIT_SECS)
    assert not [thing for thing in gc.get_objects() if type(thing) is Call]


def test_soak():
    uvloop.run(soak())
