"""A model's lifecycle: load beside, switch, drain; failures leave what served."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from shoal.core import dtypes
from shoal.core.tensor import Tensor
from shoal.errors import ConfigError, Internal, InvalidArgument
from shoal.repository import memory
from shoal.repository.lifecycle import LoadFailed, ModelLifecycle, VersionState
from shoal.scheduler.base import BatcherClosed
from tests.support.fakes import WAIT_SECS, make_request


@pytest.fixture
def lifecycle():
    lifecycle = ModelLifecycle("m")
    yield lifecycle
    lifecycle.unload()
    lifecycle.wait_closed()


def ask(model, value=1):
    array = np.array([[value]], np.int32)
    request, collector = make_request(Tensor("x", dtypes.INT32, (1, 1), raw=array.tobytes()))
    model.accept(request)
    return collector


def states(lifecycle):
    return {v: s.state for v, s in lifecycle.statuses.items()}


def test_the_newest_version_answers(lifecycle, make_spec):
    lifecycle.load(lambda: make_spec(1, 3, 2))
    assert lifecycle.newest.version == 3
    assert ask(lifecycle.newest, 7).wait().outputs[0].array.tolist() == [[7]]
    assert states(lifecycle) == dict.fromkeys((1, 2, 3), VersionState.READY)


def test_loading_again_without_change_loads_nothing(lifecycle, make_spec, backend):
    lifecycle.load(lambda: make_spec(1))
    before = lifecycle.newest
    lifecycle.load(lambda: make_spec(1))
    assert lifecycle.newest is before
    assert len(backend.loads) == 1


def test_a_changed_file_is_loaded_beside_and_requests_in_flight_finish(
    lifecycle, make_spec, backend
):
    lifecycle.load(lambda: make_spec(1))
    old = lifecycle.newest
    backend.gate.clear()
    waiting = ask(old, 1)
    assert backend.started.acquire(timeout=WAIT_SECS)  # it is executing now
    queued = ask(old, 2)
    lifecycle.load(lambda: make_spec(1, prints={1: "changed"}))  # does not wait for the old one
    assert lifecycle.newest is not old
    assert not waiting.answered
    backend.gate.set()
    assert waiting.wait().error is None
    assert queued.wait().error is None
    lifecycle.wait_closed()
    assert backend.open_models == 1
    assert states(lifecycle) == {1: VersionState.READY}


def test_a_version_that_left_the_policy_is_unloaded(lifecycle, make_spec):
    lifecycle.load(lambda: make_spec(1))
    lifecycle.load(lambda: make_spec(2))
    lifecycle.wait_closed()
    assert states(lifecycle) == {1: VersionState.UNAVAILABLE, 2: VersionState.READY}
    assert lifecycle.statuses[1].reason == "unloaded"


def test_somebody_may_wait_for_the_end_at_any_moment(lifecycle, make_spec, monkeypatch):
    start = threading.Thread.start

    def after_somebody_has_waited(thread):
        if thread.name == "shoal-close-m":
            lifecycle.wait_closed()
        start(thread)

    lifecycle.load(lambda: make_spec(1))
    monkeypatch.setattr(threading.Thread, "start", after_somebody_has_waited)
    lifecycle.load(lambda: make_spec(2))
    lifecycle.wait_closed()
    assert states(lifecycle) == {1: VersionState.UNAVAILABLE, 2: VersionState.READY}


def test_a_replaced_model_refuses_so_that_the_engine_can_ask_again(lifecycle, make_spec):
    lifecycle.load(lambda: make_spec(1))
    old = lifecycle.newest
    lifecycle.load(lambda: make_spec(1, prints={1: "changed"}))
    lifecycle.wait_closed()
    with pytest.raises(BatcherClosed):
        ask(old)


def test_only_instances_changed_means_no_reload(lifecycle, make_spec, backend):
    lifecycle.load(lambda: make_spec(1, count=1))
    model = lifecycle.newest
    lifecycle.load(lambda: make_spec(1, count=3))
    assert lifecycle.newest is model
    assert backend.open_executors == 3
    lifecycle.load(lambda: make_spec(1, count=2))
    assert backend.open_executors == 2
    assert len(backend.loads) == 1
    assert model.config.instance_group[0].count == 2
    assert ask(model).wait().error is None


def test_removing_an_instance_lets_its_batch_finish(lifecycle, make_spec, backend):
    lifecycle.load(lambda: make_spec(1, count=2, dynamic_batching=None))
    backend.gate.clear()
    collectors = [ask(lifecycle.newest, n) for n in range(2)]
    for _ in collectors:
        assert backend.started.acquire(timeout=WAIT_SECS)
    shrinking = threading.Thread(
        target=lifecycle.load, args=(lambda: make_spec(1, count=1, dynamic_batching=None),)
    )
    shrinking.start()
    backend.gate.set()
    shrinking.join(WAIT_SECS)
    assert not shrinking.is_alive()
    assert [c.wait().error for c in collectors] == [None, None]
    assert backend.open_executors == 1


def test_a_failing_load_leaves_the_old_one_and_says_why(lifecycle, make_spec, backend, monkeypatch):
    lifecycle.load(lambda: make_spec(1))
    old = lifecycle.newest

    def fail(context):
        raise Internal("no such operator")

    monkeypatch.setattr(backend, "load", fail)
    with pytest.raises(LoadFailed, match="version 1 is at UNAVAILABLE state: Internal: no such"):
        lifecycle.load(lambda: make_spec(1, prints={1: "broken"}))
    assert lifecycle.newest is old
    assert lifecycle.statuses[1].state is VersionState.READY
    assert "no such operator" in lifecycle.statuses[1].reason
    assert lifecycle.last_load_failed
    assert ask(old).wait().error is None


def test_one_bad_version_keeps_all_new_ones_out(lifecycle, make_spec, backend, monkeypatch):
    load = backend.load

    def fail_two(context):
        if context.version == 2:
            raise RuntimeError("boom")
        return load(context)

    monkeypatch.setattr(backend, "load", fail_two)
    with pytest.raises(LoadFailed, match="boom"):
        lifecycle.load(lambda: make_spec(1, 2))
    assert lifecycle.newest is None
    assert backend.open_models == 0
    assert states(lifecycle) == {1: VersionState.UNAVAILABLE, 2: VersionState.UNAVAILABLE}


def test_a_broken_config_is_noted(lifecycle, make_spec):
    def broken():
        raise ConfigError("bad dims", file="config.pbtxt", field="input[0].dims")

    with pytest.raises(ConfigError):
        lifecycle.load(broken)
    assert "bad dims" in lifecycle.problem
    lifecycle.load(lambda: make_spec(1))
    assert lifecycle.problem == ""
    with pytest.raises(ConfigError):
        lifecycle.load(broken)
    assert lifecycle.newest is not None
    assert "bad dims" in lifecycle.statuses[1].reason
    lifecycle.load(lambda: make_spec(1))
    assert lifecycle.statuses[1].reason == ""


def test_a_failing_resize_keeps_the_instances(lifecycle, make_spec, backend, monkeypatch):
    from tests.support.fakes import FakeLoadedModel

    lifecycle.load(lambda: make_spec(1, count=1))

    def refuse(self, placement):
        raise InvalidArgument("no room")

    monkeypatch.setattr(FakeLoadedModel, "executor", refuse)
    with pytest.raises(LoadFailed, match="no room"):
        lifecycle.load(lambda: make_spec(1, count=2))
    assert backend.open_executors == 1
    assert ask(lifecycle.newest).wait().error is None


def test_unload_answers_what_is_queued_and_frees_everything(lifecycle, make_spec, backend):
    lifecycle.load(lambda: make_spec(1))
    backend.gate.clear()
    collectors = [ask(lifecycle.newest, n) for n in range(3)]
    threading.Thread(target=backend.gate.set).start()
    lifecycle.unload()
    lifecycle.wait_closed()
    assert [c.wait().error for c in collectors] == [None] * 3
    assert (backend.open_models, backend.open_executors) == (0, 0)
    assert lifecycle.newest is None
    assert lifecycle.statuses[1].reason == "unloaded"


def test_a_failing_batch_costs_only_the_one_that_caused_it(lifecycle, make_spec, backend):
    def compute(inputs, outputs):
        if (inputs["x"] == 13).any():
            raise ValueError("unlucky")
        return [inputs["x"]]

    backend.compute = compute
    lifecycle.load(lambda: make_spec(1))
    backend.gate.clear()
    blocker = ask(lifecycle.newest, 0)
    assert backend.started.acquire(timeout=WAIT_SECS)
    good, bad, also_good = (ask(lifecycle.newest, n) for n in (1, 13, 2))  # these form one batch
    backend.gate.set()
    assert blocker.wait().error is None
    assert good.wait().error is None
    assert also_good.wait().error is None
    assert "unlucky" in bad.wait().error.message
    counts = lifecycle.newest.statistics.snapshot()["inference_stats"]
    assert counts["success"]["count"] == 3
    assert counts["fail"]["count"] == 1


@pytest.mark.parametrize("end", ["replaced", "unloaded"])
def test_a_closed_model_is_freed_before_memory_is_returned(lifecycle, make_spec, monkeypatch, end):
    """Otherwise its memory would be held until another model is closed."""
    lifecycle.load(lambda: make_spec(1))
    closed = weakref.ref(lifecycle.newest)
    freed = []

    def give_memory_back():
        gc.collect()
        freed.append(closed() is None)

    monkeypatch.setattr(memory, "give_memory_back", give_memory_back)
    if end == "replaced":
        lifecycle.load(lambda: make_spec(1, prints={1: "changed"}))
    else:
        lifecycle.unload()
    lifecycle.wait_closed()
    assert freed == [True]
