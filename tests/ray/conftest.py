"""What the tests of replicas share. They are skipped where the extra `ray` is not installed."""

from __future__ import annotations

import importlib.util
import socket

import pytest

from shoal.errors import Unavailable


def _is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


_MISSING = [name for name in ("ray.serve", "aiohttp", "grpc") if not _is_installed(name)]
collect_ignore_glob = ["test_*.py"] if _MISSING else []


@pytest.fixture(scope="session")
def haproxy_program():
    """The path of an HAProxy."""
    from shoal.ray.haproxy import find_program

    try:
        return find_program()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def free_ports():
    """Returns that number of ports that nothing listens at."""

    def find(count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            return [one.getsockname()[1] for one in sockets]
        finally:
            for one in sockets:
                one.close()

    return find
