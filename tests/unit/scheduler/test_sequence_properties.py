"""Whatever happens in whatever order: nothing is lost, doubled or overtaken, and slots come back."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config import normalise, pbtxt
from shoal.core.request import Request, State
from shoal.errors import InvalidArgument
from shoal.scheduler.sequence import SequenceBatcher
from shoal.scheduler.sequence_setup import build, read_setup
from tests.support.fakes import FakeClock, make_request

START, END = Request.SEQUENCE_START, Request.SEQUENCE_END
IDLE_NS = 1_000_000_000
IDS = st.integers(1, 5)

STEPS = st.one_of(
    st.tuples(st.just("ask"), IDS, st.sampled_from([0, START, END, START | END])),
    st.tuples(st.just("hasty"), IDS, st.just(START)),
    st.tuples(st.just("pull"), st.integers(0, 1)),
    st.tuples(st.just("finish"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("time"), st.sampled_from([1000, IDLE_NS // 2, IDLE_NS])),
)
BLOCKS = st.sampled_from(
    [
        "direct { }",
        "oldest { max_candidate_sequences: 3 }",
        "oldest { max_candidate_sequences: 1 preferred_batch_size: [ 2 ] }",
        "iterative_sequence: true",
    ]
)


class NoTimer:
    def at(self, when_ns, callback):
        """The test looks at the time itself."""


class Instance:
    """Pulls without waiting: as the event loop does, but for one instance alone."""

    def __init__(self):
        self.stopping = False
        self.batch = None


class World:
    def __init__(self, block, max_batch_size):
        text = f'name: "m" max_batch_size: {max_batch_size} sequence_batching {{ {block} }}'
        config = pbtxt.parse_pbtxt(text, "config.pbtxt")
        config = normalise.normalise(config, directory_name="m", file="config.pbtxt")
        self.clock = FakeClock()
        self.setup = read_setup(config, None)
        self.batcher = SequenceBatcher(
            self.setup,
            build(config, None, on_dropped=lambda *_: None)._policy,
            on_dropped=lambda request, _: self.answered.append(request),
            clock=self.clock,
            timer=NoTimer(),
        )
        self.instances = [Instance(), Instance()]
        for instance in self.instances:
            self.batcher.attach(instance)
        self.accepted = []
        self.answered = []
        self.runs = defaultdict(list)  # by sequence, what was executed

    # ---- what may happen

    def ask(self, correlation_id, flags, timeout_us=0):
        request, _ = make_request(
            rows=1, correlation_id=correlation_id, flags=flags, timeout_us=timeout_us
        )
        try:
            self.batcher.enqueue(request)
        except InvalidArgument:
            assert not flags & START
            assert self.batcher._table.find(correlation_id) is None
        else:
            self.accepted.append(request)

    def hasty(self, correlation_id, flags):
        self.ask(correlation_id, flags, timeout_us=1)

    def pull(self, number):
        instance = self.instances[number]
        slots = self.batcher._instances[instance]
        if instance.batch is not None:
            return
        with self.batcher._lock:
            batch, _ = self.batcher._cut(slots)
        if batch:
            self.check(batch)
            instance.batch = batch

    def finish(self, number, again):
        batch, self.instances[number].batch = self.instances[number].batch, None
        if batch is None:
            return
        for request in batch:
            if request.turn.is_filler:
                continue
            if again and request.turn.may_repeat(request):
                request.turn.again = True
            else:
                request.state = State.DONE
                self.answered.append(request)
        self.batcher.finished(batch)

    def cancel(self, number):
        if number < len(self.accepted):
            self.accepted[number].cancel()

    def time(self, ns):
        self.clock.advance(ns)
        self.batcher.expire()

    # ---- what must hold

    def check(self, batch):
        asked = [request for request in batch if not request.turn.is_filler]
        assert 1 <= len(asked) <= max(1, self.setup.slots)
        runs = [request.turn.run for request in asked]
        assert len(set(map(id, runs))) == len(runs)  # one of each sequence
        executing = [r.turn.run for i in self.instances for r in i.batch or () if r.turn.run]
        assert not set(map(id, executing)) & set(map(id, runs))
        for request in asked:
            self.runs[request.turn.run].append(request)
        if self.setup.keeps_slots:
            for place, request in enumerate(batch):
                if not request.turn.is_filler and request.turn.run.instance is not None:
                    assert request.turn.run.slot == place

    def settle(self):
        """Let everything come to its end."""
        for _ in range(10 * len(self.accepted) + 20):
            for number in range(2):
                self.pull(number)
                self.finish(number, again=False)
            self.time(IDLE_NS)

    def check_all(self):
        assert sorted(map(id, self.answered)) == sorted(map(id, self.accepted))
        assert all(request.state is State.DONE for request in self.accepted)
        assert self.batcher.pending() == 0
        table = self.batcher._table
        assert table.backlog == []
        assert self.batcher._idle.resting() == []
        assert table._open == {}
        assert len(table._free) == 2 * self.setup.slots  # every slot is free again
        assert not any(
            instance.ready or instance.busy for instance in self.batcher._instances.values()
        )
        order = {id(request): place for place, request in enumerate(self.accepted)}
        for executed in self.runs.values():
            places = [order[id(request)] for request in executed]
            assert places == sorted(places)
            ends = [request for request in executed if request.flags & END]
            assert ends in ([], [executed[-1]])  # nothing comes after an END


@given(BLOCKS, st.integers(0, 2), st.lists(STEPS, max_size=60))
@settings(max_examples=2 * settings.default.max_examples)
def test_whatever_happens(block, max_batch_size, steps):
    world = World(block, max_batch_size)
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
    world.settle()
    world.check_all()
