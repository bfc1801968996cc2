"""The ports for SageMaker and Vertex AI: their own paths, and everything else as over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re

import numpy as np
import pytest

from shoal.backends.registry import BackendRegistry
from shoal.engine.local import LocalEngine
from shoal.errors import InvalidArgument
from shoal.frontends.clouds import sagemaker_models
from shoal.testing.server import HttpCall, running_server, wait_until
from tests.support import onnx_models
from tests.support.client import LENGTH_HEADER, Infer, check_empty
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.keys import bearer, write_keys
from tests.support.repositories import add_fake, add_model, add_onnx

ROW = np.arange(16, dtype=np.int32)[None]
SAGEMAKER_TYPE = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VERTEX_TYPE = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
TARGET = "X-Amzn-SageMaker-Target-Model"
REDIRECT = "X-Vertex-Ai-Triton-Redirect"
ENSEMBLE = """
name: "pipe"
platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 16 ] }
ensemble_scheduling { step {
    model_name: "inner" model_version: -1
    input_map { key: "INPUT0" value: "IN" } input_map { key: "INPUT1" value: "IN" }
    output_map { key: "OUTPUT0" value: "OUT" }
} }
"""
NO_MEMORY = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    def execute(self, requests):
        pass
"""
OUTGROWS = """
class TritonPythonModel:
    def execute(self, requests):
        raise RuntimeError("Failed to allocate memory for requested buffer")
"""
PYTHON = """
backend: "python"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] }
"""
PLATFORMS = {
    "allow_sagemaker": True,
    "sagemaker_address": "127.0.0.1",
    "sagemaker_port": 0,
    "allow_vertex_ai": True,
    "vertex_ai_address": "127.0.0.1",
    "vertex_ai_port": 0,
}


def add_sub(folder, name):
    add_onnx(folder, name, onnx_models.add_sub("INT32"), "max_batch_size: 8")


class Platforms:
    """Both ports of a running server."""

    def __init__(self, running, archives):
        self.running = running
        self.server = running.server
        self.archives = archives

    def sagemaker(self, method, path, body=None, headers=None):
        return HttpCall(self.server.sagemaker_port, method, path, body, headers).response()

    def vertex(self, method, path, body=None, headers=None):
        return HttpCall(self.server.vertex_ai_port, method, path, body, headers).response()

    def redirect(self, path, body=b"", **headers):
        return self.vertex("POST", "/predict", body, {REDIRECT: path, **headers})

    def load(self, name, url=None, headers=None):
        if os.environ.get("SHOAL_SERVERS") == "processes":
            pytest.skip("other processes read archives from the platform's own folder")
        url = url or f"{self.archives}/{name}/model"
        body = json.dumps({"model_name": name, "url": str(url)}).encode()
        return self.sagemaker("POST", "/models", body, headers)


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """Starts servers with both ports, in the environment of the platforms."""
    root = tmp_path_factory.mktemp("clouds")
    models, archives = root / "models", root / "archives"
    add_sub(models, "sum")
    add_sub(models, "other")
    for name in ("one", "plain"):
        add_sub(archives / name, "model")
    add_sub(archives / "nested" / "model", "named")
    add_sub(archives / "several" / "model", "a")
    add_sub(archives / "several" / "model", "b")
    add_sub(archives / "pipes" / "model", "inner")
    add_model(archives / "pipes" / "model", "pipe", ENSEMBLE)
    (archives / "empty" / "model").mkdir(parents=True)
    (archives / "plain" / "model" / "config.pbtxt").unlink()
    for name, code in (("big", NO_MEMORY), ("outgrows", OUTGROWS)):
        add_model(archives / name, "model", PYTHON, {"1/model.py": code.encode()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sagemaker_models, "ROOT", archives)
        patch.setenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "sum")
        patch.setenv("AIP_PREDICT_ROUTE", "/predict")
        patch.setenv("AIP_HEALTH_ROUTE", "/health")

        def serve(**options):
            default = {"model_control_mode": "explicit", "load_model": ("*",)}
            return running_server(
                models, **{**PLATFORMS, **default, "vertex_ai_default_model": "other", **options}
            )

        serve.root = root
        yield serve


@pytest.fixture(scope="module")
def platforms(serve):
    audit = str(serve.root / "audit")
    with serve(model_namespacing=True, audit_log=audit, plans=True) as running:
        yield Platforms(running, serve.root / "archives")


async def started_stop(server):
    """A stop of the server that goes on while the test does something else."""
    stopping = asyncio.ensure_future(server.stop())

    async def finished():
        return await stopping

    return finished()


def request(*, binary=False, media=""):
    """The body and headers of an inference request."""
    infer = Infer().add("INPUT0", ROW, binary=binary).add("INPUT1", ROW)
    infer.want("OUTPUT0", binary_data=binary).want("OUTPUT1", binary_data=False)
    body, length = infer.body()
    return body, {"Content-Type": media + length[LENGTH_HEADER]} if binary else {}


def check_sum(response, *, media=""):
    """OUTPUT0 is the sum, as JSON or as bytes after it."""
    assert response.status == 200, response
    if media:
        size = int(response.headers["content-type"].removeprefix(media))
        document, blob = json.loads(response.body[:size]), response.body[size:]
        assert document["outputs"][0]["parameters"] == {"binary_data_size": 64}
        assert np.array_equal(np.frombuffer(blob, np.int32), ROW[0] * 2)
    else:
        assert response.headers["content-type"] == "application/json"
        assert response.json["outputs"][0]["data"] == (ROW[0] * 2).tolist()


@pytest.fixture
def grouped(monkeypatch):
    """The requests that matched a template."""
    found = []
    infer_group = LocalEngine.infer_group

    def counted(self, requests, model):
        found.extend(requests)
        return infer_group(self, requests, model)

    monkeypatch.setattr(LocalEngine, "infer_group", counted)
    return found


MALFORMED = [
    ("text/{}10", "expect MIME type for binary data starts with '{}', got: text/{}10"),
    ("{}ten", "Unable to parse inference header size, got: ten"),
    (
        "{}99999999999",
        "Unable to parse inference header size, value is out of range, got: 99999999999",
    ),
    ("{}-1", "inference header size should be in range (0, 2), got: -1"),
    ("{}3", "inference header size should be in range (0, 2), got: 3"),
]


class TestSageMaker:
    def test_ping(self, platforms):
        check_empty(platforms.sagemaker("GET", "/ping"))
        assert platforms.sagemaker("POST", "/ping", b"").status == 405

    def test_json(self, platforms):
        check_sum(platforms.sagemaker("POST", "/invocations", request()[0]))

    def test_responses_are_not_compressed(self, platforms):
        headers = {"Accept-Encoding": "gzip"}
        body = json.dumps({**json.loads(request()[0]), "id": "x" * 2000}).encode()
        check_sum(platforms.sagemaker("POST", "/invocations", body, headers))

    def test_bytes_after_the_json(self, platforms):
        body, headers = request(binary=True, media=SAGEMAKER_TYPE)
        response = platforms.sagemaker("POST", "/invocations", body, headers)
        check_sum(response, media=SAGEMAKER_TYPE)
        assert "inference-header-content-length" not in response.headers

    @pytest.mark.parametrize("binary", [False, True])
    def test_templates_give_the_same_bytes(self, platforms, grouped, binary):
        infer = Infer().add("INPUT0", ROW, binary=binary).add("INPUT1", ROW, binary=binary)
        body, length = infer.want("OUTPUT0", binary_data=binary).body()
        headers = {"Content-Type": SAGEMAKER_TYPE + length[LENGTH_HEADER]} if binary else {}
        address = f"127.0.0.1:{platforms.server.sagemaker_port}"
        connection = http.client.HTTPConnection(address, timeout=WAIT_SECS)
        seen = set()
        for _ in range(6):
            connection.request("POST", "/invocations", body, headers)
            response = connection.getresponse()
            fields = [(name, text) for name, text in response.getheaders() if name != "Date"]
            seen.add((response.status, tuple(fields), response.read()))
        connection.close()
        assert len(seen) == 1
        assert len(grouped) >= 4
        assert next(iter(seen))[0] == 200

    @pytest.mark.parametrize(("media", "text"), MALFORMED)
    def test_malformed_media_types(self, platforms, media, text):
        headers = {"Content-Type": media.format(SAGEMAKER_TYPE)}
        response = platforms.sagemaker("POST", "/invocations", b"{}", headers)
        assert response.status == 400
        assert response.error == text.format(SAGEMAKER_TYPE, SAGEMAKER_TYPE)

    def test_other_paths(self, platforms):
        for path in ("/v2", "/v2/models/sum/infer", "/modelsx", "/models/a/b", "/"):
            response = platforms.sagemaker("POST", path, b"{}")
            assert response.status == 400
            assert "this port serves /ping, /invocations and /models" in response.error
        assert platforms.sagemaker("GET", "/invocations").status == 405
        assert platforms.sagemaker("PUT", "/models", b"").status == 405
        head = platforms.sagemaker("HEAD", "/models")
        assert (head.status, head.body) == (405, b"")
        assert platforms.sagemaker("GET", "/models/one/invoke").status == 405

    def test_metrics_count_connections(self, platforms):
        assert platforms.running.metric("shoal_connections", protocol="sagemaker") == 0
        assert platforms.running.metric("shoal_connections", protocol="vertex-ai") == 0

    def test_requests_in_flight_are_answered_at_exit(self, serve, tmp_path):
        fake = FakeBackend()
        add_fake(tmp_path, "sum")
        options = {"allow_http": False, "allow_grpc": False, "allow_vertex_ai": False}
        backends = BackendRegistry({"fake": lambda: fake})
        fake.gate.clear()
        with running_server(tmp_path, backends=backends, **{**PLATFORMS, **options}) as running:
            body, _ = Infer().add("INPUT0", np.array([[7]], np.int32)).body()
            port = running.server.sagemaker_port
            call = HttpCall(port, "POST", "/invocations", body)
            assert fake.started.acquire(timeout=WAIT_SECS)
            stopping = running.run(started_stop(running.server))
            wait_until(running.server.engine.exiting, "the server stops")
            fake.gate.set()
            response = call.response()
            assert response.json["outputs"][0]["data"] == [7]
            assert response.headers["connection"] == "close"
            assert running.run(stopping)

    def test_generate(self, serve, monkeypatch):
        monkeypatch.setenv("SAGEMAKER_TRITON_INFERENCE_TYPE", "generate")
        monkeypatch.setenv("SAGEMAKER_TRITON_PING_MODE", "live")
        with serve(allow_vertex_ai=False, load_model=("other",)) as running:
            platforms = Platforms(running, None)
            check_empty(platforms.sagemaker("GET", "/ping"))
            response = platforms.sagemaker("POST", "/invocations", b'{"INPUT0": 1}')
            assert response.status == 404
            assert response.error == "Request for unknown model: 'sum' is not found"
            running.load("sum")
            inputs = {name: ROW.tolist()[0] for name in ("INPUT0", "INPUT1")}
            response = platforms.sagemaker("POST", "/invocations", json.dumps(inputs).encode())
            assert response.json["OUTPUT0"] == (ROW[0] * 2).tolist()

    def test_unknown_inference_type(self, serve, monkeypatch):
        monkeypatch.setenv("SAGEMAKER_TRITON_INFERENCE_TYPE", "guess")
        with pytest.raises(InvalidArgument, match="Must be one of: infer, generate, generate_st"):
            serve().__enter__()


class TestManyModels:
    def test_life_of_a_model(self, platforms, serve):
        assert platforms.sagemaker("GET", "/models").json == {"models": []}
        check_empty(platforms.load("one"))
        described = {"modelName": "one", "modelUrl": str(serve.root / "archives" / "one")}
        assert platforms.sagemaker("GET", "/models").json == {"models": [described]}
        assert platforms.sagemaker("GET", "/models/one").json == described
        check_sum(platforms.sagemaker("POST", "/models/one/invoke", request()[0]))
        body, headers = request(binary=True, media=SAGEMAKER_TYPE)
        response = platforms.sagemaker("POST", "/models/one/invoke", body, headers)
        check_sum(response, media=SAGEMAKER_TYPE)
        again = platforms.load("one")
        assert (again.status, again.error) == (409, "the model 'one' is loaded already")
        check_empty(platforms.sagemaker("DELETE", "/models/one"))
        for method, path in (
            ("GET", "/models/one"),
            ("DELETE", "/models/one"),
            ("POST", "/models/one/invoke"),
        ):
            response = platforms.sagemaker(method, path)
            assert response.status == 404
            assert response.error == "the model 'one' is not loaded: load it with POST /models"
        check_empty(platforms.load("one"))
        check_empty(platforms.sagemaker("DELETE", "/models/one"))
        assert [row["name"] for row in platforms.running.index()] == ["other", "sum"]
        wait_until(lambda: "DELETE" in (serve.root / "audit").read_text(), "it is in the log")
        lines = [json.loads(line) for line in (serve.root / "audit").read_text().splitlines()]
        line = next(line for line in lines if line["method"] == "DELETE")
        assert (line["event"], line["path"], line["model"]) == ("control", "/models/one", "one")

    def test_target_names(self, platforms):
        headers = {TARGET: "one.tar.gz"}
        check_empty(platforms.load("one", headers=headers))
        response = platforms.sagemaker("POST", "/models/one/invoke", request()[0], headers)
        assert response.json["model_name"] == "one.tar.gz"
        assert platforms.sagemaker("GET", "/models").json["models"][0]["modelName"] == "one"
        check_empty(platforms.sagemaker("DELETE", "/models/one", headers=headers))

    @pytest.mark.parametrize("name", ["plain", "nested"])
    def test_archives(self, platforms, name):
        check_empty(platforms.load(name))
        check_sum(platforms.sagemaker("POST", f"/models/{name}/invoke", request()[0]))
        check_empty(platforms.sagemaker("DELETE", f"/models/{name}"))

    def test_ensemble(self, platforms):
        check_empty(platforms.load("pipes"))
        body, _ = Infer().add("IN", ROW).body()
        response = platforms.sagemaker("POST", "/models/pipes/invoke", body)
        assert response.json["outputs"][0]["data"] == (ROW[0] * 2).tolist()
        check_empty(platforms.sagemaker("DELETE", "/models/pipes"))

    @pytest.mark.parametrize(
        ("url", "text"),
        [
            ("/etc", "Invalid \"url\" '/etc': expected a path of the form "),
            ("/proc/self/model", "Invalid \"url\" '/proc/self/model': expected a path of the"),
            ("{}/one/../../etc/model", 'Invalid "url" '),
            ("{}/one", 'Invalid "url" '),
            ("{}/missing/model", "failed to register '.*', repository not found"),
            ("{}/empty/model", "has neither a config.pbtxt nor a folder with a model"),
            ("{}/several/model", "has the models a, b, and which of them is to be loaded is not"),
        ],
    )
    def test_urls_without_a_model(self, platforms, url, text):
        response = platforms.load("x", url.format(platforms.archives))
        assert response.status == 400
        assert re.search(text, response.error)

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b"AAAA", "failed to parse the request JSON buffer: Invalid value. at 0"),
            (b"[]", "the request body must be a JSON object"),
            (b"", "the request to load a model has no 'model_name'"),
            (b'{"model_name": "x"}', "the request to load a model has no 'url'"),
            (b'{"model_name": "", "url": "x"}', "the request to load a model has no 'model_name'"),
            (b'{"model_name": 1, "url": "x"}', "attempt to access JSON non-string as string"),
        ],
    )
    def test_malformed_loads(self, platforms, body, text):
        response = platforms.sagemaker("POST", "/models", body)
        assert response.status == 400
        assert text in response.error

    def test_names_that_models_cannot_have(self, platforms):
        response = platforms.load("one", headers={TARGET: "a/b.tar.gz"})
        assert response.status == 400
        assert "must not contain path traversal characters" in response.error
        response = platforms.load("one", headers={TARGET: "sum"})
        assert response.status == 400
        assert "this server has a model 'sum' that the platform did not load" in response.error

    def test_memory_that_runs_out(self, platforms):
        response = platforms.load("big")
        assert response.status == 507
        assert "CUDA out of memory" in response.error
        assert platforms.load("big").status == 507  # nothing of the first is left
        check_empty(platforms.load("outgrows"))
        body, _ = Infer().add("INPUT0", ROW).body()
        response = platforms.sagemaker("POST", "/models/outgrows/invoke", body)
        assert response.status == 507
        assert "Failed to allocate memory" in response.error
        response = platforms.sagemaker("POST", "/models/outgrows/invoke", request()[0])
        assert response.status == 400
        check_empty(platforms.sagemaker("DELETE", "/models/outgrows"))

    def test_other_errors_of_an_invocation_are_400(self, platforms):
        check_empty(platforms.load("one"))
        headers = {TARGET: "nowhere"}
        response = platforms.sagemaker("POST", "/models/one/invoke", request()[0], headers)
        assert response.status == 400
        assert response.error == "Request for unknown model: 'nowhere' is not found"
        check_empty(platforms.sagemaker("DELETE", "/models/one"))


class TestVertexAi:
    def test_health(self, platforms):
        check_empty(platforms.vertex("GET", "/health"))
        assert platforms.vertex("POST", "/health", b"").status == 405

    def test_the_default_model(self, platforms):
        response = platforms.vertex("POST", "/predict", request()[0])
        check_sum(response)
        assert response.json["model_name"] == "other"
        assert platforms.vertex("GET", "/predict").status == 405

    def test_bytes_after_the_json(self, platforms):
        body, headers = request(binary=True, media=VERTEX_TYPE)
        response = platforms.vertex("POST", "/predict", body, headers)
        assert response.status == 200
        size = int(response.headers["inference-header-content-length"])
        assert np.array_equal(np.frombuffer(response.body[size:], np.int32), ROW[0] * 2)

    @pytest.mark.parametrize(("media", "text"), MALFORMED)
    def test_malformed_media_types(self, platforms, media, text):
        headers = {"Content-Type": media.format(VERTEX_TYPE)}
        response = platforms.vertex("POST", "/predict", b"{}", headers)
        assert response.status == 400
        assert response.error == text.format(VERTEX_TYPE, VERTEX_TYPE)

    def test_redirected_inference(self, platforms):
        response = platforms.redirect("v2/models/sum/infer", request()[0])
        check_sum(response)
        assert response.json["model_name"] == "sum"
        inputs = {name: ROW.tolist()[0] for name in ("INPUT0", "INPUT1")}
        response = platforms.redirect("v2/models/sum/generate", json.dumps(inputs).encode())
        assert response.json["OUTPUT0"] == (ROW[0] * 2).tolist()

    @pytest.mark.parametrize(
        ("path", "words"),
        [
            ("v2", b"extensions"),
            ("v2/health/live", b""),
            ("v2/health/ready", b""),
            ("v2/models/sum", b"platform"),
            ("v2/models/sum/ready", b""),
            ("v2/models/sum/versions/1/config", b"version_policy"),
            ("v2/models/sum/stats", b"model_stats"),
            ("v2/models/stats", b"model_stats"),
            ("v2/repository/index", b"READY"),
            ("v2/systemsharedmemory/status", b"[]"),
            ("metrics", b"nv_inference_request_success"),
        ],
    )
    def test_what_redirects_read(self, platforms, path, words):
        response = platforms.redirect(path)
        assert response.status == 200, response
        assert words in response.body

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("v2/repository/models/sum/load", 403),
            ("v2/repository/models/sum/unload", 403),
            ("v2/systemsharedmemory/region/a/register", 403),
            ("v2/cudasharedmemory/unregister", 403),
            ("v2/logging", 400),
            ("v2/trace/setting", 400),
            ("openapi.json", 400),
            ("", 400),
            ("nowhere", 400),
            ("v2/models/nowhere/infer", 400),
            ("v2/models/sum/versions/99999999999999999999/infer", 400),
        ],
    )
    def test_what_redirects_cannot(self, platforms, path, status):
        response = platforms.redirect(path)
        assert response.status == status
        assert response.error
        assert platforms.running.states("sum") == {"1": "READY"}

    def test_redirects_are_post(self, platforms):
        response = platforms.vertex("GET", "/predict", headers={REDIRECT: "v2"})
        assert (response.status, response.headers["allow"]) == (405, "POST")

    def test_other_paths(self, platforms):
        response = platforms.vertex("GET", "/v2")
        assert response.status == 400
        assert response.error.startswith("this port serves /health and /predict; use the HTTP port")

    @pytest.mark.parametrize(
        "options",
        [
            {"load_model": ("sum",), "vertex_ai_default_model": ""},
            {"model_control_mode": "lazy", "load_model": (), "vertex_ai_default_model": "sum"},
        ],
    )
    def test_default_models(self, serve, options):
        with serve(**options) as running:
            check_sum(Platforms(running, None).vertex("POST", "/predict", request()[0]))

    @pytest.mark.parametrize(
        ("default", "text"),
        [
            ("", "Expect the model repository contains only a single model if default model is"),
            ("nowhere", r"Expect the default model 'nowhere' is loaded \(loaded: other, sum\)"),
        ],
    )
    def test_default_models_that_are_none(self, serve, default, text):
        with pytest.raises(InvalidArgument, match=text):
            serve(vertex_ai_default_model=default).__enter__()

    @pytest.mark.parametrize(
        ("name", "path", "text"),
        [
            ("AIP_PREDICT_ROUTE", "", "AIP_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
            ("AIP_HEALTH_ROUTE", "health", "AIP_HEALTH_ROUTE is 'health'; set it to a path such"),
        ],
    )
    def test_routes_that_are_none(self, serve, monkeypatch, name, path, text):
        monkeypatch.setenv(name, path)
        with pytest.raises(InvalidArgument, match=text):
            serve().__enter__()


class TestAccess:
    def test_keys(self, serve, tmp_path):
        keys = write_keys(tmp_path / "keys", app={"models": ("sum", "one")}, other={"models": ()})
        with serve(api_keys=keys) as running:
            platforms = Platforms(running, serve.root / "archives")
            check_empty(platforms.sagemaker("GET", "/ping"))
            check_empty(platforms.vertex("GET", "/health"))
            body = request()[0]
            assert platforms.sagemaker("POST", "/invocations", body).status == 401
            assert platforms.sagemaker("POST", "/invocations", body, bearer("other")).status == 403
            check_sum(platforms.sagemaker("POST", "/invocations", body, bearer("app")))
            assert platforms.vertex("POST", "/predict", body).status == 401
            assert platforms.vertex("POST", "/predict", body, bearer("app")).status == 403
            for method, path in (
                ("GET", "/models"),
                ("POST", "/models"),
                ("GET", "/models/one"),
                ("DELETE", "/models/one"),
                ("POST", "/models/one/invoke"),
            ):
                document = b'{"model_name": "one", "url": "x"}'
                assert platforms.sagemaker(method, path, document).status == 401

    def test_restrictions(self, serve):
        restricted = (
            ("model-repository", "X-Auth", "secret"),
            ("metadata,statistics", "X-Auth", "secret"),
        )
        with serve(http_restricted_api=restricted, model_namespacing=True) as running:
            platforms = Platforms(running, serve.root / "archives")
            secret = {"X-Auth": "secret"}
            check_sum(platforms.sagemaker("POST", "/invocations", request()[0]))
            for method, path in (
                ("GET", "/models"),
                ("GET", "/models/one"),
                ("DELETE", "/models/one"),
            ):
                response = platforms.sagemaker(method, path)
                assert response.status == 403
                assert response.error == "This API is restricted, expecting header 'X-Auth'"
            assert platforms.load("one").status == 403
            check_empty(platforms.load("one", headers=secret))
            assert platforms.sagemaker("DELETE", "/models/one").status == 403
            check_empty(platforms.sagemaker("DELETE", "/models/one", headers=secret))
            assert platforms.redirect("v2").status == 403
            assert platforms.redirect("v2", **secret).status == 200

    def test_sizes(self, serve):
        with serve(http_max_input_size=128) as running:
            platforms = Platforms(running, serve.root / "archives")
            body = request()[0]
            for response in (
                platforms.sagemaker("POST", "/invocations", body),
                platforms.vertex("POST", "/predict", body),
            ):
                assert response.status == 400
                assert "exceeds the maximum allowed input size of 128 bytes" in response.error
