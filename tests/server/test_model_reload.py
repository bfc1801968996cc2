"""Loading what is loaded: what changes, what stays, what fails, and who is served meanwhile."""

import json
import shutil
import threading

import numpy as np
import psutil
import pytest

from shoal.testing.server import wait_until
from tests.support import onnx_models
from tests.support.client import Infer, check_empty, echo, outputs
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import (
    EXECUTION_MODES,
    add_fake,
    add_model,
    add_onnx,
    execution,
    touch,
)

# ---- reloads


def test_a_load_of_the_same_files_changes_nothing(repository, running):
    add_onnx(repository, "echo", onnx_models.identity())
    check_empty(running.load("echo"))
    before = running.model("echo")
    echo(running, "echo")
    check_empty(running.load("echo"))
    assert running.model("echo") is before
    assert running.statistics("echo")["inference_count"] == 1


def test_a_changed_file_is_a_new_model(repository, running):
    folder = add_onnx(repository, "sum", onnx_models.plus(1))
    check_empty(running.load("sum"))
    add_onnx(repository, "sum", onnx_models.plus(2))
    touch(folder / "1" / "model.onnx")
    check_empty(running.load("sum"))
    assert outputs(echo(running, "sum"))["OUTPUT0"].tolist() == [[9]]
    assert running.statistics("sum")["inference_count"] == 1


def test_a_version_that_stays_is_not_loaded_again(repository, running):
    folder = add_onnx(
        repository, "sum", onnx_models.plus(1), "version_policy: { all { } }", versions=(1, 2)
    )
    check_empty(running.load("sum"))
    kept, old = running.model("sum", 1), running.model("sum", 2)
    shutil.rmtree(folder / "2")
    onnx_models.save(onnx_models.plus(3), folder / "3" / "model.onnx")
    check_empty(running.load("sum"))
    assert running.model("sum", 1) is kept
    assert outputs(echo(running, "sum"))["OUTPUT0"].tolist() == [[10]]
    wait_until(lambda: running.states("sum")["2"] == "UNAVAILABLE")
    assert running.model("sum", 3) is not old
    answer = echo(running, "sum/versions/2")
    assert answer.status == 503
    assert answer.error == "Request for unknown model: 'sum' version 2 is not at ready state"


def test_the_instance_group_changes_without_a_reload(repository, running, fake):
    group = "instance_group { count: %d kind: KIND_CPU }"
    add_fake(repository, "held", group % 1)
    check_empty(running.load("held"))
    before = running.model("held")
    echo(running, "held", datatype=np.int32)
    for count in (3, 1):
        add_fake(repository, "held", group % count)
        check_empty(running.load("held"))
        assert running.model("held") is before
        assert len(fake.loads) == 1
        assert fake.open_executors == count
        assert running.config("held")["instance_group"][0]["count"] == count
    assert running.statistics("held")["inference_count"] == 1
    assert outputs(echo(running, "held", datatype=np.int32))["OUTPUT0"].tolist() == [[7]]


def test_more_instances_really_run_side_by_side(repository, running, fake):
    add_fake(repository, "held", "instance_group { count: 1 kind: KIND_CPU }")
    check_empty(running.load("held"))
    add_fake(repository, "held", "instance_group { count: 3 kind: KIND_CPU }")
    check_empty(running.load("held"))
    fake.gate.clear()
    infer = Infer().add("INPUT0", np.array([[1]], np.int32))
    calls = [infer.call(running, "held") for _ in range(3)]
    for _ in calls:
        assert fake.started.acquire(timeout=WAIT_SECS)
    fake.gate.set()
    assert [call.response().status for call in calls] == [200] * 3


# ---- failing loads


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (lambda folder: (folder / "1" / "model.onnx").write_bytes(b"no model"), "model.onnx"),
        (lambda folder: (folder / "config.pbtxt").write_text("max_batch_size: many"), "max_batch"),
        (lambda folder: (folder / "config.pbtxt").write_text("}"), "config.pbtxt"),
        (lambda folder: (folder / "config.pbtxt").write_bytes(b"\xff\xfe\x00"), "config.pbtxt"),
        (lambda folder: (folder / "config.pbtxt").write_text('backend: "nope"'), "nope"),
        (lambda folder: (folder / "1" / "model.onnx").unlink(), "model.onnx"),
        (lambda folder: shutil.rmtree(folder / "1"), "version"),
        (lambda folder: (folder / "1" / "model.onnx").write_bytes(b""), "model.onnx"),
    ],
    ids=["no ONNX", "wrong value", "no text format", "no text", "backend", "file", "version", "0"],
)
def test_a_failing_load_leaves_the_old_one_serving(repository, running, breaks, says):
    folder = add_onnx(repository, "echo", onnx_models.identity(), "max_batch_size: 4")
    check_empty(running.load("echo"))
    breaks(folder)
    answer = running.load("echo")
    assert answer.status in (400, 500)
    assert says in answer.error
    assert "Traceback" not in answer.error
    (row,) = running.index()
    assert row["state"] == "READY"
    assert "the previous one still serves" in row["reason"]
    assert says in row["reason"]
    assert outputs(echo(running, "echo"))["OUTPUT0"].tolist() == [[7]]
    assert running.get("/v2/health/ready").status == 200
    shutil.rmtree(folder)
    add_onnx(repository, "echo", onnx_models.identity(), "max_batch_size: 2")
    check_empty(running.load("echo"))
    assert running.index() == [{"name": "echo", "version": "1", "state": "READY"}]


def test_a_model_that_never_loaded_can_be_repaired(repository, running):
    folder = add_model(repository, "echo", None, {"1/model.onnx": b"no model"})
    answer = running.load("echo")
    assert answer.status in (400, 500)
    (row,) = running.index()
    assert row["state"] == "UNAVAILABLE"
    assert "model.onnx" in row["reason"]
    assert running.get("/v2/health/ready").status == 400
    assert running.get("/v2/models/echo/ready").status in (400, 404)
    onnx_models.save(onnx_models.identity(), folder / "1" / "model.onnx")
    check_empty(running.load("echo"))
    assert running.index() == [{"name": "echo", "version": "1", "state": "READY"}]
    assert running.get("/v2/health/ready").status == 200


@pytest.mark.parametrize("config", [None, "max_batch_size: 4"])
def test_a_file_that_is_not_a_model_is_reported_by_version(repository, running, config):
    """Whether the file is opened to complete the config or to load it makes no difference."""
    add_model(repository, "echo", config, {"1/model.onnx": b"no model"})
    answer = running.load("echo")
    assert answer.status == 400
    assert answer.error.startswith(
        "load failed for model 'echo': version 1 is at UNAVAILABLE state"
    )
    assert "'echo/1/model.onnx' is not an ONNX model" in answer.error
    (row,) = running.index()
    assert (row["version"], row["state"]) == ("1", "UNAVAILABLE")
    assert "'echo/1/model.onnx' is not an ONNX model" in row["reason"]


def test_a_config_broken_while_the_model_was_unloaded(repository, running):
    folder = add_onnx(repository, "echo", onnx_models.identity())
    check_empty(running.load("echo"))
    check_empty(running.unload("echo"))
    (folder / "config.pbtxt").write_text("}")
    assert running.load("echo").status == 500
    assert any("config.pbtxt" in row.get("reason", "") for row in running.index())
    assert running.get("/v2/health/ready").status == 400
    (folder / "config.pbtxt").unlink()
    check_empty(running.load("echo"))
    assert running.index() == [{"name": "echo", "version": "1", "state": "READY"}]


def test_a_broken_version_that_was_replaced_is_forgotten(repository, running):
    """Otherwise the server would never be ready again."""
    folder = add_model(repository, "echo", None, {"1/model.onnx": b"no model"})
    assert running.load("echo").status == 400
    assert running.get("/v2/health/ready").status == 400
    shutil.rmtree(folder / "1")
    onnx_models.save(onnx_models.identity(), folder / "2" / "model.onnx")
    check_empty(running.load("echo"))
    assert running.states("echo") == {"2": "READY"}
    assert running.get("/v2/health/ready").status == 200


@pytest.mark.parametrize("config", ["}", "version_policy { specific { versions: 9 } }", None])
def test_a_model_that_failed_can_be_given_up(repository, running, config):
    """Unloading it says that no client needs it: the server is ready again."""
    add_model(repository, "echo", config, {"1/model.onnx": b"no model"})
    assert running.load("echo").status in (400, 500)
    assert running.get("/v2/health/ready").status == 400
    check_empty(running.unload("echo"))
    assert running.get("/v2/health/ready").status == 200


def test_all_versions_or_none(repository, running):
    """One version of two is broken: the other is not served either, and both say why."""
    folder = add_onnx(
        repository, "sum", onnx_models.plus(1), "version_policy: { all { } }", versions=(1, 2)
    )
    (folder / "2" / "model.onnx").write_bytes(b"no model")
    answer = running.load("sum")
    assert answer.status == 400
    assert answer.error.startswith("load failed for model 'sum': version 2 is at UNAVAILABLE state")
    assert running.states("sum") == {"1": "UNAVAILABLE", "2": "UNAVAILABLE"}


# ---- while requests are under way


def test_requests_in_flight_finish_on_the_old_version(repository, running, fake):
    fake.gate.clear()
    add_fake(repository, "held", versions=(1,))
    check_empty(running.load("held"))
    infer = Infer().add("INPUT0", np.array([[1]], np.int32))
    executing = infer.call(running, "held")
    assert fake.started.acquire(timeout=WAIT_SECS)
    queued = infer.call(running, "held")
    running.wait_for_pending("held", 1)
    (repository / "held" / "2").mkdir()
    check_empty(running.load("held"))
    assert running.states("held") == {"1": "UNLOADING", "2": "READY"}
    fresh = infer.call(running, "held")
    assert fake.started.acquire(timeout=WAIT_SECS)
    fake.gate.set()
    assert executing.response().json["model_version"] == "1"
    assert queued.response().json["model_version"] == "1"
    assert fresh.response().json["model_version"] == "2"
    wait_until(lambda: running.states("held") == {"1": "UNAVAILABLE", "2": "READY"})
    assert fake.open_models == 1


def test_unload_answers_what_is_queued(repository, running, fake):
    fake.gate.clear()
    add_fake(repository, "held")
    check_empty(running.load("held"))
    infer = Infer().add("INPUT0", np.array([[1]], np.int32))
    calls = [infer.call(running, "held") for _ in range(4)]
    assert fake.started.acquire(timeout=WAIT_SECS)
    running.wait_for_pending("held", 3)
    unloading = running.call("POST", "/v2/repository/models/held/unload")
    wait_until(lambda: running.states("held") == {"1": "UNLOADING"})
    assert infer.send(running, "held").status == 404
    fake.gate.set()
    assert [call.response().status for call in calls] == [200] * 4
    check_empty(unloading.response())
    wait_until(lambda: running.states("held") == {"1": "UNAVAILABLE"})
    assert (fake.open_models, fake.open_executors) == (0, 0)


@pytest.mark.parametrize("action", ["unload", "load"])
@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_a_batch_that_is_still_filling_is_not_lost(repository, running, mode, action):
    """Requests that wait for a larger batch are run when the model is unloaded or replaced."""
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 60000000 }"
    folder = add_onnx(repository, "sum", onnx_models.plus(1), config + execution(mode))
    check_empty(running.load("sum"))
    infer = Infer().add("INPUT0", np.array([[7]], np.float32))
    calls = [infer.call(running, "sum") for _ in range(3)]
    running.wait_for_pending("sum", 3)
    onnx_models.save(onnx_models.plus(2), folder / "1" / "model.onnx")
    check_empty(running.post(f"/v2/repository/models/sum/{action}"))
    for call in calls:
        assert outputs(call.response())["OUTPUT0"].tolist() == [[8]]


def test_a_load_delays_no_request(repository, running, fake, monkeypatch):
    """Other models serve, the index answers, and so do health and the model's old version."""
    add_fake(repository, "slow")
    add_onnx(repository, "echo", onnx_models.identity())
    check_empty(running.load("echo"))
    begun, may_load = threading.Event(), threading.Event()
    load = fake.load

    def slow_load(context):
        begun.set()
        assert may_load.wait(WAIT_SECS)
        return load(context)

    monkeypatch.setattr(fake, "load", slow_load)
    loading = running.call("POST", "/v2/repository/models/slow/load", b"")
    assert begun.wait(WAIT_SECS)
    assert running.states("slow") == {"1": "LOADING"}
    assert running.get("/v2/models/slow/ready").status in (400, 404)
    assert running.get("/v2/health/ready").status == 400  # the strict rule
    assert running.get("/v2/health/live").status == 200
    assert outputs(echo(running, "echo"))["OUTPUT0"].tolist() == [[7]]
    may_load.set()
    check_empty(loading.response())
    assert running.get("/v2/health/ready").status == 200


def test_a_folder_deleted_while_it_is_loaded(repository, running, fake, monkeypatch):
    folder = add_fake(repository, "gone")
    load = fake.load

    def load_and_lose(context):
        shutil.rmtree(folder)
        if not context.version_folder.exists():
            raise FileNotFoundError(context.version_folder)
        return load(context)

    monkeypatch.setattr(fake, "load", load_and_lose)
    answer = running.load("gone")
    assert answer.status in (400, 500)
    assert "FileNotFoundError" in answer.error
    assert running.states("gone") == {"1": "UNAVAILABLE"}
    monkeypatch.setattr(fake, "load", load)
    add_fake(repository, "gone")
    check_empty(running.load("gone"))


def test_a_folder_deleted_while_its_config_is_read(repository, running, fake, monkeypatch):
    folder = add_fake(repository, "gone")

    def complete(config, *_):
        shutil.rmtree(folder)
        return config

    monkeypatch.setattr(fake, "complete", complete)
    running.load("gone")  # whether it loads is the backend's affair: the server lives on
    assert running.index()
    assert running.load("gone").status == 500
    assert running.get("/v2/health/live").status == 200


@pytest.mark.parametrize("mode", [*EXECUTION_MODES, "auto"])
def test_loads_and_requests_at_the_same_time(repository, running, mode):
    """Reloading again and again loses no request: each is answered by an old or a new model."""
    folder = add_onnx(repository, "sum", onnx_models.plus(1), execution(mode))
    check_empty(running.load("sum"))
    stop = threading.Event()
    failures = []

    def ask():
        while not stop.is_set():
            answer = echo(running, "sum")
            if answer.status != 200 or outputs(answer)["OUTPUT0"].tolist()[0][0] not in (8, 9):
                failures.append(answer)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(8):
        onnx_models.save(onnx_models.plus(1 + number % 2), folder / "1" / "model.onnx")
        check_empty(running.load("sum"))
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_unload_gives_the_memory_back(repository, running):
    """Load and unload a model of 64 MB a few times; what stays is a fraction of one."""
    process = psutil.Process()
    megabyte = 1 << 20
    onnx_models.save(onnx_models.heavy(64), repository / "heavy" / "1" / "model.onnx")
    check_empty(running.load("heavy"))  # libraries keep something from the first time
    check_empty(running.unload("heavy"))
    running.server.repository._lifecycles["heavy"].wait_closed()
    before = process.memory_info().rss
    for _ in range(3):
        check_empty(running.load("heavy"))
        assert process.memory_info().rss - before > 50 * megabyte
        check_empty(running.unload("heavy"))
        wait_until(lambda: running.states("heavy") == {"1": "UNAVAILABLE"})
        wait_until(lambda: process.memory_info().rss - before < 24 * megabyte, "the memory is back")


def test_two_clients_load_at_once(repository, running, fake):
    add_fake(repository, "held")
    calls = [running.call("POST", "/v2/repository/models/held/load") for _ in range(4)]
    assert [call.response().status for call in calls] == [200] * 4
    assert len(fake.loads) == 1


def test_the_config_of_a_model_can_be_sent_back(repository, running):
    """What GET …/config says is a config that a load accepts."""
    add_onnx(repository, "echo", onnx_models.identity(), "max_batch_size: 4 dynamic_batching { }")
    check_empty(running.load("echo"))
    config = running.config("echo")
    check_empty(running.load("echo", config=json.dumps(config)))
    assert running.config("echo") == config
