"""A second session for executions that run alone: when it is opened, compared, used and closed."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("onnxruntime")

from shoal.backends import onnx_lone_session, onnx_session_comparison
from shoal.backends.onnx_lone_session import LoneSession
from shoal.core.concurrency import ExpectedConcurrency, LoneClient
from shoal.errors import Internal
from tests.support.fakes import WAIT_SECS, FakeClock

LONG_NS = 1_000_000
LONG_FOR_LONE_NS = 100_000
LONG = 100  # elements
CHECK_NS = 15_000_000_000
SECOND = object()


class CountedClock(FakeClock):
    """A clock that knows how often it was read."""

    reads = 0

    def __call__(self):
        self.reads += 1
        return super().__call__()


class World:
    """A model with its own session and a second one. An execution takes so many ns an element; on
    the event loop, its client sends the next request so many ns later."""

    def __init__(
        self, monkeypatch, *, first_ns=10_000, second_ns=5_000, fails=None, is_light=False
    ):
        self.clock, self.cpu_clock = CountedClock(), CountedClock()
        self.first_ns, self.second_ns = first_ns, second_ns
        self.gap_ns = {1: 0, 2: 0}  # after an execution with the first session, or the second
        self.cpu_share = 1.0
        self.opened = 0
        self.fails = fails
        self.client = LoneClient()
        self.concurrency = ExpectedConcurrency(self.client)
        self.concurrency.executions = 1
        monkeypatch.setattr(onnx_session_comparison, "_COMPARED_NS", 0)
        monkeypatch.setattr(onnx_session_comparison, "_SETTLING_NS", 0)
        monkeypatch.setattr(onnx_lone_session, "_LONG_NS", LONG_NS)
        monkeypatch.setattr(onnx_lone_session, "_LONG_FOR_LONE_CLIENT_NS", LONG_FOR_LONE_NS)
        self.lone = LoneSession(
            self.open,
            self.concurrency,
            "m",
            is_light=is_light,
            clock=self.clock,
            cpu_clock=self.cpu_clock,
        )

    def open(self):
        self.opened += 1
        if self.fails:
            raise self.fails
        return SECOND

    def run(self, elements=LONG, times=1, *, until_open=True):
        """Execute, and return the numbers of the sessions that ran it."""

        def execute(elements, second):
            assert second is None or second.session is SECOND
            ns = self.first_ns if second is None else self.second_ns
            self.clock.now_ns += ns * elements
            self.cpu_clock.now_ns += int(ns * elements * self.cpu_share)
            return 1 if second is None else 2

        numbers = []
        for _ in range(times):
            numbers.append(self.lone.run(elements, execute, elements))
            self.clock.now_ns += self.gap_ns[numbers[-1]]
            if until_open and self.lone._opening is not None:
                self.lone._opening.join(WAIT_SECS)
        return numbers

    def open_it(self):
        assert self.run(times=3) == [1, 1, 1]
        assert self.opened == 1

    def compare(self, elements=LONG):
        assert self.run(elements, times=len(COMPARED)) == COMPARED

    def move_to_loop(self, *, has_lone_client=True):
        self.concurrency.executions = 0
        self.client.is_there = has_lone_client

    @property
    def reads(self):
        """How often the clock and the CPU time were read."""
        return self.clock.reads, self.cpu_clock.reads


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


COMPARED = [1] * 8 + [2] * 8 + [1] * 8


def test_short_executions_get_no_second_session(world):
    assert world.run(elements=99, times=100) == [1] * 100
    assert not world.opened


def test_executions_that_waited_for_a_core_are_short(world):
    """Many models at once on a busy machine: each would get a second session it cannot use."""
    world.cpu_share = 0.01
    world.run(times=100)
    assert not world.opened


def test_executions_that_do_not_run_alone_get_none(world):
    world.concurrency.executions = 2
    world.run(times=100)
    assert not world.opened
    world.concurrency.executions = 1
    world.open_it()


@pytest.mark.parametrize(("executions", "has_lone_client"), [(2, False), (2, True), (0, False)])
def test_executions_that_do_not_run_alone_are_not_measured(world, executions, has_lone_client):
    """Reading the clocks costs a tiny model with many clients more than it could gain."""
    world.open_it()
    before = world.reads
    world.concurrency.executions = executions
    world.client.is_there = has_lone_client
    assert world.run(times=100) == [1] * 100
    assert world.reads == before


def test_short_executions_are_measured_by_the_clock_alone(monkeypatch):
    world = World(monkeypatch, is_light=True)
    world.move_to_loop()
    world.run(elements=9, times=100)
    assert world.reads == (200, 0)


def test_executions_that_gain_nothing_are_measured_no_longer(world):
    world.second_ns = 20_000
    world.open_it()
    world.compare()
    clock_reads, cpu_reads = world.reads
    world.run(times=100)
    assert world.reads == (clock_reads + 100, cpu_reads)  # whether it is time to compare again


def test_long_executions_get_one_which_is_compared_and_used(world):
    world.open_it()
    assert world.lone.second.session is SECOND
    world.compare()
    assert world.run(times=100) == [2] * 100
    world.concurrency.executions = 2
    assert world.run(times=3) == [1] * 3
    world.concurrency.executions = 1
    assert world.run() == [2]
    assert world.opened == 1


def test_the_first_long_execution_does_not_count(world):
    """It may be slow for other reasons; of the next ones, the CPU time is read."""
    world.run()
    assert world.reads == (2, 0)
    world.run()
    assert world.reads == (4, 2)
    assert not world.opened
    world.run()
    assert world.opened == 1


def test_short_executions_after_a_long_one_do_not_count(world):
    for _ in range(3):
        world.first_ns = 10_000
        world.run()
        world.first_ns = 9_000
        world.run()
    assert not world.opened


def test_short_sizes_stay_where_they_are(world):
    world.open_it()
    world.compare()
    assert world.run(elements=50, times=10) == [1] * 10
    assert world.run() == [2]


def test_sizes_are_judged_separately(world):
    """Two threads may halve the time of large batches, and none of smaller ones."""
    world.open_it()
    world.compare()
    world.second_ns = 12_000
    world.run(elements=300)
    world.compare(elements=300)
    assert world.run(elements=300, times=4) == [1] * 4
    assert world.run() == [2]
    assert world.lone.second.session is SECOND


def test_a_light_model_uses_one_for_short_executions_of_a_lone_client(monkeypatch):
    """On the event loop; on threads, the other cores have other work."""
    world = World(monkeypatch, is_light=True)
    world.run(elements=20, times=100)  # 0.2 ms each, on a thread
    world.move_to_loop(has_lone_client=False)
    world.run(elements=20, times=100)
    world.client.is_there = True
    assert world.run(elements=9, times=100) == [1] * 100
    assert not world.opened
    assert world.run(elements=20, times=9) == [1] * 9
    assert world.opened == 1
    world.compare(elements=20)
    assert world.run(elements=20, times=3) == [2] * 3
    world.client.is_there = False
    assert world.run(elements=20, times=3) == [1] * 3
    world.concurrency.executions = 1
    assert world.run(elements=20, times=3) == [1] * 3
    assert world.opened == 1


def test_a_heavy_model_uses_none_for_short_executions(world):
    world.move_to_loop()
    world.run(elements=20, times=100)
    assert not world.opened


@pytest.fixture
def on_loop(monkeypatch):
    """A light model with a lone client, whose second session is open. An execution of 20 elements
    takes 0.2 ms with the own session, or 0.1 ms."""
    world = World(monkeypatch, is_light=True)
    world.move_to_loop()
    world.run(elements=20, times=8)
    assert not world.opened
    world.run(elements=20)
    assert world.opened == 1
    return world


@pytest.mark.parametrize(
    ("gap_without_ns", "gap_with_ns", "gains"),
    [
        (100_000, 100_000, True),  # 0.3 ms become 0.2
        (100_000, 160_000, True),
        (100_000, 175_000, False),  # 0.275 ms: too little for what it costs the machine
        (100_000, 230_000, False),  # its threads take the client's core
    ],
)
def test_a_lone_client_must_gain_by_it(on_loop, gap_without_ns, gap_with_ns, gains):
    """Not the execution alone, which takes half of the time in all cases."""
    on_loop.gap_ns = {1: gap_without_ns, 2: gap_with_ns}
    on_loop.compare(elements=20)
    assert on_loop.run(elements=20, times=3) == [2 if gains else 1] * 3
    assert (on_loop.lone.second is not None) is gains


def test_a_client_that_becomes_slower_ends_it(on_loop):
    on_loop.compare(elements=20)
    on_loop.gap_ns[2] = 160_000
    assert on_loop.run(elements=20, times=100)[-20:] == [1] * 20
    assert on_loop.lone.second is None


def test_rare_long_executions_of_a_lone_client_get_none(monkeypatch):
    """Others of the size are short. What disturbs them would be compared."""
    world = World(monkeypatch, is_light=True)
    world.move_to_loop()
    for _ in range(100):
        world.first_ns = 10_000
        world.run(elements=20, times=4)
        world.first_ns = 4_500
        world.run(elements=20)
    assert not world.opened


def test_several_clients_in_between_count_as_a_pause(on_loop):
    on_loop.run(elements=20, times=12)
    on_loop.client.is_there = False
    assert on_loop.run(elements=20, times=8) == [1] * 8
    on_loop.client.is_there = True
    assert on_loop.run(elements=20, times=20) == [*COMPARED[12:], *[2] * 8]


@pytest.mark.parametrize("elements", [1, 300])
def test_other_sizes_in_between_are_not_compared(on_loop, elements):
    for _ in range(20):
        assert on_loop.run(elements=20) == [1]
        on_loop.run(elements=elements)
    on_loop.run(elements=20)
    assert on_loop.run(elements=20, times=23) == COMPARED[1:]


def test_executions_on_threads_are_compared_by_themselves(world):
    """Whoever sends the requests, and however quickly, other cores have no other work."""
    world.gap_ns = {1: 0, 2: 10_000_000}
    world.open_it()
    world.compare()
    assert world.run(times=10) == [2] * 10


def test_executions_on_the_loop_and_on_threads_are_compared_separately(world):
    world.open_it()
    world.run(times=4)
    world.move_to_loop()
    assert world.run() == [1]
    world.compare()
    world.concurrency.executions = 1
    assert world.run(times=20) == COMPARED[4:]


def test_one_that_gains_nothing_is_closed_and_tried_again_later(world):
    world.second_ns = 9_500
    world.open_it()
    world.compare()
    assert world.lone.second is None
    assert world.run(times=100) == [1] * 100
    assert world.opened == 1
    world.clock.now_ns += CHECK_NS
    world.second_ns = 5_000  # the programs that used the other cores have ended
    assert world.run(times=2) == [1, 1]
    assert world.opened == 2
    world.compare()
    assert world.run() == [2]


def test_one_that_gains_no_longer_is_closed(world):
    world.open_it()
    world.compare()
    world.second_ns = 20_000  # other programs have come
    assert world.run(times=100)[-50:] == [1] * 50
    assert world.lone.second is None


def test_one_that_gains_is_compared_again_and_again(world):
    world.open_it()
    world.compare()
    used = 2 * 16 * 8  # 16 times as long as 8 with the own session, and half as long each
    assert world.run(times=used + 8) == [2] * used + [1] * 8
    assert world.run(times=2 * used + 8) == [2] * 2 * used + [1] * 8


def test_one_that_cannot_be_opened_is_reported_once(monkeypatch, caplog):
    world = World(monkeypatch, fails=Internal("no memory"))
    assert world.run(times=20) == [1] * 20
    assert world.opened == 1
    assert "model 'm' runs without a second session for all cores: no memory" in caplog.text


def test_errors_are_raised(world):
    def fail(_work, _second):
        raise Internal("it failed")

    with pytest.raises(Internal, match="it failed"):
        world.lone.run(LONG, fail, None)


def test_closing_waits_for_one_that_is_being_opened(monkeypatch):
    world = World(monkeypatch)
    begun, goes_on = threading.Event(), threading.Event()

    def slowly():
        begun.set()
        assert goes_on.wait(WAIT_SECS)
        return SECOND

    world.lone._open_session = slowly
    world.run(times=3, until_open=False)
    assert begun.wait(WAIT_SECS)
    closing = threading.Thread(target=world.lone.close)
    closing.start()
    goes_on.set()
    closing.join(WAIT_SECS)
    assert not closing.is_alive()
    assert world.lone.second is None
