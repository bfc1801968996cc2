import pytest

from shoal.errors import InvalidArgument
from shoal.frontends.http.routes import resolve


@pytest.mark.parametrize(
    ("path", "name", "model", "version"),
    [
        ("/v2/models/m/infer", "infer", "m", -1),
        ("/v2/models/m/versions/3/infer", "infer", "m", 3),
        ("/v2/models/m/versions/0003/infer", "infer", "m", 3),
        ("/v2/models/m/versions/9223372036854775807/infer", "infer", "m", 2**63 - 1),
        ("/v2/models/a%20b%2Fc/infer", "infer", "a b/c", -1),
        ("/v2/models/%C3%A9/infer", "infer", "é", -1),
        ("/v2/models/%ff/infer", "infer", "\N{REPLACEMENT CHARACTER}", -1),
        ("/v2/models/../infer", "infer", "..", -1),
        ("/v2/health/live", "live", "", -1),
        ("/v2/health/ready", "ready", "", -1),
        ("/v2/models/m/ready", "model_ready", "m", -1),
        ("/v2/models/m/versions/1/ready", "model_ready", "m", 1),
        ("/v2", "server_metadata", "", -1),
        ("/v2/models/m", "model_metadata", "m", -1),
        ("/v2/models/m/versions/1", "model_metadata", "m", 1),
        ("/v2/models/m/config", "model_config", "m", -1),
        ("/v2/models/m/versions/1/config", "model_config", "m", 1),
        ("/v2/models/stats", "statistics", "", -1),
        ("/v2/models/stats/stats", "statistics", "stats", -1),
        ("/v2/models/stats/infer", "infer", "stats", -1),
        ("/v2/models/m/stats", "statistics", "m", -1),
        ("/v2/models/m/versions/1/stats", "statistics", "m", 1),
        ("/v2/repository/index", "index", "", -1),
        ("/v2/repository/models/m/load", "load", "m", -1),
        ("/v2/repository/models/m/unload", "unload", "m", -1),
        ("/v2/models/m/generate", "generate", "m", -1),
        ("/v2/models/m/versions/1/generate_stream", "generate_stream", "m", 1),
        ("/v2/systemsharedmemory/status", "system_memory_status", "", -1),
        ("/v2/systemsharedmemory/region/r/status", "system_memory_status", "", -1),
        ("/v2/cudasharedmemory/region/r/register", "cuda_memory_register", "", -1),
        ("/v2/cudasharedmemory/unregister", "cuda_memory_unregister", "", -1),
        ("/v2/trace/setting", "get_trace", "", -1),
        ("/v2/models/m/trace/setting", "get_trace", "m", -1),
        ("/v2/logging", "get_logging", "", -1),
        ("/metrics", "metrics", "", -1),
        ("/metrics/", "metrics", "", -1),
        ("/", "welcome", "", -1),
        ("/proto", "proto", "", -1),  # not an operation of a task
        ("/classify", "classify", "", -1),
        ("/embed", "task", "", -1),
        ("/v2/models/m/classify", "classify", "m", -1),
        ("/v2/models/m/versions/2/embed", "task", "m", 2),
        ("/v2/console", "console_state", "", -1),
        ("/console/app.js", "console_file", "", -1),
    ],
)
def test_paths_that_mean_something(path, name, model, version):
    target = resolve(path)
    assert target.route.name == name
    assert (target.model, target.version, target.repository) == (model, version, "")


@pytest.mark.parametrize(
    ("path", "name", "model"),
    [
        ("/v2/repository/r%20s/index", "index", ""),
        ("/v2/repository/r%20s/models/m/load", "load", "m"),
        ("/v2/repository/r%20s/models/m/unload", "unload", "m"),
    ],
)
def test_a_repository_may_be_named(path, name, model):
    target = resolve(path)
    assert (target.route.name, target.model, target.repository) == (name, model, "r s")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "*",
        "/v1",
        "/v2/models",
        "/v2/models//infer",
        "/v2/models/m/infer/",
        "/v2/models/m/versions/x/infer",
        "/v2/models/m/versions/-1/infer",
        "/v2/models/m/versions/infer",
        "/v2/models/m/versions/\N{ARABIC-INDIC DIGIT ONE}/infer",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/models/a/b/infer",
        "/v2/health",
        "/v2/repository/models/m/reload",
        "/v2/repository/a/b/index",
        "/v2/systemsharedmemory",
        "/v2/sharedmemory/status",
        "/metricsx",
        "//v2",
        "/v2/models/" + "m" * 10_000 + "/x",
    ],
)
def test_paths_that_mean_nothing(path):
    assert resolve(path) is None


def test_long_names_are_found_too():
    assert resolve("/v2/models/" + "m" * 5_000 + "/infer").model == "m" * 5_000


@pytest.mark.parametrize("version", ["9223372036854775808", "9" * 5_000])
def test_versions_fit_into_64_bits(version):
    with pytest.raises(InvalidArgument, match="failed to get model version from specified version"):
        resolve(f"/v2/models/m/versions/{version}/infer")


@pytest.mark.parametrize(
    ("path", "allow", "answered", "refused"),
    [
        ("/v2", b"GET, HEAD, OPTIONS", ("GET", "HEAD"), ("POST", "PUT", "OPTIONS", "DELETE")),
        ("/v2/models/m/infer", b"POST, OPTIONS", ("POST",), ("GET", "HEAD", "PATCH")),
        ("/v2/logging", b"GET, POST, HEAD, OPTIONS", ("GET", "HEAD", "POST"), ("PUT",)),
    ],
)
def test_methods(path, allow, answered, refused):
    route = resolve(path).route
    assert route.allow == allow
    assert set(answered) == set(route.endpoints)
    assert not set(refused) & set(route.endpoints)
