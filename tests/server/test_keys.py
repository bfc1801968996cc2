"""Keys on every port: nothing is answered without one, and each permits what its entry says."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import re
import socket
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import shoal
from shoal.ask.askers import HttpAsker, TcpAsker
from shoal.ask.question import Question
from shoal.cli.main import main
from shoal.client import Client
from shoal.client.address import parse
from shoal.client.errors import InvalidInput, ServerError
from shoal.config.options import NamedSetting
from shoal.errors import InvalidArgument
from shoal.frontends.http.routes import endpoints
from shoal.testing.server import HttpCall, running_server, wait_until
from shoal.wire.proto import messages
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.keys import bearer, key_of, write_keys
from tests.support.repositories import add_fake, add_onnx

SERVICE = "/inference.GRPCInferenceService/"
WRONG = {"authorization": "Bearer shoal_wrong"}
# In lower case: what the page loads, and what probes ask.
OPEN = {
    "GET /docs",
    "GET /console/{asset}",
    "GET /v2/health/live",
    "GET /v2/health/ready",
}
OPEN_METHODS = {
    SERVICE + "ServerLive",
    SERVICE + "ServerReady",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
}
VALUES = {"model": "sum", "version": "1", "repository": "r", "region": "r", "operation": "answer"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    add_onnx(folder, "other", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    return folder


@pytest.fixture(scope="module")
def running(folder, tmp_path_factory):
    keys = write_keys(
        tmp_path_factory.mktemp("keys") / "keys.jsonl",
        admin={"apis": ("*",), "upload": True},
        app={"apis": ("*",), "models": ("s*",)},
        plain={},
        limited={"requests_per_second": 0.001, "burst": 3.0},
        scraper={"apis": ("metrics",)},
    )
    with running_server(
        folder,
        api_keys=keys,
        api_key_header="X-Key",
        model_control_mode="explicit",
        load_model=("*",),
        tcp_port=0,
        plans=True,
    ) as made:
        yield made


def infer_body():
    tensor = {"datatype": "INT32", "shape": [1, 16], "data": [list(range(16))]}
    return {"inputs": [{"name": "INPUT0", **tensor}, {"name": "INPUT1", **tensor}]}


def infer_message(model="sum"):
    request = messages.ModelInferRequest(model_name=model)
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(np.arange(16, dtype=np.int32).tobytes())
    return request


def metadata(name):
    return list(bearer(name).items())


@pytest.fixture
def line(running):
    with grpc.insecure_channel(running.grpc_address) as channel:
        yield channel


def unary(line, method, message=b"", keys=(), service=SERVICE):
    return line.unary_unary(service + method)(message, metadata=list(keys), timeout=WAIT_SECS)


def refusal(call, *arguments):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    return caught.value


# ---- nothing without a key


def filled(path):
    return re.sub(r"\{(\w+)\}", lambda match: VALUES.get(match[1], "console.css"), path)


@pytest.mark.parametrize("headers", [{}, WRONG, {"x-key": "wrong"}], ids=["none", "wrong", "own"])
def test_no_route_answers_without_a_key(running, headers):
    answered = set()
    for endpoint in endpoints():
        for path in endpoint.paths():
            call = running.call(endpoint.method, filled(path), b"", headers)
            response = call.response()
            if response.status != 401:
                answered.add(f"{endpoint.method} {path}")
                continue
            assert response.headers["www-authenticate"] == 'Bearer realm="shoal"'
            text = response.json["error"]
            assert "key" in (text["message"] if path.startswith("/v1/") else text)
    assert answered == OPEN


def test_no_method_answers_without_a_key(running, line):
    methods = running.server.ports.grpc._service._methods
    assert len(methods) > 20
    for keys in ((), tuple(WRONG.items()), (("x-key", "wrong"),)):
        answered = set()
        for path in methods:
            call = line.stream_stream(path)(iter([b""]), metadata=list(keys), timeout=WAIT_SECS)
            try:
                next(call, None)
                answered.add(path)
            except grpc.RpcError as error:
                told = error.code() is grpc.StatusCode.UNAUTHENTICATED and "key" in error.details()
                if not told:
                    answered.add(path)
            finally:
                call.cancel()
        assert answered == OPEN_METHODS


@pytest.mark.parametrize("keyless", ["none", "health,metrics,metadata"])
def test_what_is_open_is_an_option(folder, tmp_path, keyless):
    keys = write_keys(tmp_path / "keys", admin={"apis": ("*",)})
    with running_server(folder, api_keys=keys, keyless_api=keyless) as running:
        metrics = HttpCall(running.server.metrics_port, "GET", "/metrics").response()
        statuses = [
            running.get(path).status
            for path in ("/v2/health/live", "/v2", "/metrics", "/v2/models/sum/ready")
        ]
        with grpc.insecure_channel(running.grpc_address) as line:
            if keyless == "none":
                code = refusal(unary, line, "ServerLive").code()
                assert code is grpc.StatusCode.UNAUTHENTICATED
            else:
                unary(line, "ServerMetadata")
            code = refusal(unary, line, "ModelReady").code()
            assert code is grpc.StatusCode.UNAUTHENTICATED
    assert metrics.status == (401 if keyless == "none" else 200)
    assert statuses == ([401] * 4 if keyless == "none" else [200, 200, 200, 401])


def test_the_grpcio_transport_needs_keys_too(folder, tmp_path):
    keys = write_keys(tmp_path / "keys", app={"requests_in_flight": 1, "models": ("sum",)})
    with (
        running_server(folder, api_keys=keys, grpc_transport="grpcio") as running,
        grpc.insecure_channel(running.grpc_address) as line,
    ):
        message = infer_message().SerializeToString()
        code = refusal(unary, line, "ModelInfer", message).code()
        assert code is grpc.StatusCode.UNAUTHENTICATED
        for _ in range(3):
            assert unary(line, "ModelInfer", message, metadata("app"))
        other = infer_message("other").SerializeToString()
        code = refusal(unary, line, "ModelInfer", other, metadata("app")).code()
        assert code is grpc.StatusCode.PERMISSION_DENIED


# ---- what a key permits


def test_both_headers(running, line):
    assert running.post("/v2/models/sum/infer", infer_body(), bearer("plain")).status == 200
    own = {"X-Key": key_of("plain")}
    assert running.post("/v2/models/sum/infer", infer_body(), own).status == 200
    message = infer_message().SerializeToString()
    for keys in (metadata("plain"), [("x-key", key_of("plain"))]):
        assert unary(line, "ModelInfer", message, keys)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_kinds_of_a_key(running, protocol):
    address = running.http_address if protocol == "http" else running.grpc_address
    with Client(address, protocol=protocol, api_key=key_of("plain")) as client:
        assert client.ready()
        assert client.metadata("sum")["name"] == "sum"
        assert client.config("sum")["name"] == "sum"
        for call in (
            client.index,
            lambda: client.load("sum"),
            lambda: client.unload("sum"),
            lambda: client.statistics("sum"),
            client.trace_settings,
            client.log_settings,
        ):
            with pytest.raises(ServerError, match="the key 'plain' does not permit '"):
                call()
    with Client(address, protocol=protocol, api_key=key_of("admin")) as client:
        assert {row["name"] for row in client.index()} == {"sum", "other"}
        client.load("sum")
        assert client.statistics("sum")
        assert client.log_settings()


def http_calls():
    tensors = infer_body()
    yield "POST", "/v2/models/%s/infer", tensors
    yield "POST", "/v2/models/%s/versions/1/infer", tensors
    yield "POST", "/v2/models/%s/generate", {}
    yield "POST", "/v2/models/%s/generate_stream", {}
    yield "POST", "/v2/models/%s/answer", {}
    for path in ("", "/config", "/stats", "/ready", "/explain", "/trace/setting"):
        yield "GET", f"/v2/models/%s{path}", None
    yield "POST", "/v2/models/%s/trace/setting", {}
    yield "POST", "/v2/repository/models/%s/load", {}
    yield "POST", "/v2/repository/models/%s/unload", {}
    yield "GET", "/v1/models/%s", None


@pytest.mark.parametrize(("method", "path", "body"), list(http_calls()))
@pytest.mark.parametrize("model", ["other", "no-such-model", "%6fther"])
def test_models_over_http(running, method, path, body, model):
    response = running.call(method, path % model, body, bearer("app")).response()
    assert response.status == 403
    name = "other" if "%" in model else model
    assert f"the key 'app' does not permit the model '{name}'" in response.body.decode()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"])
def test_models_of_openai(running, path):
    response = running.post(path, {"model": "other", "prompt": "x", "input": "x"}, bearer("app"))
    assert response.status == 403
    error = response.json["error"]
    assert error["type"] == "permission_error"
    assert "does not permit the model 'other'" in error["message"]


GRPC_REQUESTS = {
    "ModelInfer": infer_message("other"),
    "ModelReady": messages.ModelReadyRequest(name="other"),
    "ModelMetadata": messages.ModelMetadataRequest(name="other"),
    "ModelConfig": messages.ModelConfigRequest(name="other"),
    "ModelStatistics": messages.ModelStatisticsRequest(name="other"),
    "RepositoryModelLoad": messages.RepositoryModelLoadRequest(model_name="other"),
    "RepositoryModelUnload": messages.RepositoryModelUnloadRequest(model_name="other"),
    "TraceSetting": messages.TraceSettingRequest(model_name="other"),
}


@pytest.mark.parametrize("method", GRPC_REQUESTS)
def test_models_over_grpc(line, method):
    message = GRPC_REQUESTS[method].SerializeToString()
    error = refusal(unary, line, method, message, metadata("app"))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "does not permit the model 'other'" in error.details()


def test_each_message_of_a_stream_is_checked(line):
    wanted = ["sum", "other", "sum", "missing"]
    requests = iter([infer_message(model).SerializeToString() for model in wanted])
    stream = line.stream_stream(SERVICE + "ModelStreamInfer")
    answers = list(stream(requests, metadata=metadata("app"), timeout=WAIT_SECS))
    errors = [messages.ModelStreamInferResponse.FromString(each).error_message for each in answers]
    assert [error[:40] for error in errors] == [
        "",
        "the key 'app' does not permit the model ",
        "",
        "the key 'app' does not permit the model ",
    ]


def test_lists_have_the_permitted_models_only(running, line):
    index = running.post("/v2/repository/index", b"", bearer("app")).json
    assert {row["name"] for row in index} == {"sum"}
    stats = running.get("/v2/models/stats", bearer("app")).json["model_stats"]
    assert {row["name"] for row in stats} == {"sum"}
    explained = running.get("/v2/explain", bearer("app")).json["models"]
    assert {row["name"] for row in explained} == {"sum"}
    state = running.get("/v2/console", bearer("app")).json
    assert {row["name"] for row in state["models"]} == {"sum"}
    assert {row["model"] for row in state["errors"]} <= {"sum"}
    everything = running.get("/v2/console", bearer("admin")).json
    assert {row["name"] for row in everything["models"]} == {"sum", "other"}
    rows = unary(line, "RepositoryIndex", keys=metadata("app"))
    found = messages.RepositoryIndexResponse.FromString(rows)
    assert {row.name for row in found.models} == {"sum"}
    rows = unary(line, "ModelStatistics", keys=metadata("app"))
    counted = messages.ModelStatisticsResponse.FromString(rows)
    assert {row.name for row in counted.model_stats} == {"sum"}


def test_settings_of_all_models_need_a_key_for_all(running, line):
    assert running.get("/v2/trace/setting", bearer("app")).status == 200
    change = {"trace_rate": "5"}
    assert running.post("/v2/trace/setting", change, bearer("app")).status == 403
    assert running.post("/v2/trace/setting", change, bearer("admin")).status == 200
    request = messages.TraceSettingRequest()
    request.settings["trace_rate"].value.append("5")
    error = refusal(unary, line, "TraceSetting", request.SerializeToString(), metadata("app"))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(("name", "status"), [("app", 403), ("admin", 200)])
def test_uploads_are_a_permission(running, line, name, status, folder):
    import base64

    content = (folder / "sum" / "1" / "model.onnx").read_bytes()
    parameters = {
        "config": json.dumps({"backend": "onnxruntime", "max_batch_size": 8}),
        "file:1/model.onnx": base64.b64encode(content).decode(),
    }
    path = "/v2/repository/models/sent/load"
    response = running.post(path, {"parameters": parameters}, bearer(name))
    assert response.status == status, response
    request = messages.RepositoryModelLoadRequest(model_name="sent")
    request.parameters["config"].string_param = parameters["config"]
    request.parameters["file:1/model.onnx"].bytes_param = content
    message = request.SerializeToString()
    if status == 403:
        assert "the key does not permit to upload model files" in response.error
        error = refusal(unary, line, "RepositoryModelLoad", message, metadata(name))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    else:
        unary(line, "RepositoryModelLoad", message, metadata(name))
        running.post("/v2/repository/models/sent/unload", b"", bearer(name))


# ---- clients


def test_tritonclient(running):
    for module, address in (
        (httpclient, running.http_address),
        (grpcclient, running.grpc_address),
    ):
        client = module.InferenceServerClient(address)
        inputs = []
        for name in ("INPUT0", "INPUT1"):
            tensor = module.InferInput(name, [1, 16], "INT32")
            tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
            inputs.append(tensor)
        with pytest.raises(InferenceServerException, match="this request needs a key"):
            client.infer("sum", inputs)
        for _ in range(5):
            result = client.infer("sum", inputs, headers=bearer("app"))
            assert (result.as_numpy("OUTPUT0") == 2).all()
        with pytest.raises(InferenceServerException, match="does not permit the model 'other'"):
            client.infer("other", inputs, headers=bearer("app"))
        client.close()


def test_commands_send_the_key_of_the_environment(running, monkeypatch, capsys):
    words = ["perf", "-m", "sum", "--request-count", "8", "-u", running.http_address]
    monkeypatch.delenv("SHOAL_API_KEY", raising=False)
    assert main(words) != 0
    assert "this request needs a key" in capsys.readouterr().err
    assert main([*words, "--api-key", key_of("admin")]) == 0
    monkeypatch.setenv("SHOAL_API_KEY", key_of("admin"))
    assert main([*words[:-1], running.grpc_address, "-i", "grpc"]) == 0
    printed = capsys.readouterr()
    assert key_of("admin") not in printed.out + printed.err


def test_questions_are_sent_with_the_key(running):
    for asker in (
        TcpAsker("127.0.0.1", running.server.tcp_port, "", WAIT_SECS, key_of("plain")),
        HttpAsker(parse(running.http_address), "", WAIT_SECS, key_of("plain")),
    ):
        with contextlib.closing(asker), pytest.raises(ServerError, match="no loaded model offers"):
            asker.ask(Question("a text", "a question?"))
    with pytest.raises(InvalidInput, match="characters that a key cannot have"):
        Client(running.http_address, api_key="a\r\nb")


def test_openais_client(running):
    openai = pytest.importorskip("openai")
    url = f"http://{running.http_address}/v1"
    with openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError, match="does not know the key") as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=url, api_key=key_of("app"), max_retries=0) as client:
        assert not client.models.list().data
        with pytest.raises(openai.PermissionDeniedError, match="does not permit the model 'other'"):
            client.completions.create(model="other", prompt="x")
    with (
        openai.OpenAI(base_url=url, api_key=key_of("scraper"), max_retries=0) as client,
        pytest.raises(openai.PermissionDeniedError, match="does not permit 'metadata'"),
    ):
        client.models.list()


def test_metrics_port(running):
    port = running.server.metrics_port
    assert HttpCall(port, "GET", "/metrics").response().status == 401
    assert HttpCall(port, "GET", "/").response().status == 401
    refused = HttpCall(port, "GET", "/metrics", headers=bearer("plain")).response()
    assert refused.status == 403
    text = HttpCall(port, "GET", "/metrics", headers=bearer("scraper")).response().body.decode()
    assert 'shoal_key_requests_total{key="scraper"} 1' in text
    assert 'shoal_key_refused_total{key="",reason="no_key"}' in text
    assert 'shoal_key_refused_total{key="plain",reason="api"}' in text
    for secret in ("secret-of", "Bearer", "sha256"):
        assert secret not in text


def test_questions_over_tcp(running):
    def ask(*objects):
        with socket.create_connection(("127.0.0.1", running.server.tcp_port), WAIT_SECS) as line:
            for each in objects:
                line.sendall(json.dumps(each).encode() + b"\n")
            line.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: line.recv(65536), b""))
        return received.decode().splitlines()

    question = {"text": "t", "question": "q"}
    assert ask(question) == ['error: questions need a key here: send it as "api_key" in the object']
    (wrong,) = ask({**question, "api_key": "wrong"})
    assert "does not know the key" in wrong
    admitted = ask({**question, "api_key": key_of("plain")}, question)
    assert len(admitted) == 2  # the key holds for the connection
    assert all("no loaded model offers 'answer'" in each for each in admitted)
    (named,) = ask({**question, "api_key": key_of("app"), "model": "other"})
    assert "does not permit the model 'other'" in named


# ---- quotas


def test_a_quota_over_http(running):
    responses = [running.get("/v2", bearer("limited")) for _ in range(2)]
    assert [response.status for response in responses] == [200, 200]
    running.get("/v2", bearer("limited"))
    refused = running.get("/v2", bearer("limited"))
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) > 500
    assert refused.error.startswith("the key 'limited' has used up its quota of 0.001 requests a")
    refused = running.get("/v1/models", bearer("limited"))
    assert refused.status == 429
    assert refused.json["error"]["type"] == "rate_limit_error"
    assert running.get("/v2", bearer("plain")).status == 200


def binary_request(name, model="sum"):
    tensors = np.arange(16, dtype=np.int32).tobytes() * 2
    sizes = {"parameters": {"binary_data_size": 64}}
    header = json.dumps(
        {
            "inputs": [
                {"name": each, "datatype": "INT32", "shape": [1, 16], **sizes}
                for each in ("INPUT0", "INPUT1")
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    headers = {"Inference-Header-Content-Length": str(len(header)), **bearer(name)}
    return "POST", f"/v2/models/{model}/infer", header + tensors, headers


@pytest.mark.parametrize("protocol", ["http", "json", "grpc"])
def test_template_hits_have_quotas(folder, tmp_path, monkeypatch, protocol):
    from shoal.engine.local import LocalEngine

    grouped = []
    infer_group = LocalEngine.infer_group

    def counted(self, requests, model):
        grouped.extend(requests)
        return infer_group(self, requests, model)

    monkeypatch.setattr(LocalEngine, "infer_group", counted)
    count = 20
    keys = write_keys(
        tmp_path / "keys",
        app={"requests_per_second": 0.001, "burst": float(count)},
        admin={"apis": ("metrics",)},
    )
    with running_server(folder, api_keys=keys, plans=True) as running:
        outcomes = []
        if protocol != "grpc":
            connection = http.client.HTTPConnection(running.http_address, timeout=WAIT_SECS)
            request = binary_request("app")
            if protocol == "json":
                request = ("POST", request[1], json.dumps(infer_body()).encode(), bearer("app"))
            for _ in range(count + 5):
                connection.request(*request)
                response = connection.getresponse()
                response.read()
                outcomes.append(response.status)
            connection.close()
            refused, fine = 429, 200
            fast_path = running.server.ports.application.fast_path
        else:
            message = infer_message().SerializeToString()
            with grpc.insecure_channel(running.grpc_address) as line:
                for _ in range(count + 5):
                    try:
                        unary(line, "ModelInfer", message, metadata("app"))
                        outcomes.append("OK")
                    except grpc.RpcError as error:
                        waits = dict(error.trailing_metadata())["retry-after"]
                        outcomes.append(error.code().name if int(waits) > 500 else waits)
            refused, fine = "RESOURCE_EXHAUSTED", "OK"
            fast_path = None
        assert outcomes == [fine] * count + [refused] * 5
        assert len(grouped) > count // 2  # they took the fast path
        port = running.server.metrics_port
        text = HttpCall(port, "GET", "/metrics", headers=bearer("admin")).response().body.decode()
        assert f'shoal_key_requests_total{{key="app"}} {count}' in text
        assert 'shoal_key_refused_total{key="app",reason="rate"} 5' in text
        assert 'shoal_key_requests_in_flight{key="app"} 0' in text
        assert fast_path is None or not fast_path.requests


def test_no_way_onto_the_fast_path_leaves_keys_out():
    """Every method that begins a call is one that asks the quota."""
    from shoal.frontends.grpc.fast_path import GrpcFastPath
    from shoal.frontends.grpc.keyed_fast_path import KeyedGrpcFastPath
    from shoal.frontends.http import keyed_fast_path as keyed
    from shoal.frontends.http.pattern import BinaryPattern, JsonPattern

    for plain, with_key in (
        (BinaryPattern, keyed.KeyedBinaryPattern),
        (JsonPattern, keyed.KeyedJsonPattern),
        (GrpcFastPath, KeyedGrpcFastPath),
    ):
        begins = {name for name in vars(plain) if name.startswith(("take", "request"))}
        assert begins
        assert begins <= set(vars(with_key))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_large_template_hits_have_quotas(tmp_path, protocol):
    add_onnx(tmp_path / "models", "wide", onnx_models.plus(1, 50_000))
    keys = write_keys(tmp_path / "keys", app={"requests_per_second": 0.001, "burst": 10.0})
    tensor = np.ones((1, 50_000), np.float32).tobytes()
    with (
        running_server(tmp_path / "models", api_keys=keys, plans=True) as running,
        grpc.insecure_channel(running.grpc_address) as line,
    ):
        counts = running.server.ports.access.identify(key_of("app").encode(), None).counts
        connection = http.client.HTTPConnection(running.http_address, timeout=WAIT_SECS)
        entry = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 50_000]}
        header = json.dumps(
            {
                "inputs": [{**entry, "parameters": {"binary_data_size": len(tensor)}}],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        headers = {"Inference-Header-Content-Length": str(len(header)), **bearer("app")}
        request = messages.ModelInferRequest(model_name="wide")
        request.inputs.add(**entry)
        request.raw_input_contents.append(tensor)
        message = request.SerializeToString()

        def ask():
            if protocol == "grpc":
                call = line.unary_unary(SERVICE + "ModelInfer")
                answer = call.future(message, metadata=metadata("app"), timeout=WAIT_SECS)
                return {"OK": 200, "RESOURCE_EXHAUSTED": 429}[answer.code().name]
            connection.request("POST", "/v2/models/wide/infer", header + tensor, headers)
            response = connection.getresponse()
            response.read()
            return response.status

        assert [ask() for _ in range(13)] == [200] * 10 + [429] * 3
        connection.close()
        assert counts.requests == 10
        assert counts.received_bytes >= 10 * len(tensor)
        assert counts.sent_bytes >= 10 * len(tensor)
        wait_until(lambda: counts.in_flight == 0)


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
def test_requests_in_flight(tmp_path, protocol):
    backend = FakeBackend()
    backend.gate.clear()
    add_fake(tmp_path / "models", "held")
    keys = write_keys(tmp_path / "keys", app={"requests_in_flight": 2}, other={})
    body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}
    message = messages.ModelInferRequest(model_name="held")
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1])
    message.raw_input_contents.append(b"\x01\x00\x00\x00")
    data = message.SerializeToString()
    with (
        running_server(tmp_path / "models", backends=backend.registry(), api_keys=keys) as running,
        grpc.insecure_channel(running.grpc_address) as line,
    ):
        counts = running.server.ports.access.identify(key_of("app").encode(), None).counts
        call = line.unary_unary(SERVICE + "ModelInfer")
        stream = line.stream_stream(SERVICE + "ModelStreamInfer")
        try:
            if protocol == "http":
                path = "/v2/models/held/infer"
                calls = [running.call("POST", path, body, bearer("app")) for _ in range(2)]
                wait_until(lambda: counts.in_flight == 2)
                assert running.post(path, body, bearer("app")).status == 429
                calls[0].disconnect()
                wait_until(lambda: counts.in_flight == 1)
                calls[0] = running.call("POST", path, body, bearer("app"))
                wait_until(lambda: counts.in_flight == 2)
                backend.gate.set()
                assert [each.response().status for each in calls] == [200, 200]
            elif protocol == "grpc":
                keys = {"metadata": metadata("app"), "timeout": WAIT_SECS}
                futures = [call.future(data, **keys) for _ in range(2)]
                wait_until(lambda: counts.in_flight == 2)
                error = refusal(lambda: call(data, **keys))
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                futures[0].cancel()
                wait_until(lambda: counts.in_flight == 1)
                backend.gate.set()
                assert futures[1].result()
            else:
                messages_sent = iter([data] * 3)
                answers = stream(messages_sent, metadata=metadata("app"), timeout=WAIT_SECS)
                wait_until(lambda: counts.refused.get("in_flight") == 1)
                backend.gate.set()
                errors = [
                    messages.ModelStreamInferResponse.FromString(each).error_message
                    for each in answers
                ]
                assert [bool(error) for error in errors] == [False, False, True]
        finally:
            backend.gate.set()
        wait_until(lambda: counts.in_flight == 0)


def test_a_request_of_a_stream_whose_end_is_not_sent_is_not_in_flight(tmp_path):
    @shoal.model
    def words(text: str) -> Iterator[str]:
        yield text  # its end comes without a result

    keys = write_keys(tmp_path / "keys", app={"requests_in_flight": 1})
    tensor = grpcclient.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"x"], np.object_))
    answers = queue.Queue()
    with (
        running_server(tmp_path, functions=[words], api_keys=keys) as running,
        grpcclient.InferenceServerClient(running.grpc_address) as client,
    ):
        counts = running.server.ports.access.identify(key_of("app").encode(), None).counts
        client.start_stream(
            lambda result, error: answers.put((result, error)),
            headers=bearer("app"),
        )
        for _ in range(3):
            client.async_stream_infer("words", [tensor])
            result, error = answers.get(timeout=WAIT_SECS)
            assert error is None
            assert result.as_numpy("output").tolist() == [b"x"]
            wait_until(lambda: counts.in_flight == 0)
        client.stop_stream()


# ---- changes


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_removed_key_ends_at_once_also_for_template_hits(folder, tmp_path, protocol):
    path = tmp_path / "keys"
    write_keys(path, app={}, other={})
    with (
        running_server(folder, api_keys=str(path), plans=True) as running,
        grpc.insecure_channel(running.grpc_address) as line,
    ):
        connection = http.client.HTTPConnection(running.http_address, timeout=WAIT_SECS)
        message = infer_message().SerializeToString()

        def ask(model="sum"):
            if protocol == "http":
                connection.request(*binary_request("app", model))
                response = connection.getresponse()
                response.read()
                return response.status
            try:
                unary(line, "ModelInfer", message, metadata("app"))
            except grpc.RpcError as error:
                return {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}[error.code().name]
            return 200

        assert [ask() for _ in range(5)] == [200] * 5
        counts = running.server.ports.access.identify(key_of("app").encode(), None).counts
        write_keys(path, app={"models": ("other",)}, other={})
        running.server.reloads.request()
        wait_until(lambda: ask() == 403)
        counted = counts.refused["model"]
        assert [ask() for _ in range(5)] == [403] * 5
        assert counts.refused["model"] == counted + 5  # once, not by both paths
        write_keys(path, app={"models": ("*",)}, other={})
        running.server.reloads.request()
        wait_until(lambda: ask() == 200)
        assert [ask() for _ in range(5)] == [200] * 5
        write_keys(path, other={})
        running.server.reloads.request()
        wait_until(lambda: ask() == 401)
        assert [ask() for _ in range(5)] == [401] * 5
        connection.close()


def test_restricted_apis_go_on_working_beside_keys(folder, tmp_path):
    keys = write_keys(tmp_path / "keys", admin={"apis": ("*",)})
    restricted = (NamedSetting("statistics", "admin-key", "s"),)
    with (
        running_server(
            folder,
            api_keys=keys,
            http_restricted_api=restricted,
            grpc_restricted_protocol=restricted,
        ) as running,
        grpc.insecure_channel(running.grpc_address) as line,
    ):
        path, secret = "/v2/models/stats", {"admin-key": "s"}
        assert running.get(path, secret).status == 401
        assert running.get(path, bearer("admin")).status == 403
        assert running.get(path, {**secret, **bearer("admin")}).status == 200
        secret = ("triton-grpc-protocol-admin-key", "s")
        codes = [
            refusal(unary, line, "ModelStatistics", b"", keys).code().name
            for keys in ([secret], metadata("admin"))
        ]
        assert codes == ["UNAUTHENTICATED", "UNAVAILABLE"]
        unary(line, "ModelStatistics", b"", [secret, *metadata("admin")])


def test_a_file_with_a_mistake_is_an_error_at_start(folder, tmp_path):
    path = tmp_path / "keys"
    path.write_text('{"name": "a", "sha256": "5"}\n')
    with (
        pytest.raises(InvalidArgument, match=r"keys, line 1: 'sha256' must be"),
        running_server(folder, api_keys=str(path)),
    ):
        pass


def test_a_large_body_without_a_key_is_not_received(running):
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        b"Content-Length: 1000000000\r\n%s\r\n"
    )
    for keys, status in ((b"", b"401"), (b"Authorization: Bearer nonsense\r\n", b"401")):
        with socket.create_connection(("127.0.0.1", running.server.http_port), WAIT_SECS) as line:
            line.sendall(head % keys)
            received = b"".join(iter(lambda: line.recv(65536), b""))  # the server closes
        assert received.startswith(b"HTTP/1.1 %s " % status)
        assert b'WWW-Authenticate: Bearer realm="shoal"\r\n' in received
        error = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "invalid_api_key"
    with socket.create_connection(("127.0.0.1", running.server.http_port), WAIT_SECS) as line:
        line.sendall(head % f"Authorization: Bearer {key_of('plain')}\r\n".encode())
        assert line.recv(100).startswith(b"HTTP/1.1 100 Continue")


def test_keys_are_not_forwarded_to_models(folder, tmp_path):
    keys = write_keys(tmp_path / "keys", app={})
    with running_server(
        folder,
        api_keys=keys,
        api_key_header="my-key",
        http_header_forward_pattern=".*",
        grpc_header_forward_pattern=".*",
    ) as running:
        seen = []
        infer = running.server.engine.infer
        running.server.engine.infer = lambda request: (
            seen.append(dict(request.parameters)),
            infer(request),
        )
        headers = {**bearer("app"), "my-key": key_of("app"), "team": "vision"}
        assert running.post("/v2/models/sum/infer", infer_body(), headers).status == 200
        with grpc.insecure_channel(running.grpc_address) as line:
            message = infer_message().SerializeToString()
            unary(line, "ModelInfer", message, headers.items())
        assert [each["team"] for each in seen] == ["vision", "vision"]
        assert key_of("app") not in str(seen)
