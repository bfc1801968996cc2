"""Who may run when: resources, limits, priorities, and instances in line for a batch."""

from __future__ import annotations

import logging
import threading

import pytest

from shoal.backends.base import Placement
from shoal.config.model import ModelInstanceGroup, ModelRateLimiter
from shoal.errors import ConfigError
from shoal.instance.rate_limiter import (
    GLOBAL,
    IdleInstances,
    RateLimiter,
    Resource,
    ResourceLimit,
    is_limited,
)
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS


def wants(*resources, priority=0):
    """("R", 2) on the instance's device, ("R", 2, True) for all of them."""
    made = [
        ModelRateLimiter.Resource(name, bool(anywhere), count)
        for name, count, *anywhere in resources
    ]
    return ModelRateLimiter(tuple(made), priority)


def grant(limiter, *resources, priority=0, device=0, name="i"):
    return limiter.register(
        Placement("KIND_GPU", device, name), wants(*resources, priority=priority)
    )


class Runner:
    """An instance in a thread of its own: runs when it may, ends when it is told to."""

    def __init__(self, its_seat, order=None, name=""):
        self.grant = its_seat
        self.running = threading.Event()
        self._end = threading.Event()
        self._order = order if order is not None else []
        self._name = name
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(self._decided, "it runs, or has to wait")

    def _decided(self):
        limiter = self.grant._limiter
        with limiter._lock:  # or it might be seen in line for a moment before it is let in
            return self.grant.holds or self.grant in limiter._waiting

    def _run(self):
        self.grant.acquire()
        self._order.append(self._name)
        self.running.set()
        assert self._end.wait(WAIT_SECS)
        self.grant.release()

    def end(self):
        assert self.running.wait(WAIT_SECS)
        self._end.set()
        self._thread.join(WAIT_SECS)

    @property
    def runs(self):
        return self.grant.holds


# ---- limits


def test_without_limits_there_is_what_the_neediest_needs():
    limiter = RateLimiter()
    a = grant(limiter, ("R1", 4), ("R2", 4))
    b = grant(limiter, ("R2", 5), ("R3", 10), ("R4", 5))
    grant(limiter, ("R1", 1), ("R3", 7), ("R4", 2))
    names = {resource.name: count for resource, count in limiter.limits().items()}
    assert names == {"R1": 4, "R2": 5, "R3": 10, "R4": 5}
    b.leave()
    names = {resource.name: count for resource, count in limiter.limits().items()}
    assert names == {"R1": 4, "R2": 4, "R3": 7, "R4": 2}
    a.leave()
    a.leave()  # once is enough
    names = {resource.name: count for resource, count in limiter.limits().items()}
    assert names == {"R1": 1, "R3": 7, "R4": 2}


def test_each_device_has_its_own_unless_they_are_global():
    limiter = RateLimiter()
    grant(limiter, ("R", 2), ("G", 1, True), device=0)
    grant(limiter, ("R", 3), ("G", 5, True), device=1)
    assert limiter.limits() == {
        Resource(0, "R"): 2,
        Resource(1, "R"): 3,
        Resource(GLOBAL, "G"): 5,
    }


def test_explicit_limits():
    given = [
        ResourceLimit("R1", 10),
        ResourceLimit("R2", 5, 0),
        ResourceLimit("R2", 8, 1),
        ResourceLimit("R3", 2),
    ]
    limiter = RateLimiter(given)
    for device in (0, 1):
        grant(limiter, ("R1", 1), ("R2", 1), ("R3", 1, True), device=device)
    assert limiter.limits() == {
        Resource(0, "R1"): 10,
        Resource(1, "R1"): 10,
        Resource(0, "R2"): 5,
        Resource(1, "R2"): 8,
        Resource(GLOBAL, "R3"): 2,
    }


@pytest.mark.parametrize(
    ("explicit", "needs", "device", "limit"),
    [
        ([ResourceLimit("R", 3)], ("R", 4), 0, 3),
        ([ResourceLimit("R", 9, 1)], ("R", 4), 0, 0),  # there is some, but elsewhere
        ([ResourceLimit("R", 3), ResourceLimit("R", 2, 0)], ("R", 4), 0, 3),
        ([ResourceLimit("R", 1, 0), ResourceLimit("R", 3, 1)], ("R", 4, True), 0, 3),
        ([ResourceLimit("S", 1)], ("R", 1), 0, 0),  # what is not named is not there
    ],
)
def test_explicit_limits_must_be_enough(explicit, needs, device, limit):
    limiter = RateLimiter(explicit)
    with pytest.raises(ConfigError) as failure:
        grant(limiter, needs, device=device)
    assert failure.value.message == (
        f'instance_group.rate_limiter.resources: Resource count for "R" is limited to {limit} '
        "which will prevent scheduling of one or more model instances, the minimum required count "
        f"is {needs[1]}. Start the server with --rate-limit-resource=R:{needs[1]}, or lower the "
        "count"
    )
    assert limiter.limits() == {}  # nothing was counted
    assert not limiter._grants


def test_a_resource_is_global_or_it_is_not():
    limiter = RateLimiter()
    grant(limiter, ("R", 1))
    with pytest.raises(ConfigError, match="present as both global and device-specific resource"):
        grant(limiter, ("R", 1, True))
    assert limiter.limits() == {Resource(0, "R"): 1}


def test_the_limits_are_in_the_verbose_log(caplog):
    caplog.set_level(logging.DEBUG, "shoal.instance.rate_limiter")
    limiter = RateLimiter()
    larger = grant(limiter, ("R1", 4), ("G", 1, True))
    grant(limiter, ("R1", 3))
    larger.leave()
    assert [record.message for record in caplog.records] == [
        (
            "Max Resource Map===>\n\tDevice: GLOBAL\tResource: G\t Count: 1\n"
            "\tDevice: 0\tResource: R1\t Count: 4"
        ),
        "Max Resource Map===>\n\tDevice: 0\tResource: R1\t Count: 3",
    ]


def test_only_models_that_say_something_are_limited():
    assert not is_limited([])
    assert not is_limited([ModelInstanceGroup(), ModelInstanceGroup(rate_limiter=wants())])
    assert is_limited([ModelInstanceGroup(), ModelInstanceGroup(rate_limiter=wants(priority=1))])
    assert is_limited([ModelInstanceGroup(rate_limiter=wants(("R", 1)))])


# ---- turns


def test_those_that_fit_run_together_and_the_others_wait():
    limiter = RateLimiter([ResourceLimit("R", 5)])
    small, other, large = (grant(limiter, ("R", count)) for count in (2, 3, 4))
    runners = [Runner(small), Runner(other), Runner(large)]
    assert [runner.runs for runner in runners] == [True, True, False]
    runners[0].end()
    assert not runners[2].runs  # 2 are free, 4 are needed
    runners[1].end()
    runners[2].end()


def test_nothing_is_held_that_was_given_back():
    limiter = RateLimiter()
    one = grant(limiter, ("R", 1), ("S", 2))
    for _ in range(3):
        one.acquire()
        one.release()
    assert set(limiter._held.values()) == {0}


def test_devices_do_not_wait_for_each_other():
    limiter = RateLimiter()
    runners = [Runner(grant(limiter, ("R", 1), device=device)) for device in (0, 1)]
    assert all(runner.runs for runner in runners)
    for runner in runners:
        runner.end()


def test_global_resources_are_shared_by_all_devices():
    limiter = RateLimiter()
    first, second = (Runner(grant(limiter, ("R", 1, True), device=device)) for device in (0, 1))
    assert (first.runs, second.runs) == (True, False)
    first.end()
    second.end()


def test_who_needs_nothing_never_waits():
    limiter = RateLimiter()
    blocking, waiting = (Runner(grant(limiter, ("R", 1))) for _ in range(2))
    assert not waiting.runs
    free = Runner(limiter.register(Placement("KIND_CPU"), None))
    assert free.runs
    for runner in (free, blocking, waiting):
        runner.end()


def test_who_has_run_least_goes_first():
    limiter = RateLimiter()
    busy, often, seldom = (grant(limiter, ("R", 1)) for _ in range(3))
    for _ in range(3):
        often.acquire()
        often.release()
    order = []
    holding = Runner(busy)
    waiting = [Runner(often, order, "often"), Runner(seldom, order, "seldom")]
    holding.end()
    waiting[1].end()
    waiting[0].end()
    assert order == ["seldom", "often"]


def test_equal_ones_go_in_the_order_they_came():
    limiter = RateLimiter()
    holding = Runner(grant(limiter, ("R", 1)))
    order = []
    waiting = [Runner(grant(limiter, ("R", 1)), order, name) for name in "abc"]
    holding.end()
    for runner in waiting:
        runner.end()
    assert order == ["a", "b", "c"]


def test_priority_two_gets_half_the_turns():
    limiter = RateLimiter()
    grants = {priority: grant(limiter, ("R", 1), priority=priority) for priority in (1, 2)}
    turns = []
    blocker = Runner(grant(limiter, ("R", 1), priority=100))
    enough = threading.Event()

    def always_busy(priority):
        while True:
            grants[priority].acquire()  # gives back what it holds
            turns.append(priority)
            if len(turns) >= 30:
                break
            wait_until(lambda: grants[3 - priority] in limiter._waiting)
        enough.set()
        grants[priority].release()

    threads = [threading.Thread(target=always_busy, args=(p,), daemon=True) for p in grants]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(limiter._waiting) == 2)
    blocker.end()
    assert enough.wait(WAIT_SECS)
    for thread in threads:
        thread.join(WAIT_SECS)
    assert (turns[:30].count(1), turns[:30].count(2)) == (20, 10)


def test_priority_zero_is_one():
    limiter = RateLimiter()
    assert grant(limiter, ("R", 1)).priority == 1
    assert limiter.register(Placement("KIND_CPU"), None).priority == 1


def test_small_ones_do_not_starve_a_large_one():
    limiter = RateLimiter([ResourceLimit("R", 4)])
    smalls = [Runner(grant(limiter, ("R", 1))) for _ in range(2)]
    large = Runner(grant(limiter, ("R", 4)))
    late = Runner(grant(limiter, ("R", 1)))
    assert not late.runs  # two are free, but they are kept for the large one
    for runner in smalls:
        runner.end()
    assert large.running.wait(WAIT_SECS)
    assert not late.runs
    large.end()
    late.end()


def test_who_shares_nothing_with_the_first_goes_on():
    limiter = RateLimiter()
    holding = Runner(grant(limiter, ("R", 1)))
    blocked = Runner(grant(limiter, ("R", 1)))
    other = Runner(grant(limiter, ("S", 1)))
    assert (blocked.runs, other.runs) == (False, True)
    for runner in (other, holding, blocked):
        runner.end()


def test_a_newcomer_begins_level_with_the_others():
    limiter = RateLimiter()
    old = grant(limiter, ("R", 1), priority=2)
    for _ in range(10):
        old.acquire()
        old.release()
    assert old.scaled == 20
    assert grant(limiter, ("R", 1)).scaled == 20
    assert grant(limiter, ("R", 1), priority=4).scaled == 20
    assert grant(limiter, ("R", 1), priority=7).scaled == 14


def test_a_limit_that_grows_lets_somebody_run():
    limiter = RateLimiter()
    holding = Runner(grant(limiter, ("R", 1)))
    waiting = Runner(grant(limiter, ("R", 1)))
    assert not waiting.runs
    large = grant(limiter, ("R", 2))  # now there are two
    assert waiting.running.wait(WAIT_SECS)
    large.leave()
    holding.end()
    waiting.end()


def test_a_limit_that_shrinks_below_what_is_held_takes_nothing_away():
    limiter = RateLimiter()
    large = grant(limiter, ("R", 2))
    runners = [Runner(grant(limiter, ("R", 1))) for _ in range(2)]
    large.leave()
    third = Runner(grant(limiter, ("R", 1)))
    assert [runner.runs for runner in runners] == [True, True]
    runners[0].end()
    assert not third.runs
    runners[1].end()
    third.end()


# ---- instances in line


class Puller:
    def __init__(self):
        self.stopping = False


def entered(line, its_seat, puller, wake=lambda: None):
    """A turn in a thread, and the event that it is first."""
    first = threading.Event()
    turns = []

    def enter():
        turns.append(line.enter(its_seat, puller, wake))
        first.set()

    threading.Thread(target=enter, daemon=True).start()
    wait_until(lambda: its_seat in line._idle)
    return first, turns


def test_one_at_a_time_is_first_in_line():
    limiter, line = RateLimiter(), IdleInstances()
    one, other = grant(limiter), grant(limiter)
    turn = line.enter(one, Puller(), lambda: None)
    assert not turn.stopping
    first, turns = entered(line, other, Puller())
    assert not first.is_set()
    line.leave(turn)
    assert first.wait(WAIT_SECS)
    line.leave(turns[0])
    assert not line._idle


def test_who_has_run_less_takes_the_place_of_the_first():
    limiter, line = RateLimiter(), IdleInstances()
    one, other = grant(limiter), grant(limiter)
    one.executions = 1
    woken = threading.Event()
    turn = line.enter(one, Puller(), lambda: None)
    first, turns = entered(line, other, Puller(), woken.set)
    assert woken.wait(WAIT_SECS)
    assert turn.revoked
    assert turn.stopping  # so its queue sends it back
    line.leave(turn)
    again, more = entered(line, one, Puller())
    assert first.wait(WAIT_SECS)
    assert not again.is_set()
    line.leave(turns[0])
    assert again.wait(WAIT_SECS)
    line.leave(more[0])


def test_who_is_to_stop_does_not_wait_to_be_first():
    limiter, line = RateLimiter(), IdleInstances()
    puller = Puller()
    turn = line.enter(grant(limiter), Puller(), lambda: None)
    first, turns = entered(line, grant(limiter), puller)
    puller.stopping = True
    line.wake()
    assert first.wait(WAIT_SECS)
    assert turns[0].stopping
    assert line._first is turn
    line.leave(turns[0])
    assert line._first is turn
    line.leave(turn)
