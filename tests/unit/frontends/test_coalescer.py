"""Template hits of one loop iteration are submitted as a group, after a repoll where that helps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shoal.frontends.coalescer import Coalescer
from shoal.frontends.repoll import TRY_EVERY


class Template:
    """As much of a RequestTemplate as a coalescer reads."""

    large = False

    def live_model(self):
        return "model"


class Engine:
    """Records the groups that it gets."""

    tracer = SimpleNamespace(active=False)

    def __init__(self):
        self.groups = []

    def infer_group(self, requests, _model):
        self.groups.append(list(requests))
        return ()


class Loop:
    """Calls back after each iteration, as the event loop does."""

    def __init__(self):
        self._due = []

    def after_reading(self, callback):
        self._due.append(callback)

    def hold(self):
        pass

    def release(self):
        pass

    def iterate(self):
        due, self._due = self._due, []
        for callback in due:
            callback()


class OneProtocol(Coalescer):
    """Writes nothing."""

    def write_refusals(self, _error, _requests):
        return ()

    def write_all(self, _responses, _requests):
        pass


@pytest.fixture
def stage():
    engine, loop = Engine(), Loop()
    coalescer = OneProtocol(engine, loop, (), lambda error: error, "")
    templates = [Template(), Template()]

    def arrive(count, template=0):
        assert coalescer.begin(templates[template])
        coalescer.requests.extend(range(count))

    return SimpleNamespace(engine=engine, loop=loop, coalescer=coalescer, arrive=arrive)


def teach(stage, count=8):
    """Have every repoll bring as many requests as there were."""
    for _ in range(count * TRY_EVERY):
        stage.arrive(2)
        stage.loop.iterate()
        if not stage.engine.groups:
            stage.arrive(2)
            stage.loop.iterate()
        assert stage.engine.groups
        stage.engine.groups.clear()


def test_requests_of_one_iteration_are_one_group(stage):
    stage.arrive(2)
    stage.arrive(1)
    stage.loop.iterate()
    assert [len(group) for group in stage.engine.groups] == [3]


def test_a_repoll_comes_before_the_requests_are_submitted(stage):
    teach(stage)
    stage.arrive(2)
    stage.loop.iterate()
    assert not stage.engine.groups
    stage.arrive(3)
    stage.loop.iterate()
    assert [len(group) for group in stage.engine.groups] == [5]


def test_a_repoll_that_brings_nothing_delays_by_one_iteration(stage):
    teach(stage)
    stage.arrive(2)
    stage.loop.iterate()
    stage.loop.iterate()
    assert [len(group) for group in stage.engine.groups] == [2]


def test_requests_of_several_templates_are_not_delayed(stage):
    teach(stage)
    stage.arrive(2)
    stage.arrive(2, template=1)
    stage.loop.iterate()
    assert [len(group) for group in stage.engine.groups] == [2, 2]


def test_a_request_on_the_slow_path_ends_a_repoll(stage):
    teach(stage)
    stage.arrive(2)
    stage.loop.iterate()
    stage.coalescer.submit()
    assert [len(group) for group in stage.engine.groups] == [2]
    stage.loop.iterate()
    stage.arrive(1)
    stage.loop.iterate()
    stage.loop.iterate()
    assert [len(group) for group in stage.engine.groups] == [2, 1]
