"""Sequences: ids, lengths and the data they walk through."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from shoal.perf.requests import SequencePosition
from shoal.perf.sequences import RunningSequence, SequencePlan, Sequences


def walk(sequence):
    """All positions and steps of a sequence."""
    made = []
    while not sequence.ended:
        made.append(sequence.next())
    return made


def test_a_sequence_from_start_to_end():
    positions = walk(RunningSequence(7, 0, 2, 3))
    assert positions == [
        (SequencePosition(7, True, False), 0),
        (SequencePosition(7, False, False), 1),
        (SequencePosition(7, False, True), 0),
    ]


def test_a_sequence_of_one_request_is_both():
    assert walk(RunningSequence(7, 0, 1, 1)) == [(SequencePosition(7, True, True), 0)]


def test_a_sequence_can_be_ended_early():
    sequence = RunningSequence(7, 0, 4, 10)
    sequence.next()
    assert sequence.begun
    assert sequence.next(last=True) == (SequencePosition(7, False, True), 1)
    assert sequence.ended
    assert not sequence.begun


@given(st.integers(1, 5), st.integers(1, 50))
def test_workers_never_share_an_id(shares, count):
    plan = SequencePlan(first_id=10)
    workers = [Sequences(plan, [1], share, shares) for share in range(shares)]
    ids = [worker.begin().id for _ in range(count) for worker in workers]
    assert sorted(ids) == list(range(10, 10 + len(ids)))


def test_ids_within_bounds_come_again():
    sequences = Sequences(SequencePlan(first_id=5, id_count=3), [1], 0, 1)
    assert [sequences.begin().id for _ in range(7)] == [5, 6, 7, 5, 6, 7, 5]


@given(st.integers(1, 500), st.floats(0, 100), st.integers(0, 100))
def test_lengths_stay_within_the_variation(length, percent, seed):
    plan = SequencePlan(length=length, variation_percent=percent)
    drawn = plan.random_length(random.Random(seed))
    spread = length * percent / 100
    assert max(1, length - spread - 1) <= drawn <= length + spread + 1


def test_streams_take_turns_and_say_how_long():
    sequences = Sequences(SequencePlan(whole_streams=True), [2, 5], 0, 1)
    lengths = [len(walk(sequences.begin())) for _ in range(4)]
    assert lengths == [2, 5, 2, 5]
