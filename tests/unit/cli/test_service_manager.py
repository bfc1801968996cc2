"""The variables of systemd, and what is sent for them."""

from __future__ import annotations

import os
import socket

import pytest

from shoal.cli.service_manager import ServiceManager


def test_without_a_manager_nothing_is_sent():
    manager = ServiceManager({"WATCHDOG_USEC": "1000000"})
    manager.starting()
    manager.ready()
    manager.stopping(1, 2)
    assert manager.ping_secs == 0


def test_a_socket_in_the_file_system(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "OTHER": "stays"}
        manager = ServiceManager(environment)
        manager.ready()
        assert line.recv(100) == b"READY=1\nSTATUS=serving"
    assert environment == {"OTHER": "stays"}


@pytest.mark.parametrize(
    ("usec", "pid", "secs"),
    [
        ("3000000", "", 1.5),
        ("3000000", str(os.getpid()), 1.5),
        ("3000000", "1", 0),  # it is for another process
        ("soon", "", 0),
        ("", "", 0),
    ],
)
def test_pings_come_twice_in_the_time_of_the_watchdog(usec, pid, secs):
    environment = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}
    assert ServiceManager(environment).ping_secs == secs
    assert environment == {}


@pytest.mark.parametrize("address", ["/no/such/socket", "@" + "x" * 200])
def test_a_manager_that_cannot_be_reached_is_logged(address, caplog):
    ServiceManager({"NOTIFY_SOCKET": address}).ready()
    assert "the service manager was not told READY=1" in caplog.text
