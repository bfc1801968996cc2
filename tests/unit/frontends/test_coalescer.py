"""Template hits of one loop iteration are submitted as a group, after a repoll where that helps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shoal.core.request import DONE, QUEUED
from shoal.frontends import coalescer as coalescer_module
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

    def here(self):
        return True

    def post(self, deliver, batch):
        deliver(batch)

    def iterate(self):
        due, self._due = self._due, []
        for callback in due:
            callback()


class OneProtocol(Coalescer):
    """Records what it writes."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.written = []

    def write_refusals(self, _error, _requests):
        return ()

    def write_all(self, responses, _requests):
        self.written.append(responses)


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


class LargeTemplate(Template):
    large = True


class LargeRequest:
    """As much of a PlannedRequest as a coalescer reads."""

    def __init__(self, name):
        self.name = name
        self.state = QUEUED
        self.has_inputs = True

    def release_inputs(self):
        self.has_inputs = False


@pytest.fixture
def large(stage):
    """`send` a large request, which the engine executes at once, or queues."""
    coalescer, template = stage.coalescer, LargeTemplate()
    stage.engine.queues = False

    def infer_group(requests, _model):
        if not stage.engine.queues:
            for request in requests:
                request.state = DONE
                coalescer.send_all(request.name, [request])
        return ()

    stage.engine.infer_group = infer_group

    def send(name):
        request = LargeRequest(name)
        assert coalescer.begin(template)
        coalescer.requests.append(request)
        coalescer.submit_large()
        return request

    stage.send = send
    return stage


def test_the_response_to_a_large_request_alone_is_written_at_once(large):
    for name in "ab":
        large.send(name)
        assert large.coalescer.written.pop() == name
        large.loop.iterate()


def test_responses_to_large_requests_of_one_iteration_are_written_together(large):
    large.send("a")
    large.send("b")
    large.send("c")
    assert large.coalescer.written == ["a"]  # nothing told that more would come
    large.loop.iterate()
    assert large.coalescer.written == ["a", "b", "c"]
    large.send("d")
    large.send("e")
    assert large.coalescer.written == ["a", "b", "c"]
    large.loop.iterate()
    assert large.coalescer.written == ["a", "b", "c", "d", "e"]


def test_after_an_iteration_with_one_large_request_none_is_held(large):
    for name in "ab":
        large.send(name)
    large.loop.iterate()
    large.send("c")
    assert large.coalescer.written == ["a", "b"]
    large.loop.iterate()
    large.send("d")
    assert large.coalescer.written == ["a", "b", "c", "d"]


def test_no_response_is_held_for_long(large, monkeypatch):
    monkeypatch.setattr(coalescer_module, "_MOST_HELD_NS", 0)
    large.send("a")
    large.send("b")
    assert large.coalescer.written == ["a", "b"]


def test_inputs_are_freed_while_a_response_is_held(large):
    """Their memory is in the processor's cache, and is used for the next request."""
    large.send("a")
    assert not large.send("b").has_inputs
    large.engine.queues = True
    assert large.send("c").has_inputs
