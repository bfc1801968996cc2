"""No file descriptors left: connections wait or are refused, and everything recovers."""

from __future__ import annotations

import contextlib
import socket
import time

from shoal.testing.server import wait_until
from tests.chaos.checker import Checker
from tests.chaos.faults import (
    connect,
    descriptors_used_up,
    kill,
    model_processes,
    no_descriptors_left,
)
from tests.chaos.models import EACH_ISOLATED, KILLED
from tests.chaos.schedule import long_run, rounds
from tests.support.repositories import touch

PORTS = ("http_port", "grpc_port", "metrics_port")
WITH_FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from shoal.cli.main import main
sys.exit(main())
"""
SPIN_SECS = 0.5  # in which a server without work uses no CPU time


def test_connections_that_were_open_are_served_on(serve, settled):
    server = serve("onnx", "thread")
    before = settled(server, "onnx", "thread")
    with Checker(server, "onnx", "thread") as checker:
        for _ in rounds():
            with no_descriptors_left(server):
                lines = [connect(getattr(server, port)) for port in PORTS for _ in range(5)]
                checker.wait_for_answers(20)
            for line in lines:
                line.close()
            for port in PORTS:
                served_again(server, port)
    checker.check()
    server.check_holds_no_more_than(before)
    server.checked_stop()


def served_again(server, port):
    """A new connection to this port is accepted and stays open."""

    def accepted():
        with contextlib.suppress(ConnectionError), connect(getattr(server, port)) as line:
            if port == "grpc_port":
                line.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    return line.recv(1) != b""
                return True
            line.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return line.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 404")
        return False

    wait_until(accepted, f"{port} accepts connections")


@long_run
def test_connections_that_use_up_all_descriptors_do_not_make_it_spin(serve):
    server = serve("onnx")
    with Checker(server, "onnx") as checker:
        with descriptors_used_up(server):
            checker.wait_for_answers(5)
        served_again(server, "http_port")
    checker.check()
    with descriptors_used_up(server):
        used = server.cpu_secs
        time.sleep(SPIN_SECS)
        assert server.cpu_secs - used < SPIN_SECS / 2
    served_again(server, "http_port")
    server.checked_stop()


def test_more_clients_than_the_limit_of_open_files(serve, settled):
    """Connections beyond the limit are told why, and those within it are served."""
    server = serve("onnx", program=("-c", WITH_FEW_FILES))
    before = settled(server, "onnx")
    with Checker(server, "onnx") as checker:
        for _ in rounds():
            lines = [connect(server.http_port) for _ in range(300)]
            checker.wait_for_answers(5)
            last = lines[-1]
            with contextlib.suppress(ConnectionError):
                last.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
                assert last.recv(12) in (b"HTTP/1.1 503", b"")
            for line in lines:
                line.close()
            server.call("GET", "/metrics", port=server.metrics_port)
            served_again(server, "http_port")
    checker.check()
    server.check_holds_no_more_than(before)
    server.checked_stop()


def test_a_reload_without_descriptors_keeps_the_old_model(serve, repository):
    server = serve("onnx", "python")
    with Checker(server, "onnx", "python") as checker, connect(server.http_port) as control:
        assert load_over(control, "onnx") == 200  # now the connection is accepted
        for _ in rounds():
            with no_descriptors_left(server):
                for name in ("onnx", "python"):
                    touch(next((repository / name / "1").glob("model.*")))
                    status = load_over(control, name)
                    assert status in (200, 400, 500)
                checker.wait_for_answers(5)
            for name in ("onnx", "python"):
                assert load_over(control, name) == 200
            checker.wait_for_answers(5)
    assert not checker.faults()  # the statistics begin anew with a reload
    server.checked_stop()


def load_over(line, name):
    """The status of a load on a connection that is open already."""
    head = (
        f"POST /v2/repository/models/{name}/load HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    )
    line.sendall(head.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += line.recv(65536)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split()[0])
    while len(body) < length:
        body += line.recv(65536)
    return int(answer.split()[1])


@long_run
@EACH_ISOLATED
def test_a_model_process_that_cannot_be_started_is_tried_again(serve, isolated):
    server = serve("onnx", isolated)
    with Checker(server, "onnx", isolated) as checker:
        checker.tolerate(isolated, *KILLED)
        with no_descriptors_left(server):
            kill(model_processes(server)[0])
            checker.wait_for_answers(20, "onnx")
        checker.wait_for_answers(5)
    checker.check()
    server.checked_stop()


@long_run
def test_clients_that_connect_and_leave_at_once(serve, settled):
    server = serve("onnx")
    before = settled(server, "onnx")
    with Checker(server, "onnx") as checker:
        for _ in rounds():
            for number in range(500):
                line = connect(getattr(server, PORTS[number % 3]))
                if number % 2:
                    line.shutdown(socket.SHUT_WR)
                line.close()
            checker.wait_for_answers(2)
    checker.check()
    server.check_holds_no_more_than(before)
    server.checked_stop()
