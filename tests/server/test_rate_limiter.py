"""--rate-limit: instances of several models take turns, through the whole server."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest

from shoal.backends.base import Executor, LoadedModel
from shoal.backends.registry import BackendRegistry
from shoal.server import ModelsFailed
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.ensembles import chain
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import add_model, add_onnx

CONFIG = """
backend: "%s"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
"""


def group(needs="", priority=0, count=1, more=""):
    """An instance group; `needs` is like "R:1 G:2:global"."""
    resources = []
    for need in needs.split():
        name, number, *rest = need.split(":")
        resources.append(
            f'{{ name: "{name}" count: {number} global: {"true" if rest else "false"} }}'
        )
    limiter = f"resources [ {', '.join(resources)} ] priority: {priority}"
    return (
        f"instance_group {{ count: {count} kind: KIND_CPU {more} rate_limiter {{ {limiter} }} }}\n"
    )


class Named(FakeBackend):
    """A fake backend that knows which instance ran."""

    def __init__(self):
        super().__init__()
        self.ran = Counter()

    def load(self, context):
        super().load(context)
        return NamedModel(self)


class NamedModel(LoadedModel):
    def __init__(self, owner):
        self.owner = owner

    def executor(self, placement):
        return NamedExecutor(self.owner, placement)


class NamedExecutor(Executor):
    def __init__(self, owner, placement):
        self.owner, self.placement = owner, placement

    def run(self, inputs, outputs):
        self.owner.ran[self.placement.name] += 1
        return self.owner.compute(inputs, outputs)


class World:
    """Models a and b, each of a backend of its own that a test can hold."""

    def __init__(self, folder):
        self.folder = folder
        self.backends = {"a": FakeBackend(), "b": FakeBackend(), "named": Named()}

    def add(self, name, groups, backend=None, more=""):
        add_model(self.folder, name, CONFIG % (backend or name) + groups + more)

    def serve(self, **options):
        registry = BackendRegistry({n: lambda b=b: b for n, b in self.backends.items()})
        options = {"rate_limit": "execution_count", **options}
        return running_server(self.folder, backends=registry, **options)

    def began(self, name):
        return self.backends[name].started.acquire(timeout=WAIT_SECS)

    def has_begun(self, name):
        return self.backends[name].started.acquire(blocking=False)


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for backend in made.backends.values():
        backend.gate.set()


def call(running, model, value=1, **parameters):
    return Infer(**parameters).add("INPUT0", np.array([[value]], np.int32)).call(running, model)


def value(answer):
    assert answer.status == 200, answer
    return int(outputs(answer)["OUTPUT0"][0, 0])


def test_two_models_that_need_the_same_take_turns(world):
    world.add("a", group("R:1"))
    world.add("b", group("R:1"))
    world.backends["a"].gate.clear()
    with world.serve() as running:
        first = call(running, "a")
        assert world.began("a")
        second = call(running, "b", 2)
        # The one for b is with its instance, which waits.
        instances = running.model("b")._instances
        wait_until(instances.busy)
        assert not world.has_begun("b")
        world.backends["a"].gate.set()
        assert value(first.response()) == 1
        assert value(second.response()) == 2
        assert running.statistics("a")["execution_count"] == 1


def test_without_the_flag_no_request_waits(world):
    world.add("a", group("R:1"))
    world.add("b", group("R:1"))
    world.backends["a"].gate.clear()
    with world.serve(rate_limit="off") as running:
        first = call(running, "a")
        assert world.began("a")
        assert value(call(running, "b", 2).response()) == 2
        world.backends["a"].gate.set()
        assert value(first.response()) == 1


def test_what_they_do_not_share_does_not_matter(world):
    world.add("a", group("R:1"))
    world.add("b", group("S:1"))
    world.backends["a"].gate.clear()
    with world.serve() as running:
        first = call(running, "a")
        assert world.began("a")
        assert value(call(running, "b", 2).response()) == 2
        world.backends["a"].gate.set()
        assert value(first.response()) == 1


def test_explicit_limits_let_more_run_at_once(world):
    world.add("a", group("R:1", count=3))
    world.backends["a"].gate.clear()
    with world.serve(rate_limit_resource=("R:2",)) as running:
        calls = [call(running, "a", number) for number in range(3)]
        assert world.began("a")
        assert world.began("a")
        assert not world.has_begun("a")
        world.backends["a"].gate.set()
        assert [value(one.response()) for one in calls] == [0, 1, 2]


def test_a_limit_too_small_fails_the_load(world, caplog):
    world.add("a", group("R:4"))
    with pytest.raises(ModelsFailed), world.serve(rate_limit_resource=("R:2",)):
        pass
    sentence = 'Resource count for "R" is limited to 2 which will prevent scheduling'
    assert sentence in caplog.text
    assert "--rate-limit-resource=R:4" in caplog.text
    with world.serve(rate_limit_resource=("R:2",), exit_on_error=False) as running:
        (row,) = running.index()
        assert row["state"] == "UNAVAILABLE"
        assert sentence in row["reason"]
    assert world.backends["a"].open_models == 0
    assert world.backends["a"].open_executors == 0


def test_limits_follow_the_models(world):
    world.add("a", group("R:4"))
    world.add("b", group("R:1"))
    with world.serve(model_control_mode="explicit", load_model=("*",)) as running:
        limiter = running.model("a").spec.context.limiter
        assert list(limiter.limits().values()) == [4]
        assert running.unload("a").status == 200
        running.server.repository._lifecycles["a"].wait_closed()
        assert list(limiter.limits().values()) == [1]
        assert running.load("a").status == 200
        assert list(limiter.limits().values()) == [4]
        for name in ("a", "b"):
            assert value(call(running, name, 3).response()) == 3


def test_instances_change_in_place(world):
    world.add("a", group("R:2"))
    options = {"model_control_mode": "explicit", "load_model": ("a",)}
    with world.serve(rate_limit_resource=("R:10",), **options) as running:
        model = running.model("a")
        world.add("a", group("R:32"))
        refused = running.load("a")
        assert refused.status == 400
        assert 'Resource count for "R" is limited to 10' in refused.error
        assert value(call(running, "a", 4).response()) == 4
        world.add("a", group("R:10"))
        assert running.load("a").status == 200
        assert running.model("a") is model  # it was not loaded again
        assert world.backends["a"].open_executors == 1
        assert value(call(running, "a", 5).response()) == 5


def test_a_model_that_gets_resources_leaves_the_event_loop(world):
    model = onnx_models.identity("INT32", dims=(1,))
    add_onnx(world.folder, "quick", model, "max_batch_size: 8")
    options = {"model_control_mode": "explicit", "load_model": ("quick",), "execution": "loop"}
    with world.serve(**options) as running:
        assert running.statistics("quick")["execution"]["mode"] == "loop"
        add_onnx(world.folder, "quick", model, "max_batch_size: 8 " + group("R:1"))
        assert running.load("quick").status == 200
        execution = running.statistics("quick")["execution"]
        assert execution["mode"] == "threads"
        assert execution["reason"] == "its instances wait for the rate limiter"


def test_of_idle_instances_the_one_that_ran_least_is_next(world):
    groups = group(priority=1, more='name: "often"') + group(priority=3, more='name: "seldom"')
    world.add("a", groups, backend="named")
    with world.serve() as running:
        idle = running.model("a")._instances._idle_instances

        def both_idle():
            first = idle._first
            return len(idle._idle) == 2 and first is not None and not first.revoked

        for number in range(40):
            wait_until(both_idle)  # an answer is sent before its instance is free again
            assert value(call(running, "a", number).response()) == number
    ran = world.backends["named"].ran
    assert ran == {"often_0": 30, "seldom_0": 10}


def test_passive_instances_need_nothing(world):
    world.add("a", group("R:1") + group("R:50", more="passive: true"))
    with world.serve() as running:
        assert list(running.model("a").spec.context.limiter.limits().values()) == [1]
        assert value(call(running, "a", 2).response()) == 2


def test_sequences_take_turns_too(world):
    sequences = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
    world.add("a", group("R:1"))
    world.add("b", group("R:1", count=2), more=sequences)
    world.backends["a"].gate.clear()
    with world.serve() as running:
        blocking = call(running, "a")
        assert world.began("a")
        first = call(running, "b", 5, sequence_id=7, sequence_start=True)
        instances = running.model("b")._instances
        wait_until(instances.busy)
        assert not world.has_begun("b")
        world.backends["a"].gate.set()
        assert value(first.response()) == 5
        assert value(blocking.response()) == 1
        last = call(running, "b", 6, sequence_id=7, sequence_end=True)
        assert value(last.response()) == 6


def test_an_ensemble_of_models_that_need_the_same(world):
    world.add("a", group("R:1"))
    world.add("b", group("R:1"))
    add_model(world.folder, "both", chain("a", "b", first="INPUT0", last="OUTPUT0"))
    with world.serve() as running:
        calls = [call(running, "both", number) for number in range(8)]
        assert [value(one.response()) for one in calls] == list(range(8))


def test_many_clients_of_several_models_are_all_served(world):
    world.add("a", group("R:2 G:1:global", count=2))
    world.add("b", group("R:1", priority=2, count=3))
    with world.serve(rate_limit_resource=("R:3", "G:1")) as running:
        results = []

        def ask(name):
            for number in range(15):
                results.append(value(call(running, name, number).response()) == number)

        threads = [threading.Thread(target=ask, args=(name,)) for name in "aabb"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECS)
        assert results == [True] * 60
        held = running.model("a").spec.context.limiter._held
        wait_until(lambda: set(held.values()) == {0}, "all was given back")
