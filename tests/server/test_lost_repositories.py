"""A repository that is lost: what is loaded serves on, everybody is told, and it can come back."""

import threading

import numpy as np
import pytest

from shoal.repository import layout
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, check_empty, outputs
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_onnx, touch

POLL_SECS = 0.1
REQUEST = Infer().add("INPUT0", np.array([[7]], np.float32))


@pytest.fixture
def away(repository):
    return repository.with_name("away")


@pytest.fixture
def serve(repository):
    def start(mode="poll", **options):
        return running_server(
            repository, model_control_mode=mode, repository_poll_secs=POLL_SECS, **options
        )

    return start


def answer(running, model="sum"):
    return outputs(REQUEST.send(running, model))["OUTPUT0"].tolist()


def gauge(running, repository):
    text = running.get("/metrics").body.decode()
    return f'shoal_repository_error{{repository="{repository}"}} 1' in text


@pytest.mark.parametrize("leaves", ["nothing", "an empty folder"])
def test_a_lost_repository_unloads_nothing(repository, away, serve, polls, caplog, leaves):
    folder = add_onnx(repository, "sum", onnx_models.plus(1))
    add_onnx(repository, "other", onnx_models.plus(2))
    with serve() as running:
        before = running.model("sum")
        assert not gauge(running, repository)
        repository.rename(away)
        if leaves == "an empty folder":
            repository.mkdir()
        wait_until(lambda: gauge(running, repository))
        polls(4)
        assert running.model("sum") is before
        assert answer(running) == [[8]]
        rows = running.index()
        assert [(row["name"], row["state"]) for row in rows] == [
            ("other", "READY"),
            ("sum", "READY"),
        ]
        assert all(f"the model repository '{repository}'" in row["reason"] for row in rows)
        assert running.get("/v2/health/ready").status == 200
        (problem,) = running.get("/v2/console").json["server"]["problems"]
        assert f"the model repository '{repository}' cannot be read" in problem["text"]
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1  # not one for each poll
        if leaves == "an empty folder":
            repository.rmdir()
        away.rename(repository)
        wait_until(lambda: not gauge(running, repository))
        assert running.model("sum") is before
        assert all("reason" not in row for row in running.index())
        onnx_models.save(onnx_models.plus(3), folder / "1" / "model.onnx")  # watched again
        touch(folder / "1" / "model.onnx")
        wait_until(lambda: answer(running) == [[10]])


@pytest.mark.parametrize("mode", ["poll", "none", "explicit"])
def test_readiness_only_if_it_is_asked_for(repository, away, serve, mode):
    add_onnx(repository, "sum", onnx_models.plus(1))
    started = {"load_model": ("sum",)} if mode == "explicit" else {}
    with serve(mode, strict_repository=True, **started) as running:
        assert running.get("/v2/health/ready").status == 200
        repository.rename(away)
        refused = wait_until(
            lambda: (found := running.get("/v2/health/ready")).status == 503 and found
        )
        assert "cannot be read: No such file or directory" in refused.error
        assert running.get("/v2/health/live").status == 200
        assert running.get("/v2/models/sum/ready").status == 200
        assert answer(running) == [[8]]
        away.rename(repository)
        wait_until(lambda: running.get("/v2/health/ready").status == 200)


def test_explicit_loads_say_why(repository, away, serve):
    add_onnx(repository, "sum", onnx_models.plus(1))
    with serve("explicit", load_model=("sum",)) as running:
        before = running.model("sum")
        repository.rename(away)
        for name in ("sum", "new"):
            refused = running.load(name)
            assert refused.status == 500
            assert refused.error == (
                f"failed to load '{name}', failed to poll from model repository: the model "
                f"repository '{repository}' cannot be read: No such file or directory"
            )
        (row,) = running.index()
        assert (row["name"], row["state"]) == ("sum", "READY")
        assert "cannot be read" in row["reason"]
        assert running.model("sum") is before
        assert answer(running) == [[8]]
        away.rename(repository)
        check_empty(running.load("sum"))
        assert running.model("sum") is before
        assert running.index() == [{"name": "sum", "version": "1", "state": "READY"}]


def test_explicit_loads_of_broken_links(repository, away, serve):
    folder = add_onnx(repository, "sum", onnx_models.plus(1), versions=(1, 2))
    with serve("explicit", load_model=("sum",)) as running:
        assert REQUEST.send(running, "sum").json["model_version"] == "2"
        (folder / "2").rename(away)
        (folder / "2").symlink_to(away.with_name("nowhere"))
        refused = running.load("sum")
        assert refused.status in (400, 500)
        assert "version 2 of model 'sum' cannot be read: No such file" in refused.error
        assert REQUEST.send(running, "sum").json["model_version"] == "2"
        (folder / "2").unlink()
        away.rename(folder / "2")
        (folder / "config.pbtxt").symlink_to(away.with_name("nowhere"))
        refused = running.load("sum")
        assert "config.pbtxt: this is a link to a file that does not exist" in refused.error
        (folder / "config.pbtxt").unlink()
        folder.rename(away)
        folder.symlink_to(away.with_name("nowhere"))
        assert "it is a link that leads nowhere" in running.load("sum").error
        assert REQUEST.send(running, "sum").json["model_version"] == "2"


def test_a_version_whose_link_broke_is_not_replaced(repository, away, serve):
    """Without it the older version would be the newest."""
    folder = add_onnx(repository, "sum", onnx_models.plus(1), versions=(1,))
    onnx_models.save(onnx_models.plus(2), away / "model.onnx")
    (folder / "2").symlink_to(away)
    with serve() as running:
        assert answer(running) == [[9]]
        away.rename(away.with_name("further"))
        wait_until(lambda: gauge(running, repository))
        assert answer(running) == [[9]]
        (row,) = [row for row in running.index() if row["state"] == "READY"]
        assert row["version"] == "2"
        assert "the folder of model 'sum'" in row["reason"]
        away.with_name("further").rename(away)
        wait_until(lambda: not gauge(running, repository))
        assert answer(running) == [[9]]


def test_models_that_are_removed_are_unloaded(repository, serve):
    """All of them at once, too: the repository itself is still there."""
    for name in ("sum", "other"):
        add_onnx(repository, name, onnx_models.plus(1))
    with serve() as running:
        for name in ("sum", "other"):
            (repository / name).rename(repository / f".{name}")
        wait_until(lambda: running.states("sum") == running.states("other") == {"1": "UNAVAILABLE"})
        assert not gauge(running, repository)


def test_a_repository_lost_before_a_changed_model_is_loaded(
    repository, away, serve, monkeypatch, polls
):
    """The change is noticed and the folder gone when it is to be loaded: it is loaded later."""
    folder = add_onnx(repository, "sum", onnx_models.plus(1))
    with serve() as running:
        models = running.server.repository
        folder_changed = models.folder_changed

        def lose(name):
            if repository.exists():
                repository.rename(away)
            folder_changed(name)

        monkeypatch.setattr(models, "folder_changed", lose)
        onnx_models.save(onnx_models.plus(2), folder / "1" / "model.onnx")
        touch(folder / "1" / "model.onnx")
        wait_until(lambda: gauge(running, repository))
        polls(2)
        assert answer(running) == [[8]]
        monkeypatch.setattr(models, "folder_changed", folder_changed)
        away.rename(repository)
        wait_until(lambda: answer(running) == [[9]])


def test_a_mount_that_hangs(repository, serve, monkeypatch):
    """Requests are answered, and so is the exit."""
    add_onnx(repository, "sum", onnx_models.plus(1))
    begun, may_end = threading.Event(), threading.Event()
    with serve() as running:

        def hang(_path):
            begun.set()
            assert may_end.wait(WAIT_SECS)
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(layout, "list_models", hang)
        assert begun.wait(WAIT_SECS)
        assert answer(running) == [[8]]
        assert running.get("/v2/health/ready").status == 200
    assert not may_end.is_set()  # the server has stopped without it
    may_end.set()
