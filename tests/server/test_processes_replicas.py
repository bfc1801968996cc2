"""Two front ends that run a model themselves: the answers and statistics of one server."""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import signal
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until
from tests.chaos.server import ADDRESS, ChaosServer
from tests.support import onnx_models
from tests.support.repositories import add_onnx, parameter
from tests.support.traces import by_id

CONFIG = "max_batch_size: 8\ndynamic_batching {}\n" + parameter("run_in_frontends", "true")
INSTANCES = 2  # of each process
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [5]}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder):
    models = folder / "models"
    add_onnx(models, "plus", onnx_models.plus(1), CONFIG)
    add_onnx(models, "changed", onnx_models.plus(1), CONFIG)
    started = ChaosServer(
        folder,
        str(models),
        "--frontend-processes=2",
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--trace-config=triton,file={folder / 'trace.json'}",
    )
    yield started
    started.checked_stop()


def infer(server, model="plus"):
    """One request on its own connection, so that both front ends get some."""
    return server.call("POST", f"/v2/models/{model}/infer", BODY)


def value(response):
    assert response.status == 200, response.body
    return response.json["outputs"][0]["data"][0]


def metric(server, name, model="plus"):
    (found,) = re.findall(rf'^{name}{{model="{model}".*}} (\S+)$', server.metrics(), re.MULTILINE)
    return float(found)


def wait_for_replicas(server, model="plus", count=2):
    """Send requests until so many front ends run the model."""

    def replicated():
        infer(server, model)
        return metric(server, "shoal_model_instances", model) == INSTANCES * (1 + count)

    wait_until(replicated, f"{count} front ends run the model")


@pytest.fixture
def replicated(server):
    wait_for_replicas(server)
    return server


def test_statistics_are_exact_also_after_a_front_end_was_killed(replicated):
    server = replicated
    before = server.statistics()["plus"]
    for number in range(1, 13):
        assert value(infer(server)) == 6
        now = server.statistics()["plus"]
        assert now["inference_count"] == before["inference_count"] + number
    with grpcclient.InferenceServerClient(f"{ADDRESS}:{server.grpc_port}") as client:
        rows = grpcclient.InferInput("INPUT0", [2, 1], "FP32")
        rows.set_data_from_numpy(np.array([[1], [2]], np.float32))
        for _ in range(4):
            assert client.infer("plus", [rows]).as_numpy("OUTPUT0").tolist() == [[2], [3]]
    server.statistics()  # all front ends report; what one has counted since then ends with it
    server.replace_one("frontend")
    now = server.statistics()["plus"]
    assert now["inference_count"] == before["inference_count"] + 12 + 8
    stages = now["inference_stats"]
    counts = {stages[name]["count"] for name in ("success", "queue", "compute_infer")}
    assert counts == {before["inference_stats"]["success"]["count"] + 12 + 4}
    assert (
        sum(row["compute_infer"]["count"] for row in now["batch_stats"]) == (now["execution_count"])
    )
    assert now["execution"]["reason"].startswith("in front ends: ")
    assert metric(server, "nv_inference_request_success") == counts.pop()
    wait_until(lambda: metric(server, "shoal_time_to_drain_seconds") == 0)
    wait_for_replicas(server)


def test_a_stopped_engine_does_not_delay_them(replicated):
    server = replicated
    (engine,) = server.processes("engine")
    engine.send_signal(signal.SIGSTOP)
    try:
        assert [value(infer(server)) for _ in range(8)] == [6] * 8
    finally:
        engine.send_signal(signal.SIGCONT)


def test_a_reload_under_load_gives_no_wrong_answer(replicated, folder):
    """Once a load is answered, no front end answers with the version before it."""
    server, models = replicated, folder / "models"
    version, failures, served = [1], [], [0]
    over = threading.Event()

    def send():
        line = http.client.HTTPConnection(ADDRESS, server.http_port, timeout=WAIT_SECS)
        with contextlib.closing(line):
            while not over.is_set():
                least = version[0]
                line.request("POST", "/v2/models/plus/infer", json_body())
                response = line.getresponse()
                body = response.read()
                number = re.search(rb'"data":\[([\d.]+)\]', body)
                if response.status != 200 or not number:
                    failures.append(body)
                elif not 5 + least <= float(number[1]) <= 5 + version[0] + 1:
                    failures.append((least, body))
                served[0] += 1

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in (2, 3, 4):
            add_onnx(models, "plus", onnx_models.plus(number), CONFIG, versions=[number])
            assert server.load("plus").status == 200
            version[0] = number
            seen = served[0]
            wait_until(lambda seen=seen: served[0] > seen + 40, "more are served")
    finally:
        over.set()
        for thread in threads:
            thread.join(WAIT_SECS)
    assert not failures
    assert [value(infer(server)) for _ in range(4)] == [9] * 4
    for number in (2, 3, 4):
        shutil.rmtree(models / "plus" / str(number))
    assert server.load("plus").status == 200
    assert [value(infer(server)) for _ in range(4)] == [6] * 4


def json_body():
    return '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[5]}]}'


def test_an_unload_holds_in_every_front_end_at_once(replicated):
    server = replicated
    assert server.call("POST", "/v2/repository/models/plus/unload").status == 200
    for _ in range(6):
        refused = infer(server)
        assert refused.status == 404
        assert "'plus' has no available versions" in refused.json["error"]
    assert server.load("plus").status == 200
    assert value(infer(server)) == 6


def test_the_engine_serves_what_front_ends_cannot_load(server, folder):
    """Here because the file is no longer the one that the engine has loaded."""
    file = folder / "models" / "changed" / "1" / "model.onnx"
    file.write_bytes(onnx_models.plus(100).SerializeToString())
    text = "model 'changed' version 1 runs in the engine process only"

    def both_have_tried():
        assert value(infer(server, "changed")) == 6
        return server.log.count(text) == 2

    wait_until(both_have_tried, "both front ends have tried")
    assert value(infer(server, "changed")) == 6
    assert server.load("changed").status == 200
    wait_for_replicas(server, "changed")
    assert [value(infer(server, "changed")) for _ in range(4)] == [105] * 4
    assert server.log.count(text) == 2


def test_traces_are_whole(replicated, folder):
    server = replicated
    settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "3"}
    assert server.call("POST", "/v2/trace/setting", settings).status == 200
    before = server.statistics()["plus"]["inference_count"]
    for _ in range(3):
        assert value(infer(server)) == 6
    assert server.call("POST", "/v2/trace/setting", {"trace_level": ["OFF"]}).status == 200
    assert server.statistics()["plus"]["inference_count"] == before + 3
    file = folder / "trace.json.0"
    wait_until(file.exists, "the traces are written")
    for trace in by_id(file):
        assert {"HTTP_RECV_START", "QUEUE_START", "COMPUTE_END", "HTTP_SEND_END"} <= {
            *trace["events"]
        }
