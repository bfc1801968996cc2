"""The access log and the audit log of a running server, on every path that a request may take."""

from __future__ import annotations

import contextlib
import json
import socket

import grpc
import numpy as np
import pytest

from shoal.testing.server import ADDRESS, running_server, wait_until
from shoal.wire.proto import messages
from tests.support import onnx_models
from tests.support.client import Infer
from tests.support.fakes import WAIT_SECS
from tests.support.keys import bearer, key_of, write_keys
from tests.support.repositories import add_onnx

SERVICE = "/inference.GRPCInferenceService/"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def folder(tmp_path):
    models = tmp_path / "models"
    add_onnx(models, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    return models


@pytest.fixture
def logged(folder, tmp_path):
    """A server with both logs, and a function that reads one of them when the server has ended."""
    stack = contextlib.ExitStack()

    def start(**options):
        return stack.enter_context(
            running_server(
                folder,
                access_log=str(tmp_path / "access"),
                access_log_format="json",
                audit_log=str(tmp_path / "audit"),
                model_control_mode="explicit",
                load_model=("sum",),
                **options,
            )
        )

    def read(name):
        stack.close()
        return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]

    with stack:
        yield start, read


def add_sub():
    row = np.arange(16, dtype=np.int32)[None]
    infer = Infer(binary_data_output=True)
    return infer.add("INPUT0", row, binary=True).add("INPUT1", row, binary=True)


def grpc_request():
    request = messages.ModelInferRequest(model_name="sum")
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(bytes(64))
    return request.SerializeToString()


@pytest.mark.one_process  # the order of lines
def test_http_requests_on_both_paths(logged):
    start, read = logged
    running = start()
    body, headers = add_sub().body()
    headers = {**headers, "User-Agent": "me", "traceparent": PARENT}
    for _ in range(4):  # the first one takes the slow path
        assert running.post("/v2/models/sum/infer", body, headers).status == 200
    running.post("/v2/models/sum/infer", b"{", {})
    lines = read("access")
    assert [line["status"] for line in lines] == [200] * 4 + [400]
    for line in lines[:4]:
        assert line["protocol"] == "http"
        assert line["client"].startswith("127.0.0.1:")
        assert (line["method"], line["path"]) == ("POST", "/v2/models/sum/infer")
        assert (line["model"], line["trace_id"], line["user_agent"]) == ("sum", TRACE, "me")
        assert line["received_bytes"] > len(body)
        assert line["sent_bytes"] > 128
        assert line["seconds"] > 0
    assert "failed to parse" in lines[4]["error"]
    assert lines[0].keys() == lines[3].keys(), "the fast path says the same"


def test_grpc_calls_on_both_paths(logged):
    start, read = logged
    running = start()
    with grpc.insecure_channel(running.grpc_address) as channel:
        infer = channel.unary_unary(SERVICE + "ModelInfer")
        metadata = (("traceparent", PARENT),)
        for _ in range(4):
            infer(grpc_request(), metadata=metadata, timeout=WAIT_SECS)
        stream = channel.stream_stream(SERVICE + "ModelStreamInfer")
        assert len(list(stream(iter([grpc_request()] * 2), timeout=WAIT_SECS))) == 2
        with pytest.raises(grpc.RpcError):
            infer(b"\x0a\x04none", timeout=WAIT_SECS)
    lines = read("access")
    assert [line["grpc_status"] for line in lines] == ["OK"] * 5 + ["NOT_FOUND"]
    assert [line["status"] for line in lines] == [200] * 5 + [404]
    for line in lines[:4]:
        assert line["path"] == SERVICE + "ModelInfer"
        assert (line["model"], line["trace_id"]) == ("sum", TRACE)
        assert line["received_bytes"] == len(grpc_request())
        assert line["sent_bytes"] > 128
    assert lines[4]["model"] == "sum"
    assert lines[4]["received_bytes"] == 2 * len(grpc_request())
    assert lines[5]["model"] == "none"


def test_requests_that_cannot_be_read(logged):
    start, read = logged
    running = start()
    port = running.server.http_port
    with socket.create_connection((ADDRESS, port), WAIT_SECS) as client:
        client.sendall(b"nonsense\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 400")
    (line,) = read("access")
    assert (line["status"], line.get("path")) == (400, None)
    assert "method" in line["error"]


def test_requests_that_are_refused_before_their_body(logged, tmp_path):
    start, read = logged
    keys = write_keys(tmp_path / "keys", alice={})
    running = start(api_keys=keys, http_max_body_size=4 << 20)
    load = "/v2/repository/models/sum/load"
    for key, length, status in (("", 2 << 20, 401), ("alice", 5 << 20, 413)):
        with socket.create_connection((ADDRESS, running.server.http_port), WAIT_SECS) as client:
            fields = {"Host": "x", "Content-Length": str(length)}
            fields |= bearer(key) if key else {}
            lines = [f"POST {load} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
            client.sendall("\r\n".join([*lines, "", ""]).encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 %d" % status)
    lines = read("access")
    assert {(line["status"], line["method"], line["path"], line["model"]) for line in lines} == {
        (401, "POST", load, "sum"),
        (413, "POST", load, "sum"),
    }
    assert (read("audit")[0]["event"], read("audit")[0]["path"]) == ("refused", load)


def test_the_audit_log_has_control_and_refusals_only(logged):
    start, read = logged
    running = start(
        http_restricted_api=(("logging", "key", "secret"),),
        grpc_restricted_protocol=(("logging", "key", "secret"),),
    )
    running.post("/v2/repository/index", b"", {})
    running.post("/v2/repository/models/sum/load", b"", {})
    running.post("/v2/repository/models/none/unload", b"", {})
    running.post("/v2/models/sum/infer", *add_sub().body())
    assert running.get("/v2/logging").status == 403
    assert running.post("/v2/models/sum/infer", b"", {"Origin": "https://x.example"}).status == 403
    with grpc.insecure_channel(running.grpc_address) as channel:
        load = channel.unary_unary(SERVICE + "RepositoryModelLoad")
        request = messages.RepositoryModelLoadRequest(model_name="sum")
        load(request.SerializeToString(), timeout=WAIT_SECS)
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(SERVICE + "LogSettings")(b"", timeout=WAIT_SECS)
    lines = {line["path"]: line for line in read("audit")}  # in any order, if there are processes
    assert {path: (line["event"], line["status"]) for path, line in lines.items()} == {
        "/v2/repository/models/sum/load": ("control", 200),
        "/v2/repository/models/none/unload": ("control", 200),
        "/v2/logging": ("refused", 403),
        "/v2/models/sum/infer": ("refused", 403),
        SERVICE + "RepositoryModelLoad": ("control", 200),
        SERVICE + "LogSettings": ("refused", 503),
    }
    assert lines["/v2/repository/models/sum/load"]["model"] == "sum"
    assert lines[SERVICE + "RepositoryModelLoad"]["model"] == "sum"
    assert "restricted" in lines["/v2/logging"]["error"]
    assert "--cors" in lines["/v2/models/sum/infer"]["error"]


def test_a_full_disk_stops_nothing(folder):
    with running_server(folder, access_log="/dev/full", audit_log="/dev/full") as running:
        for _ in range(20):
            assert running.post("/v2/models/sum/infer", *add_sub().body()).status == 200
        assert running.post("/v2/repository/models/sum/load", b"", {}).status == 503


def test_logs_are_continued_in_new_files(logged, tmp_path):
    start, read = logged
    running = start()
    running.get("/v2")
    wait_until(lambda: (tmp_path / "access").stat().st_size > 0)
    (tmp_path / "access").rename(tmp_path / "access.1")
    running.server.reloads.request()
    wait_until((tmp_path / "access").exists)
    running.get("/v2/health/live")
    assert [line["path"] for line in read("access")] == ["/v2/health/live"]
    assert json.loads((tmp_path / "access.1").read_text())["path"] == "/v2"


@pytest.mark.one_process  # the order of lines
def test_lines_name_the_key_on_both_paths(logged, tmp_path):
    start, read = logged
    running = start(api_keys=write_keys(tmp_path / "keys", alice={}))
    body, headers = add_sub().body()
    for _ in range(3):
        sent = {**headers, **bearer("alice")}
        assert running.post("/v2/models/sum/infer", body, sent).status == 200
    assert running.post("/v2/models/sum/infer", body, headers).status == 401
    with grpc.insecure_channel(running.grpc_address) as channel:
        infer = channel.unary_unary(SERVICE + "ModelInfer")
        for _ in range(3):
            metadata = tuple(bearer("alice").items())
            infer(grpc_request(), metadata=metadata, timeout=WAIT_SECS)
        with pytest.raises(grpc.RpcError):
            infer(grpc_request(), timeout=WAIT_SECS)
    lines = read("access")
    assert [line.get("key", "") for line in lines] == ["alice"] * 3 + [""] + ["alice"] * 3 + [""]
    assert key_of("alice") not in (tmp_path / "access").read_text()
    refused = read("audit")
    assert [(line["event"], line["status"]) for line in refused] == [("refused", 401)] * 2
