"""What the server counts: the statistics endpoint with its invariants, and the metrics port."""

import re
import socket
import threading
import time
import zlib

import grpc
import numpy as np
import pytest

from shoal.engine.local import LocalEngine
from shoal.testing.server import HttpCall, running_server
from shoal.wire import json_text
from shoal.wire.proto import messages
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import EXECUTION_MODES, add_fake, add_onnx, execution

DURATIONS = (
    *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"),
    *("cache_hit", "cache_miss"),
)
COMPUTE = ("compute_input", "compute_infer", "compute_output")
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


@pytest.fixture(scope="module", params=EXECUTION_MODES)
def running(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    config = "max_batch_size: 8 dynamic_batching { } version_policy { all { } }"
    add_onnx(
        folder,
        "echo",
        onnx_models.identity("INT32", dims=(1,)),
        config + execution(request.param),
        versions=(1, 2),
    )
    # Enough work for the time of one execution to be seen.
    add_onnx(
        folder,
        "dense",
        onnx_models.matmul_chain(64, 2),
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 8 ] "
        "max_queue_delay_microseconds: 60000000 }" + execution(request.param),
    )
    add_onnx(folder, "picker", onnx_models.picker(), execution(request.param))
    with running_server(folder) as server:
        yield server


def echo(running, rows, model="echo"):
    answer = Infer().add("INPUT0", np.ones((rows, 1), np.int32)).send(running, model)
    assert answer.status == 200


def check_invariants(entry):
    """What every client of the statistics relies on."""
    stats = entry["inference_stats"]
    success = stats["success"]["count"]
    assert list(stats) == list(DURATIONS)
    assert all(set(duration) == {"count", "ns"} for duration in stats.values())
    assert all(stats[name]["count"] == success for name in ("queue", *COMPUTE))
    assert stats["cache_hit"]["count"] == stats["cache_miss"]["count"] == 0
    spent = sum(stats[name]["ns"] for name in ("queue", *COMPUTE))
    assert spent <= stats["success"]["ns"]
    assert entry["execution_count"] <= success <= entry["inference_count"]
    batches = entry["batch_stats"]
    sizes = [batch["batch_size"] for batch in batches]
    assert sizes == sorted(set(sizes))
    for batch in batches:
        assert len({batch[name]["count"] for name in COMPUTE}) == 1
    assert sum(batch["compute_infer"]["count"] for batch in batches) == entry["execution_count"]
    rows = sum(batch["batch_size"] * batch["compute_infer"]["count"] for batch in batches)
    assert rows == entry["inference_count"]


# ---- statistics


def test_every_field_is_there_from_the_start(running):
    entry = running.statistics("dense")
    assert (entry["name"], entry["version"]) == ("dense", "1")
    assert set(entry) >= {
        *("name", "version", "last_inference", "inference_count", "execution_count"),
        *("inference_stats", "batch_stats", "response_stats", "memory_usage"),
    }
    if not entry["inference_count"]:
        assert entry["last_inference"] == 0
        assert entry["batch_stats"] == []
    check_invariants(entry)


def test_rows_requests_and_executions_are_counted(running):
    before = running.statistics("echo", 2)
    for rows in (1, 1, 3, 8):
        echo(running, rows)
    after = running.statistics("echo", 2)
    assert after["inference_count"] - before["inference_count"] == 13
    assert after["execution_count"] - before["execution_count"] == 4
    counts = [entry["inference_stats"]["success"]["count"] for entry in (before, after)]
    assert counts[1] - counts[0] == 4
    assert {batch["batch_size"] for batch in after["batch_stats"]} >= {1, 3, 8}
    assert abs(after["last_inference"] / 1000 - time.time()) < WAIT_SECS
    check_invariants(after)


def test_a_batch_counts_in_full_for_each_of_its_requests(running):
    rows = np.ones((1, 64), np.float32)
    calls = [
        Infer(binary_data_output=True).add("INPUT0", rows, binary=True).call(running, "dense")
        for _ in range(8)
    ]
    for call in calls:
        np.testing.assert_allclose(outputs(call.response())["OUTPUT0"], rows, rtol=1e-5)
    entry = running.statistics("dense")
    check_invariants(entry)
    (batch,) = entry["batch_stats"]
    assert batch["batch_size"] == 8
    assert batch["compute_infer"]["count"] == 1
    assert batch["compute_infer"]["ns"] > 0
    for name in COMPUTE:
        assert entry["inference_stats"][name]["ns"] == 8 * batch[name]["ns"]


def test_failures_are_counted_apart(running):
    for number in (1, 99, 2, 99):
        infer = Infer().add("INPUT0", np.array([[number]], np.int64))
        assert infer.send(running, "picker").status == (500 if number == 99 else 200)
    entry = running.statistics("picker")
    check_invariants(entry)
    assert entry["inference_stats"]["fail"]["count"] == 2
    assert entry["inference_stats"]["fail"]["ns"] > 0
    assert entry["inference_count"] == 2
    assert (
        running.metric(
            "nv_inference_request_failure", model="picker", version="1", reason="BACKEND"
        )
        == 2
    )


def test_each_version_counts_for_itself(running):
    before = [running.statistics("echo", version)["inference_count"] for version in (1, 2)]
    echo(running, 2, "echo/versions/1")
    after = [running.statistics("echo", version)["inference_count"] for version in (1, 2)]
    assert [new - old for new, old in zip(after, before, strict=True)] == [2, 0]


def test_one_model_or_all_of_them(running):
    every = running.get("/v2/models/stats").json["model_stats"]
    names = [(entry["name"], entry["version"]) for entry in every]
    assert names == [("dense", "1"), ("echo", "1"), ("echo", "2"), ("picker", "1")]
    one = running.get("/v2/models/echo/stats").json["model_stats"]
    assert [entry["version"] for entry in one] == ["1", "2"]


# ---- metrics

SAMPLE = re.compile(
    r'^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?P<labels>\{([a-zA-Z_]\w*="[^"]*",?)*\})? '
    r"(?P<value>[-+0-9.eE]+|NaN|[+-]Inf)$"
)


def test_the_text_is_what_prometheus_reads(running):
    echo(running, 1)
    text = running.metrics()
    assert text.endswith("\n")
    kinds, helped, seen = {}, set(), set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split()[2])
        elif line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in kinds, f"{name} comes twice"
            kinds[name] = kind
        else:
            match = SAMPLE.match(line)
            assert match, line
            series = match["name"], match["labels"]
            assert series not in seen, line
            seen.add(series)
            family = re.sub(r"_(bucket|sum|count)$", "", match["name"])
            family = family if kinds.get(family) in ("histogram", "summary") else match["name"]
            assert family in kinds, f"{family} has no type"
            assert family in helped, f"{family} has no help"
    assert kinds["nv_inference_request_success"] == "counter"
    assert kinds["nv_inference_pending_request_count"] == "gauge"
    assert kinds["shoal_request_duration_seconds"] == "histogram"
    assert kinds["shoal_batch_size"] == "histogram"


def test_metrics_and_statistics_agree(running):
    echo(running, 3)
    entry = running.statistics("echo", 2)
    stats = entry["inference_stats"]
    of = {"model": "echo", "version": "2"}
    assert running.metric("nv_inference_count", **of) == entry["inference_count"]
    assert running.metric("nv_inference_exec_count", **of) == entry["execution_count"]
    assert running.metric("nv_inference_request_success", **of) == stats["success"]["count"]
    for name, metric in {
        "success": "nv_inference_request_duration_us",
        "queue": "nv_inference_queue_duration_us",
        "compute_input": "nv_inference_compute_input_duration_us",
        "compute_infer": "nv_inference_compute_infer_duration_us",
        "compute_output": "nv_inference_compute_output_duration_us",
    }.items():
        assert running.metric(metric, **of) == stats[name]["ns"] // 1000
    count = stats["success"]["count"]
    for name in ("request", "queue", "compute"):
        assert running.metric(f"shoal_{name}_duration_seconds_count", **of) == count
        bucket = f"shoal_{name}_duration_seconds_bucket"
        assert running.metric(bucket, le="+Inf", **of) == count
    assert running.metric("shoal_batch_size_sum", **of) == entry["inference_count"]


@pytest.mark.one_process
def test_statistics_of_all_models_are_made_off_the_event_loop(running, monkeypatch):
    made_by = []

    def record(engine, name="", version=-1):
        made_by.append((name, threading.current_thread().name))
        return statistics(engine, name, version)

    statistics = LocalEngine.statistics
    monkeypatch.setattr(LocalEngine, "statistics", record)
    answer = running.get("/v2/models/stats")
    assert answer.headers["content-type"] == "application/json"
    assert answer.body == json_text.dumps({"model_stats": statistics(running.server.engine)})
    with grpc.insecure_channel(running.grpc_address) as channel:
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelStatistics")
        every = messages.ModelStatisticsResponse.FromString(method(b"", timeout=WAIT_SECS))
        one = messages.ModelStatisticsRequest(name="dense").SerializeToString()
        dense = messages.ModelStatisticsResponse.FromString(method(one, timeout=WAIT_SECS))
    assert [each.name for each in every.model_stats] == ["dense", "echo", "echo", "picker"]
    assert every.model_stats[0] == dense.model_stats[0]
    on_loop = {name: thread == "shoal-testing-server" for name, thread in made_by}
    assert on_loop == {"": False, "dense": True}


def test_histograms_only_ever_rise(running):
    pattern = re.compile(r'shoal_batch_size_bucket\{.*model="echo".*version="2".*\} (\d+)')
    counts = [int(match[1]) for match in pattern.finditer(running.metrics())]
    assert len(counts) > 5
    assert counts == sorted(counts)


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_to_fail_is_there_from_the_start(running, reason):
    found = running.metric(
        "nv_inference_request_failure", model="dense", version="1", reason=reason
    )
    assert found == 0


@pytest.mark.parametrize(
    "name",
    [
        "nv_cpu_utilization",
        "nv_cpu_memory_total_bytes",
        "nv_cpu_memory_used_bytes",
        "nv_pinned_memory_pool_total_bytes",
        "nv_pinned_memory_pool_used_bytes",
        "shoal_process_resident_memory_bytes",
        "shoal_process_cpu_seconds_total",
        "process_start_time_seconds",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_threads",
        "shoal_readiness_warnings",
        "shoal_connections_refused_total",
        "shoal_connections_limit",
        "shoal_buffered_bytes",
        "shoal_buffered_bytes_limit",
    ],
)
def test_the_machine(running, name):
    value = running.metric(name)
    assert value is not None
    assert value >= 0
    if "total_bytes" in name and "cpu" in name:
        assert value > running.metric("nv_cpu_memory_used_bytes") > 0


def test_the_time_a_load_took(running):
    found = running.metric("nv_model_load_duration_secs", model="echo", version="1")
    assert 0 < found < WAIT_SECS


def test_the_metrics_port(running):
    port = running.server.metrics_port
    answer = HttpCall(port, "GET", "/metrics").response()
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    head = HttpCall(port, "HEAD", "/metrics").response()
    assert (head.status, head.body) == (200, b"")
    other = HttpCall(port, "GET", "/anything/else").response()
    assert (other.status, other.body) == (200, b"")
    assert HttpCall(port, "POST", "/metrics", b"x").response().status == 405


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (None, None),
        ("gzip", "gzip"),
        ("br, gzip;q=0.5, deflate;q=0.1", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0", None),
        ("identity", None),
        ("*", None),
    ],
)
def test_metrics_are_compressed_if_the_client_accepts_it(running, accepted, coding):
    headers = {} if accepted is None else {"Accept-Encoding": accepted}
    for port in (running.server.metrics_port, running.server.http_port):
        answer = HttpCall(port, "GET", "/metrics", headers=headers).response()
        assert answer.status == 200
        assert answer.headers.get("content-encoding") == coding
        assert answer.headers.get("vary") == (None if coding is None else "Accept-Encoding")
        body = answer.body if coding is None else zlib.decompress(answer.body, 47)
        assert b"\nnv_inference_count{" in body
        assert body.endswith(b"\n")
        assert int(answer.headers["content-length"]) == len(answer.body)


def test_connections_and_refusals(running):
    running.get("/v2/models/none")
    before = running.metric("shoal_error_responses_total", protocol="http", status="404")
    running.get("/v2/models/none")
    after = running.metric("shoal_error_responses_total", protocol="http", status="404")
    assert after == before + 1
    assert running.metric("shoal_ready") == 1
    with socket.create_connection(("127.0.0.1", running.server.http_port), WAIT_SECS) as client:
        client.sendall(b"no HTTP at all\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 400")
        assert running.metric("shoal_connections", protocol="http") >= 1
        assert running.metric("shoal_error_responses_total", protocol="http", status="400") >= 1


def test_the_same_metrics_on_the_http_port(running):
    answer = running.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    names = {line.split("{")[0] for line in answer.body.decode().splitlines() if "{" in line}
    assert {"nv_inference_count", "shoal_batch_size_bucket"} <= names


def test_what_waits_is_a_gauge(tmp_path):
    fake = FakeBackend()
    add_fake(tmp_path, "held", "instance_group { count: 1 kind: KIND_CPU }")
    with running_server(tmp_path, backends=fake.registry()) as running:
        fake.gate.clear()
        infer = Infer().add("INPUT0", np.array([[1]], np.int32))
        calls = [infer.call(running, "held")]
        assert fake.started.acquire(timeout=WAIT_SECS)
        calls += [infer.call(running, "held") for _ in range(3)]
        running.wait_for_pending("held", 3)
        of = {"model": "held", "version": "1"}
        assert running.metric("nv_inference_pending_request_count", **of) == 3
        fake.gate.set()
        assert [call.response().status for call in calls] == [200] * 4
        assert running.metric("nv_inference_pending_request_count", **of) == 0


def test_metrics_follow_the_models(tmp_path):
    add_onnx(tmp_path, "echo", onnx_models.identity())
    options = {"model_control_mode": "explicit", "load_model": ("echo",)}
    with running_server(tmp_path, **options) as running:
        of = {"model": "echo", "version": "1"}
        assert running.metric("nv_inference_count", **of) == 0
        assert running.unload("echo").status == 200
        assert running.metric("nv_inference_count", **of) is None
        assert running.load("echo").status == 200
        assert running.metric("nv_inference_count", **of) == 0


def test_metrics_can_be_chosen(tmp_path):
    add_onnx(tmp_path, "echo", onnx_models.identity())
    with running_server(
        tmp_path, allow_cpu_metrics=False, metrics_config=(("", "counter_latencies", "false"),)
    ) as running:
        text = running.metrics()
        assert "nv_cpu_" not in text
        assert "nv_inference_request_duration_us" not in text
        assert "nv_inference_count" in text


def test_metrics_can_be_switched_off(tmp_path):
    with running_server(tmp_path, allow_metrics=False) as running:
        assert running.server.metrics_port == 0
        answer = running.get("/metrics")
        assert answer.status == 404
        assert "switched off" in answer.error
