"""Sequences between frontends and instances, with real threads and no sleeping."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest

from shoal.config import normalise, pbtxt
from shoal.core.request import Request, State
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.errors import Cancelled, InvalidArgument, QueueRejected, Unavailable
from shoal.scheduler.base import BatcherClosed
from shoal.scheduler.policy import BatchPolicy, Reason
from shoal.scheduler.sequence import SequenceBatcher
from shoal.scheduler.sequence_policy import DirectPolicy
from shoal.scheduler.sequence_setup import build, read_setup
from tests.support.fakes import WAIT_SECS, FakeClock, make_request

START, END = Request.SEQUENCE_START, Request.SEQUENCE_END
SECOND_NS = 10**9
CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""


class Alarms:
    """Remembers what it was asked; the test decides when time is up."""

    def __init__(self):
        self.times = []

    def at(self, when_ns, callback):
        self.times.append(when_ns)


class World:
    """A batcher with instances that the test plays itself."""

    def __init__(
        self,
        strategy="direct",
        more="",
        max_batch_size=2,
        instances=1,
        decoupled=False,
        **options,
    ):
        block = {
            "direct": "direct { }",
            "oldest": "oldest { max_candidate_sequences: 4 }",
        }.get(strategy, strategy)
        text = (
            f'name: "m" max_batch_size: {max_batch_size} '
            f"sequence_batching {{ {block} {CONTROLS} {more} }} "
            f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}"
        )
        config = pbtxt.parse_pbtxt(text, "config.pbtxt")
        config = normalise.normalise(config, directory_name="m", file="config.pbtxt")
        setup = read_setup(config, None)
        self.clock = FakeClock()
        self.timer = Alarms()
        self.dropped = []
        built = build(config, None, on_dropped=lambda *_: None)
        self.batcher = SequenceBatcher(
            setup,
            built._policy,
            on_dropped=lambda request, error: self.dropped.append((request, error)),
            clock=self.clock,
            timer=self.timer,
            **options,
        )
        self.instances = [Instance(self.batcher) for _ in range(instances)]

    def ask(self, correlation_id, flags=0, value=0, **options):
        shape = options.pop("shape", (1, 1))
        tensor = Tensor.from_array("INPUT", np.full(shape, value, np.int32))
        request, _ = make_request(
            tensor, rows=1, correlation_id=correlation_id, flags=flags, **options
        )
        request.batch_key = shape[1:]
        self.batcher.enqueue(request)
        return request

    def run(self, instance=0):
        """One instance pulls a batch and executes it."""
        batch = self.instances[instance].pull()
        self.finish(batch)
        return batch

    def finish(self, batch):
        """The batch has been executed, and answered but for what is to run again."""
        for request in batch:
            if not request.turn.again:
                request.state = State.DONE
        self.batcher.finished(batch)

    def refused(self, correlation_id, flags=0):
        with pytest.raises(InvalidArgument) as caught:
            self.ask(correlation_id, flags)
        return str(caught.value)


class Instance:
    def __init__(self, batcher):
        self.stopping = False
        self.batcher = batcher
        batcher.attach(self)

    def pull(self):
        return self.batcher.next_batch(self)

    def pull_later(self):
        return Pulling(self)


class Pulling:
    """A thread that waits in next_batch; `result` joins it."""

    def __init__(self, instance):
        self.batch = None
        self._thread = threading.Thread(target=self._run, args=(instance,), daemon=True)
        self._thread.start()

    def _run(self, instance):
        self.batch = instance.pull()

    def result(self):
        self._thread.join(WAIT_SECS)
        assert not self._thread.is_alive()
        return self.batch


def given(batch, name):
    """What a batch tells the model through one of its inputs, a value per slot."""
    return [request.inputs[name].array.item() for request in batch]


# ---- at the door


def test_a_request_needs_an_id():
    assert World().refused(0, START) == (
        "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    )


def test_a_sequence_needs_a_start():
    assert World().refused(7) == (
        "inference request for sequence 7 to model 'm' must specify the START flag on the first "
        "request of the sequence"
    )


def test_a_request_has_one_row():
    world = World()
    request, _ = make_request(rows=2, correlation_id=1, flags=START)
    with pytest.raises(InvalidArgument) as caught:
        world.batcher.enqueue(request)
    assert str(caught.value) == (
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence "
        "batcher"
    )


def test_an_id_must_be_of_the_kind_the_model_is_told():
    assert "data-type is 'BYTES', but model 'm' expects 'UINT64'" in World().refused("x", START)


# ---- direct


def test_each_sequence_keeps_its_slot():
    world = World(max_batch_size=4)
    for number in (11, 12, 13):
        world.ask(number, START, value=number)
    batch = world.run()
    assert given(batch, "CORRID") == [11, 12, 13]
    assert given(batch, "START") == [1, 1, 1]
    world.ask(13, value=5)
    batch = world.run()
    assert given(batch, "READY") == [0, 0, 1]
    assert given(batch, "CORRID") == [0, 0, 13]
    assert given(batch, "START") == [0, 0, 0]
    assert given(batch, "INPUT") == [5, 5, 5]  # fillers look like the others
    assert [request.turn.is_filler for request in batch] == [True, True, False]


def test_a_sequence_runs_one_request_at_a_time():
    world = World()
    first, second = world.ask(1, START), world.ask(1)
    batch = world.instances[0].pull()
    assert batch == [first]
    assert (first.state, second.state) == (State.EXECUTING, State.QUEUED)
    assert world.batcher.pending() == 1
    world.finish(batch)
    assert world.run() == [second]


def test_other_shapes_wait_for_the_next_batch():
    world = World()
    one = world.ask(1, START, shape=(1, 1))
    world.clock.advance(1)
    other = world.ask(2, START, shape=(1, 3))
    first = world.run()
    assert first[0] is one
    assert [request.turn.is_filler for request in first] == [False, True]
    second = world.run()
    assert second[1] is other
    assert second[0].inputs["INPUT"].shape == (1, 3)


def test_a_filler_is_nobodys():
    world = World()
    world.ask(1, START)
    world.ask(2, START)
    world.run()
    world.ask(2)
    filler, _ = world.run()
    filler.reply.send(Response("m", 1))


def test_waiting_for_enough_slots():
    block = "direct { max_queue_delay_microseconds: 1000 minimum_slot_utilization: 1 }"
    world = World(block)
    first = world.ask(1, START)
    pulling = world.instances[0].pull_later()
    second = world.ask(2, START)
    batch = pulling.result()
    assert batch == [first, second]
    assert Counter(reason for reason, _ in world.batcher.recent) == {Reason.SLOTS: 1}
    world.finish(batch)
    late = world.ask(1)
    world.clock.advance(1_000_001)
    assert world.run() == [late]
    assert Counter(reason for reason, _ in world.batcher.recent)[Reason.DELAY] == 1


def test_without_a_batch_dimension_each_instance_has_one_sequence():
    world = World(max_batch_size=0, instances=2)
    first, second, third = (world.ask(n, START | END, shape=(1,)) for n in (1, 2, 3))
    assert world.run(0) == [first]
    assert world.run(1) == [second]
    assert world.run(0) == [third]
    assert third.inputs["START"].shape == (1,)


# ---- oldest


def test_the_longest_waiting_go_first_and_nothing_is_filled_in():
    world = World("oldest")
    first, second, third = (world.ask(number, START) for number in (1, 2, 3))
    assert world.run() == [first, second]
    again = world.ask(1)
    assert world.run() == [third, again]
    assert given([third, again], "READY") == [1, 1]


def test_one_request_of_a_sequence_in_a_batch():
    world = World("oldest")
    first, second, third = world.ask(1, START), world.ask(1), world.ask(2, START)
    assert world.run() == [first, third]
    assert world.run() == [second]


def test_candidates_are_limited():
    world = World("oldest { max_candidate_sequences: 1 }")
    first, waiting = world.ask(1, START), world.ask(2, START)
    assert world.run() == [first]
    last = world.ask(1, END)
    assert world.run() == [last]
    assert world.run() == [waiting]


def test_preferred_sizes_and_delay():
    block = (
        "oldest { max_candidate_sequences: 8 preferred_batch_size: [ 2 ] "
        "max_queue_delay_microseconds: 1000 }"
    )
    world = World(block, max_batch_size=4)
    requests = [world.ask(number, START) for number in (1, 2, 3)]
    assert world.run() == requests[:2]
    pulling = world.instances[0].pull_later()
    fourth = world.ask(4, START)
    batch = pulling.result()
    assert batch == [requests[2], fourth]
    world.finish(batch)
    late = world.ask(4)
    world.clock.advance(1_000_000)
    assert world.run() == [late]
    assert Counter(reason for reason, _ in world.batcher.recent) == {
        Reason.PREFERRED: 2,
        Reason.DELAY: 1,
    }


def test_a_later_request_does_not_prolong_the_delay_of_an_earlier_one():
    world = World("oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 1000 }")
    first = world.ask(1, START)
    world.clock.advance(999_999)
    world.ask(1)
    world.clock.advance(1)
    assert world.run() == [first]


def test_shapes_are_not_mixed():
    world = World("oldest")
    world.ask(1, START, shape=(1, 1))
    world.ask(2, START, shape=(1, 3))
    assert [len(world.run()), len(world.run())] == [1, 1]


def test_answers_in_order():
    """A decoupled model may answer after `execute` has returned."""
    world = World(
        "oldest { max_candidate_sequences: 4 preserve_ordering: true }", preserve_ordering=True
    )
    replies = []
    requests = [world.ask(number, START) for number in (1, 2)]
    for number, request in enumerate(requests):
        request.reply = Recorder(number, replies)
    world.run()
    for number in (1, 0):
        requests[number].reply.send(Response("m", 1))
    assert replies == [0, 1]


class Recorder:
    def __init__(self, number, into):
        self.number = number
        self.into = into

    def send(self, response):
        self.into.append(self.number)


# ---- state


STATE = 'state { input_name: "IN" output_name: "OUT" data_type: TYPE_INT32 dims: [ %s ] }'


def states(batch):
    return [request.inputs["IN"].array.tolist() for request in batch]


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_the_state_of_one_request_is_the_input_of_the_next(strategy):
    world = World(strategy, STATE % 1)
    world.ask(1, START)
    (request,) = world.run()
    assert states([request]) == [[[0]]]
    request.turn.states.keep("OUT", np.array([[5]], np.int32))
    world.ask(1)
    assert states(world.run()) == [[[5]]]
    world.ask(1, START)  # starts again: from the beginning
    assert states(world.run()) == [[[0]]]


def test_a_filler_has_a_state_of_its_own():
    world = World("direct", STATE % 1)
    world.ask(1, START)
    world.ask(2, START)
    for request in world.run():
        request.turn.states.keep("OUT", np.array([[7]], np.int32))
    world.ask(2)
    batch = world.run()
    assert states(batch) == [[[0]], [[7]]]
    assert batch[0].turn.states is None
    world.ask(1)
    assert states(world.run()) == [[[7]]]


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_states_of_different_shapes_do_not_share_a_batch(strategy):
    world = World(strategy, STATE % -1)
    world.ask(1, START)
    (request,) = world.run()
    request.turn.states.keep("OUT", np.ones((1, 3), np.int32))
    world.ask(1)
    world.clock.advance(1)
    world.ask(2, START)  # starts with one element, the other has three
    batches = [world.run(), world.run()]
    runs = [[r.correlation_id for r in batch if not r.turn.is_filler] for batch in batches]
    assert runs == [[1], [2]]
    assert [len(batch) for batch in batches] == ([2, 2] if strategy == "direct" else [1, 1])


def test_starting_again_also_means_the_first_shape_again():
    world = World("oldest", STATE % -1)
    world.ask(1, START)
    (request,) = world.run()
    request.turn.states.keep("OUT", np.ones((1, 3), np.int32))
    world.ask(1, START)
    world.ask(2, START)
    assert states(world.run()) == [[[0]], [[0]]]


# ---- slots and backlog


def test_more_sequences_than_slots():
    world = World()
    seated = [world.ask(number, START) for number in (1, 2)]
    waiting = [world.ask(3, START), world.ask(3, END), world.ask(4, START)]
    assert world.run() == seated
    assert world.batcher.pending() == 3
    last = world.ask(1, END)
    assert world.run() == [last]
    assert world.run() == [waiting[0]]  # the head of the backlog has the slot
    assert world.run() == [waiting[1]]
    assert world.run() == [waiting[2]]


def test_the_slot_is_free_as_soon_as_the_last_request_runs():
    """A client may start the next sequence before the instance has come to rest."""
    world = World()
    world.ask(1, START | END)
    batch = world.instances[0].pull()
    following = world.ask(2, START)
    world.finish(batch)
    assert world.run() == [following]  # in slot 0: no filler before it


def test_an_id_may_be_used_again_while_its_end_waits():
    world = World(max_batch_size=1)
    first = [world.ask(5, START), world.ask(5, END)]
    second = [world.ask(5, START), world.ask(5, END)]
    assert [world.run() for _ in range(4)] == [[request] for request in (*first, *second)]


def test_starting_again_without_an_end(caplog):
    world = World()
    requests = [world.ask(1, START), world.ask(1), world.ask(1, START), world.ask(1, END)]
    assert "sequence 1 of model 'm' starts again without having ended" in caplog.text
    assert [world.run() for _ in range(4)] == [[request] for request in requests]
    assert "must specify the START flag" in world.refused(1)


def test_sequences_spread_over_instances():
    world = World(instances=2)
    requests = [world.ask(number, START) for number in (1, 2, 3, 4)]
    assert world.run(0) == [requests[0], requests[2]]
    assert world.run(1) == [requests[1], requests[3]]


# ---- time


def test_an_idle_sequence_loses_its_slot():
    world = World(more="max_sequence_idle_microseconds: 1000000", max_batch_size=1)
    world.ask(1, START)
    waiting = world.ask(2, START)
    world.run()
    assert world.timer.times == [world.clock() + SECOND_NS]
    world.clock.advance(SECOND_NS - 1)
    world.batcher.expire()
    world.ask(1)  # in the last moment
    world.run()
    world.clock.advance(SECOND_NS)
    world.batcher.expire()
    assert world.run() == [waiting]
    assert "must specify the START flag" in world.refused(1)


def test_nothing_is_left_of_a_sequence_that_was_given_up():
    world = World()
    world.ask(1, START)
    world.run()
    world.clock.advance(SECOND_NS)
    world.batcher.expire()
    asked = len(world.timer.times)
    world.batcher.expire()
    assert len(world.timer.times) == asked  # nobody is waited for any more


def test_a_sequence_that_is_being_served_is_not_idle():
    world = World(more="max_sequence_idle_microseconds: 1000000")
    world.ask(1, START)
    batch = world.instances[0].pull()
    world.clock.advance(10 * SECOND_NS)
    world.batcher.expire()
    following = world.ask(1)
    world.finish(batch)
    world.clock.advance(10 * SECOND_NS)
    world.batcher.expire()
    assert world.run() == [following]


def test_a_sequence_does_not_grow_idle_in_the_backlog():
    world = World(more="max_sequence_idle_microseconds: 1000000", max_batch_size=1)
    world.ask(1, START)
    world.run()
    waiting = world.ask(2, START)
    world.clock.advance(SECOND_NS)
    world.batcher.expire()  # the first is idle now, and its slot goes to the second
    assert world.run() == [waiting]
    following = world.ask(2)
    assert world.run() == [following]


def test_waiting_for_a_slot_may_be_limited():
    world = World(max_batch_size=1)
    world.ask(1, START)
    hasty = [world.ask(2, START, timeout_us=5000), world.ask(2)]
    patient = world.ask(3, START, timeout_us=60_000)
    world.clock.advance(4_999_999)
    world.batcher.expire()
    assert world.dropped == []
    world.clock.advance(1)
    world.batcher.expire()
    assert [request for request, _ in world.dropped] == hasty
    for request, error in world.dropped:
        assert isinstance(error, QueueRejected)
        assert str(error) == "timeout of the corresponding sequence has been expired"
        assert request.state is State.DONE
    assert "must specify the START flag" in world.refused(2)
    assert world.batcher.pending() == 2
    assert patient.state is State.QUEUED


def test_time_is_looked_at_again_as_long_as_somebody_runs_out_of_it():
    world = World(max_batch_size=1)
    world.ask(1, START)
    world.run()
    begin = world.clock()
    for number, timeout_us in ((2, 5000), (3, 9000)):
        world.ask(number, START, timeout_us=timeout_us)
    assert world.timer.times == [begin + SECOND_NS, begin + 5_000_000]
    world.clock.advance(5_000_000)
    world.batcher.expire()  # one is over; the next to wait for is the other
    assert world.timer.times[-1] == begin + 9_000_000
    world.clock.advance(4_000_000)
    world.batcher.expire()  # and then the idle one
    assert world.timer.times[-1] == begin + SECOND_NS


def test_a_timeout_means_nothing_to_a_sequence_that_has_a_slot():
    world = World()
    request = world.ask(1, START, timeout_us=1)
    world.clock.advance(SECOND_NS)
    world.batcher.expire()
    assert world.run() == [request]


# ---- cancelling


def test_cancelling_one_request_ends_its_sequence():
    world = World(max_batch_size=1)
    requests = [world.ask(1, START), world.ask(1), world.ask(1)]
    waiting = world.ask(2, START)
    requests[1].cancel()
    assert [request for request, _ in world.dropped] == requests
    assert {type(error) for _, error in world.dropped} == {Cancelled}
    assert world.run() == [waiting]
    assert "must specify the START flag" in world.refused(1)


def test_cancelling_what_waits_while_an_earlier_one_runs():
    world = World(max_batch_size=1)
    world.ask(1, START)
    batch = world.instances[0].pull()
    world.ask(1).cancel()
    waiting = world.ask(2, START)
    world.finish(batch)
    assert world.run() == [waiting]
    assert len(world.dropped) == 1


def test_cancelling_in_the_backlog():
    world = World(max_batch_size=1)
    world.ask(1, START)
    gone = world.ask(2, START)
    gone.cancel()
    assert [request for request, _ in world.dropped] == [gone]
    assert world.batcher.pending() == 1


def test_a_request_that_runs_is_not_cancelled():
    world = World()
    request = world.ask(1, START)
    batch = world.instances[0].pull()
    request.cancel()
    world.finish(batch)
    following = world.ask(1)
    assert world.run() == [following]
    assert world.dropped == []


def test_cancelling_before_the_queue_counts_too():
    world = World()
    request, _ = make_request(rows=1, correlation_id=1, flags=START)
    request.cancel()
    world.batcher.enqueue(request)
    assert [dropped for dropped, _ in world.dropped] == [request]
    assert world.batcher.pending() == 0


# ---- answers that come after the execution


def test_the_next_request_waits_for_a_late_answer():
    world = World(max_batch_size=1, instances=2)
    late, following, other = world.ask(1, START), world.ask(1), world.ask(2, START)
    world.batcher.finished(world.instances[0].pull())
    assert world.run(1) == [other]
    world.clock.advance(10 * SECOND_NS)
    world.batcher.expire()  # it is not idle
    pulling = world.instances[0].pull_later()
    late.state = State.DONE
    late.turn.on_answer(late)
    assert pulling.result() == [following]


def test_an_answer_may_come_before_the_batch_is_finished():
    world = World()
    early, following = world.ask(1, START), world.ask(1)
    batch = world.instances[0].pull()
    early.state = State.DONE
    early.turn.on_answer(early)
    world.batcher.finished(batch)
    assert world.run() == [following]


def test_the_idle_time_begins_with_the_late_answer():
    world = World()
    late = world.ask(1, START)
    world.batcher.finished(world.instances[0].pull())
    world.clock.advance(10 * SECOND_NS)
    late.state = State.DONE
    late.turn.on_answer(late)
    assert world.timer.times == [world.clock() + SECOND_NS]


def test_the_last_answer_of_a_sequence_may_be_late():
    world = World(max_batch_size=1)
    late = world.ask(1, START | END)
    world.batcher.finished(world.instances[0].pull())
    following = world.ask(2, START)  # nothing of the first is still to come
    assert world.run() == [following]
    late.state = State.DONE
    late.turn.on_answer(late)


def test_closing_serves_what_waits_for_a_late_answer():
    world = World()
    late, following = world.ask(1, START), world.ask(1)
    world.batcher.finished(world.instances[0].pull())
    world.batcher.close()
    pulling = world.instances[0].pull_later()
    late.state = State.DONE
    late.turn.on_answer(late)
    assert pulling.result() == [following]
    world.finish([following])
    assert world.instances[0].pull() == []


def test_a_decoupled_model_goes_on_before_it_has_answered():
    world = World(decoupled=True)
    requests = [world.ask(1, START), world.ask(1)]
    for request in requests:
        batch = world.instances[0].pull()
        assert batch == [request]
        world.batcher.finished(batch)


def test_a_decoupled_model_with_a_state_has_to_answer_first():
    world = World(more=STATE % 1, decoupled=True)
    late, following = world.ask(1, START), world.ask(1)
    world.batcher.finished(world.instances[0].pull())
    late.turn.states.keep("OUT", np.array([[3]], np.int32))
    late.state = State.DONE
    late.turn.on_answer(late)
    assert world.run() == [following]
    assert states([following]) == [[[3]]]


# ---- iterative sequences


def iterative(**options):
    return World(more="iterative_sequence: true", **options)


def repeat(batch):
    for request in batch:
        request.turn.again = True


def test_the_server_makes_up_the_sequence():
    world = iterative(max_batch_size=4)
    requests = [world.ask(0), world.ask(0)]
    batch = world.run()
    assert batch == requests
    assert given(batch, "CORRID") == [1, 2]
    assert given(batch, "START") == [1, 1]


def test_a_request_may_be_given_again():
    world = iterative(max_batch_size=1)
    request = world.ask(0)
    waiting = world.ask(0)
    for start in (1, 0, 0):
        batch = world.instances[0].pull()
        assert batch == [request]
        assert given(batch, "START") == [start]
        repeat(batch)
        world.finish(batch)
    assert world.run() == [request]  # not again this time: the sequence is over
    assert world.run() == [waiting]


def test_a_repeated_request_has_one_place_in_the_order_of_answers():
    world = World(
        "oldest { max_candidate_sequences: 4 preserve_ordering: true }",
        "iterative_sequence: true",
        preserve_ordering=True,
    )
    replies = []
    request = world.ask(0)
    request.reply = Recorder(1, replies)
    batch = world.instances[0].pull()
    repeat(batch)
    world.finish(batch)
    world.run()
    request.reply.send(Response("m", 1))
    assert replies == [1]


def test_a_cancelled_request_is_not_given_again():
    world = iterative()
    request = world.ask(0)
    batch = world.instances[0].pull()
    repeat(batch)
    request.cancel()
    world.finish(batch)
    assert [dropped for dropped, _ in world.dropped] == [request]
    assert world.batcher.pending() == 0


def test_a_repeated_request_comes_before_later_ones():
    world = iterative()
    first, second = world.ask(9, START), world.ask(9)
    batch = world.instances[0].pull()
    repeat(batch)
    world.finish(batch)
    assert world.run() == [first]
    assert world.run() == [second]


def test_made_up_ids_avoid_those_of_clients():
    world = iterative()
    world.ask(1, START)
    world.ask(0)
    assert given(world.run(), "CORRID") == [1, 2]


def test_what_is_repeated_still_runs_when_the_model_is_unloaded():
    world = iterative()
    request = world.ask(0)
    batch = world.instances[0].pull()
    world.batcher.close()
    repeat(batch)
    world.finish(batch)
    assert world.run() == [request]
    assert world.instances[0].pull() == []


# ---- the end


def test_an_exiting_server_lets_sequences_go_on_and_begins_no_other():
    world = World()
    world.ask(1, START)
    world.batcher.refuse_new()
    with pytest.raises(Unavailable, match="Server is stopping, scheduler for model has stopped"):
        world.ask(2, START)
    last = world.ask(1, END)
    assert len(world.run()) == 1
    assert world.run() == [last]


def test_an_exiting_server_serves_what_ends_by_itself():
    world = iterative(max_batch_size=4)
    world.batcher.refuse_new()
    alone = world.ask(0)
    tensor = Tensor.from_array("INPUT", np.zeros((1, 1), np.int32))
    nested, _ = make_request(tensor, rows=1, correlation_id=7, flags=START)
    nested.batch_key = alone.batch_key
    nested.admitted = True  # as in an ensemble, or from a model
    world.batcher.enqueue(nested)
    assert world.run() == [alone, nested]


def test_closing_serves_what_is_queued_in_slots_and_in_the_backlog():
    world = World(max_batch_size=1)
    requests = [world.ask(1, START), world.ask(1), world.ask(2, START), world.ask(3, START)]
    world.batcher.close()
    with pytest.raises(BatcherClosed):
        world.ask(1)
    assert [world.run() for _ in range(4)] == [[request] for request in requests]
    assert world.instances[0].pull() == []


def test_closing_ends_instances_that_have_idle_sequences():
    world = World()
    world.ask(1, START)
    world.run()
    pulling = world.instances[0].pull_later()
    world.batcher.close()
    assert pulling.result() == []


def test_closing_gives_the_slots_of_idle_sequences_to_those_that_wait():
    world = World(max_batch_size=1)
    world.ask(1, START)
    world.run()
    waiting = world.ask(2, START)
    world.batcher.close()
    assert world.run() == [waiting]
    assert world.instances[0].pull() == []


def test_closing_does_not_wait_for_slots_to_fill():
    world = World("direct { max_queue_delay_microseconds: 1000000 minimum_slot_utilization: 1 }")
    request = world.ask(1, START)
    pulling = world.instances[0].pull_later()
    world.batcher.close()
    assert pulling.result() == [request]


def test_an_instance_that_leaves_sees_its_sequences_through():
    world = World(max_batch_size=1, instances=2)
    world.ask(1, START)
    world.run(0)
    leaving = world.instances[0]
    leaving.stopping = True
    world.batcher.wake()
    other, waiting = world.ask(2, START), world.ask(3, START)
    assert world.run(1) == [other]  # nothing new comes to the one that leaves
    last = world.ask(1, END)
    assert world.run(0) == [last]
    assert leaving.pull() == []
    world.ask(2, END)
    world.run(1)
    assert world.run(1) == [waiting]


def test_an_instance_that_leaves_ends_when_its_last_sequence_is_idle():
    world = World(max_batch_size=1, instances=2)
    world.ask(1, START)
    world.run(0)
    world.instances[0].stopping = True
    world.batcher.wake()
    pulling = world.instances[0].pull_later()
    world.clock.advance(2 * SECOND_NS)
    world.batcher.expire()
    assert pulling.result() == []


def test_a_new_instance_takes_what_waits():
    world = World(max_batch_size=1)
    world.ask(1, START)
    waiting = world.ask(2, START)
    world.instances.append(Instance(world.batcher))
    assert world.run(1) == [waiting]


# ---- on the event loop


def test_the_loop_takes_the_batches_of_all_instances():
    world = World(max_batch_size=1, instances=2)
    arrivals = []
    world.batcher.hand_to_loop(lambda: arrivals.append(1))
    first, second = world.ask(1, START), world.ask(2, START)
    assert len(arrivals) == 2
    taken = []
    for _ in range(2):
        batch, _ = world.batcher.take_now()
        world.finish(batch)
        taken += batch
    assert taken == [first, second]
    assert world.batcher.take_now() == ([], None)


def test_the_loop_leaves_a_busy_instance_alone():
    world = World()
    world.ask(1, START)
    batch = world.instances[0].pull()
    arrivals = []
    world.batcher.hand_to_loop(lambda: arrivals.append(1))
    following = world.ask(1)
    assert world.batcher.take_now() == ([], None)
    arrivals.clear()
    world.finish(batch)
    assert arrivals == [1]
    assert world.batcher.take_now()[0] == [following]


def test_an_instance_leaves_what_the_loop_runs_alone():
    world = World()
    world.batcher.hand_to_loop(lambda: None)
    world.ask(1, START)
    batch, _ = world.batcher.take_now()
    world.batcher.hand_to_instances()
    world.ask(2, START)
    instance = batch[0].turn.instance
    assert instance.ready
    with world.batcher._lock:
        assert world.batcher._cut(instance) == ([], None)
    world.finish(batch)
    assert len(world.run()) == 2


def test_the_loop_is_told_when_to_look_again():
    block = "oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 1000 }"
    world = World(block)
    world.batcher.hand_to_loop(lambda: None)
    world.ask(1, START)
    world.clock.advance(400_000)
    assert world.batcher.take_now() == ([], 600_000)


def test_instances_get_the_queue_back():
    world = World()
    world.batcher.hand_to_loop(lambda: None)
    request = world.ask(1, START)
    pulling = world.instances[0].pull_later()
    world.batcher.hand_to_instances()
    assert pulling.result() == [request]
    assert world.batcher.take_now() == ([], None)


# ---- held back, for tests of batching


def test_the_first_batch_may_be_held_back():
    world = World(hold_until=2, hold_backlog_until=1)
    first = world.ask(1, START)
    second = world.ask(2, START)
    pulling = world.instances[0].pull_later()
    world.ask(3, START)  # the backlog has its one now
    assert pulling.result() == [first, second]


# ---- from a config


@pytest.mark.parametrize(
    ("block", "max_batch_size", "policy", "slots"),
    [
        ("", 4, DirectPolicy(4), 4),
        ("direct { }", 0, DirectPolicy(1), 1),
        (
            "direct { max_queue_delay_microseconds: 5 minimum_slot_utilization: 0.5 }",
            4,
            DirectPolicy(4, 5000, 0.5),
            4,
        ),
        ("oldest { }", 4, BatchPolicy(4, frozenset({4})), 4),
        (
            "oldest { max_candidate_sequences: 9 preferred_batch_size: [ 2, 3 ] max_queue_delay_microseconds: 7 }",
            4,
            BatchPolicy(4, frozenset({2, 3}), 7000),
            9,
        ),
        ("oldest { max_candidate_sequences: 9 }", 0, BatchPolicy(1), 9),
    ],
)
def test_what_a_config_says(block, max_batch_size, policy, slots):
    text = f'name: "m" max_batch_size: {max_batch_size} sequence_batching {{ {block} }}'
    config = pbtxt.parse_pbtxt(text, "config.pbtxt")
    config = normalise.normalise(config, directory_name="m", file="config.pbtxt")
    assert build(config, None, on_dropped=lambda *_: None)._policy == policy
    setup = read_setup(config, None)
    assert setup.slots == slots
    assert setup.max_idle_ns == SECOND_NS
    assert setup.keeps_slots is isinstance(policy, DirectPolicy)


# ---- admission control


def test_sequences_that_have_begun_are_not_refused():
    world = World(max_batch_size=1, target_ns=SECOND_NS)
    world.ask(1, START)
    world.ask(2, START)  # there is one slot: it waits
    world.clock.advance(SECOND_NS + 1)
    with pytest.raises(QueueRejected, match="target latency of 1000 ms") as caught:
        world.ask(3, START)
    assert caught.value.retry_secs == 1
    world.ask(1)
    world.ask(2)
    assert world.batcher.admission().refused == 1
    assert world.batcher.admission().expected_ns == SECOND_NS + 1


def test_sequences_begin_again_when_none_has_waited_too_long():
    world = World(max_batch_size=2, target_ns=SECOND_NS)
    world.ask(1, START | END)
    world.clock.advance(SECOND_NS + 1)
    with pytest.raises(QueueRejected):
        world.ask(2, START)
    world.run()
    world.ask(2, START)
    assert world.batcher.admission().expected_ns == 0


def test_without_a_target_no_sequence_is_refused():
    world = World(max_batch_size=1)
    world.ask(1, START)
    world.clock.advance(100 * SECOND_NS)
    world.ask(2, START)
    assert world.batcher.admission() is None
