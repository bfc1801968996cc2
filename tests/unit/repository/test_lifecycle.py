"""A model's life: load beside, switch, drain; failures leave what served."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from shoal.core import dtypes
from shoal.core.tensor import Tensor
from shoal.errors import ConfigError, Internal, InvalidArgument
from shoal.repository.lifecycle import LoadFailed, ModelLife, State
from shoal.scheduler.batcher import BatcherClosed
from tests.support.fakes import WAIT_SECS, make_request


@pytest.fixture
def life():
    life = ModelLife("m")
    yield life
    life.unload()
    life.wait_closed()


def ask(model, value=1):
    array = np.array([[value]], np.int32)
    request, collector = make_request(Tensor("x", dtypes.INT32, (1, 1), raw=array.tobytes()))
    model.accept(request)
    return collector


def states(life):
    return {v: s.state for v, s in life.statuses.items()}


def test_the_newest_version_answers(life, make_spec):
    life.load(lambda: make_spec(1, 3, 2))
    assert life.newest.version == 3
    assert ask(life.newest, 7).wait().outputs[0].array.tolist() == [[7]]
    assert states(life) == dict.fromkeys((1, 2, 3), State.READY)


def test_loading_again_without_change_loads_nothing(life, make_spec, backend):
    life.load(lambda: make_spec(1))
    before = life.newest
    life.load(lambda: make_spec(1))
    assert life.newest is before
    assert len(backend.loads) == 1


def test_a_changed_file_is_loaded_beside_and_requests_in_flight_finish(life, make_spec, backend):
    life.load(lambda: make_spec(1))
    old = life.newest
    backend.gate.clear()
    waiting = ask(old, 1)
    assert backend.started.acquire(timeout=WAIT_SECS)  # it is executing now
    queued = ask(old, 2)
    life.load(lambda: make_spec(1, prints={1: "changed"}))  # does not wait for the old one
    assert life.newest is not old
    assert not waiting.answered
    backend.gate.set()
    assert waiting.wait().error is None
    assert queued.wait().error is None
    life.wait_closed()
    assert backend.open_models == 1
    assert states(life) == {1: State.READY}


def test_a_version_that_left_the_policy_is_unloaded(life, make_spec):
    life.load(lambda: make_spec(1))
    life.load(lambda: make_spec(2))
    life.wait_closed()
    assert states(life) == {1: State.UNAVAILABLE, 2: State.READY}
    assert life.statuses[1].reason == "unloaded"


def test_somebody_may_wait_for_the_end_at_any_moment(life, make_spec, monkeypatch):
    start = threading.Thread.start

    def after_somebody_has_waited(thread):
        if thread.name == "shoal-close-m":
            life.wait_closed()
        start(thread)

    life.load(lambda: make_spec(1))
    monkeypatch.setattr(threading.Thread, "start", after_somebody_has_waited)
    life.load(lambda: make_spec(2))
    life.wait_closed()
    assert states(life) == {1: State.UNAVAILABLE, 2: State.READY}


def test_a_replaced_model_refuses_so_that_the_engine_can_ask_again(life, make_spec):
    life.load(lambda: make_spec(1))
    old = life.newest
    life.load(lambda: make_spec(1, prints={1: "changed"}))
    life.wait_closed()
    with pytest.raises(BatcherClosed):
        ask(old)


def test_only_instances_changed_means_no_reload(life, make_spec, backend):
    life.load(lambda: make_spec(1, count=1))
    model = life.newest
    life.load(lambda: make_spec(1, count=3))
    assert life.newest is model
    assert backend.open_executors == 3
    life.load(lambda: make_spec(1, count=2))
    assert backend.open_executors == 2
    assert len(backend.loads) == 1
    assert model.config.instance_group[0].count == 2
    assert ask(model).wait().error is None


def test_removing_an_instance_lets_its_batch_finish(life, make_spec, backend):
    life.load(lambda: make_spec(1, count=2, dynamic_batching=None))
    backend.gate.clear()
    collectors = [ask(life.newest, n) for n in range(2)]
    for _ in collectors:
        assert backend.started.acquire(timeout=WAIT_SECS)
    shrinking = threading.Thread(
        target=life.load, args=(lambda: make_spec(1, count=1, dynamic_batching=None),)
    )
    shrinking.start()
    backend.gate.set()
    shrinking.join(WAIT_SECS)
    assert not shrinking.is_alive()
    assert [c.wait().error for c in collectors] == [None, None]
    assert backend.open_executors == 1


def test_a_failing_load_leaves_the_old_one_and_says_why(life, make_spec, backend, monkeypatch):
    life.load(lambda: make_spec(1))
    old = life.newest

    def fail(context):
        raise Internal("no such operator")

    monkeypatch.setattr(backend, "load", fail)
    with pytest.raises(LoadFailed, match="version 1 is at UNAVAILABLE state: Internal: no such"):
        life.load(lambda: make_spec(1, prints={1: "broken"}))
    assert life.newest is old
    assert life.statuses[1].state is State.READY
    assert "no such operator" in life.statuses[1].reason
    assert life.last_load_failed
    assert ask(old).wait().error is None


def test_one_bad_version_keeps_all_new_ones_out(life, make_spec, backend, monkeypatch):
    load = backend.load

    def fail_two(context):
        if context.version == 2:
            raise RuntimeError("boom")
        return load(context)

    monkeypatch.setattr(backend, "load", fail_two)
    with pytest.raises(LoadFailed, match="boom"):
        life.load(lambda: make_spec(1, 2))
    assert life.newest is None
    assert backend.open_models == 0
    assert states(life) == {1: State.UNAVAILABLE, 2: State.UNAVAILABLE}


def test_a_broken_config_is_noted(life, make_spec):
    def broken():
        raise ConfigError("bad dims", file="config.pbtxt", field="input[0].dims")

    with pytest.raises(ConfigError):
        life.load(broken)
    assert "bad dims" in life.problem
    life.load(lambda: make_spec(1))
    assert life.problem == ""
    with pytest.raises(ConfigError):
        life.load(broken)
    assert life.newest is not None
    assert "bad dims" in life.statuses[1].reason
    life.load(lambda: make_spec(1))
    assert life.statuses[1].reason == ""


def test_a_failing_resize_keeps_the_instances(life, make_spec, backend, monkeypatch):
    from tests.support.fakes import FakeLoadedModel

    life.load(lambda: make_spec(1, count=1))

    def refuse(self, placement):
        raise InvalidArgument("no room")

    monkeypatch.setattr(FakeLoadedModel, "executor", refuse)
    with pytest.raises(LoadFailed, match="no room"):
        life.load(lambda: make_spec(1, count=2))
    assert backend.open_executors == 1
    assert ask(life.newest).wait().error is None


def test_unload_answers_what_is_queued_and_frees_everything(life, make_spec, backend):
    life.load(lambda: make_spec(1))
    backend.gate.clear()
    collectors = [ask(life.newest, n) for n in range(3)]
    threading.Thread(target=backend.gate.set).start()
    life.unload()
    life.wait_closed()
    assert [c.wait().error for c in collectors] == [None] * 3
    assert (backend.open_models, backend.open_executors) == (0, 0)
    assert life.newest is None
    assert life.statuses[1].reason == "unloaded"


def test_a_failing_batch_costs_only_the_one_that_caused_it(life, make_spec, backend):
    def compute(inputs, outputs):
        if (inputs["x"] == 13).any():
            raise ValueError("unlucky")
        return [inputs["x"]]

    backend.compute = compute
    life.load(lambda: make_spec(1))
    backend.gate.clear()
    blocker = ask(life.newest, 0)
    assert backend.started.acquire(timeout=WAIT_SECS)
    good, bad, also_good = (ask(life.newest, n) for n in (1, 13, 2))  # these form one batch
    backend.gate.set()
    assert blocker.wait().error is None
    assert good.wait().error is None
    assert also_good.wait().error is None
    assert "unlucky" in bad.wait().error.message
    counts = life.newest.statistics.snapshot()["inference_stats"]
    assert counts["success"]["count"] == 3
    assert counts["fail"]["count"] == 1
