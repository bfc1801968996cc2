"""What the OpenAPI document promises, compared with what a server answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shoal.cli.demo import repository
from shoal.config.options import NamedSetting
from shoal.testing.server import running_server

validators = pytest.importorskip("jsonschema.validators")

TEXTS = json.dumps(
    {"id": "7", "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["eel"]}]}
)
VALUES = {"model": "upper", "version": "1", "file": "health.proto", "asset": "console.css"}
POSTS = {
    "/v2/models/{model}/infer": TEXTS,
    "/v2/models/{model}/versions/{version}/infer": TEXTS,
    "/v2/models/{model}/generate": '{"text": "eel"}',
    "/v2/models/{model}/versions/{version}/generate": '{"text": "eel"}',
    "/v2/models/{model}/generate_stream": '{"text": "eel"}',
    "/v2/models/{model}/versions/{version}/generate_stream": '{"text": "eel"}',
    "/v2/repository/index": "",
    "/v2/repository/models/{model}/load": "",
    "/v2/repository/models/{model}/unload": '{"parameters": {"unload_dependents": true}}',
    "/v2/systemsharedmemory/unregister": "",
    "/v2/cudasharedmemory/unregister": "",
    "/v2/trace/setting": '{"trace_rate": "7"}',
    "/v2/models/{model}/trace/recording": '{"count": 2}',
    "/v2/models/{model}/trace/setting": '{"trace_rate": "3", "trace_level": null}',
    "/v2/logging": '{"log_verbose_level": 0}',
}


@pytest.fixture(scope="module")
def server():
    with running_server(
        Path(repository()),
        model_control_mode="explicit",
        load_model=("*",),
        allow_client_shm="true",
    ) as running:
        running.post("/v2/models/upper/infer", TEXTS.encode())  # something to count and explain
        yield running


@pytest.fixture(scope="module")
def document(server):
    answer = server.get("/openapi.json")
    assert answer.status == 200
    return answer.json


def matches(document, operation, answer):
    """Whether the answer is one of those the document promises for an operation."""
    assert answer.status == 200, answer
    promised = operation["responses"]["200"].get("content")
    if promised is None:
        assert answer.body == b""
        return
    kind = answer.headers["content-type"].partition(";")[0]
    schema = promised[kind]["schema"]
    if kind == "application/json":
        rooted = {**schema, "components": document["components"]}
        validators.Draft202012Validator(rooted).validate(answer.json)


def test_every_response_to_a_query_matches_the_document(server, document):
    asked = 0
    for path, methods in document["paths"].items():
        if "get" in methods and "{region}" not in path and path != "/v1/models/{model}":
            filled = re.sub(r"\{(\w+)\}", lambda match: VALUES[match[1]], path)
            verbose = any(each["name"] == "verbose" for each in methods["get"]["parameters"])
            for query in {"", "?verbose" * verbose}:
                answer = server.get(filled + query, {"Accept": "application/json"})
                matches(document, methods["get"], answer)
            asked += 1
    assert asked > 20


@pytest.mark.parametrize("path", POSTS)
def test_every_response_to_a_request_matches_the_document(server, document, path):
    operation = document["paths"][path]["post"]
    body = POSTS[path]
    if body:
        media = operation["requestBody"]["content"]["application/json"]
        rooted = {**media["schema"], "components": document["components"]}
        validators.Draft202012Validator(rooted).validate(json.loads(body))
    filled = re.sub(r"\{(\w+)\}", lambda match: VALUES[match[1]], path)
    try:
        matches(document, operation, server.post(filled, body.encode()))
    finally:
        if path.endswith("/unload"):
            server.load("upper")


def test_every_request_is_tried():
    from shoal.frontends.http.openapi.document import document

    described = {path for path, methods in document("1", {})["paths"].items() if "post" in methods}
    untried = {path for path in described if "{repository}" in path or "{region}" in path}
    # These are asked where their models are: tests/tasks.
    untried |= {path for path in described if "{operation}" in path or path.startswith("/v1/")}
    untried |= {path for path in described if path.endswith(("/classify", "/rerank"))}
    assert described - untried == set(POSTS)


def test_errors_are_as_promised(server, document):
    answer = server.get("/v2/models/nope")
    schema = {"$ref": "#/components/schemas/Error", "components": document["components"]}
    validators.Draft202012Validator(schema).validate(answer.json)


def test_restricted_apis_are_marked():
    closed = (NamedSetting("metadata", "read-key", "secret"),)
    with running_server(Path(repository()), http_restricted_api=closed) as running:
        assert running.get("/openapi.json").status == 403
        found = running.get("/openapi.json", {"read-key": "secret"}).json
        assert running.get("/proto/grpc_service.proto").status == 403
    assert found["paths"]["/v2"]["get"]["security"] == [{"metadata": []}]
    scheme = {"type": "apiKey", "in": "header", "name": "read-key"}
    assert found["components"]["securitySchemes"] == {"metadata": scheme}
