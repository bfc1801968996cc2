"""Processes of one server that are killed, stopped or cut off: what clients of the others see."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until
from tests.chaos.faults import kill, paused, replace, server_processes
from tests.chaos.server import ADDRESS, ChaosServer, shared_memory_of
from tests.support import onnx_models
from tests.support.repositories import add_onnx
from tests.support.service_manager import PING, FakeServiceManager

ROWS = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
BODY = json.dumps({"inputs": [ROWS]})
RESTARTED = "the engine process is being restarted; try again in a moment"
WATCHDOG_SECS = 0.1
_PIDFD_GETFD = 438


@pytest.fixture(scope="module")
def manager():
    made = FakeServiceManager(WATCHDOG_SECS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(manager, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in ("echo", "other"):
        add_onnx(folder, name, onnx_models.identity("FP32"), "max_batch_size: 8")
    started = ChaosServer(
        tmp_path_factory.mktemp("server"),
        str(folder),
        "--frontend-processes=2",
        "--model-control-mode=explicit",
        "--load-model=echo",
        environment=manager.environment,
    )
    yield started
    started.stop()


class Line:
    """A connection that stays open."""

    def __init__(self, server):
        self._http = http.client.HTTPConnection(ADDRESS, server.http_port, timeout=WAIT_SECS)
        self._http.connect()
        self.port = self._http.sock.getsockname()[1]

    def ask(self, method, path, body=None):
        self.send(method, path, body)
        return self.answer()

    def send(self, method, path, body=None):
        self._http.auto_open = 0  # a broken connection stays broken
        self._http.request(method, path, body)

    def answer(self):
        response = self._http.getresponse()
        content = response.read()
        return response.status, dict(response.getheaders()), json.loads(content or b"null")

    def infer(self):
        return self.ask("POST", "/v2/models/echo/infer", BODY)

    def close(self):
        self._http.close()


@pytest.fixture
def lines(server):
    """Connections by the front end that has them, at least two of each."""
    wait_until(lambda: len(server_processes(server, "frontend")) == 2, "there are two front ends")
    with contextlib.ExitStack() as held:
        opened = {}
        found = defaultdict(list)
        while min([len(some) for some in found.values()], default=0) < 2 or len(found) < 2:
            assert len(opened) < 400, "a front end accepts no connections"
            for _ in range(10):
                line = held.enter_context(contextlib.closing(Line(server)))
                assert line.infer()[0] == 200
                opened[line.port] = line
            found.clear()
            for pid in server_processes(server, "frontend"):
                for each in psutil.Process(pid).net_connections("tcp"):
                    if each.raddr and each.raddr.port in opened:
                        found[pid].append(opened[each.raddr.port])
        yield {pid: some[:4] for pid, some in found.items()}


class Traffic:
    """Requests on connections, until the block ends or they break."""

    def __init__(self, lines):
        self.answers = defaultdict(int)
        self.refusals = defaultdict(set)
        self.broken = {}
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(line,)) for line in lines]

    def _run(self, line):
        while not self._stopped.wait(0.003):
            try:
                status, headers, answer = line.infer()
            except (OSError, http.client.HTTPException) as error:
                self.broken[line] = error
                return
            if status == 200:
                assert answer["outputs"][0]["data"] == ROWS["data"]
                self.answers[line] += 1
            else:
                self.refusals[line].add((status, headers.get("Retry-After"), answer["error"]))

    def wait_for_answers(self, lines):
        wanted = {line: self.answers[line] + 3 for line in lines}
        wait_until(
            lambda: all(self.answers[line] >= number for line, number in wanted.items()),
            "there are more answers",
        )

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        for thread in self._threads:
            thread.join(WAIT_SECS)


def test_a_killed_front_end_costs_its_own_connections_only(server, lines):
    (killed, own), (_, others) = lines.items()
    with Traffic([*own, *others]) as traffic:
        traffic.wait_for_answers([*own, *others])
        replace(server, "frontend", killed)
        wait_until(lambda: len(traffic.broken) == len(own), "its connections have ended")
        traffic.wait_for_answers(others)
    assert set(traffic.broken) == set(own)
    assert not traffic.refusals


def test_a_killed_engine_costs_no_connection(server, lines):
    every = [line for some in lines.values() for line in some]
    assert server.load("other").status == 200
    (engine,) = server_processes(server, "engine")
    with Traffic(every) as traffic:
        traffic.wait_for_answers(every)
        replace(server, "engine", engine)
        traffic.wait_for_answers(every)
    assert not traffic.broken
    refusals = set().union(*traffic.refusals.values())
    assert refusals <= {(503, "1", RESTARTED)}
    assert server.get("/v2/models/other/ready").status == 200  # a client had loaded it
    assert server.call("POST", "/v2/repository/models/other/unload").status == 200


def test_an_engine_that_is_stopped(server, lines):
    (one, *_), (another, *_) = lines.values()
    (engine,) = server_processes(server, "engine")
    with paused(engine):
        one.send("POST", "/v2/models/echo/infer", BODY)
        assert another.ask("GET", "/v2/health/live")[0] == 200
        assert another.ask("GET", "/v2/health/ready")[0] == 503
        status, _, verbose = another.ask("GET", "/v2/health/ready?verbose=true")
        assert status == 503
        assert "the engine process does not answer" in json.dumps(verbose)
    assert one.answer()[0] == 200
    assert another.ask("GET", "/v2/health/ready")[0] == 200


def test_a_front_end_that_is_stopped_has_right_answers_later(server, lines):
    (stopped, (line, *_)), (_, (another, *_)) = lines.items()
    assert another.ask("POST", "/v2/repository/models/other/load")[0] == 200
    assert line.ask("GET", "/v2/models/other")[0] == 200
    with paused(stopped):
        assert another.infer()[0] == 200
        assert another.ask("POST", "/v2/repository/models/other/unload")[0] == 200
        assert another.ask("GET", "/v2/models/other")[0] == 404
        line.send("GET", "/v2/models/other")
    assert line.answer()[0] == 404
    assert line.infer()[0] == 200


@pytest.mark.parametrize("kind", ["engine", "frontend"])
def test_the_watchdog_of_systemd_needs_every_process(server, manager, kind):
    manager.wait_for(PING)
    one, *_ = server_processes(server, kind)
    with paused(one):
        wait_until(lambda: manager.receives_nothing(5 * WATCHDOG_SECS), "there are no pings")
    manager.wait_for(PING)


def test_a_lost_link_is_replaced(server, lines):
    (cut_off, (line, *_)), (_, (another, *_)) = lines.items()
    end_link(cut_off)
    wait_until(lambda: line.infer()[0] == 200, "there is a new link")
    assert another.infer()[0] == 200
    assert cut_off in server_processes(server, "frontend")


def end_link(pid):
    """Shut down the socket between a front end and the engine."""
    (control,) = [word for word in psutil.Process(pid).cmdline() if word.isdecimal()]
    supervisor = psutil.Process(pid).ppid()
    process = os.pidfd_open(pid)
    libc = ctypes.CDLL(None, use_errno=True)
    ended = 0
    for file in list(Path(f"/proc/{pid}/fd").iterdir()):
        if file.name == control or not str(file.readlink()).startswith("socket:"):
            continue
        ours = libc.syscall(_PIDFD_GETFD, process, int(file.name), 0)
        if ours < 0:
            pytest.skip(f"files of other processes: {os.strerror(ctypes.get_errno())}")
        with socket.socket(fileno=ours) as sock:
            if sock.family == socket.AF_UNIX and maker(sock) == supervisor:
                sock.shutdown(socket.SHUT_RDWR)
                ended += 1
    os.close(process)
    assert ended == 1


def maker(pair):
    """The process that has made a pair of sockets."""
    return struct.unpack("3i", pair.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def test_everything_ends_with_a_supervisor_that_is_killed(server):
    pids = {server.process.pid, *(child.pid for child in server.children())}
    assert len(pids) == 4
    kill(server.process.pid)
    server.process.wait(WAIT_SECS)
    wait_until(lambda: not server.members(), "all processes have ended")
    assert not shared_memory_of(pids)
    for port in (server.http_port, server.grpc_port, server.metrics_port):
        wait_until(lambda port=port: is_free(port), "the port is free")


def is_free(port):
    with contextlib.suppress(OSError), socket.create_server((ADDRESS, port)):
        return True
    return False


def test_a_front_end_that_cannot_start_says_why(tmp_path):
    """As one process does; nothing is left running."""
    (tmp_path / "models").mkdir()
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", "serve", str(tmp_path / "models")]
        + [f"--{kind}-port=0" for kind in ("http", "grpc", "metrics")]
        + ["--frontend-processes=2", f"--https-cert={junk}", f"--https-key={junk}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_SECS,
        check=False,
        env={**os.environ, "SHOAL_TEST_FOLDER": str(tmp_path)},
    )
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error")]
    assert (ended.returncode, errors) == (
        1,
        [f"error: --https-key={junk} has no private key in PEM format"],
    )
    assert "Traceback" not in ended.stderr
    mark = f"SHOAL_TEST_FOLDER={tmp_path}".encode()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            assert mark not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
