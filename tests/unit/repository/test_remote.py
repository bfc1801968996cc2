"""Models of a remote repository: loaded, polled and served as those of a folder are."""

from __future__ import annotations

import threading
import time

import pytest

from shoal.backends.registry import BackendRegistry
from shoal.errors import Internal, NotFound
from shoal.repository import poller
from shoal.repository.preparation import PreparationSettings
from shoal.repository.remote import RemoteSource
from shoal.repository.repository import ModelRepository, RepositorySettings
from shoal.storage.mirrors import Mirrors, StorageSettings
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.s3_fixtures import QUICK
from tests.support.s3_server import Fault
from tests.unit.repository.test_dependencies import chain

CONFIG = b"""
backend: "fake"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
"""


class RemoteWorld:
    """A server's repository whose models are in a store."""

    def __init__(self, s3, cache, mode="explicit", *, offline=False, paths=(), rate=0, **settings):
        self.fake = FakeBackend()
        chosen = StorageSettings(cache=str(cache), retries=QUICK, bytes_per_sec=rate)
        self.mirrors = Mirrors(chosen)
        namespaced = settings.get("namespacing", False)
        source = RemoteSource(
            self.mirrors.open(f"{s3.address}/models"), namespaced=namespaced, offline=offline
        )
        backends = BackendRegistry({"fake": lambda: self.fake})
        self.repository = ModelRepository(
            RepositorySettings(
                paths=paths,
                remote=[source],
                mirrors=self.mirrors,
                control_mode=mode,
                poll_secs=settings.pop("poll_secs", 3600.0),
                preparation=PreparationSettings(backends=backends),
                **settings,
            )
        )

    def row(self, name):
        (row,) = [row for row in self.repository.index() if row["name"] == name]
        return row

    def poll(self):
        self.repository.poll()

    def ready(self, name):
        return self.repository.ready_versions(name)

    def loads(self):
        return [context.config.name for context in self.fake.loads]


@pytest.fixture
def world(s3, tmp_path):
    made = []

    def make(mode="explicit", **settings):
        made.append(RemoteWorld(s3, tmp_path / "cache", mode, **settings))
        return made[-1]

    yield make
    for one in made:
        one.repository.stop()


def put(s3, name, *versions, config=CONFIG, content=b"weights"):
    s3.objects[f"models/{name}/config.pbtxt"] = config
    for version in versions:
        s3.objects[f"models/{name}/{version}/model.bin"] = content + str(version).encode()


def test_all_models_are_loaded_at_the_start(world, s3):
    put(s3, "a", 1)
    put(s3, "b", 1, 2)
    made = world("none")
    assert made.repository.start() == {}
    assert (made.ready("a"), made.ready("b")) == ([1], [2])
    assert made.row("b") == {"name": "b", "version": "2", "state": "READY"}
    context = next(context for context in made.fake.loads if context.config.name == "b")
    assert (context.version_folder / "model.bin").read_bytes() == b"weights2"
    assert s3.count("GET", "b/1/") == 0  # the version policy does not select it
    assert s3.count("GET", "list") == 1


def test_versions_follow_the_policy(world, s3):
    put(s3, "a", 1, 2, 3, 4, config=CONFIG + b"version_policy { latest { num_versions: 2 } }")
    put(s3, "b", 1, 2, 3, config=CONFIG + b"version_policy { specific { versions: [ 1, 3 ] } }")
    put(s3, "c", 1, 2, config=CONFIG + b"version_policy { all {} }")
    made = world("none")
    assert made.repository.start() == {}
    assert [made.ready(name) for name in "abc"] == [[3, 4], [1, 3], [1, 2]]
    assert s3.count("GET", "a/1/") + s3.count("GET", "a/2/") + s3.count("GET", "b/2/") == 0


def test_an_ensemble_and_its_models(world, s3):
    put(s3, "a", 1)
    s3.objects["models/e/config.pbtxt"] = chain("a").encode()
    s3.objects["models/e/1/"] = b""
    made = world("explicit", load_models=["e"])
    assert made.repository.start() == {}
    assert (made.ready("a"), made.ready("e")) == ([1], [1])


def test_a_model_loads_as_soon_as_its_files_are_there(world, s3):
    put(s3, "small", 1)
    put(s3, "large", 1, content=bytes(1_000_000))
    released = threading.Event()
    s3.faults.append(Fault(key="large/1/", wait_for=released))
    made = world("none")
    starting = threading.Thread(target=made.repository.start)
    starting.start()
    deadline = time.monotonic() + WAIT_SECS
    while not made.ready("small"):
        assert time.monotonic() < deadline
    row = made.row("large")
    assert (row["state"], row["reason"]) == ("LOADING", "downloading: 0 % of 1 MB")
    assert not made.ready("large")
    released.set()
    starting.join()
    assert made.ready("large") == [1]


def test_one_model_that_fails_does_not_keep_the_others(world, s3):
    put(s3, "good", 1)
    put(s3, "bad", 1, content=b"other")  # equal contents are downloaded once
    s3.faults.append(Fault(key="bad/1/", status=403, code="AccessDenied"))
    made = world("none")
    failures = made.repository.start()
    assert list(failures) == ["bad"]
    assert "may not be read or written with these credentials (403 AccessDenied)" in failures["bad"]
    assert made.ready("good") == [1]
    assert made.row("bad")["state"] == "UNAVAILABLE"
    assert s3.count("GET", "bad/1/") == 1  # and not once more for its load


def test_explicit_loads_see_the_storage_as_it_is(world, s3):
    made = world("explicit")
    assert made.repository.start() == {}
    with pytest.raises(Internal, match="failed to poll from model repository"):
        made.repository.load("a", None, {})
    put(s3, "a", 1)
    made.repository.load("a", None, {})
    assert made.ready("a") == [1]
    put(s3, "a", 1, 2)
    made.repository.load("a", None, {})
    assert made.ready("a") == [2]
    made.repository.unload("a")
    assert made.ready("a") == []


def test_an_unchanged_version_is_not_loaded_again(world, s3):
    put(s3, "a", 1, config=CONFIG + b"version_policy { all {} }")
    made = world("explicit", load_models=["a"])
    made.repository.start()
    put(s3, "a", 1, 2, config=CONFIG + b"version_policy { all {} } ")
    s3.requests.clear()
    made.repository.load("a", None, {})
    assert made.ready("a") == [1, 2]
    assert len(made.fake.loads) == 2
    assert s3.count("GET", "a/1/") == 0


def test_a_load_with_a_config_of_its_own(world, s3):
    put(s3, "a", 1, 2)
    made = world("explicit")
    made.repository.start()
    config = '{"backend": "fake", "max_batch_size": 8, "version_policy": {"specific": {"versions": [1]}}, "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}], "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}]}'
    made.repository.load("a", config, {})
    assert made.ready("a") == [1]
    assert s3.count("GET", "a/2/") == 0


def test_polls_load_changes_and_unload_what_was_deleted(world, s3):
    put(s3, "a", 1)
    put(s3, "b", 1)
    made = world("poll")
    made.repository.start()
    assert s3.count("GET", "list") == 1
    put(s3, "a", 1, 2)
    put(s3, "c", 1)
    for key in [key for key in s3.objects if key.startswith("models/b/")]:
        del s3.objects[key]
    s3.requests.clear()
    made.poll()
    assert [made.ready(name) for name in "abc"] == [[2], [], [1]]
    assert s3.count("GET", "list") == 2  # settled: two listings agree
    assert s3.count("GET", "a/1/") == 0
    s3.requests.clear()
    made.poll()
    assert s3.requests == [("GET", "list", "")]


def test_a_change_waits_until_it_is_complete(world, s3):
    made = world("poll")
    made.repository.start()
    put(s3, "a", 1)
    made.repository._poller.poll_once()
    put(s3, "a", 1, content=b"another")
    made.repository._poller.poll_once()
    assert s3.count("GET", "models/a") == 0
    made.repository._poller.poll_once()
    assert made.ready("a") == [1]


def test_nothing_is_unloaded_while_the_storage_cannot_be_reached(world, s3, caplog):
    put(s3, "a", 1)
    made = world("poll", strict=True)
    made.repository.start()
    s3.faults.append(Fault(key="list", status=500))
    for _ in range(3):
        made.repository._poller.poll_once()
    assert made.ready("a") == [1]
    assert caplog.text.count("the storage answered 500") == 1
    assert "cannot be read: the storage answered 500" in made.row("a")["reason"]
    assert any(problem.blocks for problem in made.repository.problems())
    s3.faults.clear()
    made.poll()
    assert "can be read again" in caplog.text or not list(made.repository.problems())
    assert "reason" not in made.row("a")


def test_the_old_version_serves_while_the_new_one_cannot_be_read(world, s3):
    put(s3, "a", 1)
    made = world("poll")
    made.repository.start()
    put(s3, "a", 1, 2)
    s3.faults.append(Fault(key="a/2/", damage=True))
    made.poll()
    assert made.ready("a") == [1]
    assert "is damaged" in made.row("a")["reason"]
    s3.faults.clear()
    made.repository.folder_changed("a")
    assert made.ready("a") == [2]


def test_a_storage_that_cannot_be_reached_at_the_start(world, s3):
    put(s3, "a", 1)
    s3.faults.append(Fault(key="list", status=500))
    made = world("none")
    failures = made.repository.start()
    assert failures == {
        f"{s3.address}/models": f"'{s3.address}/models' cannot be read: the storage answered 500 Fault"
    }


def test_a_start_from_the_cache(world, s3, caplog):
    put(s3, "a", 1)
    put(s3, "b", 1)
    world("none").repository.start()
    s3.faults.append(Fault(key="", status=500))
    made = world("poll", offline=True)
    assert made.repository.start() == {}
    assert (made.ready("a"), made.ready("b")) == ([1], [1])
    (problem,) = made.repository.problems()
    assert problem.text.endswith("500 Fault; its models are those in the cache")
    made.repository._poller.poll_once()
    assert caplog.text.count("cannot be read") == 1
    s3.faults.clear()
    put(s3, "a", 1, 2)
    made.poll()
    assert made.ready("a") == [2]


def test_lazy_models_are_downloaded_at_their_first_request(world, s3):
    put(s3, "a", 1)
    put(s3, "b", 1)
    made = world("lazy", poll_secs=0.0)
    made.repository.start()
    assert s3.count("GET", "models/") == 0
    assert made.repository.model_ready("a")
    assert made.repository.model_ready("a", 1)
    assert not made.repository.model_ready("a", 7)
    made.repository.load("a", None, {})
    assert made.ready("a") == [1]
    assert s3.count("GET", "models/b") == 0
    with pytest.raises(NotFound):
        made.repository.find("c")
    put(s3, "c", 1)
    deadline = time.monotonic() + WAIT_SECS
    while not made.repository.knows("c"):  # listed in the background
        assert time.monotonic() < deadline


def test_a_key_that_leaves_its_folder_refuses_one_model(world, s3):
    put(s3, "a", 1)
    put(s3, "b", 1)
    s3.objects["models/a/../../evil"] = b""
    made = world("none")
    failures = made.repository.start()
    assert list(failures) == ["a"]
    assert "cannot be used: it contains '.' or '..' as a part" in failures["a"]
    assert made.ready("b") == [1]


def test_local_and_remote_repositories_together(world, s3, tmp_path):
    put(s3, "a", 1)
    put(s3, "both", 1)
    for name in ("local", "both"):
        folder = tmp_path / "local" / name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_bytes(CONFIG)
    made = world("none", paths=[tmp_path / "local"])
    failures = made.repository.start()
    assert list(failures) == ["both"]
    assert "appears in two or more repositories" in failures["both"]
    assert made.ready("a") == made.ready("local") == [1]


def test_namespaces_are_addresses(world, s3, tmp_path):
    put(s3, "a", 1)
    folder = tmp_path / "local" / "a"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_bytes(CONFIG)
    made = world("none", paths=[tmp_path / "local"], namespacing=True)
    assert made.repository.start() == {}
    assert made.ready(f"{s3.address}/models/a") == [1]
    assert made.ready(f"{tmp_path}/local/a") == [1]


def test_the_folder_of_one_model_is_no_repository(world, s3):
    s3.objects["models/config.pbtxt"] = CONFIG
    s3.objects["models/1/model.bin"] = b""
    (reason,) = world("none").repository.start().values()
    assert "is the folder of one model, not of models; serve its parent" in reason


def test_a_stop_does_not_wait_for_downloads(world, s3):
    made = world("poll", rate=1)
    made.repository.start()
    put(s3, "a", 1)  # takes half a minute at this rate
    polling = threading.Thread(target=made.poll)
    polling.start()
    deadline = time.monotonic() + WAIT_SECS
    while not s3.count("GET", "models/a/"):
        assert time.monotonic() < deadline
    made.repository.stop()
    polling.join(WAIT_SECS)
    assert not polling.is_alive()
    assert made.ready("a") == []


def test_polls_continue_during_a_long_download(world, s3, monkeypatch):
    monkeypatch.setattr(poller, "_DOWNLOAD_WAIT_SECS", 0.1)
    made = world("poll")
    made.repository.start()
    released = threading.Event()
    s3.faults.append(Fault(key="large/1/", wait_for=released))
    put(s3, "large", 1, content=b"large")
    for _ in range(2):
        assert made.repository._poller.poll_once()
    put(s3, "small", 1)
    for _ in range(2):
        assert made.repository._poller.poll_once()
    assert (made.ready("small"), made.ready("large")) == ([1], [])
    assert made.row("large")["state"] == "LOADING"
    released.set()
    made.poll()
    assert made.ready("large") == [1]
    assert s3.count("GET", "large/1/") == 1
