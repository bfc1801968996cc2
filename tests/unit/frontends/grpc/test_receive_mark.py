"""When a connection is read: not before the rest of a large message is there, but soon anyway."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

import pytest

from shoal.frontends.grpc import receive_mark
from shoal.frontends.grpc.receive_mark import LEAST_BYTES, MOST_BYTES, ReceiveMarks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such mark")


class Connection(asyncio.Transport):
    """A transport of a real socket."""

    def __init__(self, sock, sslcontext=None):
        super().__init__({"socket": sock, "sslcontext": sslcontext})


@contextlib.contextmanager
def connected():
    """Both ends of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as server,
    ):
        yield client, server


def mark_of(sock):
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def test_the_mark_is_what_is_missing():
    async def run():
        with connected() as (_, server):
            mark = ReceiveMarks().of(Connection(server))
            mark.expect(LEAST_BYTES - 1)
            assert mark_of(server) == 1
            mark.expect(600_000)
            assert mark_of(server) == mark.size == 600_000
            mark.expect(100_000)
            assert mark_of(server) == 100_000
            mark.expect(1 << 30)
            assert mark_of(server) == MOST_BYTES
            mark.expect(0)
            assert mark_of(server) == 1
            assert mark.size == 0
            mark.close()
            assert server.fileno() >= 0  # it belongs to the transport

    asyncio.run(run())


def test_all_that_is_missing_fits_into_the_receive_buffer():
    """Nobody reads, and the client can still send everything."""

    async def run():
        with connected() as (client, server):
            mark = ReceiveMarks().of(Connection(server))
            mark.expect(MOST_BYTES)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            readable = asyncio.Event()
            loop.add_reader(server, readable.set)
            await loop.sock_sendall(client, bytes(MOST_BYTES))
            await readable.wait()
            loop.remove_reader(server)
            mark.close()

    asyncio.run(run())


def test_a_message_that_takes_longer_is_read_as_it_arrives(monkeypatch):
    async def run():
        with connected() as (client, server):
            mark = ReceiveMarks().of(Connection(server))
            mark.expect(600_000)
            client.sendall(b"a part")
            loop = asyncio.get_running_loop()
            readable = asyncio.Event()
            loop.add_reader(server, readable.set)
            await readable.wait()
            loop.remove_reader(server)
            assert mark_of(server) == 1
            mark.expect(599_994)
            assert mark_of(server) == 1  # for a while there is no mark
            monkeypatch.setattr(mark, "_not_before", 0.0)
            mark.expect(599_994)
            assert mark_of(server) == 599_994
            mark.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["no socket", "unix", "tls", "other system"])
def test_connections_without_a_mark(kind, monkeypatch):
    with socket.socket(socket.AF_UNIX) as unix, connected() as (_, server):
        connection = {
            "no socket": Connection(None),
            "unix": Connection(unix),
            "tls": Connection(server, object()),
            "other system": Connection(server),
        }[kind]
        monkeypatch.setattr(receive_mark, "_SUPPORTED", kind != "other system")
        mark = ReceiveMarks().of(connection)
        mark.expect(600_000)
        assert mark.size == 0
        assert mark_of(server) == mark_of(unix) == 1
        mark.close()


def test_a_socket_that_is_closed_already():
    async def run():
        with connected() as (_, server):
            mark = ReceiveMarks().of(Connection(server))
            mark.expect(600_000)
            server.close()
            mark.expect(0)
            mark.close()

    asyncio.run(run())
