"""The files of Unix sockets: permissions, those that were left behind, those of others."""

from __future__ import annotations

import errno
import socket
import stat

import pytest

from shoal.frontends.sockets import bind_unix


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
