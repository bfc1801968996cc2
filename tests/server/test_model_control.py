"""Model control by clients: load, unload and index in explicit mode, with overrides of all kinds."""

import base64

import numpy as np
import pytest

from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, check_empty, echo, outputs
from tests.support.repositories import (
    EXECUTION_MODES,
    add_onnx,
    execution,
)

REFUSED = "explicit model load / unload is not allowed if polling is enabled"


# ---- a model's life


def test_only_requested_models_are_loaded(repository, running):
    add_onnx(repository, "echo", onnx_models.identity())
    assert running.index() == [{"name": "echo"}]
    assert running.get("/v2/health/ready").status == 200
    assert running.get("/v2/models/echo/ready").status == 404
    assert echo(running, "echo").error == "Request for unknown model: 'echo' is not found"


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_load_use_unload_and_load_again(repository, running, mode):
    add_onnx(repository, "echo", onnx_models.identity(), execution(mode))
    for _ in range(3):
        check_empty(running.load("echo"))
        assert running.index() == [{"name": "echo", "version": "1", "state": "READY"}]
        assert running.get("/v2/models/echo/ready").status == 200
        assert outputs(echo(running, "echo"))["OUTPUT0"].tolist() == [[7]]
        assert running.statistics("echo")["inference_count"] == 1  # from zero at each load
        check_empty(running.unload("echo"))
        wait_until(lambda: running.states("echo") == {"1": "UNAVAILABLE"})
        assert running.index()[0]["reason"] == "unloaded"
        assert running.get("/v2/models/echo/ready").status == 404
        answer = echo(running, "echo")
        assert answer.status == 404
        assert answer.error == "Request for unknown model: 'echo' has no available versions"
        assert running.get("/v2/health/ready").status == 200
        assert running.get("/v2/models/stats").json == {"model_stats": []}


def test_the_index_lists_only_ready_models_on_request(repository, running):
    add_onnx(repository, "a", onnx_models.identity())
    add_onnx(repository, "b", onnx_models.identity())
    check_empty(running.load("b"))
    rows = running.post("/v2/repository/index", {"ready": True}).json
    assert rows == [{"name": "b", "version": "1", "state": "READY"}]
    assert [row["name"] for row in running.post("/v2/repository/index", {}).json] == ["a", "b"]
    assert running.post("/v2/repository/any_name/index").status == 200


def test_unloading_what_is_not_loaded_changes_nothing(repository, running):
    add_onnx(repository, "echo", onnx_models.identity())
    assert running.unload("echo").status == 200
    assert running.unload("echo").status == 200
    assert running.get("/v2/health/ready").status == 200


def test_a_model_that_is_not_in_the_repository(running):
    answer = running.load("nope")
    assert answer.status == 500
    assert answer.error.startswith("failed to load 'nope', failed to poll from model repository")
    assert running.get("/v2/health/ready").status == 200
    assert running.index() == []


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters":{}}'])
def test_empty_bodies(repository, running, body):
    add_onnx(repository, "echo", onnx_models.identity())
    check_empty(running.post("/v2/repository/models/echo/load", body))
    check_empty(running.post("/v2/repository/models/echo/unload", body))


def test_dependents_may_be_unloaded_too(repository, running):
    add_onnx(repository, "echo", onnx_models.identity())
    check_empty(running.load("echo"))
    body = {"parameters": {"unload_dependents": True}}
    check_empty(running.post("/v2/repository/models/echo/unload", body))
    assert running.get("/v2/models/echo/ready").status == 404


@pytest.mark.parametrize("action", ["load", "unload"])
def test_a_repository_cannot_be_named(running, action):
    answer = running.post(f"/v2/repository/mine/models/echo/{action}")
    assert answer.status == 501
    assert answer.error == "'repository_name' specification is not supported"


@pytest.mark.parametrize("mode", ["none", "poll"])
@pytest.mark.parametrize("action", ["load", "unload"])
def test_control_is_for_explicit_mode(repository, mode, action):
    add_onnx(repository, "echo", onnx_models.identity())
    with running_server(repository, model_control_mode=mode) as server:
        answer = server.post(f"/v2/repository/models/echo/{action}")
        assert (answer.status, answer.error) == (503, REFUSED)
        assert server.states("echo") == {"1": "READY"}


def test_models_named_at_the_start(repository):
    for name in ("a", "b", "c"):
        add_onnx(repository, name, onnx_models.identity())
    options = {"model_control_mode": "explicit"}
    with running_server(repository, load_model=("a", "c"), **options) as server:
        assert [row.get("state") for row in server.index()] == ["READY", None, "READY"]
    with running_server(repository, load_model=("*",), **options) as server:
        assert [row.get("state") for row in server.index()] == ["READY"] * 3


# ---- names and paths that lead elsewhere


@pytest.mark.parametrize("action", ["load", "unload"])
@pytest.mark.parametrize("name", ["%2e%2e", "..%2fmodels", "%2fetc", "a%2fb", "a%5cb", "a%00", "."])
def test_path_tricks_in_names(repository, running, name, action):
    add_onnx(repository.parent, "outside", onnx_models.identity())
    answer = running.post(f"/v2/repository/models/{name}/{action}")
    assert answer.status in (400, 404), answer
    assert running.index() == []


@pytest.mark.parametrize(
    "path",
    [
        "../model.onnx",
        "1/../../model.onnx",
        "1/../../../../../../../../escaped",
        "/escaped",
        "//escaped",
        "..",
        "",
        "1\\..\\..\\model.onnx",
        "1/model\0.onnx",
    ],
)
def test_path_tricks_in_override_files(repository, running, tmp_path, path):
    add_onnx(repository, "echo", onnx_models.identity())
    before = sorted(tmp_path.rglob("*"))
    content = base64.b64encode(b"content").decode()
    answer = running.load("echo", config={"backend": "onnxruntime"}, **{f"file:{path}": content})
    assert answer.status == 400, answer
    assert "inside the model's folder" in answer.error
    assert sorted(tmp_path.rglob("*")) == before
    assert running.index() == [{"name": "echo"}]


def test_files_stay_out_of_the_repository(repository, running):
    """Even a harmless path: what a client brings is kept apart."""
    content = base64.b64encode(onnx_models.identity().SerializeToString()).decode()
    check_empty(running.load("brought", config={}, **{"file:1/model.onnx": content}))
    assert list(repository.iterdir()) == []
    assert outputs(echo(running, "brought"))["OUTPUT0"].tolist() == [[7]]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"config": {"max_batch_size": -1}}, "max_batch_size"),
        ({"config": "not JSON"}, "config given with the load of 'echo'"),
        ({"config": '{"no_such_field": 1}'}, "no_such_field"),
        ({"config": '{"name": "other"}'}, "directory name must equal model name"),
        ({"config": "[" * 10_000}, "config given with the load"),
        ({"config": 7}, "must be a string"),
        ({"nonsense": "x"}, "unrecognized load parameter 'nonsense'"),
        ({"file:1/model.onnx": "AAAA"}, "config"),
        ({"config": "{}", "file:1/model.onnx": "no base64!"}, "is not valid base64"),
        ({"config": "{}", "file:1/model.onnx": 7}, "must be a string"),
    ],
)
def test_wrong_load_parameters(repository, running, parameters, text):
    add_onnx(repository, "echo", onnx_models.identity())
    check_empty(running.load("echo"))
    answer = running.load("echo", **parameters)
    assert answer.status in (400, 500), answer
    assert text in answer.error
    assert outputs(echo(running, "echo"))["OUTPUT0"].tolist() == [[7]]


# ---- overrides


def test_a_config_override_holds_until_a_load_without_one(repository, running):
    add_onnx(repository, "echo", onnx_models.identity(), "max_batch_size: 4")
    check_empty(running.load("echo"))
    override = {"max_batch_size": 2, "parameters": {"a": {"string_value": "b"}}}
    check_empty(running.load("echo", config=override))
    config = running.config("echo")
    assert config["max_batch_size"] == 2
    assert config["parameters"]["a"] == {"string_value": "b"}
    assert config["input"][0]["name"] == "INPUT0"  # completed as a file's config is
    too_many = Infer().add("INPUT0", np.zeros((3, 1), np.float32)).send(running, "echo")
    assert "batch-size must be <= 2" in too_many.error
    check_empty(running.unload("echo"))
    check_empty(running.load("echo"))
    assert running.config("echo")["max_batch_size"] == 4


def test_an_override_does_not_touch_the_folder(repository, running):
    folder = add_onnx(repository, "echo", onnx_models.identity(), "max_batch_size: 4")
    check_empty(running.load("echo", config={"max_batch_size": 2}))
    assert (folder / "config.pbtxt").read_text() == "max_batch_size: 4"


def test_files_take_the_place_of_the_folder(repository, running):
    add_onnx(repository, "sum", onnx_models.plus(1), versions=(1, 2))
    check_empty(running.load("sum"))
    assert outputs(echo(running, "sum"))["OUTPUT0"].tolist() == [[8]]
    content = base64.b64encode(onnx_models.plus(100).SerializeToString()).decode()
    check_empty(
        running.load("sum", config={"backend": "onnxruntime"}, **{"file:3/model.onnx": content})
    )
    assert running.states("sum")["3"] == "READY"
    assert outputs(echo(running, "sum"))["OUTPUT0"].tolist() == [[107]]
    wait_until(lambda: running.states("sum")["2"] == "UNAVAILABLE")
    check_empty(running.load("sum"))
    assert outputs(echo(running, "sum"))["OUTPUT0"].tolist() == [[8]]
    wait_until(lambda: running.states("sum")["3"] == "UNAVAILABLE")


def test_files_beside_the_model(repository, running):
    """Labels are a file of the model's folder, not of a version."""
    model = base64.b64encode(onnx_models.identity(dims=(2,)).SerializeToString()).decode()
    config = {
        "max_batch_size": 4,
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
        "output": [
            {"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [2], "label_filename": "l.txt"}
        ],
    }
    files = {"file:1/model.onnx": model, "file:l.txt": base64.b64encode(b"cod\neel").decode()}
    check_empty(running.load("brought", config=config, **files))
    infer = Infer().add("INPUT0", np.array([[1, 2]], np.float32))
    answer = infer.want("OUTPUT0", classification=1).send(running, "brought")
    assert outputs(answer)["OUTPUT0"].tolist() == [[b"2.000000:1:eel"]]


def test_an_override_that_fails_keeps_the_previous_one(repository, running):
    add_onnx(repository, "echo", onnx_models.identity(), "max_batch_size: 4")
    check_empty(running.load("echo", config={"max_batch_size": 2}))
    broken = base64.b64encode(b"this is no model").decode()
    answer = running.load("echo", config={"max_batch_size": 8}, **{"file:1/model.onnx": broken})
    assert answer.status in (400, 500)
    assert running.config("echo")["max_batch_size"] == 2
    assert outputs(echo(running, "echo"))["OUTPUT0"].tolist() == [[7]]


@pytest.mark.parametrize("action", ["load", "unload"])
def test_names_with_spaces_or_separators(running, action):
    """The texts of Triton's core."""
    empty = running.post(f"/v2/repository/models/%20/{action}", b"{}")
    assert empty.status == 400
    assert empty.error == "Model name cannot be empty. Please enter a valid name to deploy."
    outside = running.post(f"/v2/repository/models/..%2Fx/{action}", b"{}")
    assert outside.status == 400
    assert outside.error == (
        "invalid model name '../x', model name must not contain path traversal characters"
    )
