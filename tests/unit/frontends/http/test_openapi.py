"""The OpenAPI document: complete, valid, and honest about restrictions."""

import re

import pytest

import shoal
from shoal.frontends.http.openapi.document import document
from shoal.frontends.http.openapi.schemas import SCHEMAS
from shoal.frontends.http.routes import endpoints, resolve, routes
from shoal.wire.proto.sources import SOURCES

EXAMPLES = {
    "model": "m",
    "version": "3",
    "repository": "r",
    "region": "g",
    "file": "f.proto",
    "asset": "console.css",
    "operation": "embed",
}


@pytest.fixture(scope="module")
def described():
    return document("1.2.3", {})


def operations(found):
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def filled(path):
    return re.sub(r"\{(\w+)\}", lambda match: EXAMPLES[match[1]], path)


def test_the_document_is_valid(described):
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(described)
    assert described["openapi"].startswith("3.1.")
    assert described["info"]["version"] == "1.2.3"


def test_every_route_is_described_with_every_method(described):
    found = {
        resolve(filled(path)).route.endpoints[method] for path, method, _ in operations(described)
    }
    shadowed = {endpoint for endpoint in endpoints() if endpoint.template.endswith("{operation}")}
    assert found | shadowed == set(endpoints())
    assert all(endpoint.summary for endpoint in endpoints())


def test_every_path_leads_to_the_route_it_describes(described):
    for path, method, operation in operations(described):
        endpoint = resolve(filled(path)).route.endpoints[method]
        assert operation["tags"] == [endpoint.api or "server"]
        named = {
            parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"
        }
        assert named == set(re.findall(r"\{(\w+)\}", path))


def test_the_pattern_matches_every_path_of_a_route():
    for route in routes():
        for endpoint in route.endpoints.values():
            for path in endpoint.paths():
                assert route.pattern.fullmatch(filled(path)), path


def test_identifiers_are_different_and_short(described):
    names = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(set(names)) == len(names)
    assert {"infer", "infer_version", "statistics", "statistics_model", "update_logging"} <= set(
        names
    )


def test_no_schema_is_left_over(described):
    used = set(re.findall(r"#/components/schemas/(\w+)", repr(described)))
    assert used == set(SCHEMAS)


def test_restrictions_name_the_header_and_keep_the_value():
    found = document("1", {"inference": ("infer-key", "secret"), "trace": ("admin", "hush")})
    schemes = found["components"]["securitySchemes"]
    assert schemes["inference"] == {"type": "apiKey", "in": "header", "name": "infer-key"}
    for _, _, operation in operations(found):
        category = operation["tags"][0]
        closed = category in ("inference", "trace")
        assert operation.get("security") == ([{category: []}] if closed else None)
    assert "secret" not in repr(found)
    assert "hush" not in repr(found)
    pytest.importorskip("openapi_spec_validator").validate(found)


def test_the_route(front):
    answer = front.ask("GET", "/openapi.json")
    assert answer.status == 200
    assert answer.headers[b"content-type"] == b"application/json"
    assert answer.json == document(shoal.__version__, {})


def test_proto_files(front):
    assert front.ask("GET", "/proto").json == {"files": sorted(SOURCES)}
    for name in SOURCES:
        answer = front.ask("GET", f"/proto/{name}")
        assert answer.status == 200
        assert answer.headers[b"content-type"] == b"text/plain; charset=utf-8"
        assert b'syntax = "proto3";' in answer.body
    for name in ("schema.py", "..%2Fschema.py", "%2Fetc%2Fpasswd", "grpc_service"):
        answer = front.ask("GET", f"/proto/{name}")
        assert answer.status == 404
        assert "there are grpc_service.proto, health.proto, model_config.proto" in answer.error


def test_both_belong_to_the_metadata(front):
    front.set(restricted_apis={"metadata": ("key", "yes")})
    for path in ("/openapi.json", "/proto", "/proto/health.proto"):
        assert front.ask("GET", path).status == 403
        assert front.ask("GET", path, key="yes").status == 200
