"""Loads on demand, with a load that the test holds and fails."""

from __future__ import annotations

import threading

import pytest

from shoal.core.model_loading import FailedToLoad, ModelLoading
from shoal.errors import Cancelled, Internal, InvalidArgument, NotFound, QueueRejected, Unavailable
from shoal.repository.on_demand import OnDemand
from tests.support.fakes import WAIT_SECS, make_request


class Loader:
    """Loads when the gate is open; fails with `failure` if there is one."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Semaphore(0)
        self.loads = []
        self.serving = set()
        self.failure = None

    def load(self, key):
        self.loads.append(key)
        self.began.release()
        assert self.gate.wait(WAIT_SECS)
        if self.failure is not None:
            raise self.failure
        self.serving.add(key)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Told:
    """Remembers what it was told, and lets the test wait for it."""

    def __init__(self):
        self.errors = []
        self._event = threading.Event()

    def __call__(self, error):
        self.errors.append(error)
        self._event.set()

    def wait(self):
        assert self._event.wait(WAIT_SECS)
        (error,) = self.errors
        return error


@pytest.fixture
def loader():
    return Loader()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def on_demand(loader, clock):
    made = OnDemand(loader.load, loader.serving.__contains__, threads=2, clock=clock)
    yield made
    loader.gate.set()
    made.close()


def test_how_many_wait_is_told_at_every_change(loader):
    counts = []
    on_demand = OnDemand(
        loader.load,
        loader.serving.__contains__,
        waiting=lambda key, count: counts.append((key, count)),
    )
    loader.gate.clear()
    stays, leaves = Told(), Told()
    on_demand.absent("m").then(stays)
    leave = on_demand.absent("m").then(leaves)
    leave()
    leave()  # has left already: no change, nothing told
    loader.gate.set()
    assert stays.wait() is None
    on_demand.close()
    assert counts == [("m", 1), ("m", 2), ("m", 1), ("m", 0)]


def test_everybody_shares_one_load(on_demand, loader):
    loader.gate.clear()
    told = [Told() for _ in range(5)]
    for one in told:
        on_demand.absent("m").then(one)
    assert on_demand.is_loading("m")
    loader.gate.set()
    assert [one.wait() for one in told] == [None] * 5
    assert loader.loads == ["m"]
    assert not on_demand.is_loading("m")


def test_who_comes_too_late_need_not_wait(on_demand, loader):
    pending = on_demand.absent("m")
    assert isinstance(pending, ModelLoading)
    assert pending.message == "model 'm' is not loaded: it loads at its first request"
    loader.serving.add("m")
    told = Told()
    pending.then(told)
    assert told.errors == [None]
    assert loader.loads == []


def test_who_comes_too_late_starts_no_second_load_after_a_failure(on_demand, loader, clock):
    loader.gate.clear()
    first, late = Told(), Told()
    on_demand.absent("m").then(first)
    pending = on_demand.absent("m")  # while the load is in progress
    loader.failure = Internal("broken")
    loader.gate.set()
    assert isinstance(first.wait(), FailedToLoad)
    pending.then(late)
    assert late.errors[0].message == "broken"
    assert loader.loads == ["m"]
    clock.now += 1
    loader.failure = None
    again = Told()
    pending.then(again)
    assert again.wait() is None


def test_who_leaves_is_not_told(on_demand, loader):
    loader.gate.clear()
    gone, stays = Told(), Told()
    leave = on_demand.absent("m").then(gone)
    on_demand.absent("m").then(stays)
    leave()
    loader.gate.set()
    stays.wait()
    assert gone.errors == []
    leave()  # once more does no harm


def test_a_failure_is_told_and_tried_again_after_a_rest(on_demand, loader, clock):
    loader.failure = InvalidArgument("load failed for model 'm': no such luck")
    waits = []
    for _ in range(6):
        told = Told()
        on_demand.absent("m").then(told)
        error = told.wait()
        assert isinstance(error, FailedToLoad)
        assert error.message == "load failed for model 'm': no such luck"
        refused = on_demand.absent("m")  # at once, and without a load
        assert isinstance(refused, FailedToLoad)
        assert refused.message == error.message
        began = clock.now
        while not isinstance(on_demand.absent("m"), ModelLoading):
            clock.now += 0.5
        waits.append(clock.now - began)
    assert waits == [1, 2, 4, 8, 10, 10]
    assert len(loader.loads) == 6
    assert on_demand.has_failed("m")
    loader.failure = None
    told = Told()
    on_demand.absent("m").then(told)
    assert told.wait() is None
    assert not on_demand.has_failed("m")


def test_a_load_by_hand_ends_the_rest(on_demand, loader):
    loader.failure = Internal("broken")
    told = Told()
    on_demand.absent("m").then(told)
    told.wait()
    assert isinstance(on_demand.absent("m"), FailedToLoad)
    on_demand.forget_failure("m")
    assert isinstance(on_demand.absent("m"), ModelLoading)


def test_what_is_not_there_is_not_remembered(on_demand, loader):
    loader.failure = NotFound("gone")
    told = Told()
    on_demand.absent("m").then(told)
    assert isinstance(told.wait(), NotFound)
    assert isinstance(on_demand.absent("m"), ModelLoading)


def test_a_surprise_is_told_too(on_demand, loader, caplog):
    loader.failure = ZeroDivisionError("oh")
    told = Told()
    on_demand.absent("m").then(told)
    assert told.wait().message == "ZeroDivisionError: oh"
    assert "loading 'm' failed" in caplog.text


def test_so_many_load_at_a_time_unless_one_may_be_waited_for(on_demand, loader):
    loader.gate.clear()
    told = {key: Told() for key in "abcd"}
    for key in "abc":
        on_demand.absent(key).then(told[key])
        if key != "c":
            assert loader.began.acquire(timeout=WAIT_SECS)
    assert sorted(loader.loads) == ["a", "b"]
    on_demand.absent("d").then(told["d"], inside=True)
    assert loader.began.acquire(timeout=WAIT_SECS)
    assert "d" in loader.loads
    assert "c" not in loader.loads
    on_demand.absent("c").then(Told(), inside=True)  # now it may be waited for, too
    assert loader.began.acquire(timeout=WAIT_SECS)
    loader.gate.set()
    assert [told[key].wait() for key in "abcd"] == [None] * 4


def test_after_the_end(loader):
    on_demand = OnDemand(loader.load, loader.serving.__contains__, threads=1)
    loader.gate.clear()
    first, second, third = Told(), Told(), Told()
    on_demand.absent("a").then(first)
    assert loader.began.acquire(timeout=WAIT_SECS)
    on_demand.absent("b").then(second)  # waits for its turn
    closing = threading.Thread(target=on_demand.close)
    closing.start()
    assert isinstance(second.wait(), Unavailable)
    on_demand.absent("c").then(third)
    assert third.wait().message == "Server exiting"
    assert closing.is_alive()  # what is under way is waited for
    loader.gate.set()
    closing.join(WAIT_SECS)
    assert first.wait() is None


class TestHeldRequests:
    @pytest.fixture(autouse=True)
    def _closed(self, loader):
        loader.gate.clear()

    def hold(self, on_demand, again=lambda: None, **options):
        request, collector = make_request(**options)
        on_demand.absent("m").hold(request, again)
        return request, collector

    def test_it_goes_on_when_the_model_is_there(self, on_demand, loader):
        again = threading.Event()
        request, collector = self.hold(on_demand, again.set)
        assert not again.is_set()
        loader.gate.set()
        assert again.wait(WAIT_SECS)
        assert request.on_cancel is None
        assert not collector.answered

    def test_a_load_that_fails_is_its_answer(self, on_demand, loader):
        loader.failure = Internal("broken")
        _, collector = self.hold(on_demand)
        loader.gate.set()
        assert collector.wait().error.message == "broken"
        assert collector.finals == 1

    @pytest.mark.parametrize(
        ("raised", "text"), [(InvalidArgument("no"), "no"), (KeyError("k"), "KeyError: 'k'")]
    )
    def test_what_it_raises_then_is_its_answer(self, on_demand, loader, raised, text):
        def again():
            raise raised

        _, collector = self.hold(on_demand, again)
        loader.gate.set()
        assert collector.wait().error.message == text

    def test_cancelled_while_it_waits(self, on_demand, loader):
        again = threading.Event()
        request, collector = self.hold(on_demand, again.set)
        request.cancel()
        assert isinstance(collector.wait().error, Cancelled)
        told = Told()
        on_demand.absent("m").then(told)
        loader.gate.set()
        told.wait()
        assert not again.is_set()
        assert collector.finals == 1

    def test_cancelled_before(self, on_demand):
        request, collector = make_request()
        request.cancel()
        on_demand.absent("m").hold(request, lambda: None)
        assert isinstance(collector.wait().error, Cancelled)

    def test_its_own_time_runs_out(self, on_demand, loader):
        _, collector = self.hold(on_demand, timeout_us=1000)
        error = collector.wait().error
        assert isinstance(error, QueueRejected)
        assert error.message == "Request timeout expired"
        loader.gate.set()
        assert collector.finals == 1
