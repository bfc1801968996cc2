"""The processes of one server: killed, stopped, signalled, and as process 1 of a container."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import psutil
import pytest

from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until
from shoal.wire.proto import messages
from tests.chaos import models
from tests.chaos.checker import Checker
from tests.chaos.faults import kill, paused, replace, server_processes
from tests.chaos.schedule import PAUSE_SECS, long_run, rounds
from tests.chaos.server import ADDRESS
from tests.support.repositories import add_model
from tests.support.stops import GrpcMessages, StopCount, clients, grpc_client, http_client, to_port

pytestmark = long_run  # tests/server/test_processes_faults.py has the decisive ones
TWO = "--frontend-processes=2"
RESTARTED = "the engine process is being restarted"
BROKEN = (
    "RemoteDisconnected",
    "ConnectionReset",
    "ConnectionRefused",
    "BrokenPipe",
    "_InactiveRpc",
)
BROKEN += ("_MultiThreadedRendezvous",)
ENDLESS = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            number = 0
            while not request.is_cancelled():
                output = pb_utils.Tensor("OUT", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([output]))
                number += 1
                time.sleep(0.01)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ENDLESS_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { count: 2 kind: KIND_CPU }
"""


def members_with_ports(server):
    """Its processes, once there are all of them."""
    wait_until(lambda: len(server_processes(server, "frontend")) == 2, "there are two front ends")
    wait_until(lambda: len(server_processes(server, "engine")) == 1, "there is an engine")


def test_killed_front_ends_leave_nothing_behind(serve, settled, chance):
    server = serve("onnx", options=[TWO])
    before = settled(server, "onnx")
    with Checker(server, "onnx") as checker:
        checker.tolerate("onnx", *BROKEN)
        for _ in rounds(10):
            replace(server, "frontend", chance.choice(server_processes(server, "frontend")))
            checker.wait_for_answers(3)
    assert not checker.faults()
    members_with_ports(server)
    server.check_holds_no_more_than(before)
    server.checked_stop()


def test_killed_engines_cost_no_connection(serve, settled):
    server = serve("onnx", "thread", "python", options=[TWO])
    assert server.call("POST", "/v2/repository/models/thread/unload").status == 200
    before = settled(server, "onnx")
    with Checker(server, "onnx") as checker:
        checker.tolerate("onnx", RESTARTED)
        for _ in rounds(3):
            (engine,) = server_processes(server, "engine")
            replace(server, "engine", engine)
            assert server.get("/v2/health/live").status == 200
            checker.wait_for_answers(3)
            assert server.get("/v2/models/thread/ready").status == 404  # a client had unloaded it
            assert server.get("/v2/models/python/ready").status == 200
    assert not checker.faults()
    assert all(RESTARTED in text for text in checker.counts["onnx"].lost)  # sent by the server
    server.check_holds_no_more_than(before)
    server.checked_stop()


def test_streams_end_with_an_error_when_the_engine_is_killed(serve, repository):
    add_model(repository, "endless", ENDLESS_CONFIG, {"1/model.py": ENDLESS.encode()})
    server = serve(options=[TWO])
    line = http.client.HTTPConnection(ADDRESS, server.http_port, timeout=WAIT_SECS)
    line.request("POST", "/v2/models/endless/generate_stream", json.dumps({"IN": 1}))
    events = line.getresponse()
    assert events.readline().startswith(b"data:")
    request = messages.ModelInferRequest(model_name="endless", id="one")
    request.inputs.add(name="IN", datatype="INT32", shape=[1])
    request.raw_input_contents.append(b"\0\0\0\0")
    with grpc.insecure_channel(f"{ADDRESS}:{server.grpc_port}") as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = call(iter([request.SerializeToString()]), timeout=WAIT_SECS)
        next(answers)
        (engine,) = server_processes(server, "engine")
        kill(engine)
        *_, last = [messages.ModelStreamInferResponse.FromString(each) for each in answers]
    assert RESTARTED in last.error_message
    assert RESTARTED in events.read().decode().splitlines()[-2]
    line.close()
    wait_until(lambda: server.get("/v2/models/endless/ready").status == 200, "it serves again")
    server.checked_stop()


def test_an_engine_that_keeps_crashing_is_started_with_pauses(serve):
    server = serve("onnx", options=[TWO])
    first = server_processes(server, "frontend")
    for _ in range(6):
        wait_until(lambda: server_processes(server, "engine"), "there is an engine")
        (engine,) = server_processes(server, "engine")
        kill(engine)
        wait_until(lambda engine=engine: not psutil.pid_exists(engine), "it has ended")
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/health/ready").status == 503
        answer = server.call("POST", "/v2/models/onnx/infer", {"inputs": []})
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "it is restarted in 0.8 s" in server.log
    wait_until(lambda: server.get("/v2/health/ready").status == 200, "the server is ready")
    assert server_processes(server, "frontend") == first
    server.checked_stop()


def test_a_front_end_that_keeps_crashing_is_started_with_pauses(serve, tmp_path, certificates):
    for name in ("own.pem", "own.key"):
        shutil.copy(certificates / name, tmp_path / name)
    tls = [
        f"--grpc-server-cert={tmp_path / 'own.pem'}",
        f"--grpc-server-key={tmp_path / 'own.key'}",
    ]
    server = serve("onnx", options=[TWO, "--grpc-use-ssl=true", *tls])
    wait_until(lambda: "Started HTTPService" in server.log, "both front ends have started")
    (tmp_path / "own.key").write_text("junk")
    first, second = server_processes(server, "frontend")
    kill(first)
    wait_until(lambda: "it is restarted in 0.4 s" in server.log, "it was started again and again")
    assert "has no private key in PEM format; it is restarted" in server.log
    assert server.get("/v2/health/ready").status == 200
    shutil.copy(certificates / "own.key", tmp_path / "own.key")
    wait_until(lambda: len(server_processes(server, "frontend")) == 2, "it can start again")
    assert second in server_processes(server, "frontend")
    server.checked_stop()


@pytest.mark.parametrize("kind", ["engine", "frontend"])
def test_stopped_processes_lose_nothing(serve, chance, kind):
    server = serve("onnx", options=[TWO])
    with Checker(server, "onnx") as checker:
        for _ in rounds(2):
            with paused(chance.choice(server_processes(server, kind))):
                time.sleep(PAUSE_SECS)
                if kind == "engine":
                    assert server.get("/v2/health/live").status == 200
                    assert server.get("/v2/health/ready").status == 503
                else:
                    assert server.get("/v2/health/ready").status == 200
                    assert server.load("onnx").status == 200
            checker.wait_for_answers(3)
    checker.check()
    server.checked_stop()


def test_calls_of_a_stopped_engine_are_answered(serve):
    """After about ten seconds; a load that takes as long in an engine that runs is waited for."""
    server = serve("onnx", options=[TWO])
    calls = [partial(server.load, "onnx"), partial(server.call, "POST", "/v2/repository/index")]
    calls += [partial(server.get, f"/v2/models/onnx/{what}") for what in ("ready", "stats")]
    (engine,) = server_processes(server, "engine")
    with paused(engine), ThreadPoolExecutor(len(calls)) as threads:
        answers = [call.result(WAIT_SECS) for call in [threads.submit(each) for each in calls]]
    silent = {"error": "the engine process does not answer; try again later"}
    assert [(answer.status, answer.json) for answer in answers] == [(503, silent)] * len(calls)
    wait_until(lambda: server.load("onnx").status == 200, "the engine goes on")
    server.checked_stop()


def test_streams_of_a_stopped_front_end_are_cancelled(serve, repository):
    """A model that goes on would fill the engine's memory."""
    endless = ENDLESS.replace("np.array([number]", "np.full(4000, number").replace("0.01", "0")
    config = ENDLESS_CONFIG.replace("dims: [ 1 ] }\ninstance", "dims: [ 4000 ] }\ninstance")
    add_model(repository, "endless", config, {"1/model.py": endless.encode()})
    server = serve("onnx", options=[TWO])
    (engine,) = server_processes(server, "engine")
    before = psutil.Process(engine).memory_info().rss
    line = http.client.HTTPConnection(ADDRESS, server.http_port, timeout=WAIT_SECS)
    line.request("POST", "/v2/models/endless/generate_stream", json.dumps({"IN": 1}))
    events = line.getresponse()
    (serving,) = [
        pid
        for pid in server_processes(server, "frontend")
        if any(each.raddr for each in psutil.Process(pid).net_connections("tcp"))
    ]
    with paused(serving):
        wait_until(lambda: "a front end reads no responses" in server.log, "it is cut off")
        assert psutil.Process(engine).memory_info().rss - before < 200 << 20
        with Checker(server, "onnx") as checker:
            checker.wait_for_answers(3)
    assert RESTARTED in events.read().decode().splitlines()[-2]
    line.close()
    wait_until(
        lambda: all(server.get("/v2/models/onnx/ready").status == 200 for _ in range(40)),
        "the front end has a new link",
    )
    checker.check()
    server.checked_stop()


@pytest.mark.parametrize("victims", ["supervisor", "everything"])
def test_nothing_outlives_the_supervisor(serve, victims):
    server = serve("onnx", "python", options=[TWO])
    with Checker(server, "onnx") as checker:
        checker.tolerate("onnx", "")
        pids = [server.process.pid]
        if victims == "everything":
            pids += [child.pid for child in server.children()]
        for pid in pids:
            kill(pid)
        server.process.wait(WAIT_SECS)
        wait_until(lambda: not server.members(), "all processes have ended")


# ---- signals


def test_ctrl_c_stops_in_order(serve):
    """A terminal signals the whole group."""
    server = serve("onnx", "python", options=[TWO], start_new_session=True)
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.process.wait(WAIT_SECS) == 0, server.log
    assert not server.members()
    assert "Traceback" not in server.log
    assert "has ended" not in server.log


@pytest.mark.parametrize("started", [0, 1, 2, 3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start(tmp_path, repository, started, number):
    """To the whole group, twice, when so many processes have been started."""
    models.add(repository, "onnx")
    log = (tmp_path / "log").open("w")
    command = [sys.executable, "-m", "shoal", "serve", str(repository), TWO]
    command += [f"--{kind}-port=0" for kind in ("http", "grpc", "metrics")]
    with log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    usage = psutil.Process(server.pid)
    if started:
        wait_until(lambda: len(usage.children()) >= started, "processes are starting")
    else:
        wait_until(lambda: "listening" in (tmp_path / "log").read_text(), "it has begun")
    children = usage.children()
    for _ in range(2):
        os.killpg(server.pid, number)
    text = (tmp_path / "log").read_text
    assert server.wait(WAIT_SECS) == 0, text()
    assert "Traceback" not in text()
    assert not psutil.wait_procs(children, WAIT_SECS)[1]


REQUEST = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'


def http_clients(server):
    request = b"POST /v2/models/onnx/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
    what = request % (len(REQUEST), REQUEST)
    port = to_port(server.http_port)
    return [partial(http_client, port, what, fresh=fresh) for fresh in (True, False)] * 8


def grpc_clients(server):
    request = messages.ModelInferRequest(model_name="onnx")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(b"\0" * 16)
    infer = "/inference.GRPCInferenceService/ModelInfer"
    calls = GrpcMessages(infer, request.SerializeToString())
    port = to_port(server.grpc_port)
    return [partial(grpc_client, port, calls, fresh=fresh) for fresh in (True, False)] * 8


@pytest.mark.parametrize("drain_secs", [0, 0.2])
@pytest.mark.parametrize("kind", [http_clients, grpc_clients])
def test_what_was_received_is_answered(serve, chance, kind, drain_secs):
    for _ in rounds(3):
        server = serve("onnx", options=[TWO, f"--drain-secs={drain_secs}"])
        count = StopCount()
        with clients(count, kind(server)):
            count.wait_for_answers(chance.randrange(50, 400))
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(WAIT_SECS) == 0, server.log
        assert count.lost == []
        assert count.failed == []
        assert count.cancelled == 0


# ---- process 1

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def test_process_1_of_a_container(serve):
    if (
        shutil.which("unshare") is None
        or subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("namespaces of processes cannot be made here")
    server = serve("onnx", "python", options=[TWO], prefix=NAMESPACE)
    (supervisor,) = server.usage.children()
    (engine,) = server_processes(server, "engine")
    orphans = psutil.Process(engine).children(recursive=True)
    assert orphans
    replace(server, "engine", engine)
    assert not psutil.wait_procs(orphans, WAIT_SECS)[1]
    wait_until(lambda: not zombies(supervisor), "no zombies are left")
    wait_until(lambda: server.get("/v2/models/python/ready").status == 200, "it serves again")
    supervisor.send_signal(signal.SIGHUP)
    assert server.get("/v2/health/ready").status == 200
    supervisor.send_signal(signal.SIGTERM)
    assert server.process.wait(WAIT_SECS) == 0, server.log
    assert not server.members()


def zombies(process):
    found = []
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
    return found
