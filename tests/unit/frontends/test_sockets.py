"""The files of Unix sockets, and clients that connect while the loop is busy."""

from __future__ import annotations

import asyncio
import errno
import socket
import stat

import pytest
import uvloop

from shoal.frontends.sockets import bind_tcp, bind_unix, serve
from shoal.testing import WAIT_SECS


def connect(path):
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_permissions(tmp_path, mode):
    path = tmp_path / "s"
    sock, file = bind_unix(str(path), mode)
    with sock, connect(path):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    file.remove()
    assert not path.exists()


def test_a_file_that_a_killed_server_has_left(tmp_path):
    path = tmp_path / "s"
    bind_unix(str(path), 0o600)[0].close()
    assert path.exists()
    sock, _ = bind_unix(str(path), 0o600)
    with sock, connect(path):
        pass


def test_a_socket_in_use_stays(tmp_path):
    path = tmp_path / "s"
    sock, _ = bind_unix(str(path), 0o600)
    with sock:
        with pytest.raises(OSError, match="a server listens there") as caught:
            bind_unix(str(path), 0o600)
        assert caught.value.errno == errno.EADDRINUSE
        connect(path).close()


def test_a_file_that_is_no_socket_stays(tmp_path):
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(OSError, match="not a socket"):
        bind_unix(str(path), 0o600)
    assert path.read_text() == "precious"


def test_the_file_of_a_newer_server_stays(tmp_path):
    path = tmp_path / "s"
    sock, file = bind_unix(str(path), 0o600)
    path.unlink()
    newer, _ = bind_unix(str(path), 0o600)
    with sock, newer:
        file.remove()
        connect(path).close()


@pytest.mark.parametrize("name", ["nowhere/s", "x" * 120])
def test_paths_that_cannot_be(tmp_path, name):
    with pytest.raises(OSError, match=r"No such file|too long"):
        bind_unix(str(tmp_path / name), 0o600)


class Greeting(asyncio.Protocol):
    """Greets its client."""

    def connection_made(self, transport):
        transport.write(b"hello")
        transport.close()


@pytest.mark.parametrize("family", ["tcp", "unix"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_clients_that_connect_together_do_not_wait_for_each_other(tmp_path, family, new_loop):
    count = 40

    async def run():
        opened = []

        def made():
            opened.append(1)
            return Greeting()

        if family == "tcp":
            (listening,) = await bind_tcp("127.0.0.1", 0, reuse_port=False)
        else:
            listening, _ = bind_unix(str(tmp_path / "s"), 0o600)
        place = listening.getsockname()
        (server,) = await serve([listening], made)
        clients = [socket.socket(listening.family) for _ in range(count)]
        for client in clients:
            client.settimeout(WAIT_SECS)
            client.connect(place)
        for _ in range(count // 2):
            await asyncio.sleep(0)
        opened_soon = len(opened)
        for client in clients:
            assert await asyncio.to_thread(client.recv, 10) == b"hello"
            client.close()
        await server.stop()
        await server.wait_closed()
        assert server.unfinished == 0
        assert opened_soon == count

    loop = new_loop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
