"""Repositories that are added and removed while the server runs, and names given to their models."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.registry import BackendRegistry
from shoal.core.tensor import Tensor
from shoal.errors import AlreadyExists, InvalidArgument, Unsupported
from shoal.repository import lifecycle
from shoal.repository.preparation import PreparationSettings
from shoal.repository.repository import ModelRepository, RepositorySettings
from tests.support.fakes import WAIT_SECS, FakeBackend, make_request
from tests.support.repositories import add_fake, add_model

ENSEMBLE = """
name: "pipe"
platform: "ensemble"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling { step {
    model_name: "inner" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
} }
"""


@pytest.fixture
def fake():
    return FakeBackend()


@pytest.fixture
def make(tmp_path, fake):
    made = []

    def make(**settings):
        (tmp_path / "own").mkdir()
        settings = {"control_mode": "explicit", **settings}
        backends = BackendRegistry({"fake": lambda: fake})
        repository = ModelRepository(
            RepositorySettings(
                paths=[tmp_path / "own"],
                preparation=PreparationSettings(backends=backends),
                **settings,
            )
        )
        made.append(repository)
        return repository

    yield make
    fake.gate.set()
    for repository in made:
        repository.stop()


@pytest.fixture(params=[False, True], ids=["plain", "namespaced"])
def repository(request, make):
    return make(namespacing=request.param)


def names(repository):
    return [row["name"] for row in repository.index()]


def ask(repository, model):
    sent = Tensor.from_array("INPUT0", np.array([[7]], np.int32))
    request, collector = make_request(sent, model=model)
    repository.infer(request)
    return collector


def load(repository, name):
    repository.load(name, None, {})


class TestRegistered:
    def test_a_model_has_the_name_that_was_given_to_it(self, repository, tmp_path):
        other = tmp_path / "other"
        add_fake(other, "folder", 'name: "in its config"')
        repository.register(other, {"folder": "given"})
        load(repository, "given")
        assert ask(repository, "given").wait().outputs[0].array.tolist() == [[7]]
        assert repository.find("given").config.name == "given"
        assert names(repository) == ["given"]

    def test_models_without_a_given_name_have_that_of_their_folders(self, repository, tmp_path):
        add_fake(tmp_path / "other", "folder")
        repository.register(tmp_path / "other", {})
        load(repository, "folder")
        assert repository.model_ready("folder")

    def test_a_given_name_comes_before_folders(self, repository, tmp_path):
        add_fake(tmp_path / "own", "same")
        folder = add_fake(tmp_path / "other", "folder")
        repository.register(tmp_path / "other", {"folder": "same"})
        load(repository, "same")
        assert repository.find("same").spec.folder == folder

    def test_ensembles_of_two_archives_run_their_own_models(self, make, tmp_path):
        repository = make(namespacing=True)
        for archive in ("one", "two"):
            add_fake(tmp_path / archive, "inner")
            add_model(tmp_path / archive, "pipe", ENSEMBLE)
            repository.register(tmp_path / archive, {"pipe": f"{archive}.tar.gz"})
            load(repository, f"{archive}.tar.gz")
            assert ask(repository, f"{archive}.tar.gz").wait().error is None
        assert names(repository) == ["inner", "inner", "one.tar.gz", "two.tar.gz"]


class TestRefusals:
    def test_what_is_registered_twice(self, repository, tmp_path):
        add_fake(tmp_path / "other", "a")
        add_fake(tmp_path / "third", "a")
        repository.register(tmp_path / "other", {"a": "given"})
        with pytest.raises(AlreadyExists, match=r"'.*/other' has already been registered"):
            repository.register(tmp_path / "other", {"a": "more"})
        with pytest.raises(AlreadyExists, match="there is a conflicting mapping for 'given'"):
            repository.register(tmp_path / "third", {"a": "given"})

    def test_no_such_folder(self, repository, tmp_path):
        with pytest.raises(InvalidArgument, match=r"failed to register '.*', repository not found"):
            repository.register(tmp_path / "nowhere", {})
        with pytest.raises(InvalidArgument, match=r"failed to unregister '.*', repository not"):
            repository.unregister(tmp_path / "nowhere")

    @pytest.mark.parametrize("mode", ["none", "poll", "lazy"])
    def test_only_in_explicit_mode(self, make, tmp_path, mode):
        repository = make(control_mode=mode)
        with pytest.raises(Unsupported, match="registration is not allowed if model control mode"):
            repository.register(tmp_path, {})
        with pytest.raises(Unsupported, match="unregistration is not allowed if model control"):
            repository.unregister(tmp_path)


class TestUnregistered:
    def test_nothing_is_left_of_unloaded_models(self, repository, tmp_path):
        other = tmp_path / "other"
        add_fake(other, "inner")
        add_model(other, "pipe", ENSEMBLE)
        repository.register(other, {"pipe": "given"})
        load(repository, "given")
        repository.unload("given", unload_dependents=True)
        assert repository.unregister(other, wait_secs=WAIT_SECS)
        assert names(repository) == []
        assert not repository.knows("given")
        assert not repository.knows("inner")
        repository.register(other, {"pipe": "given"})  # and all of it again
        load(repository, "given")
        assert ask(repository, "given").wait().error is None

    def test_a_loaded_model_serves_on(self, repository, tmp_path):
        add_fake(tmp_path / "other", "a")
        repository.register(tmp_path / "other", {"a": "given"})
        load(repository, "given")
        repository.unregister(tmp_path / "other")
        assert ask(repository, "given").wait().error is None

    def test_it_waits_until_unloaded_models_are_closed(
        self, repository, tmp_path, fake, monkeypatch
    ):
        monkeypatch.setattr(lifecycle, "_UNLOAD_WAIT_SECS", 0.0)
        add_fake(tmp_path / "other", "a")
        repository.register(tmp_path / "other", {"a": "given"})
        load(repository, "given")
        fake.gate.clear()
        running = ask(repository, "given")
        repository.unload("given")
        assert not repository.unregister(tmp_path / "other", wait_secs=0.0)
        fake.gate.set()
        assert running.wait().error is None
