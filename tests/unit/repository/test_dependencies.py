"""RepositoryModels that need others: the order of loading, and what a change to one does to the rest."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from shoal.backends.registry import BackendRegistry
from shoal.core.tensor import Tensor
from shoal.errors import Internal, InvalidArgument, NotFound
from shoal.repository import dependencies
from shoal.repository.dependencies import DependencyRegistry
from shoal.repository.lifecycle import VersionState
from shoal.repository.preparation import PreparationSettings
from shoal.repository.repository import ModelRepository, RepositorySettings
from tests.support.fakes import WAIT_SECS, FakeBackend, make_request
from tests.support.repositories import add_fake, add_model, touch


def is_ready(world):
    return not any(problem.blocks for problem in world.repository.problems())


class TestOrder:
    def test_a_model_comes_after_what_it_needs(self):
        needs = {"outer": ["inner", "a"], "a": [], "inner": ["b"], "b": []}
        assert dependencies.levels(needs) == [["a", "b"], ["inner"], ["outer"]]

    def test_what_is_not_there_is_not_waited_for(self):
        assert dependencies.levels({"e": ["missing"]}) == [["e"]]

    def test_those_that_need_each_other_come_last(self):
        needs = {"a": ["b"], "b": ["a"], "c": [], "d": ["a"]}
        assert dependencies.levels(needs) == [["c"], ["a", "b", "d"]]

    def test_everything_that_is_needed(self):
        known = {"outer": ["inner", "a", "a"], "inner": ["b"]}
        needs = dependencies.closure(["outer"], lambda name: known.get(name, []))
        assert needs == {"outer": ["inner", "a"], "inner": ["b"], "a": [], "b": []}

    @pytest.mark.parametrize(
        ("needs", "path"),
        [
            ({"a": ["a"]}, ["a", "a"]),
            ({"a": ["b"], "b": ["a"]}, ["a", "b", "a"]),
            ({"a": ["x", "b"], "b": ["c"], "c": ["a"]}, ["a", "b", "c", "a"]),
            ({"a": ["b"], "b": ["c"], "c": ["b"]}, []),  # not through a
            ({"a": ["b", "c"], "b": ["d"], "c": ["d"]}, []),
        ],
    )
    def test_circles(self, needs, path):
        assert dependencies.circle("a", needs) == path

    def test_dependents(self):
        needs = {"outer": ["inner"], "inner": ["a"], "other": ["b"]}
        assert dependencies.dependents("a", needs) == ["inner", "outer"]
        assert dependencies.dependents("outer", needs) == []


class TestRelations:
    def test_what_only_one_needed(self):
        relations = DependencyRegistry()
        relations.ask_for(["one", "two", "wanted"])
        relations.note({"one": ["shared", "own", "wanted"], "two": ["shared"], "own": []})
        assert relations.remove("one") == ["own"]
        assert relations.remove("two") == ["shared"]
        assert relations.remove("two") == []

    def test_a_model_that_is_no_ensemble_any_more(self):
        relations = DependencyRegistry()
        relations.note({"e": ["a"]})
        assert relations.direct_dependents("a") == ["e"]
        relations.note({"e": []})
        assert relations.direct_dependents("a") == []


CONFIG = """
platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling { step [ %s ] }
"""
STEP = """{
  model_name: "%s"
  model_version: %d
  input_map { key: "%s" value: "%s" }
  output_map { key: "%s" value: "%s" }
}"""


def chain(*models, version=-1, inside=("INPUT0", "OUTPUT0")):
    """The config of an ensemble that runs `models` one after the other."""
    names = ["IN", *(f"t{number}" for number in range(len(models) - 1)), "OUT"]
    steps = [
        STEP % (model, version, inside[0], taken, inside[1], given)
        for model, taken, given in zip(models, names, names[1:], strict=False)
    ]
    return CONFIG % ", ".join(steps)


class World:
    def __init__(self, folder, **settings):
        self.folder = folder
        self.fake = FakeBackend()
        backends = BackendRegistry({"fake": lambda: self.fake})
        self.repository = ModelRepository(
            RepositorySettings(
                paths=[folder],
                control_mode=settings.pop("control_mode", "explicit"),
                preparation=PreparationSettings(backends=backends),
                **settings,
            )
        )

    def load(self, name, config=None):
        self.repository.load(name, config, {})

    def unload(self, name, **options):
        self.repository.unload(name, **options)
        for lifecycle in list(self.repository._lifecycles.values()):
            lifecycle.wait_closed()  # `unload` itself waits no longer than a moment

    def ready(self, *names):
        return [bool(self.repository.ready_versions(name)) for name in names]

    def loads(self):
        return [context.config.name for context in self.fake.loads]

    def ask(self, name, value=7):
        sent = Tensor.from_array("IN", np.array([[value]], np.int32))
        request, collector = make_request(sent, model=name)
        self.repository.infer(request)
        return collector

    def row(self, name):
        (row,) = [row for row in self.repository.index() if row["name"] == name]
        return row


@pytest.fixture
def folder(tmp_path):
    """Two models, an ensemble of them, and an ensemble of that."""
    add_fake(tmp_path, "a")
    add_fake(tmp_path, "b")
    add_model(tmp_path, "pipe", chain("a", "b"))
    add_model(tmp_path, "outer", chain("pipe", inside=("IN", "OUT")))
    return tmp_path


@pytest.fixture
def world(folder):
    world = World(folder)
    yield world
    world.fake.gate.set()
    world.repository.stop()


class TestLoading:
    def test_an_ensemble_brings_its_models(self, world):
        world.load("outer")
        assert world.ready("outer", "pipe", "a", "b") == [True] * 4
        assert sorted(world.loads()) == ["a", "b"]
        assert world.ask("outer").wait().outputs[0].array.tolist() == [[7]]

    def test_at_start_models_come_before_ensembles(self, folder):
        world = World(folder, control_mode="none")
        assert world.repository.start() == {}
        assert world.ready("outer", "pipe", "a", "b") == [True] * 4
        assert is_ready(world)
        world.repository.stop()

    def test_start_in_explicit_mode_brings_what_is_needed(self, folder):
        world = World(folder, load_models=["pipe"])
        assert world.repository.start() == {}
        assert world.ready("pipe", "a", "b", "outer") == [True, True, True, False]
        world.repository.stop()

    def test_a_model_that_does_not_exist(self, world, folder):
        add_model(folder, "pipe", chain("a", "nowhere"))
        with pytest.raises(InvalidArgument) as caught:
            world.load("pipe")
        text = caught.value.message
        assert text.startswith("load failed for model 'pipe': version 1 is at UNAVAILABLE state: ")
        assert f"{folder}/pipe/config.pbtxt: ensemble_scheduling.step[1].model_name: " in text
        assert "ensemble pipe contains models that are not available or ambiguous: nowhere" in text
        assert "Put a model named nowhere into the repository" in text
        assert world.row("pipe")["state"] == VersionState.UNAVAILABLE.value

    def test_a_model_that_does_not_load(self, world, folder):
        add_model(folder, "b", 'backend: "nobody"')
        with pytest.raises(InvalidArgument) as caught:
            world.load("pipe")
        assert (
            "ensemble 'pipe' depends on 'b' which has no loaded version. Model 'b' loading failed "
            "with error: "
        ) in caught.value.message
        assert "unable to find backend library for backend 'nobody'" in caught.value.message

    def test_a_version_that_is_not_served(self, world, folder):
        add_model(folder, "pipe", chain("a", "b", version=2))
        with pytest.raises(InvalidArgument) as caught:
            world.load("pipe")
        assert (
            "step[0].model_version: ensemble 'pipe' depends on 'a' whose required version 2 is not "
            "loaded. Write -1 for the newest, or one that is served (1)"
        ) in caught.value.message

    def test_a_version_that_is_not_written_is_the_newest(self, world, folder):
        add_model(folder, "pipe", chain("a", "b", version=0))
        world.load("pipe")
        steps = world.repository.find("pipe").config.ensemble_scheduling.step
        assert [step.model_version for step in steps] == [-1, -1]

    def test_a_graph_that_does_not_fit(self, world, folder):
        add_fake(folder, "b", dims="3")
        with pytest.raises(InvalidArgument, match="ensemble tensor t0: inconsistent shape"):
            world.load("pipe")

    def test_ensembles_in_a_circle(self, world, folder):
        add_model(folder, "ping", chain("pong", inside=("IN", "OUT")))
        add_model(folder, "pong", chain("ping", inside=("IN", "OUT")))
        with pytest.raises(InvalidArgument) as caught:
            world.load("ping")
        assert "circular dependency between ensembles: ping -> pong -> ping" in caught.value.message
        assert "ping/config.pbtxt: ensemble_scheduling.step: " in caught.value.message
        assert "circular" in world.row("ping")["reason"]

    def test_an_ensemble_of_itself_at_start(self, tmp_path):
        add_model(tmp_path, "self", chain("self", inside=("IN", "OUT")))
        world = World(tmp_path, control_mode="none")
        failures = world.repository.start()
        assert "circular dependency between ensembles: self -> self" in failures["self"]
        world.repository.stop()

    def test_an_ensemble_needs_no_version_folder(self, world, folder):
        (folder / "pipe" / "1").rmdir()
        world.load("pipe")
        assert world.repository.ready_versions("pipe") == [1]

    def test_loading_again_without_change_loads_nothing(self, world):
        world.load("pipe")
        before = world.repository.find("pipe")
        world.load("pipe")
        assert world.repository.find("pipe") is before
        assert len(world.loads()) == 2


class TestChanges:
    def test_a_model_replaced_by_an_equal_one_leaves_the_ensemble_alone(self, world, folder):
        world.load("pipe")
        pipe, old = world.repository.find("pipe"), world.repository.find("a")
        (folder / "a" / "1" / "weights").write_bytes(b"new")
        world.load("a")
        assert world.repository.find("a") is not old
        assert world.repository.find("pipe") is pipe
        assert world.ask("pipe").wait().error is None

    def test_a_change_that_an_ensemble_does_not_see_stops_there(self, world, folder):
        world.load("outer")
        outer = world.repository.find("outer")
        add_fake(folder, "b", more="\nversion_policy { all { } }", max_batch_size=16)
        world.load("b")
        assert world.repository.find("outer") is outer  # its own steps did not change
        assert world.ask("outer").wait().error is None

    def test_a_model_that_fits_no_more_takes_the_ensemble_along(self, world, folder):
        world.load("outer")
        add_fake(folder, "b", dims="3")
        world.load("b")
        assert world.ready("b", "pipe", "outer") == [True, False, False]
        assert "inconsistent shape" in world.row("pipe")["reason"]
        assert not is_ready(world)
        add_fake(folder, "b")
        world.load("b")
        assert world.ready("b", "pipe", "outer") == [True, True, True]
        assert is_ready(world)

    def test_an_old_ensemble_does_not_stay_with_models_that_it_does_not_fit(self, world, folder):
        world.load("outer")
        add_fake(folder, "b", dims="3")
        add_model(folder, "pipe", chain("a", "b") + "model_warmup { }")  # which it may not have
        with pytest.raises(Internal, match="model_warmup can not be specified"):
            world.load("pipe")  # takes up the new b on the way
        assert world.ready("b", "pipe", "outer") == [True, False, False]

    def test_an_old_ensemble_stays_if_it_fits(self, world, folder):
        world.load("pipe")
        add_model(folder, "pipe", 'platform: "ensemble"')
        with pytest.raises(Internal):
            world.load("pipe")
        assert world.ask("pipe").wait().error is None
        assert "the previous one still serves" in world.row("pipe")["reason"]
        world.unload("b")  # and it still needs its models
        assert world.ready("pipe") == [False]

    def test_a_model_that_fails_to_reload_changes_nothing(self, world, folder):
        world.load("pipe")
        add_model(folder, "b", 'backend: "nobody"')
        with pytest.raises(InvalidArgument):
            world.load("b")
        assert world.ask("pipe").wait().error is None

    def test_loading_an_ensemble_takes_up_changed_models(self, world, folder):
        world.load("pipe")
        touch(folder / "a" / "config.pbtxt")
        (folder / "a" / "1" / "weights").write_bytes(b"new")
        world.load("pipe")
        assert world.loads().count("a") == 2

    def test_a_model_that_comes_late_completes_the_ensemble(self, world, folder):
        add_model(folder, "pipe", chain("a", "late"))
        with pytest.raises(InvalidArgument):
            world.load("pipe")
        add_fake(folder, "late")
        world.load("late")
        assert world.ready("pipe") == [True]

    def test_an_override_stays_when_an_ensemble_needs_the_model(self, world, folder):
        world.load(
            "a",
            '{"backend": "fake", "max_batch_size": 16, '
            '"input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}], '
            '"output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}]}',
        )
        world.load("pipe")
        assert world.repository.find("a").config.max_batch_size == 16


class TestPolling:
    @pytest.fixture
    def world(self, folder):
        world = World(folder, control_mode="poll", poll_secs=3600)
        assert world.repository.start() == {}
        yield world
        world.repository.stop()

    def test_a_folder_that_goes_and_comes_back(self, world, folder):
        world.repository.folder_removed("a")
        assert world.ready("a", "pipe", "outer", "b") == [False, False, False, True]
        world.repository.folder_changed("a")
        assert world.ready("a", "pipe", "outer", "b") == [True] * 4

    def test_a_new_ensemble_and_its_new_model_in_whatever_order(self, world, folder):
        add_fake(folder, "late")
        add_model(folder, "early", chain("late"))
        world.repository.folder_changed("early")
        assert world.ready("early", "late") == [True, True]
        world.repository.folder_changed("late")
        assert world.loads().count("late") == 1


class TestUnloading:
    def test_an_ensemble_is_not_there_without_its_models(self, world):
        world.load("outer")
        world.unload("a")
        assert world.ready("a", "b", "pipe", "outer") == [False, True, False, False]
        row = world.row("pipe")
        assert row["state"] == VersionState.UNAVAILABLE.value
        assert row["reason"] == "unloaded: 'a', which it runs, was unloaded"
        assert is_ready(world)  # somebody wanted it so
        with pytest.raises(NotFound):
            world.ask("outer")

    def test_it_comes_back_with_them(self, world):
        world.load("outer")
        world.unload("a")
        world.load("a")
        assert world.ready("pipe", "outer") == [True, True]
        assert world.ask("outer").wait().error is None

    def test_its_models_stay_when_it_goes(self, world):
        world.load("pipe")
        world.unload("pipe")
        assert world.ready("a", "b", "pipe") == [True, True, False]
        world.load("a")  # the ensemble was not requested again
        assert world.ready("pipe") == [False]

    def test_unload_dependents_takes_the_models_along(self, world):
        world.load("outer")
        world.unload("outer", unload_dependents=True)
        assert world.ready("outer", "pipe", "a", "b") == [False] * 4
        assert world.row("a")["reason"] == "unloaded"

    def test_but_not_those_that_somebody_wants(self, world, folder):
        add_model(folder, "also", chain("b"))
        world.load("a")
        world.load("pipe")
        world.load("also")
        world.unload("pipe", unload_dependents=True)
        assert world.ready("a", "b", "also") == [True, True, True]

    def test_unload_dependents_of_a_model_takes_the_ensembles_along(self, world):
        world.load("outer")
        world.unload("a", unload_dependents=True)
        assert world.ready("a", "pipe", "outer", "b") == [False, False, False, True]
        assert world.row("outer")["reason"] == "unloaded"
        world.load("a")
        assert world.ready("pipe") == [False]

    def test_requests_in_flight_finish_before_a_model_goes(self, world):
        world.load("pipe")
        world.fake.gate.clear()
        collector = world.ask("pipe")
        assert world.fake.started.acquire(timeout=WAIT_SECS)
        unloading = threading.Thread(target=world.unload, args=("b",))
        unloading.start()
        world.fake.gate.set()
        assert collector.wait().error is None
        unloading.join(WAIT_SECS)
        assert world.ready("pipe", "b") == [False, False]

    def test_stopping_takes_ensembles_first(self, world):
        world.load("outer")
        world.fake.gate.clear()
        collector = world.ask("outer")
        assert world.fake.started.acquire(timeout=WAIT_SECS)
        stopping = threading.Thread(target=world.repository.stop)
        stopping.start()
        world.fake.gate.set()
        assert collector.wait().error is None
        stopping.join(WAIT_SECS)
        assert world.fake.open_models == 0
