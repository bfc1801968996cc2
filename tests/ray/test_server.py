"""The server process of a replica."""

import io
import sys
import threading

import pytest

from shoal.errors import Unavailable
from shoal.ray.server import ServerProcess
from shoal.testing import WAIT_SECS
from tests.support.repositories import add_model


def test_a_server_from_start_to_stop(tmp_path):
    ended = threading.Event()
    server = ServerProcess([str(tmp_path)], ["--model-control-mode=explicit"])
    server.on_end = ended.set
    server.start(WAIT_SECS)
    try:
        ports = server.http_port, server.grpc_port, server.metrics_port
        assert len({0, *ports}) == 4
        assert server.is_ready()
        assert server.is_live()
        assert server.alive
        assert "process_cpu_seconds_total" in server.metrics()
    finally:
        assert server.stop() == 0
    assert not server.is_live()
    with pytest.raises(OSError, match="refused"):
        server.metrics()
    assert not ended.is_set()  # that is for servers that end by themselves


def test_a_server_stops_in_order_when_its_input_ends(tmp_path):
    ended = threading.Event()
    server = ServerProcess([str(tmp_path)], ["--model-control-mode=explicit"])
    server.start(WAIT_SECS)
    server.on_end = ended.set
    server._process.stdin.close()  # as when the replica's process is killed
    assert ended.wait(WAIT_SECS)
    assert server._process.wait() == 0


def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    add_model(tmp_path, "broken", 'backend: "no_such_backend"')
    server = ServerProcess([str(tmp_path)], [])
    with pytest.raises(Unavailable, match=r"(?s)has ended while it started.*no_such_backend"):
        server.start(WAIT_SECS)
    assert not server.alive


def test_a_server_that_takes_too_long_is_ended(tmp_path):
    server = ServerProcess([str(tmp_path)], ["--model-control-mode=explicit"])
    with pytest.raises(Unavailable, match=r"not ready after 0\.01 s; give it more time with start"):
        server.start(0.01)
    assert not server.alive
