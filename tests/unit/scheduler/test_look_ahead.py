"""Look-ahead batching: which requests go together, and that nobody is passed for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduler.batcher import Batcher
from shoal.scheduler.look_ahead import LookAhead
from shoal.scheduler.policy import BatchCut, BatchPolicy, Reason
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from tests.support.fakes import FakeClock, make_request

ALL = 10**9  # every request is of the highest priority
MS = 1_000_000


def waiting(text):
    """`a2 b` is a request of two rows with key a, then one of one row with key b."""
    return [(int(word[1:] or 1), word[0]) for word in text.split()]


def choice(reason, *positions):
    return BatchCut(len(positions), reason, positions)


WAIT = choice(Reason.WAITING)


@pytest.mark.parametrize(
    ("text", "preferred", "delay", "waited", "expected"),
    [
        ("", {4}, 0, 0, WAIT),
        # without a delay the oldest goes at once, with its like
        ("a b a b a", {4}, 0, 0, choice(Reason.NO_DELAY, 0, 2, 4)),
        ("a b b b b", {4}, 0, 0, choice(Reason.NO_DELAY, 0)),
        ("a b a a b a a", {4}, 0, 0, choice(Reason.PREFERRED, 0, 2, 3, 5)),
        # a request that does not fit closes its own batch and nobody else's
        ("a3 b a2 a", {4}, 0, 0, choice(Reason.PREFERRED, 0)),
        # with a delay the oldest waits for company ...
        ("a b a", {4}, 100, 99, WAIT),
        ("a b a", {4}, 100, 100, choice(Reason.DELAY, 0, 2)),
        # ... and meanwhile another batch goes when it is full, the earliest first
        ("a b b b b", {4}, 100, 99, choice(Reason.PREFERRED, 1, 2, 3, 4)),
        ("a b c c c c b b b", {4}, 100, 0, choice(Reason.PREFERRED, 1, 6, 7, 8)),
        ("a b3 c4 b2", {4}, 100, 0, choice(Reason.PREFERRED, 1)),
        # but never when the oldest is due
        ("a b b b b", {4}, 100, 100, choice(Reason.DELAY, 0)),
        # preferred sizes
        ("a b b a b", {2}, 100, 0, choice(Reason.PREFERRED, 0, 3)),
        ("a b b b", {2}, 100, 0, choice(Reason.PREFERRED, 1, 2)),
    ],
)
def test_cut(text, preferred, delay, waited, expected):
    policy = LookAhead(BatchPolicy(4, frozenset(preferred), delay))
    assert policy.cut(waiting(text), waited, ALL) == expected


@pytest.mark.parametrize(
    ("text", "leading", "expected"),
    [
        # what has a lower priority fills up, and does not go first
        ("a b a b a a", 2, choice(Reason.PREFERRED, 0, 2, 4, 5)),
        ("a b b b b", 1, WAIT),
        ("a b b b b", 2, choice(Reason.PREFERRED, 1, 2, 3, 4)),
    ],
)
def test_one_of_the_highest_priority_is_in_every_batch(text, leading, expected):
    policy = LookAhead(BatchPolicy(4, frozenset({4}), 100))
    assert policy.cut(waiting(text), 0, leading) == expected


def test_the_window_bounds_how_far_it_looks():
    policy = LookAhead(BatchPolicy(4, frozenset({4})), window=3)
    looked = []

    def watched():
        for entry in waiting("a b a a a a"):
            looked.append(entry)
            yield entry

    assert policy.cut(watched(), 0, ALL) == choice(Reason.NO_DELAY, 0, 2)
    assert len(looked) == 3


def test_it_stops_looking_once_the_batch_of_the_oldest_is_full():
    looked = []

    def endless():
        while True:
            looked.append(1)
            yield (1, "a")

    policy = LookAhead(BatchPolicy(4, frozenset({4})))
    assert policy.cut(endless(), 0, ALL).positions == (0, 1, 2, 3)
    assert len(looked) == 4


queues = st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc")), max_size=20)


@given(
    queue=queues,
    most=st.integers(5, 8),
    preferred=st.frozensets(st.integers(1, 8), max_size=2),
    delay=st.sampled_from([0, 100]),
    waited=st.integers(0, 200),
    leading=st.integers(1, 20),
    window=st.integers(1, 20),
)
def test_what_holds_for_every_choice(queue, most, preferred, delay, waited, leading, window):
    inner = BatchPolicy(most, frozenset(size for size in preferred if size <= most), delay)
    chosen = LookAhead(inner, window).cut(queue, waited, leading)
    places = chosen.positions
    due = bool(queue) and waited >= delay
    if not places:
        assert chosen.reason is Reason.WAITING
        assert not due
        return
    assert list(places) == sorted(set(places))
    assert places[-1] < min(window, len(queue))
    keys = {queue[place][1] for place in places}
    assert len(keys) == 1
    assert sum(queue[place][0] for place in places) <= most
    assert places[0] < leading or places[0] == 0
    # Among equals nobody overtakes.
    like = [place for place, (_, key) in enumerate(queue[:window]) if key in keys]
    assert list(places) == like[: len(places)]
    if due:  # the oldest is in the batch as soon as its delay is over
        assert places[0] == 0


@given(queue=st.lists(st.integers(1, 5), max_size=20), delay=st.sampled_from([0, 100]))
def test_with_equal_shapes_it_is_the_plain_policy(queue, delay):
    inner = BatchPolicy(8, frozenset({4, 8}), delay)
    alike = [(rows, "a") for rows in queue]
    for waited in (0, 100):
        cut = inner.cut(alike, waited)
        chosen = LookAhead(inner).cut(alike, waited, ALL)
        assert (len(chosen.positions), chosen.reason) == (cut.count, cut.reason)
        assert chosen.positions == tuple(range(cut.count))


# ---- in the queue


def requests(text, **options):
    made = []
    for rows, key in waiting(text):
        request, _ = make_request(rows=rows, **options)
        request.batch_key = key
        made.append(request)
    return made


@given(
    levels=st.lists(st.integers(1, 3), max_size=12),
    picks=st.sets(st.integers(0, 11), max_size=6),
)
def test_take_at_takes_these_and_leaves_the_others_in_order(levels, picks):
    queue = RequestQueue(QueuePolicy(), levels=3, default_level=2)
    for level in levels:
        queue.push(make_request(rows=1, priority=level)[0], 0)
    order = list(queue)
    places = sorted(place for place in picks if place < len(order))
    assert queue.take_at(places) == [order[place] for place in places]
    rest = [request for place, request in enumerate(order) if place not in places]
    assert list(queue) == rest
    assert len(queue) == len(rest)


def test_take_at_reaches_those_that_are_late():
    queue = RequestQueue(QueuePolicy(default_timeout_ns=10, delay_expired=True))
    late = requests("a b a")
    for request in late:
        queue.push(request, 0)
    assert queue.prune(20, cancelled=False) == []
    in_time = requests("a")
    queue.push(in_time[0], 20)
    assert list(queue) == [*in_time, *late]
    assert queue.take_at([0, 1, 3]) == [*in_time, late[0], late[2]]
    assert list(queue) == [late[1]]


@pytest.mark.parametrize(("levels", "expected"), [([], 0), ([2, 1, 1], 2), ([3, 3], 2), ([1], 1)])
def test_leading(levels, expected):
    queue = RequestQueue(QueuePolicy(), levels=3, default_level=3)
    for level in levels:
        queue.push(make_request(rows=1, priority=level)[0], 0)
    assert queue.leading() == expected


class NoAlarms:
    """The clock that stands still says when time is up, and no other."""

    def at(self, when_ns, callback):
        pass


class Line:
    """A batcher whose clock stands still, pulled as the event loop pulls."""

    def __init__(self, delay_ns=0, queue=None, window=256):
        self.clock = FakeClock()
        self.dropped = []
        self.batcher = Batcher(
            LookAhead(BatchPolicy(4, frozenset({4}), delay_ns), window),
            RequestQueue(QueuePolicy()) if queue is None else queue,
            on_dropped=lambda request, error: self.dropped.append((request, error)),
            clock=self.clock,
            timer=NoAlarms(),
        )
        self.batcher.hand_to_loop(lambda: None)

    def add(self, *new):
        for request in new:
            self.batcher.enqueue(request)

    def batches(self):
        """All that is ready now, and after how many nanoseconds to ask again."""
        ready = []
        while True:
            batch, wait_ns = self.batcher.take_now()
            if not batch:
                return ready, wait_ns
            ready.append(batch)


def test_requests_of_one_shape_leave_together():
    line = Line()
    a1, b1, a2, c1, b2, a3 = all_of_them = requests("a b a c b a")
    line.add(*all_of_them)
    assert line.batches() == ([[a1, a2, a3], [b1, b2], [c1]], None)
    assert Counter(reason for reason, _ in line.batcher.recent) == {Reason.NO_DELAY: 3}


def test_a_full_batch_passes_one_that_waits_and_no_other():
    line = Line(delay_ns=5 * MS)
    a1, *bs = requests("a b b b b")
    line.add(a1)
    line.clock.advance(2 * MS)
    line.add(*bs)
    assert line.batches() == ([bs], 3 * MS)
    line.clock.advance(3 * MS)
    late = requests("b b b b")
    line.add(*late)
    assert line.batches() == ([[a1], late], None)


def test_priorities_come_before_shapes():
    line = Line(delay_ns=5 * MS, queue=RequestQueue(QueuePolicy(), levels=2, default_level=2))
    low = requests("b b b b a a a", priority=2)
    high = requests("a", priority=1)
    line.add(*low, *high)
    assert line.batches()[0] == [[*high, *low[4:]], low[:4]]


def test_expired_and_cancelled_requests_are_in_no_batch():
    line = Line(queue=RequestQueue(QueuePolicy(timeout_from_request=True)))
    (a1, b1, a2) = requests("a b a")
    (expired,) = requests("a", timeout_us=1000)
    line.add(a1, b1, expired, a2)
    line.clock.advance(2 * MS)
    a1.cancel()
    assert line.batches()[0] == [[b1], [a2]]
    assert [request for request, _ in line.dropped] == [a1, expired]


def test_a_closed_batcher_serves_everything():
    line = Line(delay_ns=5 * MS)
    waiting_ones = requests("a b a c")
    line.add(*waiting_ones)
    line.batcher.close()

    class Puller:
        stopping = False

    batches = [line.batcher.next_batch(Puller()) for _ in range(4)]
    assert [len(batch) for batch in batches] == [2, 1, 1, 0]


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("aaab")), max_size=40),
    delay=st.sampled_from([0, 3]),
)
def test_nobody_waits_longer_than_the_delay_for_an_idle_instance(arrivals, delay):
    """One batch is taken at every tick: whoever is oldest and due is in it."""
    line = Line(delay_ns=delay)
    served = []
    for pause, key in arrivals:
        for _ in range(pause):
            line.clock.advance(1)
            waiting_now = list(line.batcher._queue)
            batch, _ = line.batcher.take_now()
            served += batch
            if waiting_now and line.clock() - waiting_now[0].queued_ns >= delay:
                assert waiting_now[0] in batch
        line.add(*requests(key))
    line.clock.advance(delay)
    rest, _ = line.batches()
    served += [request for batch in rest for request in batch]
    assert len(served) == len(set(map(id, served))) == len(arrivals)
