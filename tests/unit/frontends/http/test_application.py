import pytest

from shoal.core.readiness import Problem
from shoal.errors import (
    AlreadyExists,
    Cancelled,
    Code,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unknown,
    Unsupported,
)
from shoal.frontends.http.errors import STATUS
from shoal.frontends.http.routes import route


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2", {"name": "triton", "version": "9.9", "extensions": ["statistics"]}),
        ("/v2/models/m", {"name": "m", "versions": ["-1"]}),
        ("/v2/models/m/versions/2", {"name": "m", "versions": ["2"]}),
        ("/v2/models/m/config", {"name": "m", "max_batch_size": 8, "version": -1}),
        ("/v2/models/m/versions/2/config", {"name": "m", "max_batch_size": 8, "version": 2}),
        ("/v2/models/stats", {"model_stats": [{"name": "", "version": -1}]}),
        ("/v2/models/m/stats", {"model_stats": [{"name": "m", "version": -1}]}),
        ("/v2/models/m/versions/2/stats", {"model_stats": [{"name": "m", "version": 2}]}),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_can_be_read(front, method, path, body):
    answer = front.ask(method, path)
    assert answer.status == 200
    assert answer.headers[b"content-type"] == b"application/json"
    assert answer.json == body


def test_the_root_says_where_to_go(front):
    answer = front.ask("GET", "/")
    assert answer.status == 200
    assert (answer.json["name"], answer.json["version"]) == ("triton", "9.9")
    for path in answer.json["links"].values():
        assert path.startswith("/")


@pytest.mark.parametrize(
    ("path", "unknown"),
    [
        ("/v2/models/x", "x"),
        ("/v2/models/x%2Fy/config", "x/y"),
        ("/v2/models/../stats", ".."),
        ("/v2/models/x%00/ready", "x\0"),
        ("/v2/models/%3Cb%3E%22/ready", '<b>"'),
    ],
)
def test_unknown_models(front, path, unknown):
    answer = front.ask("GET", path)
    assert answer.status == 404
    assert answer.error == f"Request for unknown model: '{unknown}' is not found"


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_unknown_paths(front, method):
    answer = front.ask(method, "/v2/nothing/here")
    assert (answer.status, answer.error) == (404, "Not Found")


def test_versions_beyond_64_bits(front):
    answer = front.ask("GET", "/v2/models/m/versions/99999999999999999999")
    assert answer.status == 400
    assert answer.error.endswith("version should be an integral value > 0")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v2", b"GET, HEAD, OPTIONS"),
        ("GET", "/v2/models/m/infer", b"POST, OPTIONS"),
        ("HEAD", "/v2/models/m/infer", b"POST, OPTIONS"),
        ("GET", "/v2/repository/index", b"POST, OPTIONS"),
        ("DELETE", "/v2/models/m", b"GET, HEAD, OPTIONS"),
        ("POST", "/v2/health/live", b"GET, HEAD, OPTIONS"),
    ],
)
def test_wrong_methods(front, method, path, allow):
    answer = front.ask(method, path)
    assert (answer.status, answer.error) == (405, "Method Not Allowed")
    assert answer.headers[b"allow"] == allow


def test_options(front):
    answer = front.ask("OPTIONS", "/v2/models/m/infer")
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers == {b"allow": b"POST, OPTIONS"}
    assert front.ask("OPTIONS", "*").headers == {b"allow": b"GET, HEAD, POST, OPTIONS"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidArgument, 400),
        (NotFound, 404),
        (AlreadyExists, 400),
        (Unavailable, 503),
        (Unsupported, 501),
        (Cancelled, 400),
        (Internal, 500),
        (Unknown, 400),
    ],
)
def test_the_status_of_each_error(front, error, status):
    front.engine.failure = error('it "broke"')
    answer = front.infer(front.input())
    assert (answer.status, answer.error) == (status, 'it "broke"')


def test_every_code_has_a_status():
    assert set(STATUS) == set(Code)


def test_a_fault_of_ours_is_a_500_and_in_the_log(front, caplog):
    front.engine.server_metadata = lambda: 1 / 0
    answer = front.ask("GET", "/v2")
    assert answer.status == 500
    assert answer.error == "internal error: ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("path", "setting", "status"),
    [
        ("/v2/health/live", {}, 200),
        ("/v2/health/live", {"is_ready": False}, 200),
        ("/v2/health/live", {"is_exiting": True}, 200),
        ("/v2/health/ready", {}, 200),
        ("/v2/health/ready", {"is_ready": False}, 400),
        ("/v2/health/ready?verbose=false", {"is_ready": False}, 400),
        ("/v2/health/ready?other", {}, 200),
        ("/v2/models/m/ready", {}, 200),
        ("/v2/models/m/ready", {"is_exiting": True}, 200),
    ],
)
def test_health_is_a_status_without_a_body(front, path, setting, status):
    vars(front.engine).update(setting)
    for headers in ({}, {"accept": "*/*", "user_agent": "curl/8.5.0"}):
        answer = front.ask("GET", path, **headers)
        assert (answer.status, answer.body, answer.headers) == (status, b"", {})


@pytest.mark.parametrize(
    "headers",
    [
        {"accept": "text/html, application/json;q=0.9"},
        {"accept": "*/*", "user_agent": "python-httpx/0.28.1"},
    ],
)
@pytest.mark.parametrize(
    ("path", "setting", "status", "body"),
    [
        ("/v2/health/live", {}, 200, {"live": True}),
        ("/v2/health/ready", {}, 200, {"live": True, "ready": True}),
        ("/v2/health/ready", {"is_ready": False}, 400, {"live": True, "ready": False}),
        ("/v2/models/m/ready", {}, 200, {"name": "m", "ready": True}),
    ],
)
def test_clients_that_parse_a_body_get_the_open_inference_protocols(
    front, path, setting, status, body, headers
):
    vars(front.engine).update(setting)
    answer = front.ask("GET", path, **headers)
    assert (answer.status, answer.json) == (status, body)


def test_readiness_while_exiting(front):
    front.engine.is_exiting = True
    answer = front.ask("GET", "/v2/health/ready")
    assert (answer.status, answer.error) == (503, "Server exiting")


@pytest.mark.parametrize("query", ["verbose", "verbose=true", "a=b&verbose="])
@pytest.mark.parametrize(
    ("setting", "status"),
    [({}, 200), ({"is_ready": False}, 400), ({"is_exiting": True}, 503)],
)
def test_verbose_readiness_has_the_same_status_and_the_reasons(front, query, setting, status):
    vars(front.engine).update(setting)
    front.engine.problems = (Problem("a is missing", "a"), Problem("b is slow", "b", blocks=False))
    answer = front.ask("GET", f"/v2/health/ready?{query}")
    assert (answer.status, answer.json) == (
        status,
        {"ready": status == 200, "reasons": ["a is missing"], "warnings": ["b is slow"]},
    )
    assert front.ask("GET", "/v2/health/ready").status == status


def test_a_model_that_is_not_ready(front):
    front.engine.model_is_ready = False
    answer = front.ask("GET", "/v2/models/m/versions/2/ready")
    assert (answer.status, answer.error) == (400, "Model version not ready")


def test_metrics(front):
    assert front.ask("GET", "/metrics").status == 404
    front.set(render_metrics=lambda: b"# HELP\n")
    answer = front.ask("GET", "/metrics")
    assert (answer.status, answer.body) == (200, b"# HELP\n")
    assert answer.headers == {b"content-type": b"text/plain; charset=utf-8"}


def test_restricted_apis(front):
    front.set(restricted_apis={"metadata": ("Infer-Key", "yes"), "health": ("k", "v")})
    answer = front.ask("GET", "/v2")
    expected = (403, "This API is restricted, expecting header 'Infer-Key'")
    assert (answer.status, answer.error) == expected
    assert front.ask("GET", "/v2/models/m", infer_key="no").status == 403
    assert front.ask("GET", "/v2/models/m", infer_key="yes").status == 200
    assert front.ask("GET", "/v2/health/live", infer_key="yes").status == 403
    assert front.ask("GET", "/v2/models/m/config").status == 200


def test_a_route_must_have_a_known_api_kind():
    with pytest.raises(ValueError, match="route /x: unknown API kind 'all'"):
        route("GET /x", api="all")
