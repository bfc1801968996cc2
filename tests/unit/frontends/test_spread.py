"""Connections are left to processes that have fewer, for as long as those accept any."""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial

import pytest
import uvloop

from shoal.frontends.shared_limits import ACCEPTED, SharedConnectionLimits, Spread
from shoal.frontends.sockets import bind_tcp, bind_unix, is_unix, serve
from shoal.link.counters import SharedCounters
from shoal.testing import WAIT_SECS


@pytest.fixture
def spreads():
    """Three processes."""
    file = SharedCounters.make(3)
    yield [Spread(SharedCounters(file, 3, own).of_server(ACCEPTED)) for own in range(3)]
    os.close(file)


@pytest.mark.parametrize(
    ("counts", "lead"),
    [
        ((0, 0, 0), 0),
        ((1, 0, 0), 1),
        ((1, 1, 5), 0),
        ((3, 2, 1), 2),
        ((8, 7, 7), 0),  # an eighth more does not matter
        ((9, 7, 9), 1),
        ((800, 700, 700), 0),
        ((800, 690, 700), 10),
        ((800, 0, 700), 16),
    ],
)
def test_lead(spreads, counts, lead):
    for spread, count in zip(spreads, counts, strict=True):
        spread.set(count)
    assert spreads[0].lead() == lead


def test_a_process_that_does_not_accept_is_no_longer_waited_for(spreads):
    own, stopped, other = spreads
    other.set(5)
    for count in range(16):
        own.set(count)
        own.not_accepted_elsewhere()  # it may be busy
    own.set(24)
    assert own.lead() == 16
    own.not_accepted_elsewhere()
    assert own.lead() == 0, "neither of them accepts"
    other.set(6)
    assert own.lead() == 15
    stopped.set(1)
    assert own.lead() == 16


def test_where_connections_end_quickly_they_are_not_left_to_others():
    file = SharedCounters.make(2)
    now = [100.0]
    spread = Spread(SharedCounters(file, 2, 0).of_server(ACCEPTED), lambda: now[0])
    os.close(file)
    spread.set(3)
    spread.ended()
    spread.ended()
    assert spread.lead() == 1
    now[0] += 0.021
    assert spread.lead() == 3


class Greeting(asyncio.Protocol):
    """Greets its client, and counts it."""

    def __init__(self, limits):
        self._limits = limits

    def connection_made(self, transport):
        self._limits.admit("")
        sock = transport.get_extra_info("socket")
        fast = is_unix(sock) or sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.write(b"hello" if fast else b"slow")
        transport.close()

    def connection_lost(self, exc):
        self._limits.leave("")


@pytest.mark.parametrize("family", ["tcp", "unix"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_the_others_leave_is_served(tmp_path, family, new_loop):
    """Here the others never accept anything, and the last clients wait when the port closes."""

    async def run():
        if family == "tcp":
            (listening,) = await bind_tcp("127.0.0.1", 0, reuse_port=False)
            place = listening.getsockname()
            connect = partial(asyncio.open_connection, *place)
        else:
            listening, _ = bind_unix(str(tmp_path / "socket"), 0o600)
            connect = partial(asyncio.open_unix_connection, str(tmp_path / "socket"))
        file = SharedCounters.make(2)
        limits = SharedConnectionLimits(SharedCounters(file, 2, 0), 0, 0, 0)
        others = Spread(SharedCounters(file, 2, 1).of_server(ACCEPTED))
        os.close(file)
        (server,) = await serve([listening], lambda: Greeting(limits), limits=limits)
        clients = [await connect() for _ in range(4)]
        for reader, _ in clients:
            assert await asyncio.wait_for(reader.read(), WAIT_SECS) == b"hello"
        limits.opening(1000)  # all others have fewer
        assert limits.lead() == 16
        late = await connect()
        await server.stop()
        assert await asyncio.wait_for(late[0].read(), WAIT_SECS) == b"hello"
        limits.opening(-1000)
        assert others.lead() == 0
        for _, writer in [*clients, late]:
            writer.close()
            await writer.wait_closed()
        await server.wait_closed()
        assert limits.count == server.unfinished == 0

    loop = new_loop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
