"""systemd is told that models are loaded, that the server stops, and that its loop runs."""

from __future__ import annotations

import os
import signal

import pytest

from tests.chaos.server import ChaosServer
from tests.support.service_manager import PING, FakeServiceManager

WATCHDOG_SECS = 0.1  # so that the server sends a message every 50 ms
FUNCTIONS = """
import os, shoal

assert "NOTIFY_SOCKET" not in os.environ  # a model must not speak for the server

@shoal.model
def one(x: int) -> int:
    return 1
"""
# Python runs handlers of signals on the thread of the event loop.
PROGRAM = """
import os, signal, sys
from shoal.cli.main import main

def block(number, frame):
    with open(os.environ["PIPE"]) as line:
        line.read()

signal.signal(signal.SIGUSR1, block)
sys.exit(main())
"""


@pytest.fixture(scope="module")
def manager():
    made = FakeServiceManager(WATCHDOG_SECS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(manager, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    functions = folder / "functions.py"
    functions.write_text(FUNCTIONS)
    program = folder / "program.py"
    program.write_text(PROGRAM)
    os.mkfifo(folder / "pipe")
    started = ChaosServer(
        folder,
        str(functions),
        "--drain-secs=0.5",
        "--exit-timeout-secs=20",
        environment={**manager.environment, "PIPE": str(folder / "pipe")},
        program=(str(program),),
    )
    started.pipe = folder / "pipe"
    yield started
    started.stop()


def test_it_is_ready_after_it_has_loaded(server, manager):
    first, *between, last = manager.wait_for("READY=1")
    assert first == ["STATUS=loading models"]
    assert all(message == [PING] for message in between)
    assert last == ["READY=1", "STATUS=serving"]


def test_a_loop_that_is_blocked_sends_nothing(server, manager):
    manager.wait_for(PING)
    server.process.send_signal(signal.SIGUSR1)
    with server.pipe.open("w"):  # once the handler has opened it
        assert manager.receives_nothing(6 * WATCHDOG_SECS)
    manager.wait_for(PING)


def test_it_says_that_it_stops_and_how_long_that_may_take(server, manager):
    server.checked_stop()
    *_, last = manager.wait_for("STOPPING=1")
    assert last == [
        "STOPPING=1",
        "STATUS=stopping: requests in flight have 20.5 s",
        "EXTEND_TIMEOUT_USEC=35500000",
    ]
