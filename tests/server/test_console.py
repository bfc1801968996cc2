"""The console through a real server: who gets it, with which headers, and what it is told."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.client import Client, ClientError
from shoal.config.options import NamedSetting
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.client import Infer
from tests.support.repositories import add_onnx

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
REQUEST = Infer().add("INPUT0", np.array([[7]], np.float32))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "echo", onnx_models.identity(), "max_batch_size: 8\ndynamic_batching { }")
    return folder


@pytest.fixture(scope="module")
def running(repository):
    with running_server(repository) as server:
        yield server


# ---- the page


def test_a_browser_gets_the_page(running):
    answer = running.get("/", BROWSER)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert b"<title>Shoal</title>" in answer.body
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "Accept" in answer.headers["vary"]


@pytest.mark.parametrize(
    "accept", [None, "*/*", "application/json", "text/html;q=0, */*", "text/plain"]
)
def test_programs_get_what_they_always_got(running, accept):
    answer = running.get("/", {} if accept is None else {"Accept": accept})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["version"] == shoal.__version__
    assert answer.json["links"]["metadata"] == "/v2"


def test_files_are_sent_once(running):
    first = running.get("/console/app.js", {"Accept-Encoding": "gzip"})
    assert first.headers["content-encoding"] == "gzip"
    assert b"import" in gzip.decompress(first.body)
    again = running.get(
        "/console/app.js", {"Accept-Encoding": "gzip", "If-None-Match": first.headers["etag"]}
    )
    assert (again.status, again.body) == (304, b"")
    head = running.call("HEAD", "/console/console.css").response()
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize("path", ["/console/nothing.js", "/console/..%2Ffiles.py", "/console/"])
def test_other_files_are_not_found(running, path):
    answer = running.get(path)
    assert (answer.status, answer.error) == (404, "Not Found")


def test_nothing_is_opened_to_other_origins(running):
    evil = {"Origin": "http://evil.example"}
    for answer in (
        running.get("/", BROWSER | evil),
        running.get("/v2/console", evil),
        running.post("/v2/repository/models/echo/unload", b"", evil),
        running.call(
            "OPTIONS",
            "/v2/repository/models/echo/unload",
            headers=evil | {"Access-Control-Request-Method": "POST"},
        ).response(),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control")]


# ---- the state


def test_the_state_counts(running):
    before = running.get("/v2/console").json
    assert REQUEST.send(running, "echo").status == 200
    after = running.get("/v2/console").json
    (earlier,), (later,) = before["models"], after["models"]
    assert (later["name"], later["version"]) == ("echo", "1")
    assert later["success"] - earlier["success"] == 1
    assert later["histograms"]["request"][-1] - earlier["histograms"]["request"][-1] == 1
    assert after["time_ns"] > before["time_ns"]
    assert after["server"]["model_control_mode"] == "none"
    assert after["machine"]["memory_total_bytes"] > 0


def test_errors_of_both_protocols_are_listed(running):
    seen = max((entry["number"] for entry in running.get("/v2/console").json["errors"]), default=0)
    refused = Infer().add("WRONG", np.array([[7]], np.float32)).send(running, "echo")
    with Client(f"grpc://{running.grpc_address}") as client, pytest.raises(ClientError):
        client.infer("echo", {"INPUT0": np.zeros((1, 1), np.int64)})
    errors = running.get(f"/v2/console?errors_after={seen}").json["errors"]
    by_protocol = {entry["protocol"]: entry for entry in errors}
    assert by_protocol["HTTP"]["text"] == refused.error
    assert by_protocol["HTTP"]["place"] == "POST /v2/models/echo/infer"
    assert (by_protocol["HTTP"]["status"], by_protocol["HTTP"]["model"]) == ("400", "echo")
    assert (by_protocol["gRPC"]["status"], by_protocol["gRPC"]["model"]) == (
        "INVALID_ARGUMENT",
        "echo",
    )
    assert by_protocol["gRPC"]["place"] in ("ModelInfer", "ModelMetadata")


@pytest.mark.parametrize("number", ["x", "-1", "1e3", "9" * 40])
def test_a_number_that_is_none(running, number):
    answer = running.get(f"/v2/console?errors_after={number}")
    assert answer.status == 400
    assert answer.error.startswith("errors_after takes the number of an error, found '")


# ---- who may


def test_restrictions_hold(repository):
    closed = (NamedSetting("statistics", "look-key", "secret"),)
    with running_server(repository, http_restricted_api=closed) as running:
        assert running.get("/", BROWSER).status == 200
        refused = running.get("/v2/console")
        assert refused.status == 403
        assert refused.error == "This API is restricted, expecting header 'look-key'"
        assert running.get("/v2/console", {"look-key": "secret"}).status == 200


def test_without_a_console(repository):
    with running_server(repository, console=False) as running:
        answer = running.get("/", BROWSER)
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.body)["links"]["metadata"] == "/v2"
        for path in ("/console/app.js", "/v2/console"):
            refused = running.get(path)
            assert refused.status == 404
            assert refused.error == ("the console is switched off on this server (--console=false)")


def test_the_files_are_in_the_package():
    folder = Path(shoal.__file__).parent / "frontends" / "console" / "static"
    assert {"index.html", "console.css", "app.js", "icon.svg"} <= {
        path.name for path in folder.iterdir()
    }
