"""Logs and traces of a server of several processes: one truth, whichever front end is asked."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until
from tests.chaos.server import ADDRESS, ChaosServer
from tests.support import onnx_models
from tests.support.repositories import add_onnx
from tests.support.traces import by_id

LINE = re.compile(r'[IWE]\d{4} [\d:.]{15} (?P<process>\d+) \w+\.py:\d+\] ".*"')
POLLED = "failed to poll from model repository"
REFUSED = "refused with 400"
ROWS = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder):
    add_onnx(folder / "models", "echo", onnx_models.identity("FP32"), "max_batch_size: 8")
    started = ChaosServer(
        folder,
        str(folder / "models"),
        "--frontend-processes=2",
        f"--log-file={folder / 'log.txt'}",
        f"--trace-config=triton,file={folder / 'trace.json'}",
    )
    yield started
    started.checked_stop()


def pids(server, kind):
    found = set()
    for child in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if f"shoal.processes.{kind}" in child.cmdline():
                found.add(child.pid)
    return found


def writers(file, text=""):
    """The processes that have written lines with a text to a log, whose lines must be whole."""
    found = set()
    for line in file.read_text().splitlines() if file.exists() else ():
        if not line.startswith(" "):  # tables are indented
            match = LINE.fullmatch(line)
            assert match is not None, line
            if text in line:
                found.add(int(match["process"]))
    return found


def send_garbage(server):
    """What a front end logs, at verbose level 1."""
    with socket.create_connection((ADDRESS, server.http_port), WAIT_SECS) as line:
        line.sendall(b"garbage\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 400")


def test_settings_of_the_log_reach_all_and_sighup_reopens_its_file(server, folder):
    log, renamed = folder / "log.txt", folder / "log.1"
    frontends = pids(server, "frontend")
    send_garbage(server)
    assert not writers(log, REFUSED)
    assert server.call("POST", "/v2/logging", {"log_verbose_level": 1}).status == 200

    def both_write(file):
        send_garbage(server)
        return writers(file, REFUSED) == frontends

    wait_until(lambda: both_write(log), "both front ends log")
    log.rename(renamed)
    for child in server.children():  # a terminal that ends sends it to all processes
        child.send_signal(signal.SIGHUP)
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: both_write(log), "both front ends log to the new file")
    assert writers(renamed) == frontends | pids(server, "engine") | {server.process.pid}
    assert pids(server, "frontend") == frontends


def test_traces_are_counted_for_all_front_ends_together(server, folder):
    settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_count": "3"}
    assert server.call("POST", "/v2/trace/setting", settings).status == 200
    for _ in range(10):  # each on its own connection
        answer = server.call("POST", "/v2/models/echo/infer", {"inputs": [ROWS]})
        assert answer.status == 200
        assert answer.json["outputs"][0]["data"] == [1, 2]
    assert server.get("/v2/trace/setting").json["trace_count"] == "0"
    file = folder / "trace.json.0"
    wait_until(file.exists, "the traces are written")
    for trace in by_id(file):
        assert trace["events"][:2] == ["HTTP_RECV_START", "HTTP_RECV_END"]
        assert {"COMPUTE_START", "COMPUTE_END"} <= {*trace["events"]}
        assert trace["events"][-2:] == ["HTTP_SEND_START", "HTTP_SEND_END"]
    assert len(by_id(file)) == 3


def test_settings_outlive_an_engine(server):
    (engine,) = pids(server, "engine")
    psutil.Process(engine).kill()
    wait_until(lambda: pids(server, "engine") - {engine}, "there is a new engine")
    wait_until(lambda: server.get("/v2/health/ready").status == 200, "it is ready")
    assert server.get("/v2/logging").json["log_verbose_level"] == 1
    assert server.get("/v2/trace/setting").json["trace_rate"] == "2"


def test_models_that_fail_to_load_end_the_start(tmp_path):
    """With the errors of one process; those of front ends are in test_processes_faults.py."""
    ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
    options = ("--frontend-processes=2", "--model-control-mode=explicit", "--load-model=missing")
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", "serve", str(tmp_path), *ports, *options],
        timeout=WAIT_SECS,
        capture_output=True,
        check=False,
        text=True,
    )
    assert [line for line in ended.stderr.splitlines() if line.startswith("error")] == [
        "error: creating server: Internal - failed to load all models",
        f"error: failed to load 'missing', {POLLED}: there is no folder 'missing' in it",
    ]
    assert ended.returncode == 1
