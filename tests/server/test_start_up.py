"""What a server makes of the repositories it is started with."""

import shutil
import threading

import numpy as np
import pytest

from shoal.backends import onnx_session
from shoal.config.options import NamedSetting
from shoal.errors import InvalidArgument
from shoal.instance import device
from shoal.server import ModelsFailed
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import add_fake, add_model, add_onnx

REQUEST = Infer().add("INPUT0", np.array([[7]], np.float32))


def versions(running, model="echo"):
    return running.get(f"/v2/models/{model}").json["versions"]


# ---- versions


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", ["12"]),
        ("version_policy: { latest { num_versions: 1 } }", ["12"]),
        ("version_policy: { latest { num_versions: 2 } }", ["3", "12"]),
        ("version_policy: { latest { num_versions: 99 } }", ["1", "3", "12"]),
        ("version_policy: { all { } }", ["1", "3", "12"]),
        ("version_policy: { specific { versions: [ 1, 3 ] } }", ["1", "3"]),
        ("version_policy: { specific { versions: [ 3, 77 ] } }", ["3"]),
    ],
)
def test_the_version_policy(tmp_path, policy, served):
    add_onnx(tmp_path, "echo", onnx_models.identity(), policy, versions=(1, 3, 12))
    with running_server(tmp_path) as running:
        assert versions(running) == served
        assert running.states("echo") == dict.fromkeys(served, "READY")
        assert REQUEST.send(running, "echo").json["model_version"] == served[-1]
        for version in ("1", "3", "12"):
            answer = REQUEST.send(running, f"echo/versions/{version}")
            assert answer.status == (200 if version in served else 404)
            ready = running.get(f"/v2/models/echo/versions/{version}/ready")
            assert ready.status == (200 if version in served else 404)
        assert running.get(f"/v2/models/echo/versions/{served[0]}").json["versions"] == served[:1]
        counted = running.get("/v2/models/echo/stats").json["model_stats"]
        assert [entry["version"] for entry in counted] == served


def test_folders_that_are_no_versions(tmp_path, caplog):
    folder = add_onnx(tmp_path, "echo", onnx_models.identity(), versions=(2,))
    for name in ("003", "latest", "1.5", "-4", "warmup", "initial_state", "configs", "__pycache__"):
        (folder / name).mkdir()
    (folder / "7").touch()  # a file
    with running_server(tmp_path) as running:
        assert versions(running) == ["2"]
    warned = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert sorted(text.split("'")[1] for text in warned) == ["-4", "003", "1.5", "latest"]


def test_a_model_without_versions(tmp_path):
    add_model(tmp_path, "empty", 'backend: "onnxruntime"', versions=())
    with running_server(tmp_path, exit_on_error=False) as running:
        (row,) = running.index()
        assert row["state"] == "UNAVAILABLE"
        assert "at least one version must be available" in row["reason"]
        assert running.get("/v2/health/ready").status == 400


# ---- several repositories


def test_several_repositories_are_one(tmp_path):
    add_onnx(tmp_path / "a", "first", onnx_models.identity())
    add_onnx(tmp_path / "b", "second", onnx_models.identity())
    (tmp_path / "b" / "README.md").write_text("a file is no model")
    (tmp_path / "b" / ".hidden").mkdir()
    with running_server(tmp_path / "a", tmp_path / "b") as running:
        assert [row["name"] for row in running.index()] == ["first", "second"]
        assert REQUEST.send(running, "first").status == 200
        assert REQUEST.send(running, "second").status == 200


def test_a_name_in_two_repositories_is_served_from_neither(tmp_path):
    for place in ("a", "b"):
        add_onnx(tmp_path / place, "twice", onnx_models.identity())
    add_onnx(tmp_path / "a", "once", onnx_models.identity())
    with running_server(tmp_path / "a", tmp_path / "b", exit_on_error=False) as running:
        assert running.index() == [
            {"name": "once", "version": "1", "state": "READY"},
            {
                "name": "twice",
                "state": "UNAVAILABLE",
                "reason": "model appears in two or more repositories",
            },
        ]
        assert REQUEST.send(running, "once").status == 200
        assert REQUEST.send(running, "twice").status == 404
        assert running.get("/v2/health/ready").status == 400


def test_a_name_in_two_repositories_ends_the_start(tmp_path):
    for place in ("a", "b"):
        add_onnx(tmp_path / place, "twice", onnx_models.identity())
    with (
        pytest.raises(ModelsFailed) as caught,
        running_server(tmp_path / "a", tmp_path / "b"),
    ):
        pass
    (reason,) = caught.value.reasons
    assert "'twice'" in reason
    assert str(tmp_path / "b" / "twice") in reason


def test_an_empty_repository_is_ready(tmp_path):
    with running_server(tmp_path) as running:
        assert running.get("/v2/health/ready").status == 200
        assert running.index() == []
        assert running.get("/v2/models/stats").json == {"model_stats": []}


# ---- models that cannot be served

TENSORS = """
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""
BROKEN = {
    "no text format": ("max_batch_size = 4", None, "config.pbtxt"),
    "binary": ("\0\1\2\3", None, "config.pbtxt"),
    "unknown field": ("max_batch_sise: 4", None, "max_batch_size"),
    "unknown enum": ("instance_group { kind: KIND_QUANTUM }", None, "KIND_QUANTUM"),
    "another name": ('name: "other"', None, "directory name must equal model name"),
    "negative": ("max_batch_size: -1", None, "max_batch_size"),
    "unknown backend": ('backend: "abacus"', None, "abacus"),
    "not ONNX": (None, b"this is no model", "is not an ONNX model"),
    "empty file": (None, b"", "model.onnx"),
    "wrong input": (
        TENSORS.replace("INPUT0", "NOPE"),
        None,
        "NOPE",
    ),
    "wrong datatype": (
        TENSORS.replace("TYPE_FP32", "TYPE_INT8", 1),
        None,
        "TYPE_INT8",
    ),
    "preferred too large": (
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 8 ] }",
        None,
        "preferred",
    ),
    "unknown execution": (
        'parameters { key: "execution" value: { string_value: "quantum" } }',
        None,
        "auto, loop or threads",
    ),
    "label file": (
        TENSORS.replace("OUTPUT0", 'OUTPUT0" label_filename: "../x'),
        None,
        "label_filename",
    ),
}


@pytest.fixture(scope="module")
def with_broken_models(tmp_path_factory):
    """One server with every broken model and a good one among them."""
    folder = tmp_path_factory.mktemp("models")
    content = onnx_models.identity().SerializeToString()
    for name, (config, model, _) in BROKEN.items():
        files = {"1/model.onnx": content if model is None else model}
        add_model(folder, name.replace(" ", "_"), config, files)
    add_onnx(folder, "good", onnx_models.identity())
    with running_server(folder, exit_on_error=False) as running:
        yield running


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_reports_why(with_broken_models, name):
    model = name.replace(" ", "_")
    (row,) = [row for row in with_broken_models.index() if row["name"] == model]
    assert row["state"] == "UNAVAILABLE"
    assert BROKEN[name][2] in row["reason"]
    assert "Traceback" not in row["reason"]
    answer = REQUEST.send(with_broken_models, model)
    assert answer.status == 404
    assert answer.error == f"Request for unknown model: '{model}' has no available versions"
    assert with_broken_models.get(f"/v2/models/{model}/ready").status in (400, 404)


def test_broken_models_do_not_affect_the_others(with_broken_models):
    assert outputs(REQUEST.send(with_broken_models, "good"))["OUTPUT0"].tolist() == [[7]]
    assert with_broken_models.get("/v2/health/live").status == 200
    assert with_broken_models.get("/v2/health/ready").status == 400
    rows = with_broken_models.post("/v2/repository/index", {"ready": True}).json
    assert rows == [{"name": "good", "version": "1", "state": "READY"}]


@pytest.mark.parametrize("name", ["no text format", "not ONNX", "unknown backend"])
def test_a_broken_model_ends_the_start(tmp_path, name):
    config, model, text = BROKEN[name]
    content = onnx_models.identity().SerializeToString() if model is None else model
    add_model(tmp_path, "broken", config, {"1/model.onnx": content})
    add_onnx(tmp_path, "good", onnx_models.identity())
    with pytest.raises(ModelsFailed) as caught, running_server(tmp_path):
        pass
    (reason,) = caught.value.reasons
    assert text in reason
    assert "\n" not in reason


def test_readiness_without_the_strict_rule(tmp_path):
    add_model(tmp_path, "broken", None, {"1/model.onnx": b"no"})
    with running_server(tmp_path, exit_on_error=False, strict_readiness=False) as running:
        assert running.get("/v2/health/ready").status == 200
        assert running.get("/v2/models/broken/ready").status in (400, 404)


def test_loads_are_retried_on_request(tmp_path):
    fake = FakeBackend()
    load, attempts = fake.load, []

    def second_time_lucky(context):
        attempts.append(context)
        if len(attempts) == 1:
            raise OSError("the network is away")
        return load(context)

    fake.load = second_time_lucky
    add_fake(tmp_path, "held")
    backends = fake.registry()
    with running_server(tmp_path, backends=backends, model_load_retry_count=1) as running:
        assert running.states("held") == {"1": "READY"}
    assert len(attempts) == 2


def test_a_folder_deleted_while_the_server_starts(tmp_path):
    """The model is gone before its turn: the server says so and serves the rest."""
    fake = FakeBackend()
    load = fake.load
    gone = add_onnx(tmp_path, "gone", onnx_models.identity())

    def delete_the_other(context):
        shutil.rmtree(gone)
        return load(context)

    fake.load = delete_the_other
    add_fake(tmp_path, "a_first")
    with running_server(
        tmp_path,
        backends=fake.registry(),
        exit_on_error=False,
        model_load_thread_count=1,
    ) as running:
        assert running.states("a_first") == {"1": "READY"}
        assert running.get("/v2/models/gone/ready").status == 404
        assert running.get("/v2/health/live").status == 200


def test_models_load_side_by_side(tmp_path):
    """Each load waits for the other one to have begun."""
    fake = FakeBackend()
    load, meeting = fake.load, threading.Barrier(2)

    def meet(context):
        meeting.wait(WAIT_SECS)
        return load(context)

    fake.load = meet
    add_fake(tmp_path, "a")
    add_fake(tmp_path, "b")
    backends = fake.registry()
    with running_server(tmp_path, backends=backends, model_load_thread_count=2) as running:
        assert [row["state"] for row in running.index()] == ["READY", "READY"]


# ---- configs


def test_a_config_of_another_name(tmp_path):
    folder = add_onnx(tmp_path, "echo", onnx_models.identity(), "max_batch_size: 2")
    add_model(tmp_path, "echo", None, {"configs/large.pbtxt": b"max_batch_size: 16"})
    add_onnx(tmp_path, "other", onnx_models.identity(), "max_batch_size: 3")
    assert folder.is_dir()
    with running_server(tmp_path, model_config_name="large") as running:
        assert running.get("/v2/models/echo/config").json["max_batch_size"] == 16
        assert running.get("/v2/models/other/config").json["max_batch_size"] == 3


def test_configs_are_not_completed_when_switched_off(tmp_path):
    add_onnx(tmp_path, "echo", onnx_models.identity())
    with running_server(
        tmp_path, disable_auto_complete_config=True, exit_on_error=False
    ) as running:
        (row,) = running.index()
        assert "--disable-auto-complete-config" in row["reason"]


def test_a_guessed_config(tmp_path):
    add_onnx(tmp_path, "sum", onnx_models.add_sub("INT32", dims=(16,)))
    with running_server(tmp_path) as running:
        config = running.get("/v2/models/sum/config").json
        assert (config["name"], config["backend"]) == ("sum", "onnxruntime")
        assert config["platform"] == "onnxruntime_onnx"
        assert config["max_batch_size"] == 4
        assert config["dynamic_batching"]["preferred_batch_size"] == [4]
        assert [tensor["dims"] for tensor in config["input"]] == [[16], [16]]
        assert config["instance_group"][0]["kind"] == "KIND_CPU"
        assert config["instance_group"][0]["count"] == 2
        assert config["version_policy"] == {"latest": {"num_versions": 1}}
        metadata = running.get("/v2/models/sum").json
        assert metadata["platform"] == "onnxruntime_onnx"
        assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}


def test_fields_without_effect_are_named(tmp_path, caplog):
    add_onnx(tmp_path, "echo", onnx_models.identity(), "optimization { eager_batching: true }")
    with running_server(tmp_path) as running:
        assert running.states("echo") == {"1": "READY"}
    assert "optimization.eager_batching is not acted on yet and has no effect" in caplog.text


def test_fields_that_need_a_flag_are_named(tmp_path, caplog):
    config = "response_cache { enable: true } instance_group { rate_limiter { priority: 1 } }"
    add_onnx(tmp_path, "echo", onnx_models.identity(), config)
    with running_server(tmp_path) as running:
        assert running.states("echo") == {"1": "READY"}
    assert "response_cache.enable has no effect, because the server was started without" in (
        caplog.text
    )
    assert "instance_group.rate_limiter has no effect, because the server was" in caplog.text
    caplog.clear()
    cache = (NamedSetting("local", "size", "1M"),)
    with running_server(tmp_path, cache_config=cache, rate_limit="execution_count"):
        pass
    assert "has no effect" not in caplog.text


@pytest.mark.parametrize("written", ["[ 16 ]", "[ -1 ]"])
@pytest.mark.parametrize("built", [(16,), (-1,)])
def test_dims_that_are_compatible(tmp_path, written, built):
    config = (
        f'max_batch_size: 2 input {{ name: "INPUT0" data_type: TYPE_FP32 dims: {written} }} '
        f'output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: {written} }}'
    )
    add_onnx(tmp_path, "echo", onnx_models.identity("FP32", dims=built), config)
    with running_server(tmp_path) as running:
        array = np.arange(16, dtype=np.float32)[None]
        got = outputs(Infer().add("INPUT0", array).send(running, "echo"))
        np.testing.assert_array_equal(got["OUTPUT0"], array)
        fits_all = built == (-1,) and written == "[ -1 ]"
        assert (REQUEST.send(running, "echo").status == 200) == fits_all


# ---- GPUs, on a machine that has none

ON_GPU = "max_batch_size: 2 instance_group { count: 1 kind: KIND_GPU }"


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(device, "gpus", lambda: ())


def test_a_gpu_that_is_not_there(tmp_path, no_gpu):
    add_onnx(tmp_path, "echo", onnx_models.identity(), ON_GPU)
    with pytest.raises(ModelsFailed) as caught, running_server(tmp_path):
        pass
    (reason,) = caught.value.reasons
    assert "has kind KIND_GPU but no GPUs are available" in reason
    assert "--gpu-fallback=cpu" in reason


def test_loading_a_model_for_a_gpu_that_is_not_there(tmp_path, no_gpu):
    add_onnx(tmp_path, "echo", onnx_models.identity(), ON_GPU)
    with running_server(tmp_path, model_control_mode="explicit") as running:
        answer = running.load("echo")
        assert answer.status == 400
        assert answer.error.startswith("load failed for model 'echo': ")
        assert "has kind KIND_GPU but no GPUs are available" in answer.error


def test_onnx_runtime_for_cpus_on_a_machine_with_a_gpu(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(device, "gpus", lambda: (0,))
    monkeypatch.setattr(onnx_session, "available_providers", lambda: ["CPUExecutionProvider"])
    add_onnx(tmp_path, "echo", onnx_models.identity(), "max_batch_size: 2")
    with running_server(tmp_path) as running:
        (group,) = running.get("/v2/models/echo/config").json["instance_group"]
        assert group["kind"] == "KIND_CPU"
        assert REQUEST.send(running, "echo").status == 200
    assert "runs on the CPU although there is a GPU: the installed ONNX Runtime" in caplog.text


def test_the_folder_of_one_model(tmp_path):
    add_onnx(tmp_path, "echo", onnx_models.identity(), "max_batch_size: 2")
    with (
        pytest.raises(InvalidArgument, match=f"serve its parent: {tmp_path}"),
        running_server(tmp_path / "echo"),
    ):
        pass


@pytest.mark.parametrize("kind", ["KIND_GPU", "KIND_AUTO", "KIND_CPU"])
def test_the_cpu_in_place_of_a_gpu(tmp_path, no_gpu, kind):
    add_onnx(tmp_path, "echo", onnx_models.identity(), ON_GPU.replace("KIND_GPU", kind))
    fallback = "cpu" if kind == "KIND_GPU" else "none"
    with running_server(tmp_path, gpu_fallback=fallback) as running:
        (group,) = running.get("/v2/models/echo/config").json["instance_group"]
        assert (group["kind"], group["count"], group["gpus"]) == ("KIND_CPU", 1, [])
        assert REQUEST.send(running, "echo").status == 200


# ---- warm-up


def test_warm_up_runs_before_the_model_is_ready(tmp_path):
    fake = FakeBackend()
    warm = (
        'model_warmup { name: "rows" batch_size: 4 count: 2 inputs { key: "INPUT0" '
        "value: { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } } "
        "instance_group { count: 2 kind: KIND_CPU }"
    )
    add_fake(tmp_path, "held", warm)
    with running_server(tmp_path, backends=fake.registry()) as running:
        assert [batch["INPUT0"].shape for batch in fake.batches] == [(4, 1)] * 4
        assert running.statistics("held")["inference_count"] == 0


def test_a_warm_up_that_fails_is_a_load_that_fails(tmp_path):
    def fail(inputs, wanted):
        raise ValueError("cold feet")

    fake = FakeBackend(fail)
    add_fake(
        tmp_path,
        "held",
        'model_warmup { name: "one" batch_size: 1 inputs { key: "INPUT0" '
        "value: { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } }",
    )
    with running_server(tmp_path, backends=fake.registry(), exit_on_error=False) as running:
        (row,) = running.index()
        assert row["state"] == "UNAVAILABLE"
        assert "cold feet" in row["reason"]
        wait_until(lambda: (fake.open_models, fake.open_executors) == (0, 0))
