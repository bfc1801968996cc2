"""Poll mode: the server follows what changes on disk, once it has stopped changing."""

import shutil
import threading

import numpy as np
import pytest

from shoal.repository.poller import RepositoryPoller
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import add_fake, add_onnx, touch

POLL_SECS = 0.1
REQUEST = Infer().add("INPUT0", np.array([[7]], np.float32))


@pytest.fixture
def serve(repository):
    def start(**options):
        settings = {"model_control_mode": "poll", "repository_poll_secs": POLL_SECS} | options
        return running_server(repository, **settings)

    return start


@pytest.fixture
def look_once(monkeypatch):
    """Has the server look at the repository exactly once; it does not look by itself any more."""
    may_look, has_looked = threading.Semaphore(0), threading.Semaphore(0)
    poll_once = RepositoryPoller.poll_once

    def when_told(poller):
        while not may_look.acquire(timeout=POLL_SECS):
            if poller._stop.is_set():
                return False
        try:
            return poll_once(poller)
        finally:
            has_looked.release()

    def look():
        may_look.release()
        assert has_looked.acquire(timeout=WAIT_SECS)

    monkeypatch.setattr(RepositoryPoller, "poll_once", when_told)
    return look


def put_in_place(folder, *, built, version):
    """A version that appears at once, as people should copy them."""
    hidden = folder.parent / f".{folder.name}-{version}"
    onnx_models.save(built, hidden / "model.onnx")
    hidden.rename(folder / str(version))


def test_a_new_model_appears(repository, serve):
    with serve() as running:
        assert running.index() == []
        add_onnx(repository, "echo", onnx_models.identity())
        wait_until(lambda: running.states("echo") == {"1": "READY"})
        assert outputs(REQUEST.send(running, "echo"))["OUTPUT0"].tolist() == [[7]]
        assert running.get("/v2/health/ready").status == 200


def test_a_new_version_takes_over(repository, serve):
    folder = add_onnx(repository, "echo", onnx_models.identity())
    with serve() as running:
        assert REQUEST.send(running, "echo").json["model_version"] == "1"
        put_in_place(folder, built=onnx_models.identity(), version=2)
        wait_until(lambda: running.states("echo").get("2") == "READY")
        assert REQUEST.send(running, "echo").json["model_version"] == "2"
        wait_until(lambda: running.states("echo") == {"1": "UNAVAILABLE", "2": "READY"})
        assert running.get("/v2/models/echo").json["versions"] == ["2"]


def test_a_version_is_taken_away(repository, serve):
    config = "version_policy: { latest { num_versions: 2 } }"
    folder = add_onnx(repository, "echo", onnx_models.identity(), config, versions=(1, 2, 3))
    with serve() as running:
        assert running.get("/v2/models/echo").json["versions"] == ["2", "3"]
        kept = running.model("echo", 2)
        shutil.rmtree(folder / "3")
        wait_until(lambda: running.get("/v2/models/echo").json["versions"] == ["1", "2"])
        assert running.model("echo", 2) is kept


def test_a_deleted_model_is_unloaded(repository, serve):
    folder = add_onnx(repository, "echo", onnx_models.identity())
    with serve() as running:
        assert running.states("echo") == {"1": "READY"}
        shutil.rmtree(folder)
        wait_until(lambda: running.index()[0].get("reason") == "unloaded")
        assert running.states("echo") == {"1": "UNAVAILABLE"}
        assert REQUEST.send(running, "echo").status == 404
        assert running.get("/v2/health/ready").status == 200
        add_onnx(repository, "echo", onnx_models.identity())
        wait_until(lambda: running.states("echo") == {"1": "READY"})


def test_a_broken_update_keeps_the_old_model(repository, serve):
    folder = add_onnx(repository, "echo", onnx_models.identity(), "max_batch_size: 4")
    with serve() as running:
        before = running.model("echo")
        (folder / "config.pbtxt").write_text("max_batch_size: lots")
        (row,) = wait_until(lambda: [row for row in running.index() if "reason" in row])
        assert row["state"] == "READY"
        assert "the previous one still serves" in row["reason"]
        assert "lots" in row["reason"]
        assert running.model("echo") is before
        assert outputs(REQUEST.send(running, "echo"))["OUTPUT0"].tolist() == [[7]]
        assert running.get("/v2/health/ready").status == 200
        (folder / "config.pbtxt").write_text("max_batch_size: 2")
        wait_until(lambda: running.get("/v2/models/echo/config").json["max_batch_size"] == 2)
        wait_until(lambda: "reason" not in running.index()[0])


def test_a_broken_new_version_keeps_the_old_one(repository, serve):
    folder = add_onnx(repository, "echo", onnx_models.identity())
    with serve() as running:
        (folder / "2").mkdir()
        (folder / "2" / "model.onnx").write_bytes(b"no")
        wait_until(lambda: running.states("echo") == {"1": "READY", "2": "UNAVAILABLE"})
        assert REQUEST.send(running, "echo").json["model_version"] == "1"
        onnx_models.save(onnx_models.identity(), folder / "2" / "model.onnx")
        wait_until(lambda: running.states("echo").get("2") == "READY")
        assert REQUEST.send(running, "echo").json["model_version"] == "2"


def test_a_half_copied_folder_is_waited_for(repository, serve, look_once, caplog):
    """While files change at every look nothing is loaded, and no failure is ever seen."""
    content = onnx_models.identity().SerializeToString()
    with serve() as running:
        path = repository / "echo" / "1" / "model.onnx"
        path.parent.mkdir(parents=True)
        for size in range(1, 6):
            path.write_bytes(content[: size * len(content) // 6])
            look_once()
            assert not any("state" in row for row in running.index())
        path.write_bytes(content)
        look_once()
        assert not any("state" in row for row in running.index())
        look_once()
        assert running.states("echo") == {"1": "READY"}
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_copy_slower_than_two_looks_is_tried_again(repository, serve):
    """It looked finished and was not: the load fails, and the next one succeeds."""
    content = onnx_models.identity().SerializeToString()
    path = repository / "echo" / "1" / "model.onnx"
    with serve() as running:
        path.parent.mkdir(parents=True)
        path.write_bytes(content[:-40])
        (row,) = wait_until(lambda: [row for row in running.index() if "reason" in row])
        assert row["state"] == "UNAVAILABLE"
        assert running.get("/v2/health/ready").status == 400
        path.write_bytes(content)
        wait_until(lambda: running.states("echo") == {"1": "READY"})
        assert running.get("/v2/health/ready").status == 200


def test_a_broken_model_that_is_deleted_is_forgotten(repository, serve):
    folder = add_onnx(repository, "echo", onnx_models.identity(), "}")
    with serve(exit_on_error=False) as running:
        assert running.get("/v2/health/ready").status == 400
        shutil.rmtree(folder)
        wait_until(lambda: running.get("/v2/health/ready").status == 200)
        assert not any(row.get("reason") for row in running.index())


def test_a_file_that_looks_the_same_changes_nothing(repository, serve, polls):
    add_onnx(repository, "echo", onnx_models.identity())
    with serve() as running:
        before = running.model("echo")
        polls(3)
        assert running.model("echo") is before


def test_only_the_time_of_a_file_changed(repository, serve):
    folder = add_onnx(repository, "echo", onnx_models.identity())
    with serve() as running:
        before = running.model("echo")
        touch(folder / "1" / "model.onnx")
        wait_until(lambda: running.model("echo") is not before, "the model is loaded again")
        assert REQUEST.send(running, "echo").status == 200


def test_the_instance_group_changes_in_place(repository):
    fake = FakeBackend()
    folder = add_fake(repository, "held", "instance_group { count: 1 kind: KIND_CPU }")
    with running_server(
        repository,
        backends=fake.registry(),
        model_control_mode="poll",
        repository_poll_secs=POLL_SECS,
    ) as running:
        before = running.model("held")
        add_fake(repository, "held", "instance_group { count: 3 kind: KIND_CPU }")
        touch(folder / "config.pbtxt")
        wait_until(lambda: fake.open_executors == 3, "three instances")
        assert running.model("held") is before
        assert len(fake.loads) == 1


def test_a_backend_that_breaks_does_not_end_the_polling(repository, caplog):
    fake = FakeBackend()

    def broken(*_):
        raise RuntimeError("a surprise")

    with running_server(
        repository,
        backends=fake.registry(),
        model_control_mode="poll",
        repository_poll_secs=POLL_SECS,
    ) as running:
        fake.complete = broken
        add_fake(repository, "surprise")
        (row,) = wait_until(lambda: [row for row in running.index() if "reason" in row])
        assert "RuntimeError: a surprise" in row["reason"]
        add_onnx(repository, "echo", onnx_models.identity())
        wait_until(lambda: running.states("echo") == {"1": "READY"})
    assert "a surprise" in caplog.text


def test_a_model_whose_name_appears_twice(tmp_path):
    """The second of that name is refused, and the first serves on."""
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    add_onnx(first, "echo", onnx_models.identity())
    with running_server(
        first, second, model_control_mode="poll", repository_poll_secs=POLL_SECS
    ) as running:
        folder = add_onnx(second, "echo", onnx_models.identity())
        (row,) = wait_until(lambda: [row for row in running.index() if "reason" in row])
        assert row["state"] == "READY"
        assert "model appears in two or more repositories" in row["reason"]
        assert REQUEST.send(running, "echo").status == 200
        shutil.rmtree(folder)
        wait_until(lambda: "reason" not in running.index()[0])
        assert REQUEST.send(running, "echo").status == 200


def test_a_folder_that_cannot_be_read(repository, serve):
    """Links that lead nowhere, or back to where they are, end nothing."""
    add_onnx(repository, "echo", onnx_models.identity())
    with serve() as running:
        (repository / "nowhere").symlink_to(repository / "missing")
        (repository / "loop").symlink_to(repository / "loop")
        folder = add_onnx(repository, "again", onnx_models.identity())
        (folder / "1" / "dangling").symlink_to(folder / "1" / "missing")
        (folder / "loop").symlink_to(folder / "loop")
        wait_until(lambda: running.states("again") == {"1": "READY"})
        assert running.states("echo") == {"1": "READY"}


def test_requests_are_served_while_versions_change(repository, serve):
    folder = add_onnx(repository, "echo", onnx_models.identity())
    stop = threading.Event()
    seen, failures = set(), []

    def ask(running):
        while not stop.is_set():
            answer = REQUEST.send(running, "echo")
            if answer.status == 200:
                seen.add(answer.json["model_version"])
            else:
                failures.append(answer)

    with serve() as running:
        thread = threading.Thread(target=ask, args=(running,))
        thread.start()
        try:
            for version in (2, 3, 4):
                put_in_place(folder, built=onnx_models.identity(), version=version)
                wait_until(lambda: str(version) in seen, f"version {version} answers")  # noqa: B023
        finally:
            stop.set()
            thread.join()
    assert failures == []
