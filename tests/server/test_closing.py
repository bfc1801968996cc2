"""Closing sockets: what the kernel has received is not lost, and what comes later is not received."""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import sys
import termios

import pytest

from shoal.frontends.closing import (
    accept_waiting,
    close_unless_unread,
    stop_handshakes,
    unread_bytes,
)
from tests.support.fakes import WAIT_SECS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the filters are those of Linux")


@pytest.fixture(params=["127.0.0.1", "::1", "file"])
def listening(request, tmp_path):
    if request.param == "file":
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(tmp_path / "s"))
    else:
        family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
        sock = socket.socket(family)
        sock.bind((request.param, 0))
    sock.listen(16)
    sock.setblocking(False)
    with sock:
        yield sock


def client_of(listening):
    sock = socket.socket(listening.family)
    sock.settimeout(WAIT_SECS)
    return sock


def unconfirmed_bytes(sock):
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)
    return count[0]


def test_those_who_have_connected_are_accepted_and_no_others(listening):
    with client_of(listening) as early, client_of(listening) as late:
        early.connect(listening.getsockname())
        early.sendall(b"hello")
        stop_handshakes(listening)
        late.setblocking(False)
        assert late.connect_ex(listening.getsockname()) != 0
        ((accepted, _),) = accept_waiting(listening)
        with accepted:
            assert accepted.recv(10) == b"hello"
            accepted.sendall(b"answer")
            assert early.recv(10) == b"answer"
        assert accept_waiting(listening) == []


def connected(listening, scenario, loop_type):
    """Run a scenario with the client's socket and the transport of the server's side."""
    if loop_type == "uvloop":
        loop = pytest.importorskip("uvloop").new_event_loop()
    else:
        loop = asyncio.new_event_loop()

    async def main():
        with client_of(listening) as client:
            client.connect(listening.getsockname())
            ((accepted, _),) = accept_waiting(listening)
            received = asyncio.Queue()

            class Reader(asyncio.Protocol):
                def data_received(self, data):
                    received.put_nowait(data)

                def connection_lost(self, _):
                    received.put_nowait(None)

            transport, _ = await loop.connect_accepted_socket(Reader, accepted)
            await asyncio.wait_for(scenario(client, transport, received), WAIT_SECS)
            transport.abort()
            await asyncio.sleep(0)

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize("loop_type", ["asyncio", "uvloop"])
def test_an_idle_connection_is_closed(listening, loop_type):
    async def scenario(client, transport, received):
        assert close_unless_unread(transport)
        assert client.recv(1) == b""
        if client.family == socket.AF_UNIX:
            with pytest.raises(BrokenPipeError):
                client.send(b"late")
        else:
            client.send(b"late")
            assert unconfirmed_bytes(client), "the client can see that it was not received"
        assert await received.get() is None

    connected(listening, scenario, loop_type)


@pytest.mark.parametrize("loop_type", ["asyncio", "uvloop"])
def test_a_connection_with_unread_bytes_stays_open(listening, loop_type):
    async def scenario(client, transport, received):
        client.sendall(b"request")
        sock = transport.get_extra_info("socket")
        assert unread_bytes(sock) == len(b"request")
        assert not close_unless_unread(transport)
        assert await received.get() == b"request"
        transport.write(b"answer")
        assert await asyncio.to_thread(client.recv, 10) == b"answer"
        client.sendall(b"another")
        assert await received.get() == b"another", "nothing keeps packets out"
        assert close_unless_unread(transport)
        assert client.recv(1) == b""

    connected(listening, scenario, loop_type)
